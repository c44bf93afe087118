"""Stored runs as what the cost model learns from: runs, workload cells, labels, freshness."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.rows import InferenceRun, LabelledRun
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.store.log import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import Row

__all__ = [
    "FRESHNESS_CUTOFF_WINDOWS", "USABLE_STATUSES", "cell_key", "cell_of", "freshness_weights",
    "is_usable", "label_matrix", "load_runs",
]  # fmt: skip

# Runs whose labels describe the arm. The rows of any other status are failure labels only: their
# surviving requests are the short ones, so throughput and latency look better than they were.
USABLE_STATUSES: Final = ("ok", "ok_some_oom")

FRESHNESS_CUTOFF_WINDOWS: Final = 4.0


def load_runs(source: Store | Iterable[Row | Rejection]) -> list[InferenceRun]:
    """Load the runs of a store, or those that a collector yields; other items are left out.

    A run that was joined with its telemetry and logs comes once, with the labels of its newest
    join that count (weight above zero).

    Raises:
        StateError: the store cannot be read.
        BadInputError: the collector's file cannot be read.
    """
    if isinstance(source, Store):
        bare: dict[str, InferenceRun] = {}
        joined: dict[str, InferenceRun] = {}
        for stored in source.rows():
            if isinstance(stored.row, InferenceRun):
                bare[stored.content_hash] = stored.row
            elif isinstance(stored.row, LabelledRun):
                joined[stored.row.run_hash] = run_of(stored.row)
        return list((bare | joined).values())
    return [item for item in source if isinstance(item, InferenceRun)]


def run_of(joined: LabelledRun) -> InferenceRun:
    """Give a joined run as a bare one with all labels that count."""
    labels = {n: v for n, v in joined.labels.items() if joined.label_weights.get(n, 1.0) > 0.0}
    shared = {f.name: getattr(joined, f.name) for f in fields(InferenceRun)}
    return InferenceRun(**(shared | {"labels": labels, "kind": "inference_run"}))


def is_usable(run: InferenceRun) -> bool:
    """Tell whether a run's labels may be learned from."""
    return run.status in USABLE_STATUSES


def label_matrix(runs: Sequence[InferenceRun]) -> NDArray[np.float64]:
    """Labels in the targets' units.

    Args:
        runs: n runs.

    Returns:
        float64 (n, n_targets) in the order of ``TARGET_NAMES``; NaN where there is no label and in
        the whole row of a run that is not usable.
    """
    nothing: dict[str, float] = {}
    rows = [run.labels if is_usable(run) else nothing for run in runs]
    table = [[labels.get(name, math.nan) for name in TARGET_NAMES] for labels in rows]
    return np.asarray(table, dtype=np.float64).reshape(len(runs), len(TARGET_NAMES))


def cell_key(
    base_id: str,
    prompt_tokens: float,
    output_tokens: float,
    concurrency: float,
    mode: str,
    *,
    workload: str = "",
    source: str = "",
) -> str:
    """Name the workload cell of a run: base model × context × concurrency × prompt lengths.

    Arms are compared, and folds are cut, between whole cells: two arms under one load must get
    one key although each measures its own mean lengths. So lengths count only where they were
    set. A named ``workload`` stands for its lengths. Whole numbers of tokens were set (the
    context is their sum). Fractional or missing lengths are measured means of a length mix: they
    are named by their source and the octave of the mean prompt, and the mean output, which
    differs between arms by sampling, is left out.

    Args:
        base_id: model without its quantisation ("" keys all models alike).
        prompt_tokens: prompt length, 0 where not told.
        output_tokens: output length, 0 where not told.
        concurrency: clients, batch size or batch limit; 0 where not told.
        mode: load mode of :data:`omnipilot.domain.scenario.MODES`.
        workload: name of the request mix, where the source has one.
        source: data set or site.

    Example:
        >>> cell_key("Qwen/Qwen2.5-7B", 1024, 128, 64, "online")
        'Qwen/Qwen2.5-7B|online|in=1024,out=128|c=64'
        >>> cell_key("Qwen/Qwen3-8B", 0, 1187.4, 256, "saturated", workload="gpqa")
        'Qwen/Qwen3-8B|saturated|workload=gpqa|c=256'
    """
    if workload:
        load = f"workload={workload}"
    elif _is_set(prompt_tokens) and _is_set(output_tokens):
        load = f"in={prompt_tokens:.0f},out={output_tokens:.0f}"
    else:
        octave = f"~{2 ** round(math.log2(prompt_tokens))}" if prompt_tokens >= 1 else "?"
        load = f"mix={source or 'unnamed'},in={octave}"
    clients = f"{concurrency:g}" if concurrency > 0 else "?"
    return f"{base_id}|{mode}|{load}|c={clients}"


def cell_of(run: InferenceRun, base_id: str) -> str:
    """Name the workload cell of a stored run; see :func:`cell_key`."""
    return cell_key(
        base_id, run.prompt_tokens, run.output_tokens, run.concurrency, run.mode,
        workload=run.workload, source=run.source,
    )  # fmt: skip


def _is_set(tokens: float) -> bool:
    return tokens >= 1 and float(tokens).is_integer()


def freshness_weights(age_s: NDArray[np.float64], window_s: float) -> NDArray[np.float64]:
    """Weight observations by age: half for each window, nothing beyond four (PAPER, Telemetry).

    Args:
        age_s: ages (n,); a negative age (clocks disagree) counts as 0.
        window_s: freshness window of the metric.

    Returns:
        Weights in [0, 1], float64 (n,).

    Example:
        >>> freshness_weights(np.array([-5.0, 0.0, 60.0, 241.0]), window_s=60.0)
        array([1. , 1. , 0.5, 0. ])
    """
    windows = np.maximum(np.asarray(age_s, dtype=np.float64), 0.0) / window_s
    return np.where(windows > FRESHNESS_CUTOFF_WINDOWS, 0.0, 0.5**windows)
