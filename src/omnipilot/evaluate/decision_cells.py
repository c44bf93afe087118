"""Workload cells as decisions: the measured arms of one cell, and what was predicted of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.novelty import NOVELTY
from omnipilot.domain.arm import Arm
from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.holdout import CLASS_OF_SPLIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.evaluate.holdout import HeldOut, Holdout
    from omnipilot.learn.dataset import Dataset

    FloatArray = NDArray[np.float64]

AGGREGATE: Final = "aggregate_tokens_per_s"
OUTPUT: Final = "output_tokens_per_s"
LATENCIES: Final = ("ttft_p50_s", "tpot_p50_s")
# What makes two cells alike, for the nearest-neighbour baseline: logarithms of these columns.
_LIKENESS: Final = ("params", "active", "concurrency", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Out-of-fold answers of one target, one a row of the dataset; NaN where not tested.

    ``log`` are log q10, q50, q90, lower, upper (n, 5); ``prior`` the log of the prior alone (n,).
    """

    target: str
    log: FloatArray
    prior: FloatArray

    @classmethod
    def of(cls, held: HeldOut, target: str, n_rows: int) -> Forecast:
        """Put held-out answers back on their rows."""
        log, prior = np.full((n_rows, 5), np.nan), np.full(n_rows, np.nan)
        log[held.index], prior[held.index] = held.log, held.prior
        return cls(target, log, prior)

    @classmethod
    def of_points(cls, target: str, log: FloatArray) -> Forecast:
        """Point predictions (n,) as answers without a width."""
        return cls(target, np.repeat(log[:, None], 5, axis=1), log)


ArmKey = tuple[str, int, str]


def arm_key(arm: Arm) -> ArmKey:
    """What tells arms of one engine apart."""
    return arm.gpu_kind, arm.tensor_parallel, arm.precision


@dataclass(frozen=True, slots=True)
class DecisionCell:
    """One workload cell of one source and engine, with its measured arms.

    ``group`` is what the split leaves out together (the cell, the model, …); ``likeness`` (5,) are
    the logs that tell how near another cell is. Arrays have one entry an arm: ``measured`` tokens
    per second, ``predicted`` its q10, q50, q90, lower, upper (n_arms, 5), ``prior`` of the physics
    prior, ``bits`` of a weight, ``bandwidth`` of one GPU in bytes/s. ``latency`` maps TTFT and
    TPOT to measured seconds (n_arms,) where every arm has them, ``latency_predicted`` to (n_arms,
    5). ``rows`` are the rows of the dataset behind each arm.
    """

    name: str
    group: str
    model: str
    family: str
    params: float
    arms: tuple[Arm, ...]
    price_usd_per_gpu_h: FloatArray
    measured: FloatArray
    predicted: FloatArray
    prior: FloatArray
    bits: FloatArray
    bandwidth: FloatArray
    likeness: FloatArray
    latency: Mapping[str, FloatArray]
    latency_predicted: Mapping[str, FloatArray]
    rows: tuple[tuple[int, ...], ...]

    @property
    def n_gpus(self) -> FloatArray:
        """GPUs of each arm (n_arms,)."""
        return np.array([float(arm.tensor_parallel) for arm in self.arms])

    def by_arm(self, values: FloatArray) -> dict[ArmKey, float]:
        """One value an arm (n_arms,) as a mapping."""
        return {arm_key(arm): float(v) for arm, v in zip(self.arms, values, strict=True)}

    def take(self, keep: Sequence[int]) -> DecisionCell:
        """Restrict the cell to some of its arms."""
        index = np.asarray(keep, dtype=np.int64)
        return replace(
            self,
            arms=tuple(self.arms[i] for i in keep),
            price_usd_per_gpu_h=self.price_usd_per_gpu_h[index],
            measured=self.measured[index],
            predicted=self.predicted[index],
            prior=self.prior[index],
            bits=self.bits[index],
            bandwidth=self.bandwidth[index],
            latency={k: v[index] for k, v in self.latency.items()},
            latency_predicted={k: v[index] for k, v in self.latency_predicted.items()},
            rows=tuple(self.rows[i] for i in keep),
        )


@dataclass(frozen=True, slots=True)
class CellTable:
    """All cells of a question; ``unpriced`` rows were left out because their kind has no price."""

    cells: tuple[DecisionCell, ...]
    unpriced: int


def throughput_targets(dataset: Dataset, question: Holdout) -> tuple[str, ...]:
    """Throughputs that the tested rows measured, the one with most labels first.

    Aggregate tokens per second, as the utility counts them, come before output tokens where as
    many rows have them. The two share one learned residual, so either gives the other's answers.

    Raises:
        UsageError: a source, engine or vendor that no row has, or no labelled row at all.
    """
    counts: dict[str, int] = {}
    refusal: UsageError | None = None
    for target in (AGGREGATE, OUTPUT):
        try:
            counts[target] = int(replace(question, target=target).mask(dataset.data).sum())
        except UsageError as error:
            refusal = error
    if refusal is not None and not counts:
        raise refusal
    return tuple(sorted(counts, key=lambda target: -counts[target]))


