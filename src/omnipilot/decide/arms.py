"""Candidate arms: GPU kinds × tensor parallel × precisions, before anything is judged to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.domain import Arm, InfeasibleArm, UnknownNameError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from omnipilot.domain import GpuSpec, ModelArch

TENSOR_PARALLEL: Final[tuple[int, ...]] = (1, 2, 4, 8)

# As published first, then by how far a format is from it: the order of arms, and what decides
# between arms of equal utility or equal price.
PRECISION_ORDER: Final[tuple[str, ...]] = (
    "bf16", "fp16", "fp32", "fp8", "fp8-block", "int8", "gptq-int8", "mxfp4", "nvfp4", "gptq",
    "awq", "bnb-nf4",
)  # fmt: skip

SIXTEEN_BIT: Final = "16bit"  # bf16, or fp16 on a part without bf16
_MIN_BF16_CAPABILITY: Final = 8.0  # vLLM: bfloat16 needs compute capability 8.0 (NVIDIA)


@dataclass(frozen=True, slots=True)
class PrecisionOffer:
    """Formats that a checkpoint published in one format is served in.

    ``default`` is enumerated unasked (as far as the hardware has the unit), ``on_request`` only
    where the operator names the format.
    """

    default: tuple[str, ...]
    on_request: tuple[str, ...]
    why: str


_FULL: Final = PrecisionOffer(
    default=(SIXTEEN_BIT, "fp8", "int8", "nvfp4", "gptq", "awq"),
    on_request=("fp32", "fp8-block", "gptq-int8", "mxfp4", "bnb-nf4"),
    why="an unquantised checkpoint can be brought into any format",
)
OFFERS: Final[dict[str, PrecisionOffer]] = {
    "bf16": _FULL,
    "fp16": _FULL,
    "fp32": _FULL,
    "fp8-block": PrecisionOffer(
        ("fp8",), (SIXTEEN_BIT, "nvfp4", "awq", "gptq"),
        "published in fp8: 16 bit doubles the memory and adds no accuracy",
    ),
    "fp8": PrecisionOffer(
        ("fp8",), (SIXTEEN_BIT,),
        "published in fp8: 16 bit doubles the memory and adds no accuracy",
    ),
    "mxfp4": PrecisionOffer(
        ("mxfp4",), (SIXTEEN_BIT,),
        "published in mxfp4: 16 bit quadruples the memory and adds no accuracy",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArmSet:
    """Arms to judge, and those that the checkpoint rules out before any arithmetic."""

    arms: tuple[Arm, ...]
    ruled_out: tuple[InfeasibleArm, ...]


def offer_of(model: ModelArch) -> PrecisionOffer:
    """Formats in which a model can be served; a quantised checkpoint only as it is."""
    native = model.native_precision
    return OFFERS.get(native) or PrecisionOffer(
        (native,), (), f"this checkpoint holds {native} weights"
    )


def sixteen_bit(gpu: GpuSpec) -> str:
    """The 16-bit format that a GPU computes: bf16, or fp16 on parts that lack bf16."""
    if gpu.bf16_flops <= 0:
        return "fp16"
    nvidia = gpu.vendor.lower() == "nvidia"
    return "fp16" if nvidia and gpu.compute_capability < _MIN_BF16_CAPABILITY else "bf16"


# Formats offered unasked only where the part has the unit that makes them worthwhile: nvfp4 on
# fp4 tensor cores, int8 where it is the only 8-bit unit. Asked for, they are judged everywhere.
_NEEDS: Final[dict[str, Callable[[GpuSpec], bool]]] = {
    "nvfp4": lambda gpu: gpu.fp4_flops > 0,
    "int8": lambda gpu: gpu.int8_flops > 0 and gpu.fp8_flops <= 0,
}


def default_precisions(model: ModelArch, gpu: GpuSpec) -> tuple[str, ...]:
    """Formats enumerated for a model on a GPU kind when the operator names none."""
    native = model.native_precision
    return tuple(
        sixteen_bit(gpu) if name == SIXTEEN_BIT else name
        for name in offer_of(model).default
        if name == native or name not in _NEEDS or _NEEDS[name](gpu)
    )


def _possible(offer: PrecisionOffer) -> set[str]:
    names = {*offer.default, *offer.on_request}
    return names | {"bf16", "fp16"} if SIXTEEN_BIT in names else names


def _by_order(precisions: Collection[str]) -> list[str]:
    order = {name: i for i, name in enumerate(PRECISION_ORDER)}
    return sorted(set(precisions), key=lambda name: (order.get(name, len(order)), name))


def enumerate_arms(
    model: ModelArch,
    gpus: Sequence[GpuSpec],
    gpus_per_node: Callable[[str], int],
    *,
    only_gpus: Collection[str] = (),
    only_precisions: Collection[str] = (),
    tensor_parallel: Collection[int] = TENSOR_PARALLEL,
    engine: str = "vllm",
    memory_utilization_frac: float = 0.9,
) -> ArmSet:
    """All single-node arms of a model on a site's GPU kinds.

    Tensor parallel is at most the GPUs of a node and 1 on a MIG slice, which cannot be combined.
    A named precision is judged on every kind, even where it would not be offered unasked; one that
    the checkpoint cannot be served in is ruled out with the reason.

    Args:
        model: the model.
        gpus: the site's GPU kinds.
        gpus_per_node: GPUs of a node by kind.
        only_gpus: kinds to keep; all where empty.
        only_precisions: precisions to judge; the offered ones where empty.
        tensor_parallel: degrees to try.
        engine: serving engine of every arm.
        memory_utilization_frac: share of GPU memory given to the engine.

    Returns:
        Arms in the order of ``gpus``, tensor parallel, precision.

    Raises:
        UnknownNameError: a kind that the site does not have.
    """
    kinds = [gpu.kind for gpu in gpus]
    unknown = sorted(set(only_gpus) - set(kinds))
    if unknown:
        raise UnknownNameError(
            f"this site has no GPU kind '{unknown[0]}': say one of {', '.join(kinds)}"
        )
    offer = offer_of(model)
    possible = _possible(offer)
    arms: list[Arm] = []
    ruled_out: list[InfeasibleArm] = []
    for gpu in gpus:
        if only_gpus and gpu.kind not in only_gpus:
            continue
        named = {model.named(name) for name in only_precisions}
        precisions = _by_order(named or default_precisions(model, gpu))
        limit = 1 if gpu.is_mig else gpus_per_node(gpu.kind)
        for degree in sorted(n for n in set(tensor_parallel) if n <= limit):
            for precision in precisions:
                arm = Arm(gpu.kind, degree, precision, engine, memory_utilization_frac)
                if precision in possible:
                    arms.append(arm)
                else:
                    reason = f"{model.model_id} is not served in {precision}: {offer.why}"
                    ruled_out.append(InfeasibleArm(arm, "precision-not-offered", reason))
    return ArmSet(tuple(arms), tuple(ruled_out))
