"""The verdict on one launch, with the number that decides and what would help.

An engine's start-up is replayed in its order: does it know the model and the format, do weights
divide, do weights fit, does the profile run fit, what is left for the KV cache, does one request of
``max_model_len`` fit in it, is there room to capture CUDA graphs. Reason codes are in
:data:`REASON_CODES`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.costmodel.compatibility import obstacle
from omnipilot.costmodel.fit_question import (
    FitQuestion,
    LaunchSetup,
    as_held,
    fill_defaults,
    version_asked,
)
from omnipilot.costmodel.kv import KvLayout, kv_layout
from omnipilot.costmodel.memory import (
    GIB,
    activation_bytes,
    graph_budget_bytes,
    graph_bytes,
    non_torch_bytes,
    weights_bytes_per_gpu,
)
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.feasibility import FitVerdict, Verdict
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.catalog.engines import EngineVersion

__all__ = ["REASON_CODES", "FitQuestion", "MemoryPlan", "check_fit", "plan_memory"]

REASON_CODES: Final[dict[str, str]] = {
    "fits": "starts, and one request of max_model_len fits in the KV cache",
    "weights_exceed_memory": "the weights alone exceed the memory that the engine may use",
    "activation_exceeds_memory": "weights and the profile run's activations leave no KV cache",
    "sampler_warmup_oom": "sampling max_num_seqs dummy requests exceeds the part's memory",
    "kv_too_small": "the KV cache is smaller than one request of max_model_len",
    "graph_capture_oom": "what the engine leaves free is smaller than its CUDA graphs",
    "heads_not_divisible": "attention heads do not divide over the tensor-parallel group",
    "kv_heads_not_divisible": "KV heads neither divide over the group nor into it",
    "width_not_divisible": "the MLP or expert width does not divide over the group",
    "layers_not_divisible": "fewer layers than pipeline stages",
    "quant_group_not_divisible": "a split weight holds part of a quantisation group",
    "compute_capability": "the part lacks the units that the format needs in this engine version",
    "dtype_unsupported": "the activation type does not work on the part or for the model",
    "kv_dtype_unsupported": "the cache type does not work on the part or with the weights",
    "engine_too_old": "the engine version does not know the model or the format",
    "known_broken": "a pair reported broken, with its source",
    "mig_tensor_parallel": "MIG slices cannot be combined",
    "gpus_per_node": "more GPUs than a node has",
    "max_model_len_exceeds_model": "longer than the model's positions",
    "not_enough_information": "the question does not say enough to decide",
}

# Smallest share of the part that tp may reach by halving weights before another part is advised.
_FILL_FRAC: Final = 0.95
# Workstation Blackwell, whose peer-to-peer check may hang (hpc-agentic-recipes, rtx-no-nvlink).
_PCIE_BLACKWELL: Final = 12.0
_ASSUMED_GROUP: Final = (2, 4, 8, 16)
_LARGER_PART: Final = "a part with more memory, or more nodes"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one GPU of a launch, in bytes; ``kv_bytes`` may be negative.

    ``sampler_decides`` says that the sampler and not the forward pass sets the activation peak.
    """

    total_bytes: float
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    graph_bytes: float
    graph_budget_bytes: float
    kv_bytes: float
    sampler_decides: bool
    layout: KvLayout

    @property
    def blocks(self) -> int:
        """Blocks of the KV pool."""
        return self.layout.blocks(max(self.kv_bytes, 0.0))


