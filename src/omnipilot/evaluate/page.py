"""The page of evaluation figures: every table with the command that made it.

``omnipilot evaluate all`` asks the questions of ``QUESTIONS`` and writes them up; goals stand
beside the figures, met or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.bundle import DOCUMENT
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.heldout_report import report
from omnipilot.evaluate.holdout import ALL, ROWS, Holdout, _fold_key, folds_of, hold_out
from omnipilot.evaluate.probing import probe_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from omnipilot.learn.dataset import Dataset

DATA = "../shared/data"
RESULTS_TITLE = "Held-out errors"


@dataclass(frozen=True, slots=True)
class Question:
    """One evaluation: a title, what is held out, and the goal for its MAPE (0 where none)."""

    title: str
    holdout: Holdout
    goal_mape: float = 0.0
    goal_median: float = 0.0

    @property
    def command(self) -> str:
        """The command that prints the figures."""
        h = self.holdout
        parts = ["omnipilot evaluate", f"--data {DATA}"]
        if h.sources != (ALL,):
            parts.append(f"--source {','.join(h.sources)}")
        if h.engine:
            parts.append(f"--engine {h.engine}")
        if h.vendor:
            parts.append(f"--vendor {h.vendor}")
        return " ".join((*parts, f"--target {h.target}", f"--split {h.split}", "--format json"))


LIB = Holdout("aggregate_tokens_per_s", "cell", ("llm_inference_bench",), "vllm")
INFX = Holdout("output_tokens_per_s", "cell", ("inferencex_silicon",), "vllm")
V3 = Holdout("output_tokens_per_s", "cell", ("mlenergy_v3",))
V2 = Holdout("output_tokens_per_s", "cell", ("mlenergy_v2",))
OUT, TTFT, TPOT, ITL, POWER = (
    Holdout(target, "cell")
    for target in (
        "output_tokens_per_s", "ttft_p50_s", "tpot_p50_s", "itl_p50_s", "power_mean_w"
    )
)  # fmt: skip
_AGG_NVIDIA = replace(LIB, split="gpu", vendor="nvidia")

QUESTIONS: tuple[Question, ...] = (
    Question("llm_inference_bench vLLM, aggregate tok/s, cells", LIB, 0.05),
    Question("llm_inference_bench vLLM, unseen model", replace(LIB, split="model"), 0.12),
    Question("llm_inference_bench vLLM, unseen NVIDIA kind", _AGG_NVIDIA, 0.07),
    Question("inferencex_silicon vLLM, output tok/s, cells", INFX, 0.06, 0.035),
    Question("inferencex_silicon vLLM, unseen model", replace(INFX, split="model"), 0.15),
    Question("inferencex_silicon vLLM, unseen GPU kind", replace(INFX, split="gpu"), 0.12),
    Question("mlenergy_v3, output tok/s, cells", V3, 0.07),
    Question("mlenergy_v3, unseen model", replace(V3, split="model"), 0.22),
    Question("mlenergy_v2, output tok/s, cells", V2, 0.04),
    Question("mlenergy_v2, unseen model", replace(V2, split="model"), 0.09),
    Question("all rows, output tok/s, cells", OUT, 0.08),
    Question("all rows, output tok/s, unseen model", replace(OUT, split="model"), 0.18),
    Question("all rows, output tok/s, unseen family", replace(OUT, split="family"), 0.21),
    Question("all rows, output tok/s, unseen GPU kind", replace(OUT, split="gpu")),
    Question("all rows, output tok/s, unseen source", replace(OUT, split="source")),
    Question("all rows, TPOT, cells", TPOT, 0.08),
    Question("all rows, TPOT, unseen model", replace(TPOT, split="model"), 0.19),
    Question("all rows, ITL, cells", ITL, 0.08),
    Question("all rows, ITL, unseen model", replace(ITL, split="model"), 0.19),
    Question("all rows, TTFT p50, cells", TTFT, 0.18, 0.09),
    Question("all rows, TTFT p50, unseen model", replace(TTFT, split="model"), 0.45),
    Question("all rows, power, cells", POWER, 0.04),
    Question("all rows, power, unseen model", replace(POWER, split="model"), 0.09),
)
# (title, question, rows revealed, what the goal is about)
CURVES: tuple[tuple[str, Holdout, str], ...] = (
    ("a whole unseen source, mean of the sources' median APE: goal 30 % at 0 rows, 15 % at 10",
     replace(OUT, split="source"), "mean_of_group_median_ape"),
    ("llm_inference_bench vLLM on AMD, an unseen GPU kind: goal 20 % MAPE at 10 rows (MI300X)",
     replace(LIB, split="gpu", vendor="amd"), "mape"),
    ("all rows, an unseen model in one source", replace(OUT, split="model"), "mape"),
)  # fmt: skip
SHOWN_PROBES = (0, 1, 2, 3, 5, 10)
# Intervals sized on an easier split than they are tested on, each before the right one.
EASIER: tuple[Holdout, ...] = (
    replace(OUT, calibrated_on=ROWS), OUT,
    replace(OUT, split="model", calibrated_on="cell"), replace(OUT, split="model"),
)  # fmt: skip

INTRODUCTION = """\
# Evaluation

