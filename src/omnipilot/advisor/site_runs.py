"""What the site itself has measured of a model: evidence beside the prediction."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Final

from omnipilot.domain import UsageError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.domain import InferenceRun, ModelArch

__all__ = ["SiteRuns", "site_runs"]

_KIND: Final = b'"kind":"inference_run"'
_THROUGHPUT: Final = "aggregate_tokens_per_s"


@dataclass(frozen=True, slots=True)
class SiteRuns:
    """The site's runs of one model on one arm at one load.

    Args:
        gpu_kind: canonical kind.
        status: "ok", or the status of runs that failed.
        n_runs: how many.
        tokens_per_s: median of input and output tokens a second; None where none was measured.
        note: what the runs say of themselves, such as a failure's class.
        last_s: when the newest was taken in, Unix seconds.
        engine_settings: flags of the engine that differ from its defaults, "" for none.
        expert_parallel: each GPU held whole experts.
    """

    gpu_kind: str
    n_gpus: int
    precision: str
    concurrency: float
    prompt_tokens: float
    output_tokens: float
    status: str
    n_runs: int
    tokens_per_s: float | None
    note: str
    last_s: float
    engine_settings: str
    expert_parallel: bool


def site_runs(advisor: Advisor, model: ModelArch) -> tuple[SiteRuns, ...]:
    """Find the site's own runs of a model, newest first.

    Lines of other models are passed over undecoded, so that a large store costs little.

    Raises:
        StateError: the store cannot be read.
    """
    # Unlike a look by stat it says no without an exception.
    if not os.access(advisor.log_path, os.F_OK):
        return ()
    from omnipilot.domain import InferenceRun  # noqa: PLC0415 - most sites ask without rows
    from omnipilot.store import ReadTally, Store  # noqa: PLC0415 - same
    from omnipilot.store.log import row_of_line  # noqa: PLC0415 - same

    needles = {name.split("/")[-1].encode() for name in (model.model_id, model.base_id)}
    groups: dict[tuple[object, ...], list[tuple[InferenceRun, float]]] = {}
    tally = ReadTally()
    for line in Store(advisor.home).lines():
        if line is None or _KIND not in line or not any(n in line for n in needles):
            continue
        stored = row_of_line(line, tally)
        if stored is None or not isinstance(stored.row, InferenceRun):
            continue
        run = stored.row
        kind = _kind(advisor, run)
        if kind and _same_model(advisor, run.model, model):
            key = (kind, run.n_gpus, run.precision, run.concurrency, run.prompt_tokens,
                   run.output_tokens, run.status, run.notes, run.engine_settings,
                   run.expert_parallel)  # fmt: skip
            groups.setdefault(key, []).append((run, stored.ingested_at_s))
    found = [_summary(str(key[0]), runs) for key, runs in groups.items()]
    return tuple(sorted(found, key=lambda group: -group.last_s))


def _kind(advisor: Advisor, run: InferenceRun) -> str:
    try:
        return advisor.catalog.gpu(run.gpu, run.gpu_memory_gb or None).kind
    except UsageError:
        return ""


def _same_model(advisor: Advisor, name: str, model: ModelArch) -> bool:
    if name in (model.model_id, model.base_id):
        return True
    try:
        return advisor.catalog.model(name).base_id == model.base_id
    except UsageError:
        return False


def _summary(kind: str, runs: list[tuple[InferenceRun, float]]) -> SiteRuns:
    from omnipilot.store import is_usable  # noqa: PLC0415 - as above

    first = runs[0][0]
    rates = [run.labels[_THROUGHPUT] for run, _ in runs
             if is_usable(run) and _THROUGHPUT in run.labels]  # fmt: skip
    return SiteRuns(
        gpu_kind=kind, n_gpus=first.n_gpus, precision=first.precision,
        concurrency=first.concurrency, prompt_tokens=first.prompt_tokens,
        output_tokens=first.output_tokens, status=first.status, n_runs=len(runs),
        tokens_per_s=statistics.median(rates) if rates else None, note=first.notes,
        last_s=max(when for _, when in runs), engine_settings=first.engine_settings,
        expert_parallel=first.expert_parallel,
    )  # fmt: skip