def plan_memory(setup: LaunchSetup) -> MemoryPlan:
    """Divide a GPU's memory as the engine does at start-up."""
    question, era = setup.question, setup.era
    total = question.gpu.memory_gib * GIB
    usable = total * setup.utilization_frac
    weights = weights_bytes_per_gpu(
        question.model, question.precision, question.tensor_parallel, question.pipeline_parallel
    )
    activation, sampler_decides = activation_bytes(setup)
    other = non_torch_bytes(setup)
    graphs, in_budget = graph_bytes(setup), graph_budget_bytes(setup)
    if era.pool == "static":
        kv = min(usable - weights, total - weights - activation - other - graphs)
    elif era.pool == "free":
        usable = total
        kv = setup.utilization_frac * (total - weights - activation - other - graphs)
    else:
        kv = usable - weights - activation - other - in_budget
    layout = kv_layout(
        question.model,
        question.tensor_parallel,
        question.pipeline_parallel,
        setup.kv.bytes_per_element,
        hybrid=era.hybrid_allocator,
    )
    return MemoryPlan(
        total, usable, weights, activation, other, graphs, in_budget, kv, sampler_decides, layout
    )


def check_fit(question: FitQuestion) -> FitVerdict:
    """Judge one launch.

    Args:
        question: what is launched on what.

    Returns:
        The verdict with its arithmetic; "unknown" where the question does not decide it.

    Raises:
        BadInputError: a degree, length, share or count outside its range.
        UnknownNameError: the cache format has no entry.
    """
    _check_ranges(question)
    question = as_held(question)
    version = version_asked(question)
    missing = _missing(question, version)
    if missing:
        return FitVerdict("unknown", "not_enough_information", missing)
    found = obstacle(question, version)
    if found is not None:
        return FitVerdict("unsupported", found.reason_code, found.reason)
    setup = fill_defaults(question, version)
    plan = plan_memory(setup)
    return _Judge(setup, plan).verdict()


def _check_ranges(question: FitQuestion) -> None:
    counts = (
        ("tp", question.tensor_parallel), ("pp", question.pipeline_parallel),
        ("max-model-len", question.max_model_len), ("max-num-seqs", question.max_num_seqs),
        ("max-num-batched-tokens", question.max_num_batched_tokens),
        ("GPUs per node", question.gpus_per_node),
    )  # fmt: skip
    for name, count in counts:
        if count is not None and count < 1:
            raise BadInputError(f"{name} must be at least 1, got {count}")
    share = question.gpu_memory_utilization
    if share is not None and not 0.0 < share <= 1.0:
        raise BadInputError(f"gpu-memory-utilization must be above 0 and at most 1, got {share}")


def _missing(question: FitQuestion, version: EngineVersion) -> str:
    model = question.model
    if not version.known_engine:
        return (
            f"no start-up rules for '{version.engine}', so memory cannot be judged: name vllm, "
            "sglang or trtllm for a serving launch"
        )
    if model.total_params <= 0 or model.n_layers <= 0 or model.n_heads <= 0:
        return f"{model.model_id}: its structure is not known: give its config.json"
    if question.gpu.memory_gib <= 0:
        return f"{question.gpu.kind}: its memory is not known"
    return ""