Held-out errors of the pipeline that ships, on public measured rows. Every fold fits prior,
hyper-parameters, residual layer, spread and offsets without the held-out groups; training uses the
rows of all sources. Folds are made over all sources and shared by every question about the same
target and split, so a filter (source, engine, vendor) only chooses which rows are looked at. APE is
|predicted / measured − 1|; coverage is of the 80 % interval, width its mean log(upper / lower),
"constant" the width of a constant band of the same coverage. Rows screened as physically
impossible, failed runs and exact repeats take part on neither side; each command prints their
counts. No simulated figure stands on this page."""

PEERS = """\
## Beside others

- The paper this work follows reports 6.2 % MAPE and R² 0.92 for aggregate throughput on its own
  460 rows (not public) by held-out cells, and 24-46 % with 0 of 5 covered outside its envelope.
- NVIDIA's AIConfigurator 0.12.0, asked about the same arms without rescaling, is 51 % (A100) and
  77 % (H100) off on the vLLM rows of llm_inference_bench in the median (published: 59 % and 78 %;
  16 % and 29 % with one fitted factor a GPU) and 12 % on those of inferencex_silicon. The same
  sources stand in the table above; held-out cells know other cells of the model and GPU, the
  unseen-kind row knows none of the kind. Its decisions beside ours are in docs/decisions.md: with
  the cell held out ours give up less on all three sources, with the model held out at 2e-7 USD a
  token on all three, at 1e-6 on llm_inference_bench alone.
