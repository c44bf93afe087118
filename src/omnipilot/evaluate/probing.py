"""What a few rows of one's own are worth: hide a group, reveal a few rows, predict the rest.

The model of a fold has never seen the group (a model, GPU kind or source). Rows of the group are
revealed one by one, at random or where their variance takes most off the expected errors, and the
model is conditioned in closed form; nothing is fitted again.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from omnipilot.domain.errors import UsageError
from omnipilot.evaluate.hidden_group import MOST_CANDIDATES, most_telling
from omnipilot.evaluate.holdout import Holdout, fold_models
from omnipilot.evaluate.metrics import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.learn.dataset import Dataset

Policy = Literal["random", "variance"]
POLICIES: tuple[Policy, ...] = ("random", "variance")
# A group must leave this many rows to predict after the last probe.
FEWEST_LEFT = 5


def check_split(question: Holdout) -> None:
    """Tell before anything is fitted whether rows can be revealed.

    Raises:
        UsageError: split "cell", which hides nothing that a probe could tell.
    """
    if question.split == "cell":
        raise UsageError("probes need a hidden group: say --split model, family, gpu or source")


def probe_curve(
    dataset: Dataset,
    question: Holdout,
    probes: int,
    policy: Policy,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Errors after 0 … ``probes`` revealed rows of each hidden group.

    A group is one model, family or GPU kind in one source, or a whole source. The revealed rows
    themselves are not predicted.

    Returns:
        ``by_probes``: for each count the errors over all rows, and the mean over groups of their
        median APE; ``groups``: names and sizes; ``left_out``: groups with too few rows.

    Raises:
        UsageError: as :func:`check_split`, or no group has rows enough.
    """
    check_split(question)
    data = dataset.data
    tested = question.mask(data)
    rng = np.random.default_rng(question.seed)
    sources = data.frame.category("source")
    groups = data.groups(question.novelty)
    y = data.labels[question.target]
    parts: list[list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = [
        [] for _ in range(probes + 1)
    ]
    sizes: dict[str, int] = {}
    left_out = 0
    for fold in fold_models(dataset, question, cache, progress):
        rows = fold.test[tested[fold.test]]
        keys = np.char.add(np.char.add(sources[rows], " · "), groups[rows])
        if question.split == "source":
            keys = sources[rows]
        for key in np.unique(keys):
            mine = rows[keys == key]
            if len(mine) < probes + FEWEST_LEFT:
                left_out += 1
                continue
            sizes[str(key)] = len(mine)
            order = _order(fold.model, data.frame.take(mine), question, probes, policy, rng)
            for k in range(probes + 1):
                revealed, rest = mine[order[:k]], np.delete(mine, order[:k])
                log = _answer(fold.model, dataset, question, revealed, rest)
                parts[k].append((y[rest], log))
    if not sizes:
        raise UsageError(f"no group has {probes + FEWEST_LEFT} rows: ask for fewer probes")
    by_probes = []
    for k, part in enumerate(parts):
        figures = asdict(
            errors(np.concatenate([p[0] for p in part]), np.concatenate([p[1] for p in part]))
        )
        each = [errors(*p) for p in part]
        by_probes.append(
            {
                "probes": k,
                **figures,
                "mean_of_group_median_ape": float(np.mean([e.median_ape for e in each])),
                "mean_of_group_mape": float(np.mean([e.mape for e in each])),
                "coverage_group_p25": float(np.percentile([e.coverage for e in each], 25)),
            }
        )
    return {"policy": policy, "by_probes": by_probes, "groups": sizes, "left_out": left_out}


def _answer(
    model: FittedModel,
    dataset: Dataset,
    question: Holdout,
    revealed: NDArray[np.int64],
    rest: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Log quantiles (n, 5) of the rest after the revealed rows."""
    data = dataset.data
    if len(revealed):
        labels = {
            t: data.labels[t][revealed]
            if t in question.head.targets
            else np.full(len(revealed), np.nan)
            for t in data.labels
        }
        model = model.condition(data.frame.take(revealed), labels)
    asked = model.questions(data.frame.take(rest))
    answer = model.log_quantiles(asked, question.head.name)
    return asked.prior.log[question.target][:, None] + answer.log


def _order(
    model: FittedModel,
    frame: Frame,
    question: Holdout,
    probes: int,
    policy: Policy,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Rows of a group in the order in which they are revealed, (probes,)."""
    if policy == "random":
        return rng.choice(frame.n, probes, replace=False)
    candidates = np.arange(frame.n)
    if frame.n > MOST_CANDIDATES:
        candidates = np.sort(rng.choice(frame.n, MOST_CANDIDATES, replace=False))
    head = model.heads[question.head.name]
    deviation = head.deviations[head.calibrated(question.novelty.name)]
    part = frame.take(candidates)
    covariance = deviation.joint(part, model.physics.evaluate(part))
    noise_sd, rows = np.full(part.n, deviation.noise_sd), np.arange(part.n)
    chosen: list[int] = []
    for _ in range(probes):
        best = most_telling(covariance, noise_sd, rows, np.delete(rows, chosen))
        chosen.append(best)
        column = covariance[:, best].copy()
        covariance -= np.outer(column, column) / (column[best] + noise_sd[best] ** 2)
    return candidates[chosen]
