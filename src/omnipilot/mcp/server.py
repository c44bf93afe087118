"""The tools, in one server over standard input and output."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

# Read by the server from the tools' signatures while the program runs.
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

from omnipilot import __version__
from omnipilot.advisor import Launch
from omnipilot.domain import OmniPilotError
from omnipilot.mcp.answers import (
    AdviceAnswer,
    ClusterAnswer,
    ExplainAnswer,
    FitAnswer,
    LaunchAnswer,
    ProbeAnswer,
    ScriptAnswer,
    advice_answer,
    cluster_answer,
    explain_answer,
    fit_answer,
    probe_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omnipilot.advisor.launching import PreparedLaunch
    from omnipilot.mcp.site import Site

__all__ = ["make_server"]

INSTRUCTIONS: Final = (
    "Ask before you submit an LLM server to the cluster. `advise` ranks GPU kind, tensor parallel "
    "and precision for a model and a load, with 80 % intervals; where recommended is false the "
    "model does not know: read violations, take the fallback or run the probe first. `fits` says "
    "whether one configuration starts. Numbers with measured=false come from a physics formula "
    "alone. Nothing is written or submitted unless a tool `launch` is listed."
)

Function = TypeVar("Function", bound="Callable[..., Any]")
Model = Annotated[str, Field(description="Hugging Face id.", min_length=1, max_length=200)]
Concurrency = Annotated[int, Field(description="Requests in flight at once.", ge=1, le=10_000_000)]
Context = Annotated[int, Field(description="Longest request in tokens.", ge=1, le=100_000_000)]
Length = Annotated[int | None, Field(description="Typical length in tokens.", ge=1, le=100_000_000)]
Hours = Annotated[float, Field(description="How long the server is to run.", gt=0, le=1e5)]
Limit = Annotated[float | None, Field(description="Limit of the median, in ms.", gt=0, le=1e9)]
Kinds = Annotated[list[str] | None, Field(description="Only these GPU kinds.", max_length=64)]
Formats = Annotated[list[str] | None, Field(description="Only these precisions.", max_length=32)]
Profile = Annotated[str | None, Field(description="Operating point, such as latency-first.")]
Value = Annotated[float | None, Field(description="USD that a token is worth.", ge=0, le=1)]
Top = Annotated[int, Field(description="Arms to tell in full.", ge=1, le=200)]
ArmText = Annotated[str, Field(description="GPU:TP:PRECISION; the best arm if empty.")]
Degree = Annotated[int, Field(ge=1, le=1024)]

_READS: Final = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_SUBMITS: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)


def make_server(site: Site, *, allow_launch: bool = False) -> MCPServer:
    """Build the server; without ``allow_launch`` no tool can write or submit."""
    tools: list[Tool] = []
    _add_advice(tools, site)
    _add_checks(tools, site)
    _add_script(tools, site)
    if allow_launch:
        _add_launch(tools, site)
    return MCPServer("omnipilot", instructions=INSTRUCTIONS, version=__version__, tools=tools)


def _offer(tools: list[Tool], annotations: ToolAnnotations) -> Callable[[Function], Function]:
    """Make a function a tool; an argument that it does not know is refused, not passed over."""

    def add(function: Function) -> Function:
        tool = Tool.from_function(function, annotations=annotations)
        known = tool.fn_metadata.arg_model
        known.model_config["extra"] = "forbid"
        known.model_rebuild(force=True)
        tool.parameters = known.model_json_schema(by_alias=True)
        tools.append(tool)
        return function

    return add


def _add_advice(tools: list[Tool], site: Site) -> None:
    @_offer(tools, _READS)
    def advise(
        model: Model, concurrency: Concurrency, context_tokens: Context, *,
        prompt_tokens: Length = None, output_tokens: Length = None, hours: Hours = 1.0,
        slo_ttft_ms: Limit = None, slo_tpot_ms: Limit = None, gpus: Kinds = None,
        precisions: Formats = None, profile: Profile = None, value_per_token_usd: Value = None,
        top: Top = 5,
    ) -> AdviceAnswer:  # fmt: skip
        """Rank GPU kind, tensor parallel and precision for a model and a load."""
        with _told():
            question = site.question(
                model, concurrency, context_tokens, prompt_tokens=prompt_tokens,
                output_tokens=output_tokens, hours=hours, slo_ttft_ms=slo_ttft_ms,
                slo_tpot_ms=slo_tpot_ms, gpus=gpus or (), precisions=precisions or (),
                profile=profile, value_per_token_usd=value_per_token_usd,
            )  # fmt: skip
            return advice_answer(site.advisor.advise(question), top)

    @_offer(tools, _READS)
    def explain(
        model: Model, concurrency: Concurrency, context_tokens: Context, *,
        prompt_tokens: Length = None, output_tokens: Length = None, hours: Hours = 1.0,
        slo_ttft_ms: Limit = None, slo_tpot_ms: Limit = None, gpus: Kinds = None,
        precisions: Formats = None, profile: Profile = None, value_per_token_usd: Value = None,
        top: Top = 3,
    ) -> ExplainAnswer:  # fmt: skip
        """Say why the advice is what it is: terms, evidence, and what would change it."""
        with _told():
            question = site.question(
                model, concurrency, context_tokens, prompt_tokens=prompt_tokens,
                output_tokens=output_tokens, hours=hours, slo_ttft_ms=slo_ttft_ms,
                slo_tpot_ms=slo_tpot_ms, gpus=gpus or (), precisions=precisions or (),
                profile=profile, value_per_token_usd=value_per_token_usd,
            )  # fmt: skip
            return explain_answer(site.advisor.explain(question), top)

    @_offer(tools, _READS)
    def probe(
        model: Model, concurrency: Concurrency, context_tokens: Context, hours: Hours = 1.0,
        gpus: Kinds = None, precisions: Formats = None,
    ) -> ProbeAnswer:  # fmt: skip
        """Say whether a short measurement should come first, and which; nothing is run."""
        with _told():
            question = site.question(
                model, concurrency, context_tokens, hours=hours, gpus=gpus or (),
                precisions=precisions or (),
            )  # fmt: skip
            return probe_answer(site.advisor, question)


def _add_checks(tools: list[Tool], site: Site) -> None:
    @_offer(tools, _READS)
    def fits(
        model: Model, gpu: Annotated[str, Field(description="GPU kind, in any spelling.")],
        tensor_parallel: Degree = 1, precision: str = "", max_model_len: Length = None,
        gpu_memory_utilization: Annotated[float | None, Field(gt=0, le=1)] = None,
        kv_dtype: str = "auto", engine_version: str = "",
    ) -> FitAnswer:  # fmt: skip
        """Say whether one configuration starts, and which number decides."""
        launch = Launch(
            model_id=model, gpu=gpu, tensor_parallel=tensor_parallel, precision=precision,
            max_model_len=max_model_len, gpu_memory_utilization=gpu_memory_utilization,
            kv_dtype=kv_dtype, engine_version=engine_version,
        )  # fmt: skip
        with _told():
            return fit_answer(site.advisor.fits(launch))

    @_offer(tools, _READS)
    def cluster() -> ClusterAnswer:
        """Tell the cluster as it is now: free GPUs, who waits, nodes that are kept out."""
        with _told():
            return cluster_answer(site.cluster())


def _add_script(tools: list[Tool], site: Site) -> None:
    @_offer(tools, _READS)
    def script(
        model: Model, concurrency: Concurrency, context_tokens: Context, arm: ArmText = "",
        hours: Hours = 1.0, checkpoint: str = "", image: str = "", bench: bool = False,
    ) -> ScriptAnswer:  # fmt: skip
        """Write the job script of an arm; nothing is stored or submitted."""
        with _told():
            prepared = _prepared(
                site, model, concurrency, context_tokens, arm=arm, hours=hours,
                checkpoint=checkpoint, image=image, bench=bench,
            )  # fmt: skip
            return ScriptAnswer(
                arm=prepared.spec.arm.key, script=prepared.script, notes=list(prepared.notes)
            )


def _add_launch(tools: list[Tool], site: Site) -> None:
    @_offer(tools, _SUBMITS)
    def launch(
        model: Model, concurrency: Concurrency, context_tokens: Context, arm: ArmText = "",
        hours: Hours = 1.0, checkpoint: str = "", image: str = "", bench: bool = False,
    ) -> LaunchAnswer:  # fmt: skip
        """Submit the job of an arm to Slurm; it takes GPUs."""
        from omnipilot.advisor.launching import save_launch  # noqa: PLC0415 - only if allowed
        from omnipilot.launch.slurm import submit  # noqa: PLC0415 - same

        with _told():
            prepared = _prepared(
                site, model, concurrency, context_tokens, arm=arm, hours=hours,
                checkpoint=checkpoint, image=image, bench=bench,
            )  # fmt: skip
            job_id = submit(save_launch(prepared))
            return LaunchAnswer(
                job_id=job_id, run_id=prepared.spec.run_id, arm=prepared.spec.arm.key,
                notes=list(prepared.notes),
            )  # fmt: skip


@contextmanager
def _told() -> Iterator[None]:
    """Tell an expected error to the agent in its own words; a bug is not told."""
    try:
        yield
    except OmniPilotError as error:
        raise ToolError(str(error)) from error


def _prepared(
    site: Site,
    model: str,
    concurrency: int,
    context_tokens: int,
    *,
    arm: str,
    hours: float,
    checkpoint: str,
    image: str,
    bench: bool,
) -> PreparedLaunch:
    from omnipilot.advisor.launching import LaunchOrder, prepare_launch  # noqa: PLC0415 - seldom
    from omnipilot.launch.spec import Software  # noqa: PLC0415 - same

    question = site.question(model, concurrency, context_tokens, hours=hours)
    order = LaunchOrder(
        question=question, arm=arm, checkpoint=checkpoint, bench=bench,
        software=Software(image=image), ask_slurm=site.live,
    )  # fmt: skip
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(site.clock()))
    return prepare_launch(site.advisor, order, f"{when}-{secrets.token_hex(3)}")