- LLM-Pilot publishes S/O 0.80 without a probe; the table of its score is above."""


def evaluate_all(
    dataset: Dataset,
    cache: Path | None,
    progress: Callable[[str], None] = lambda _: None,
    questions: Iterable[Question] = QUESTIONS,
    *,
    kept_only: bool = False,
) -> dict[str, Any]:
    """Ask every question.

    Args:
        dataset: all rows.
        cache: folder of fitted folds.
        progress: told in words what is being done.
        questions: what to ask.
        kept_only: leave out what would need a new fit.

    Returns:
        ``questions`` (title → figures), ``curves`` (title → probe curve) and ``offsets``.
    """
    out: dict[str, Any] = {"questions": {}, "curves": {}, "offsets": []}

    def leave_out(title: str, holdout: Holdout) -> bool:
        missing = kept_only and not is_kept(dataset, holdout, cache)
        if missing:
            progress(f"left out, not fitted yet: {title}")
        return missing

    for question in questions:
        if leave_out(question.title, question.holdout):
            continue
        progress(question.title)
        held = hold_out(dataset, question.holdout, progress, cache)
        out["questions"][question.title] = report(dataset, question.holdout, held)
    for title, holdout, _ in CURVES:
        if leave_out(title, holdout):
            continue
        out["curves"][title] = {
            policy: probe_curve(dataset, holdout, max(SHOWN_PROBES), policy, cache, progress)
            for policy in ("random", "variance")
        }
    if not kept_only or all(is_kept(dataset, holdout, cache) for holdout in EASIER):
        out["offsets"] = [_offset(dataset, holdout, cache, progress) for holdout in EASIER]
    return out


def is_kept(dataset: Dataset, holdout: Holdout, cache: Path | None) -> bool:
    """Whether every fold that a question needs was fitted and kept."""
    if cache is None:
        return False
    fold = folds_of(dataset, holdout)
    needed = np.unique(fold[holdout.mask(dataset.data) & (fold >= 0)])
    home = cache / _fold_key(dataset, holdout)
    return all((home / f"fold-{k}" / DOCUMENT).is_file() for k in needed.tolist())


def _offset(
    dataset: Dataset, holdout: Holdout, cache: Path | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """What intervals sized on one split cover on another."""
    sized_on = holdout.calibrated_on or holdout.split
    progress(f"{holdout.split}s held out, intervals sized on {sized_on}")
    held = hold_out(dataset, holdout, progress, cache)
    inside = (held.y >= held.log[:, 3]) & (held.y <= held.log[:, 4])
    return {
        "sized_on": f"{sized_on}s", "tested_on": f"{holdout.split}s",
        "coverage": float(inside.mean()),
        "mean_log_width": float((held.log[:, 4] - held.log[:, 3]).mean()),
    }  # fmt: skip


def write_page(figures: dict[str, Any], pilots: list[dict[str, Any]], extra: str = "") -> str:
    """The page as Markdown.

    Args:
        figures: what :func:`evaluate_all` found.
        pilots: what :func:`omnipilot.evaluate.pilot.pilot` found for 0, 1, … probes.
        extra: Markdown kept as it is, before the commands (tables of benchmarks).
    """
    by_title = {q.title: q for q in QUESTIONS}
    asked = figures["questions"]
    lines = [
        INTRODUCTION, "", f"## {RESULTS_TITLE}", "",
        ("| rows, target, what is held out | n | groups | MAPE | goal | median APE | R² log "
         "| coverage | p25 of groups | width | constant | prior alone |"),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for title, f in asked.items():
        goal = by_title[title].goal_mape
        median = by_title[title].goal_median
        wanted = f"{goal:.0%}{f', median {median:.1%}' if median else ''}" if goal else ""
        lines.append(
            f"| {title} | {f['n']:,} | {f['groups']:,} | {f['mape']:.1%} | {wanted} | "
            f"{f['median_ape']:.1%} | {f['r2_log']:.3f} | {f['coverage']:.1%} | "
            f"{f['coverage_group_p25']:.0%} | {f['mean_log_width']:.2f} | "
            f"{f['constant_log_width']:.2f} | {f['prior_alone']['mape']:.1%} |"
        )
        if "all_rows" in f:
            e = f["all_rows"]
            lines.append(
                f"| — every row of the filter | {e['n']:,} | | {e['mape']:.1%} | | "
                f"{e['median_ape']:.1%} | {e['r2_log']:.3f} | {e['coverage']:.1%} | | "
                f"{e['mean_log_width']:.2f} | | |"
            )
    lines += ["", "Goals missed are discussed under [what falls short](#what-falls-short).", "",
              "## By source", "",
              "| evaluation | source | n | MAPE | median APE | coverage | width |",
              "|---|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {title} | {source} | {e['n']:,} | {e['mape']:.1%} | {e['median_ape']:.1%} | "
        f"{e['coverage']:.1%} | {e['mean_log_width']:.2f} |"
        for title, f in asked.items()
        if title.startswith("all rows")
        for source, e in f["per_source"].items()
    ]
    lines += ["", "## By model size", "",
              "| evaluation | band | n | MAPE | median APE | coverage | width |",
              "|---|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {title} | {band} | {e['n']:,} | {e['mape']:.1%} | {e['median_ape']:.1%} | "
        f"{e['coverage']:.1%} | {e['mean_log_width']:.2f} |"
        for title, f in asked.items()
        if title.startswith("all rows, output")
        for band, e in f["per_band"].items()
    ]
    lines += ["", "## Confidence labels", "",
              "| evaluation | label | n | median APE | MAPE | coverage |",
              "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {title} | {label} | {e['n']:,} | {e['median_ape']:.1%} | {e['mape']:.1%} | "
        f"{e['coverage']:.1%} |"
        for title, f in asked.items()
        for label, e in f["confidence"].items()
    ]
    if figures["offsets"]:
        lines += _offset_table(figures["offsets"])
    lines += ["", "## A few rows of one's own", ""]
    for title, _, key in CURVES:
        if title in figures["curves"]:
            lines += _curve(title, figures["curves"][title], key)
    if pilots:
        lines += ["## LLM-Pilot's score", "",
                  "| probes | S | O | S/O |", "|---:|---:|---:|---:|"]  # fmt: skip
        lines += [
            f"| {p['probes']} | {p['success_rate']:.2f} | {p['overspend']:.3f} | "
            f"{p['so_score']:.2f} |"
            for p in pilots
        ]
        published = ", ".join(f"{k} {v:.2f}" for k, v in pilots[0]["published_so_score"].items())
        lines += ["", (f"Published: {published}. Goals: 0.80 without a probe, 0.87 with one, 0.95 "
                  "with two."), ""]  # fmt: skip
    lines += [PEERS, "", extra.strip(), "", "## Commands", ""]
    lines += [f"- {title}: `{by_title[title].command}`" for title in asked]
    lines += [
        f"- {title.split(':')[0]}: `{Question('', holdout).command} --probes 10`"
        for title, holdout, _ in CURVES
    ]
    lines += [
        f"- LLM-Pilot's score: `omnipilot evaluate pilot --data {DATA} --probes K --format json`",
        f"- This page: `omnipilot evaluate all --data {DATA} --out docs/EVALUATION.md`",
    ]
    return "\n".join(lines) + "\n"


def _offset_table(offsets: list[dict[str, Any]]) -> list[str]:
    return [
        "", "## Intervals sized on easier splits", "",
        ("Intervals of output tok/s sized on the errors of one split and tested on another; a row "
         "is left out alone, a cell or model as a whole. How much of the residual layer is "
         "believed, the trees and the offsets are those of the split that they were sized on."), "",
        "| sized on held-out | tested on held-out | coverage | width |", "|---|---|---:|---:|",
        *(f"| {o['sized_on']} | {o['tested_on']} | {o['coverage']:.1%} | "
          f"{o['mean_log_width']:.2f} |" for o in offsets),
    ]  # fmt: skip


def _curve(title: str, curve: dict[str, Any], key: str) -> list[str]:
    some = next(iter(curve.values()))
    lines = [
        f"**{title[0].upper()}{title[1:]}** ({len(some['groups'])} groups):", "",
        f"| rows revealed | {' | '.join(f'{p}: error, coverage, width' for p in curve)} |",
        f"|---:|{'---:|' * len(curve)}",
    ]  # fmt: skip
    for k in SHOWN_PROBES:
        cells = [
            f"{e[key]:.1%}, {e['coverage']:.0%}, {e['mean_log_width']:.2f}"
            for c in curve.values()
            for e in [c["by_probes"][k]]
        ]
        lines.append(f"| {k} | {' | '.join(cells)} |")
    return [*lines, ""]
