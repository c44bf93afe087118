"""LLM-Pilot's S/O score: recommend a GPU profile for an LLM never measured.

Łazuka, Anghel and Parnell, "LLM-Pilot: Characterize and Optimize Performance of your LLM Inference
Services" (SC 2024): leave one LLM out, predict its latencies on every profile and user level,
recommend the profile that serves 200 users at the least cost. A probed profile is known by its
measurements, as with the methods that the paper compares (PARIS, Selecta, Morphling).

The rule was fixed before any score was looked at: take the medians of the predictions; probe the
profile with the lowest predicted cost at ``PROBED_USERS``; update; probe the cheapest not yet
probed; and so on; then take the cheapest.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.collect import collect_csv
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import InferenceRun
from omnipilot.evaluate.holdout import Holdout, fold_models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.catalog import Catalog
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.learn.dataset import Dataset

SOURCE = "llm_pilot"
TABLE = "normalised.csv"
PRICES = "prices_aws_ondemand.csv"
NTTFT_LIMIT_MS = 100.0
ITL_LIMIT_MS = 50.0
USERS = 200
PROBED_USERS = (8.0, 64.0)
LATENCIES = tuple(
    Holdout(target, "model", sources=(SOURCE,), one_by_one=True)
    for target in ("ttft_p50_s", "itl_p50_s")
)
# Two levels whose raw files the data set leaves out (SCORING.md): model, GPU, GPUs, users, median
# nTTFT (ms/token) and ITL (ms).
ADDED = (
    ("bigcode/starcoder", "H100", 4, 128.0, 6.102, 50.0),
    ("llama-7b", "H100", 4, 128.0, 5.277, 53.0),
)
# Published for LLM-Pilot and the methods it compares, recomputed from their predictions.
PUBLISHED = {
    "LLM-Pilot": 0.80, "best static policy": 0.65, "PARIS": 0.62, "Selecta": 0.53,
    "PerfNetV2": 0.46, "RF": 0.43, "Morphling": 0.17,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PilotRows:
    """The measured grid, one row a (LLM, profile, user level); arrays are (n,).

    ``model`` base ids, ``name`` as written; ``profile`` indexes ``profiles``; ``nttft_ms`` and
    ``itl_ms`` measured medians, per prompt token and per token.
    """

    frame: Frame
    model: NDArray[np.str_]
    profile: NDArray[np.int64]
    profiles: tuple[tuple[str, int], ...]
    usd_per_hour: NDArray[np.float64]
    users: NDArray[np.float64]
    nttft_ms: NDArray[np.float64]
    itl_ms: NDArray[np.float64]
    ttft_s: NDArray[np.float64]


def pilot_rows(folder: Path, catalog: Catalog) -> PilotRows:
    """Read the grid of every measured row, whatever its status, and the prices.

    Raises:
        BadInputError: the folder lacks a file, or a profile has no price.
    """
    home = folder / SOURCE if (folder / SOURCE).is_dir() else folder
    table, prices = home / TABLE, home / PRICES
    for path in (table, prices):
        if not path.is_file():
            raise BadInputError(f"{path} is missing: give the folder that holds {SOURCE}/{TABLE}")
    with table.open(encoding="utf-8", newline="") as file:
        nttft = [float(record["nttft_p50_ms_per_tok"]) for record in csv.DictReader(file)]
    with prices.open(encoding="utf-8", newline="") as file:
        price = {
            (r["gpu"], int(r["n_gpus"])): float(r["usd_per_hour"]) for r in csv.DictReader(file)
        }
    runs = list(collect_csv(table))
    rows = [
        (run, n, run.labels["itl_p50_s"] * 1e3, run.labels["ttft_p50_s"])
        for run, n in zip(runs, nttft, strict=True)
        if isinstance(run, InferenceRun)
    ]
    for name, gpu, n_gpus, users, n, itl in ADDED:
        like = next(
            (r for r in rows if r[0].model.endswith(name.split("/")[-1])
             and (r[0].gpu, r[0].n_gpus) == (gpu, n_gpus)), None
        )  # fmt: skip
        if like is not None:
            run = replace(like[0], concurrency=users)
            rows.append((run, n, itl, n * run.prompt_tokens / 1e3))
    builder = ScenarioBuilder(catalog)
    scenarios = [builder.scenario(run) for run, *_ in rows]
    keys = [(run.gpu, run.n_gpus) for run, *_ in rows]
    profiles = tuple(sorted(set(keys)))
    missing = [p for p in profiles if p not in price]
    if missing:
        raise BadInputError(f"{prices} has no price of {missing[0][1]} × {missing[0][0]}")
    return PilotRows(
        frame=build_frame(scenarios),
        model=np.asarray([s.model.base_id for s in scenarios]),
        profile=np.asarray([profiles.index(k) for k in keys], dtype=np.int64),
        profiles=profiles,
        usd_per_hour=np.asarray([price[p] for p in profiles]),
        users=np.asarray([run.concurrency for run, *_ in rows]),
        nttft_ms=np.asarray([n for _, n, _, _ in rows]),
        itl_ms=np.asarray([itl for _, _, itl, _ in rows]),
        ttft_s=np.asarray([t for *_, t in rows]),
    )


def expense(
    users: NDArray[np.float64],
    nttft_ms: NDArray[np.float64],
    itl_ms: NDArray[np.float64],
    usd_per_hour: float,
) -> tuple[float, int, float]:
    """What serving 200 users costs on one profile.

    Args:
        users: user levels of one LLM on the profile (n,).
        nttft_ms: median first-token latency per prompt token (n,).
        itl_ms: median inter-token latency (n,).
        usd_per_hour: price of one pod.

    Returns:
        USD per hour (infinite where one user is too many), pods, users of one pod.

    Example:
        >>> expense(np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([30.0, 60.0]), 2.0)
        (400.0, 200, 1.0)
    """
    order = np.argsort(users)
    held = 0.0
    for i in order:
        if nttft_ms[i] > NTTFT_LIMIT_MS or itl_ms[i] > ITL_LIMIT_MS:
            break
        held = float(users[i])
    if held == 0.0:
        return float("inf"), 0, 0.0
    pods = int(np.ceil(USERS / held))
    return pods * usd_per_hour, pods, held


def so_score(successes: list[bool], overspends: list[float]) -> tuple[float, float, float]:
    """Success rate, mean overspend of the successes and S/O (SCORING.md, 3)."""
    s = float(np.mean(successes))
    o = float(np.mean(overspends)) if overspends else 0.0
    kept = max(0.0, 1.0 - o)
    return s, o, 2.0 * s * kept / (s + kept) if s + kept > 0 else 0.0


def pilot(
    dataset: Dataset,
    rows: PilotRows,
    probes: int,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Score the recommendations for every LLM, each predicted by a model that never saw it.

    Args:
        dataset: all rows; the LLM is left out of all of them.
        rows: the measured grid.
        probes: profiles measured before deciding.
        cache: folder of fitted folds.
        progress: told in words what is being done.

    Returns:
        ``success_rate, overspend, so_score``, the published scores and one entry an LLM.
    """
    models: dict[str, dict[str, FittedModel]] = {}
    never: dict[str, FittedModel] = {}
    for question in LATENCIES:
        held = dataset.data.frame.category("model")
        for fold in fold_models(dataset, question, cache, progress):
            # An LLM whose every run failed is in no fold: no model has seen it.
            never.setdefault(question.target, fold.model)
            for model in np.unique(held[fold.test]):
                models.setdefault(str(model), {})[question.target] = fold.model
    successes, overspends, each = [], [], {}
    for model in np.unique(rows.model):
        mine = np.flatnonzero(rows.model == model)
        others = np.flatnonzero(rows.model != model)
        entry = _recommend(
            rows, mine, _per_token(rows, others), models.get(str(model), never), probes
        )
        each[str(model)] = entry
        successes.append(entry["success"])
        if entry["success"]:
            overspends.append(entry["overspend"])
    s, o, so = so_score(successes, overspends)
    return {
        "probes": probes, "success_rate": s, "overspend": o, "so_score": so,
        "published_so_score": PUBLISHED, "per_model": each,
    }  # fmt: skip


