"""Bodies of questions, and what they mean to the advisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from omnipilot.advisor import Launch, Question
from omnipilot.domain import ServingRequest, Slo

if TYPE_CHECKING:
    from omnipilot.web.snapshot import Snapshot

__all__ = [
    "AdviseBody",
    "AskBody",
    "FitsBody",
    "PredictBody",
    "ProbeBody",
    "launch_of",
    "question_of",
]

MAX_TOKENS: Final = 100_000_000
MAX_CONCURRENCY: Final = 10_000_000
MAX_GPUS: Final = 1024

# Text without control characters: what is asked comes back in answers, logs and pages.
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Word = Annotated[str, Field(max_length=64, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Gpus = Annotated[int, Field(ge=1, le=MAX_GPUS)]
Usd = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]

ASK_EXAMPLE: Final[dict[str, Any]] = {
    "model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": 200, "context_tokens": 4096,
    "slo_ttft_ms": 1000, "gpus": ["h100-80", "a100-80"],
}  # fmt: skip
PROBE_EXAMPLE: Final[dict[str, Any]] = {**ASK_EXAMPLE, "hours": 24}
FITS_EXAMPLE: Final[dict[str, Any]] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "h100-80", "tensor_parallel": 2,
    "precision": "fp8", "max_model_len": 32768,
}  # fmt: skip
PREDICT_EXAMPLE: Final[dict[str, Any]] = {
    "rows": [
        {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100", "n_gpus": 1, "precision": "bf16",
         "isl": 512, "osl": 128, "concurrency": 8},
    ]
}  # fmt: skip


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AskBody(_Body):
    """A serving request with the operator's wishes for the decision."""

    model: Name = Field(description="Hugging Face id, or another spelling of it.")
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = Field(
        description="Requests in flight at the same time."
    )
    context_tokens: Tokens = Field(description="Longest request: prompt and output.")
    prompt_tokens: Tokens | None = Field(
        None, description="Typical prompt; 3/4 of the context where left out."
    )
    output_tokens: Tokens | None = Field(
        None, description="Typical output; the rest of the context where left out."
    )
    hours: Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)] = Field(
        1.0, description="How long the server is to run."
    )
    slo_ttft_ms: Milliseconds | None = Field(
        None, description="Limit of the median time to first token."
    )
    slo_tpot_ms: Milliseconds | None = Field(
        None, description="Limit of the median time per output token."
    )
    gpus: Annotated[list[Name], Field(max_length=64)] = Field(
        default=[], description="Only these GPU kinds; all of the site where empty."
    )
    precisions: Annotated[list[Name], Field(max_length=32)] = Field(
        default=[], description="Only these precisions; all that the checkpoint allows where empty."
    )
    engine: Name = Field("vllm", description="Serving engine.")
    engine_version: Word = Field("", description="Its version; the newest known where empty.")
    profile: Name | None = Field(
        None, description="Operating point, such as cost-conscious or latency-first."
    )
    weights: Annotated[dict[Name, Weight], Field(max_length=16)] = Field(
        default={}, description="Weight of utility terms, by name."
    )
    value_per_token_usd: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="What one served token is worth."
    )
    electricity_usd_per_kwh: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = (
        Field(None, description="Price of electricity; the site's where left out.")
    )
    wait_cost_usd_per_h: Usd | None = Field(
        None, description="What an hour in the queue costs; the site's where left out."
    )
    slo_penalty_usd_per_h: Usd | None = Field(
        None, description="What an hour of a missed SLO costs; the site's where left out."
    )


class AdviseBody(AskBody):
    """A request, and how much of the answer is wanted."""

    top: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Arms told in full, best first; all where left out."
    )


class ProbeBody(AskBody):
    """A request, and what may be spent on finding out before it is decided."""

    budget_node_h: Annotated[float, Field(gt=0, le=1e4, allow_inf_nan=False)] = Field(
        0.2, description="Node-hours that the probes may take; a node-hour is one of all its GPUs."
    )
    depth: Annotated[int, Field(ge=1, le=3)] = Field(
        3, description="Probes that the gate looks ahead."
    )
    epsilon_usd: Usd = Field(0.05, description="USD that a probe must promise at the least.")


class FitsBody(_Body):
    """One launch; what is left out is the engine's or the model's own default."""

    model: Name = Field(description="Hugging Face id, or another spelling of it.")
    gpu: Name = Field(description="GPU kind in any common spelling.")
    tensor_parallel: Gpus = 1
    pipeline_parallel: Gpus = 1
    precision: Word = Field("", description="Weight format; the checkpoint's own where empty.")
    kv_dtype: Word = Field("auto", description="Format of the KV cache.")
    max_model_len: Tokens | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    max_num_seqs: Tokens | None = None
    max_num_batched_tokens: Tokens | None = None
    enforce_eager: bool = False
    engine: Name = "vllm"
    engine_version: Word = ""
    gpus_per_node: Gpus | None = None


class PredictRow(_Body):
    """One question of the normalised columns."""

    model: Name
    gpu: Name
    n_gpus: Gpus
    precision: Name
    isl: Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)] = Field(
        description="Prompt tokens."
    )
    osl: Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)] = Field(
        description="Output tokens."
    )
    concurrency: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    engine: Word = ""
    engine_version: Word = ""
    kv_dtype: Word = ""
    max_model_len: Tokens | None = None
    gpu_mem_gb: Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)] | None = None


class PredictBody(_Body):
    """Questions to the cost model, one answer each."""

    rows: Annotated[list[PredictRow], Field(min_length=1, max_length=10_000)]


def question_of(body: AskBody, snapshot: Snapshot) -> Question:
    """The question that a body asks of a snapshot.

    Raises:
        BadInputError: lengths that exceed the context.
    """
    prompt, output = ServingRequest.with_lengths(
        body.context_tokens, body.prompt_tokens, body.output_tokens
    )
    request = ServingRequest(
        model_id=body.model,
        concurrency=body.concurrency,
        context_tokens=body.context_tokens,
        prompt_tokens=prompt,
        output_tokens=output,
        duration_h=body.hours,
        slo=Slo(
            ttft_p50_s=None if body.slo_ttft_ms is None else body.slo_ttft_ms / 1e3,
            tpot_p50_s=None if body.slo_tpot_ms is None else body.slo_tpot_ms / 1e3,
        ),
        engine=body.engine,
        engine_version=body.engine_version,
    )
    return Question(
        request=request,
        gpus=tuple(body.gpus),
        precisions=tuple(body.precisions),
        profile=body.profile,
        weights=dict(body.weights),
        value_per_token_usd=body.value_per_token_usd,
        electricity_usd_per_kwh=body.electricity_usd_per_kwh,
        wait_cost_usd_per_h=body.wait_cost_usd_per_h,
        slo_penalty_usd_per_h=body.slo_penalty_usd_per_h,
        live=snapshot.live,
        now_s=snapshot.now_s,
        # A question to sbatch takes tenths of a second: the service plans from the state it has.
        ask_starts=False,
    )


def launch_of(body: FitsBody) -> Launch:
    """The launch that a body describes."""
    fields = body.model_dump(exclude={"model"})
    return Launch(model_id=body.model, **fields)