class _Judge:
    """Reads a plan in the engine's order."""

    def __init__(self, setup: LaunchSetup, plan: MemoryPlan) -> None:
        self.setup, self.plan, self.question = setup, plan, setup.question
        self.place = f"{self._group}x {self.question.gpu.kind}"

    def verdict(self) -> FitVerdict:
        plan, setup = self.plan, self.setup
        if plan.weights_bytes > plan.usable_bytes:
            return self._answer("oom", "weights_exceed_memory", self._weights_reason())
        profile = plan.weights_bytes + plan.activation_bytes + plan.non_torch_bytes
        if profile > plan.total_bytes and plan.sampler_decides:
            return self._answer("oom", "sampler_warmup_oom", self._sampler_reason(profile))
        if plan.blocks < 1:
            return self._answer("oom", "activation_exceeds_memory", self._activation_reason())
        needed = plan.layout.blocks_per_sequence(setup.max_model_len, setup.step_tokens)
        strict = setup.era.refuses_long_context or self.question.max_model_len
        if needed > plan.blocks and strict:
            return self._answer("oom", "kv_too_small", self._kv_reason(needed))
        outside = plan.total_bytes - plan.usable_bytes
        late = plan.graph_bytes - plan.graph_budget_bytes
        if setup.era.pool == "budget" and late > outside:
            return self._answer("oom", "graph_capture_oom", self._graph_reason(late, outside))
        return self._answer("fits", "fits", self._fits_reason())

    def _answer(self, verdict: Verdict, code: str, reason: str) -> FitVerdict:
        plan, setup = self.plan, self.setup
        blocks, length, step = plan.blocks, setup.max_model_len, setup.step_tokens
        needed = plan.layout.blocks_per_sequence(length, step)
        tokens = plan.layout.tokens(blocks, length, step, setup.era.token_report)
        return FitVerdict(
            verdict=verdict,
            reason_code=code,
            reason=reason,
            weights_gib_per_gpu=plan.weights_bytes / GIB,
            activation_gib=plan.activation_bytes / GIB,
            graph_gib=plan.graph_bytes / GIB,
            kv_gib_per_gpu=max(plan.kv_bytes, 0.0) / GIB,
            kv_cache_tokens=tokens,
            max_model_len_possible=self._longest(),
            max_concurrency=blocks / needed if needed else 0.0,
            assumptions=self._assumptions(),
        )

    def _longest(self) -> int:
        """The longest max_model_len that would start, at most the model's own length.

        Where the profile run takes max_model_len tokens, a shorter one also needs less room.
        """
        setup, question = self.setup, self.question
        limit = question.model.max_position or setup.max_model_len
        profiled = not setup.chunked and question.max_num_batched_tokens is None
        if not profiled or setup.max_model_len <= setup.era.batched_tokens:
            return self.plan.layout.longest_tokens(self.plan.blocks, limit, setup.step_tokens)
        low, high = 0, limit + 1
        while high - low > 1:
            middle = (low + high) // 2
            shorter = replace(setup, max_model_len=middle, step_tokens=self._step_tokens(middle))
            plan = plan_memory(shorter)
            needed = plan.layout.blocks_per_sequence(middle, shorter.step_tokens)
            low, high = (middle, high) if needed <= plan.blocks else (low, middle)
        return low

    def _step_tokens(self, length: int) -> int:
        return max(length, self.setup.era.batched_tokens)

    def _assumptions(self) -> tuple[str, ...]:
        setup, question = self.setup, self.question
        out = []
        if not setup.version.stated:
            out.append(f"engine version not given: judged as {setup.version.text}")
        if question.gpu_memory_utilization is None:
            out.append(f"memory share {setup.utilization_frac:g}, the default of that version")
        if question.max_model_len is None:
            out.append(f"max_model_len {setup.max_model_len}, the model's own")
        if question.max_num_seqs is None or question.max_num_batched_tokens is None:
            out.append(
                f"max_num_seqs {setup.max_num_seqs}, {setup.step_tokens} tokens a step in the "
                "profile run"
            )
        if question.speculative:
            out.append("the drafter's own weights and cache are not counted")
        gpu = question.gpu
        if (
            gpu.link.startswith("pcie")
            and gpu.compute_capability >= _PCIE_BLACKWELL
            and question.tensor_parallel > 1
        ):
            out.append("where NCCL hangs at start-up without NVLink, set NCCL_P2P_DISABLE=1")
        return tuple(out)

    def _weights_reason(self) -> str:
        weights, usable = self.plan.weights_bytes / GIB, self.plan.usable_bytes / GIB
        each = "" if self._group == 1 else " a GPU"
        return (
            f"weights {weights:.1f} GiB{each} exceed {usable:.1f} GiB usable on {self.place}: use "
            f"{' or '.join(self._more_room()) or _LARGER_PART}"
        )

    @property
    def _group(self) -> int:
        return self.question.tensor_parallel * self.question.pipeline_parallel

    def _more_room(self) -> list[str]:
        """What would hold the weights: the usual memory share, the least tp, fewer bits."""
        question, plan = self.question, self.plan
        ways = []
        if self._fits_at_usual_share():
            ways.append(f"a memory share of {self.setup.era.memory_utilization_frac:g}")
        room = plan.usable_bytes * _FILL_FRAC - plan.non_torch_bytes
        for degree in _ASSUMED_GROUP:
            held = plan.weights_bytes * question.tensor_parallel / degree < room
            if degree > question.tensor_parallel and held and self._splits(degree):
                ways.append(f"tp {degree}")
                break
        bits = question.precision.bytes_per_param * 8.0
        for name, target in (("an 8-bit format", 8.0), ("a 4-bit format", 4.5)):
            if bits > target * 1.5 and plan.weights_bytes * target / bits < room:
                ways.append(name)
                break
        return ways

    def _fits_at_usual_share(self) -> bool:
        usual = self.setup.era.memory_utilization_frac
        if self.setup.utilization_frac >= usual:
            return False
        return check_fit(replace(self.question, gpu_memory_utilization=usual)).verdict == "fits"

    def _splits(self, degree: int) -> bool:
        wider = replace(self.question, tensor_parallel=degree)
        return obstacle(wider, self.setup.version) is None

    def _sampler_reason(self, profile: float) -> str:
        plan, setup = self.plan, self.setup
        return (
            f"warming up the sampler with {setup.max_num_seqs} dummy requests takes "
            f"{plan.activation_bytes / GIB:.1f} GiB; with weights that is {profile / GIB:.1f} of "
            f"{plan.total_bytes / GIB:.1f} GiB on {self.place}: lower --max-num-seqs"
        )

    def _activation_reason(self) -> str:
        plan, setup = self.plan, self.setup
        used = plan.weights_bytes + plan.activation_bytes + plan.non_torch_bytes
        used += plan.graph_budget_bytes
        lower = "max_num_seqs" if plan.sampler_decides else "max_model_len or batched tokens"
        if not plan.sampler_decides and setup.chunked:
            lower = "max_num_batched_tokens"
        share = "" if self._fits_at_usual_share() else " a higher memory share,"
        return (
            f"no memory left for the KV cache: weights {plan.weights_bytes / GIB:.1f} + "
            f"activations {plan.activation_bytes / GIB:.1f} + other "
            f"{(used - plan.weights_bytes - plan.activation_bytes) / GIB:.1f} GiB exceed "
            f"{plan.usable_bytes / GIB:.1f} GiB usable on {self.place}: use "
            f"{' or '.join(self._more_room()) or _LARGER_PART},{share} or a lower {lower}"
        )

    def _kv_reason(self, needed: int) -> str:
        plan, setup = self.plan, self.setup
        possible = min(self._longest(), setup.max_model_len)
        return (
            f"one request of max_model_len {setup.max_model_len} needs "
            f"{needed * plan.layout.block_bytes / GIB:.2f} GiB of KV cache a GPU, "
            f"{plan.kv_bytes / GIB:.2f} GiB is left on {self.place}: use max_model_len ≤ "
            f"{possible}, a higher memory share, an 8-bit KV cache or more GPUs"
        )

    def _graph_reason(self, late: float, outside: float) -> str:
        share = 1.0 - late / self.plan.total_bytes
        return (
            f"CUDA-graph capture needs about {late / GIB:.2f} GiB outside the engine's share, "
            f"{outside / GIB:.2f} GiB is left at memory share {self.setup.utilization_frac:g} on "
            f"{self.place}: use a share ≤ {int(share * 100) / 100:.2f}, or --enforce-eager"
        )

    def _fits_reason(self) -> str:
        plan, setup = self.plan, self.setup
        tokens = plan.layout.tokens(
            plan.blocks, setup.max_model_len, setup.step_tokens, setup.era.token_report
        )
        return (
            f"weights {plan.weights_bytes / GIB:.1f} GiB of {plan.usable_bytes / GIB:.1f} GiB "
            f"usable on {self.place} leave {plan.kv_bytes / GIB:.1f} GiB a GPU for {tokens:,} "
            "KV-cache tokens"
        )