def build_cells(
    dataset: Dataset,
    split: str,
    throughput: Forecast,
    prices: Mapping[str, float],
    latencies: Sequence[Forecast] = (),
) -> CellTable:
    """Group the answered rows into decisions.

    A decision is a workload cell (base model, load mode, prompt and output lengths, concurrency)
    of one source and engine; its arms are the GPU kinds, GPU counts and precisions measured there.
    Repeats of one arm are averaged. Throughput is the aggregate one where every row of the cell
    has it, else that of output tokens.

    Args:
        dataset: the rows.
        split: what was held out together.
        throughput: answers on aggregate or output tokens per second.
        prices: USD per GPU and hour by kind; arms of other kinds are left out and counted.
        latencies: answers on TTFT and TPOT, where limits are to be judged.
    """
    frame = dataset.data.frame
    kinds, precisions = frame.category("gpu_kind"), frame.category("precision")
    sources, engines = frame.category("source"), frame.category("engine")
    tested = np.isfinite(throughput.log[:, 1])
    priced = np.array([kind in prices for kind in frame.levels["gpu_kind"]])[
        frame.codes["gpu_kind"]
    ]
    groups: dict[tuple[str, str, str], dict[tuple[str, int, str], list[int]]] = {}
    for i in np.flatnonzero(tested & priced).tolist():
        cell = groups.setdefault((dataset.data.cells[i], sources[i], engines[i]), {})
        arm = (str(kinds[i]), int(frame["n_gpus"][i]), str(precisions[i]))
        cell.setdefault(arm, []).append(i)
    novelty = next(n for n in NOVELTY if n.name == CLASS_OF_SPLIT[split])
    held_together = dataset.data.groups(novelty)
    build = _Builder(dataset, held_together, throughput, latencies, prices)
    cells = [build.cell(*key, arms) for key, arms in groups.items()]
    return CellTable(tuple(cells), int(np.count_nonzero(tested & ~priced)))


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes cells of rows; the first row of a cell tells what all its rows share."""

    dataset: Dataset
    held_together: NDArray[np.str_]
    throughput: Forecast
    latencies: Sequence[Forecast]
    prices: Mapping[str, float]

    def cell(
        self, name: str, source: str, engine: str, arms: Mapping[tuple[str, int, str], list[int]]
    ) -> DecisionCell:
        frame, labels = self.dataset.data.frame, self.dataset.data.labels
        rows = tuple(tuple(at) for at in arms.values())
        every = np.concatenate([np.asarray(at) for at in rows])
        first = int(every[0])
        aggregate = np.isfinite(labels[AGGREGATE][every]).all()
        measured = labels[AGGREGATE if aggregate else OUTPUT]
        shift = np.zeros(frame.n)
        if (self.throughput.target == AGGREGATE) != aggregate:
            per_output = np.log1p(frame["prompt_tokens"] / frame["output_tokens"])
            shift = per_output if aggregate else -per_output
        latencies = [
            f for f in self.latencies
            if np.isfinite(labels[f.target][every]).all() and np.isfinite(f.log[every]).all()
        ]  # fmt: skip
        return DecisionCell(
            name=f"{name} ({source}, {engine})",
            group=str(self.held_together[first]),
            model=str(frame.category("model")[first]),
            family=str(frame.category("family")[first]),
            params=float(frame["params"][first]),
            arms=tuple(Arm(kind, n, precision, engine) for kind, n, precision in arms),
            price_usd_per_gpu_h=np.array([self.prices[kind] for kind, _, _ in arms]),
            measured=_means(measured, rows),
            predicted=_means(self.throughput.log + shift[:, None], rows),
            prior=_means(self.throughput.prior + shift, rows),
            bits=np.array([8.0 * frame["weight_bytes"][at[0]] for at in rows]),
            bandwidth=np.array([frame["bandwidth"][at[0]] for at in rows]),
            likeness=np.array([float(np.log(frame[column][first])) for column in _LIKENESS]),
            latency={f.target: _means(labels[f.target], rows) for f in latencies},
            latency_predicted={f.target: _means(f.log, rows) for f in latencies},
            rows=rows,
        )


def _means(log: FloatArray, rows: Sequence[Sequence[int]]) -> FloatArray:
    """Mean over the repeats of each arm, out of logs: (n_arms, …)."""
    return np.stack([np.exp(log[list(at)]).mean(axis=0) for at in rows])