def _per_token(rows: PilotRows, others: NDArray[np.int64]) -> float:
    """Median nTTFT × mean prompt / median TTFT of the training LLMs: lengths are skewed."""
    ratio = rows.nttft_ms * rows.frame["prompt_tokens"] / (rows.ttft_s * 1e3)
    return float(np.median(ratio[others]))


def _recommend(
    rows: PilotRows,
    mine: NDArray[np.int64],
    per_token: float,
    models: dict[str, FittedModel],
    probes: int,
) -> dict[str, Any]:
    frame = rows.frame.take(mine)
    profile, users = rows.profile[mine], rows.users[mine]
    truth = {
        int(p): expense(
            users[profile == p], rows.nttft_ms[mine][profile == p], rows.itl_ms[mine][profile == p],
            rows.usd_per_hour[p],
        )
        for p in np.unique(profile)
    }  # fmt: skip
    probed: list[int] = []
    while True:
        ttft, itl = (
            _median(models[t], frame, t, _labels(rows, mine, probed, t))
            for t in ("ttft_p50_s", "itl_p50_s")
        )
        nttft_ms = ttft * 1e3 * per_token / frame["prompt_tokens"]
        guess = {
            p: truth[p]
            if p in probed
            else expense(
                users[profile == p], nttft_ms[profile == p], itl[profile == p] * 1e3,
                rows.usd_per_hour[p],
            )
            for p in truth
        }  # fmt: skip
        by_cost = sorted(guess, key=lambda p: (guess[p][0], rows.usd_per_hour[p], p))
        fresh = [p for p in by_cost if p not in probed]
        if len(probed) == probes or not fresh:
            break
        probed.append(fresh[0])
    chosen = by_cost[0]
    cost, pods, _ = guess[chosen]
    best = min(t[0] for t in truth.values())
    success = bool(pods * truth[chosen][2] >= USERS)
    return {
        "recommended": f"{rows.profiles[chosen][1]} × {rows.profiles[chosen][0]}",
        "probed": [f"{rows.profiles[p][1]} × {rows.profiles[p][0]}" for p in probed],
        "predicted_usd_per_h": cost if np.isfinite(cost) else None,
        "best_usd_per_h": best,
        "success": success,
        "overspend": (cost - best) / best if success else None,
    }


