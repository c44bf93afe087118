"""NVIDIA's AIConfigurator as a rival in decision backtests, where it is installed.

It is no dependency: its Python is named by the caller or by ``OMNIPILOT_AICONFIGURATOR``, else it
is this one where the package is there. It predicts from kernels that were measured on the GPU
itself, for the GPUs, engines, models and formats that it has tables of; every other arm counts as
refused. Its throughput becomes a choice by the same utility as ours, and is judged on the
decisions among the arms that it answers.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from omnipilot.collect.command import run_command
from omnipilot.domain.errors import OmniPilotError, ToolError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import AGGREGATE, arm_key
from omnipilot.evaluate.decisions import best_of, certain_utility_usd_per_h

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.catalog import Catalog
    from omnipilot.domain.arm import Arm
    from omnipilot.domain.model import ModelArch
    from omnipilot.evaluate.decision_cells import ArmKey, DecisionCell
    from omnipilot.evaluate.decisions import OperatingPoint
    from omnipilot.learn.dataset import Dataset

    FloatArray = NDArray[np.float64]

__all__ = ["NAME", "VARIABLE", "PeerAnswers", "ask_aiconfigurator", "find_python"]

NAME: Final = "aiconfigurator"
VARIABLE: Final = "OMNIPILOT_AICONFIGURATOR"
_WORKER: Final = Path(__file__).with_name("aiconfigurator_worker.py")
_TIMEOUT_S: Final = 3600.0
# Its names of GPU kinds (aiconfigurator 0.12.0, systems/*.yaml). Its tables of the A100 are of the
# 80 GB board; that of 40 GB has the same chip with three quarters of the bandwidth.
_SYSTEMS: Final = {
    "a100-40": "a100_sxm", "a100-80": "a100_sxm", "b200-180": "b200_sxm", "b300-288": "b300_sxm",
    "gb200-186": "gb200", "gb300-288": "gb300", "h100-80": "h100_sxm", "h200-141": "h200_sxm",
    "l40s-48": "l40s",
}  # fmt: skip
_BACKENDS: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
# Formats of weights as it names those of dense layers and of experts (sdk/common.py).
_FORMATS: Final = {
    "bf16": ("bfloat16", "bfloat16"), "fp16": ("bfloat16", "bfloat16"), "fp8": ("fp8", "fp8"),
    "fp8-block": ("fp8_block", "fp8_block"), "nvfp4": ("nvfp4", "nvfp4"),
    "awq": ("int4_wo", "int4_wo"), "gptq": ("int4_wo", "int4_wo"),
}  # fmt: skip
# Checkpoints whose config it brings along: ours by the name that it has for it.
_ITS_NAMES: Final = {
    name.rpartition("/")[2].lower().removeprefix("meta-"): name
    for name in (
        "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B",
        "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3",
        "meta-llama/Meta-Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-70B",
        "meta-llama/Meta-Llama-3.1-8B", "mistralai/Mixtral-8x22B-v0.1",
        "mistralai/Mixtral-8x7B-v0.1", "moonshotai/Kimi-K2.5", "openai/gpt-oss-120b",
        "openai/gpt-oss-20b",
    )
}  # fmt: skip
# Dense families that its model of Llama covers, given their config.
_LIKE_LLAMA: Final = {
    "llama": "LlamaForCausalLM", "mistral": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip


def find_python(named: str = "") -> str:
    """Give a Python that has it: the one named, else this one; "" where there is none.

    Raises:
        UsageError: the one named is no program.
    """
    named = named or os.environ.get(VARIABLE, "")
    if named:
        if shutil.which(named) is None:
            raise UsageError(f"no program {named}: name the Python that has aiconfigurator")
        return named
    return sys.executable if importlib.util.find_spec("aiconfigurator") is not None else ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """One arm of a cell: tokens per second and seconds; NaN where it was refused."""

    tokens_per_s: float = np.nan
    ttft_p50_s: float = np.nan
    tpot_p50_s: float = np.nan


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """What it says of every arm, by cell and arm; and why it refused the others, counted."""

    version: str
    by_cell: Mapping[str, Mapping[ArmKey, _Answer]]
    reasons: Counter[str] = field(default_factory=Counter)

    def answered(self, cells: Sequence[DecisionCell]) -> list[DecisionCell]:
        """Decisions among the arms that it answers, where it leaves two or more."""
        kept = []
        for cell in cells:
            known = self.by_cell.get(cell.name, {})
            arms = [
                i for i, arm in enumerate(cell.arms)
                if np.isfinite(known.get(arm_key(arm), _Answer()).tokens_per_s)
            ]  # fmt: skip
            if len(arms) > 1:
                kept.append(cell.take(arms))
        return kept

    def pick(self, cell: DecisionCell, point: OperatingPoint) -> int:
        """Index of the arm that the utility takes on its predictions."""
        known = [self.by_cell[cell.name][arm_key(arm)] for arm in cell.arms]
        latency = {
            name: np.array([getattr(answer, name) for answer in known])
            for name in ("ttft_p50_s", "tpot_p50_s")
        }
        tokens_per_s = np.array([answer.tokens_per_s for answer in known])
        return best_of(cell, certain_utility_usd_per_h(cell, tokens_per_s, point, latency))

    def refused_frac(self, cells: Sequence[DecisionCell]) -> float:
        """Share of the arms of these cells that it does not answer."""
        arms = sum(len(cell.arms) for cell in cells)
        known = sum(
            np.isfinite(self.by_cell.get(cell.name, {}).get(arm_key(arm), _Answer()).tokens_per_s)
            for cell in cells for arm in cell.arms
        )  # fmt: skip
        return 1.0 - float(known) / arms if arms else 0.0

    def error_frac(self, cells: Sequence[DecisionCell]) -> float:
        """Median of |predicted / measured − 1| over the arms that it answers; NaN without any."""
        errors = [
            abs(self.by_cell[cell.name][arm_key(arm)].tokens_per_s / measured - 1.0)
            for cell in cells for arm, measured in zip(cell.arms, cell.measured, strict=True)
            if np.isfinite(self.by_cell[cell.name][arm_key(arm)].tokens_per_s)
        ]  # fmt: skip
        return float(np.median(errors)) if errors else np.nan


class _Said(msgspec.Struct):
    """One answer of the worker: figures, or why there are none."""

    refused: str = ""
    request_per_s: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0


class _Document(msgspec.Struct):
    """All that the worker prints."""

    version: str
    answers: list[_Said]


def ask_aiconfigurator(
    python: str, cells: Sequence[DecisionCell], dataset: Dataset, catalog: Catalog
) -> PeerAnswers:
    """Ask about every arm of the cells, in one process of that Python.

    Args:
        python: a Python that has AIConfigurator.
        cells: the decisions.
        dataset: the rows behind them; they tell whether a cell counts all tokens or those put out.
        catalog: structures of the models.

    Raises:
        ToolError: that Python is none, or lacks it, or what it prints is no answer.
    """
    asked: list[tuple[DecisionCell, Arm, dict[str, Any]]] = []
    reasons: Counter[str] = Counter()
    for cell in cells:
        for arm in cell.arms:
            question = _question(cell, arm, catalog)
            if isinstance(question, str):
                reasons[question] += 1
            else:
                asked.append((cell, arm, question))
    said = _run(python, [question for _, _, question in asked])
    by_cell: dict[str, dict[ArmKey, _Answer]] = {cell.name: {} for cell in cells}
    for (cell, arm, question), answer in zip(asked, said.answers, strict=True):
        if answer.refused:
            reasons[_kind_of(answer.refused)] += 1
            continue
        tokens = question["output_tokens"] + (
            question["prompt_tokens"] if _counts_prompts(cell, dataset) else 0
        )
        by_cell[cell.name][arm_key(arm)] = _Answer(
            answer.request_per_s * tokens, answer.ttft_s, answer.tpot_s
        )
    return PeerAnswers(
        said.version,
        {
            cell.name: {
                arm_key(a): by_cell[cell.name].get(arm_key(a), _Answer()) for a in cell.arms
            }
            for cell in cells
        },
        reasons,
    )


def _run(python: str, questions: list[dict[str, Any]]) -> _Document:
    done = run_command(
        (python, str(_WORKER)), stdin=msgspec.json.encode(questions), timeout_s=_TIMEOUT_S
    )
    try:
        said = msgspec.json.decode(done.stdout, type=_Document)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ToolError(f"{python} gave no answers of AIConfigurator: {error}") from error
    if len(said.answers) != len(questions):
        raise ToolError(f"{python} answered {len(said.answers)} of {len(questions)} questions")
    return said


def _question(cell: DecisionCell, arm: Arm, catalog: Catalog) -> dict[str, Any] | str:
    """What to ask about one arm, or why it cannot be asked."""
    try:
        model = catalog.model(cell.model)
    except OmniPilotError:
        return "model unknown"
    its_name = _ITS_NAMES.get(_short(model.model_id)) or _ITS_NAMES.get(_short(model.base_id))
    config = None if its_name else _config(model)
    if arm.gpu_kind not in _SYSTEMS or arm.engine not in _BACKENDS:
        return f"no tables of {arm.gpu_kind if arm.gpu_kind not in _SYSTEMS else arm.engine}"
    if not its_name and config is None:
        return "model not covered"
    is_native = bool(its_name) and model.native_precision.startswith(arm.precision)
    if not is_native and arm.precision not in _FORMATS:
        return f"format {arm.precision} not covered"
    gemm, moe = ("", "") if is_native else _FORMATS[arm.precision]
    concurrency, prompt, output = (round(float(v)) for v in np.exp(cell.likeness[2:]))
    return {
        "model": its_name or model.model_id, "config": config, "is_moe": model.is_moe,
        "system": _SYSTEMS[arm.gpu_kind], "backend": _BACKENDS[arm.engine],
        "tensor_parallel": arm.tensor_parallel, "gemm": gemm, "moe": moe if model.is_moe else "",
        "concurrency": max(concurrency, 1), "prompt_tokens": prompt, "output_tokens": output,
    }  # fmt: skip


def _short(name: str) -> str:
    """A model's name without owner and without what tells variants of one structure apart."""
    short = name.rpartition("/")[2].lower().removeprefix("meta-")
    return short.removesuffix("-instruct").removesuffix("-hf")


def _config(model: ModelArch) -> dict[str, Any] | None:
    """A config that its model of Llama reads; None where the structure is another one."""
    architecture = _LIKE_LLAMA.get(model.family)
    whole = model.n_full_attention_layers + model.n_sliding_layers == model.n_layers
    if architecture is None or model.is_moe or model.is_mla or not whole:
        return None
    return {
        "architectures": [architecture], "model_type": model.family,
        "hidden_size": model.hidden_size, "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.n_layers, "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_kv_heads, "head_dim": model.head_dim,
        "vocab_size": model.vocab_size, "max_position_embeddings": model.max_position,
        "torch_dtype": model.torch_dtype,
    }  # fmt: skip


def _counts_prompts(cell: DecisionCell, dataset: Dataset) -> bool:
    """Whether the cell's throughput is of prompts and answers: as its rows measured it."""
    rows = [i for arm in cell.rows for i in arm]
    return bool(np.isfinite(dataset.data.labels[AGGREGATE][rows]).all())


def _kind_of(refusal: str) -> str:
    """What a refusal is counted under: without what it quotes of the question."""
    if "OOM" in refusal:
        return "does not fit by its arithmetic"
    return refusal.partition(":")[0] if ":" in refusal else refusal
