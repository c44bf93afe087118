"""Named row sets: the rows that a published comparison is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows of one source and engine on the named GPU kinds and models."""

    source: str
    engine: str
    gpu_kinds: tuple[str, ...]
    models: tuple[str, ...]
    meaning: str

    def mask(self, frame: Frame) -> NDArray[np.bool_]:
        """Which rows belong to the set (n,)."""
        names = [model.split("/")[-1].lower() for model in frame.levels["model"]]
        wanted = {model.lower() for model in self.models}
        model = np.asarray([name in wanted for name in names])[frame.codes["model"]]
        return np.asarray(model & np.isin(frame.category("gpu_kind"), self.gpu_kinds))


# The set of the published prototype and of AIConfigurator's public errors: the kinds and models
# that the source measured broadly. The whole of the source is reported beside it.
ROW_SETS: tuple[RowSet, ...] = (
    RowSet(
        source="llm_inference_bench",
        engine="vllm",
        gpu_kinds=("a100-40", "h100-80", "gh200-96", "mi250-128", "mi300x-192"),
        models=(
            "Llama-2-7b-hf", "Llama-2-7b", "Llama-2-70b-hf", "Llama-2-70b", "Meta-Llama-3-8B",
            "Meta-Llama-3-70B", "Mistral-7B-v0.1", "Mixtral-8x7B-v0.1", "Qwen2-7B", "Qwen2-72B",
        ),
        meaning="A100, H100, GH200, MI250 and MI300X with eight models",
    ),
)  # fmt: skip


def row_set(sources: tuple[str, ...], engine: str) -> RowSet | None:
    """The named set of one source and engine, None where there is none."""
    for entry in ROW_SETS:
        if sources == (entry.source,) and engine == entry.engine:
            return entry
    return None