def _labels(
    rows: PilotRows, mine: NDArray[np.int64], probed: list[int], target: str
) -> NDArray[np.float64]:
    """Log labels of the probed rows, NaN elsewhere (len(mine),)."""
    seen = np.isin(rows.profile[mine], probed) & np.isin(rows.users[mine], PROBED_USERS)
    value = rows.ttft_s[mine] if target == "ttft_p50_s" else rows.itl_ms[mine] / 1e3
    return np.where(seen, np.log(value), np.nan)


def _median(
    model: FittedModel, frame: Frame, target: str, labels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predicted medians of a target (n,), after the labelled rows."""
    known = np.flatnonzero(np.isfinite(labels))
    if len(known):
        blank = np.full(len(known), np.nan)
        given = {
            t: labels[known] if t == target else blank
            for t in ("ttft_p50_s", "itl_p50_s", "tpot_p50_s", "power_mean_w",
                      "output_tokens_per_s", "aggregate_tokens_per_s", "request_per_s")
        }  # fmt: skip
        model = model.condition(frame.take(known), given)
    asked = model.questions(frame)
    (name,) = (h for h in model.heads if target in model.heads[h].head.targets)
    answer = model.log_quantiles(asked, name)
    return np.asarray(np.exp(asked.prior.log[target] + answer.log[:, 1]))
