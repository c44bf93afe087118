"""The figures of a report, each one entry of :data:`FIGURES`; every one is inline SVG."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.decide.launch_rates import launch_rates
from omnipilot.decide.priors import LaunchCounts
from omnipilot.decide.sampling import Z90
from omnipilot.decide.utility import TERMS
from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.ablations import ABLATIONS, share_of_cells
from omnipilot.evaluate.material import NotComputedError
from omnipilot.evaluate.metrics import errors
from omnipilot.evaluate.svg import N_COLOURS, Axis, Bar, Series, bar_chart, short, xy_chart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnipilot.evaluate.holdout import HeldOut
    from omnipilot.evaluate.material import Material

LEARNING_SHARES: Final = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
_MOST_BARS: Final = 12
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class FigureEntry:
    """One figure: ``paper`` names its counterpart, ``caption`` says how to read it.

    ``build`` gives one or more drawings; ``{rows}`` in the command stands for the options that
    name the rows, ``{advice}`` for the example's command.
    """

    name: str
    title: str
    paper: str
    caption: str
    build: Callable[[Material], Sequence[str]]
    command: str = ""


def decision_space(m: Material) -> list[str]:
    """Price and throughput of every arm of the example."""
    arms = m.site.arms
    if not arms:
        raise NotComputedError("no arm of the example starts on this site")
    kinds = list(dict.fromkeys(a.gpu_kind for a in arms))
    series = [
        Series(
            kind,
            [a.usd_per_h for a in arms if a.gpu_kind == kind],
            [a.tokens_per_s for a in arms if a.gpu_kind == kind],
            "dots",
            i % N_COLOURS,
        )
        for i, kind in enumerate(kinds)
    ]
    top = sorted(arms, key=lambda a: -a.total_usd)[:_MOST_BARS]
    best = [Bar(a.label, a.total_usd, colour=kinds.index(a.gpu_kind) % N_COLOURS) for a in top]
    return [
        xy_chart(
            "Price and predicted throughput of every arm", series,
            Axis("USD per hour", log=True), Axis("aggregate tokens/s", log=True),
        ),
        bar_chart("Expected utility of the best arms", best, Axis("USD per hour"), titled=True),
    ]  # fmt: skip


def waterfall(m: Material) -> list[str]:
    """Terms of the utility of the example's best arm, one after the other."""
    if not m.site.arms:
        raise NotComputedError("no arm of the example starts on this site")
    best = m.site.arms[0]
    bars, at = [], 0.0
    for term in TERMS:
        value = best.terms.get(term.name, 0.0)
        if value:
            label = term.name.replace("_", " ")
            bars.append(Bar(label, value, at, 0 if value > 0 else 1, text=f"{value:+.3g}"))
            at += value
    bars.append(Bar("total", best.total_usd, 0.0, 2))
    return [bar_chart(f"Utility of {best.label}", bars, Axis("USD"))]


def fan(m: Material) -> list[str]:
    """Predicted quantiles of the best arm along the load."""
    points = m.site.fan
    if not points:
        raise NotComputedError("no arm of the example starts on this site")
    xs = [p.concurrency for p in points]
    series = [
        Series("80 % interval", xs, [p.lower for p in points], "band", 0,
               [p.upper for p in points]),
        Series("q10 to q90", xs, [p.q10 for p in points], "band", 2, [p.q90 for p in points]),
        Series("median", xs, [p.q50 for p in points], "line", 0),
    ]  # fmt: skip
    axes = Axis("requests in flight", log=True), Axis("aggregate tokens/s", log=True)
    return [xy_chart(f"Predicted throughput of {m.site.fan_arm}", series, *axes)]


def learning_curve(m: Material) -> list[str]:
    """Error of throughput with a share of the workload cells."""
    xs, mape, median = [], [], []
    for share in LEARNING_SHARES:
        rows = m.dataset if share == 1.0 else share_of_cells(m.dataset, share)
        try:
            held = m.cells if share == 1.0 else m.held(m.throughput, "cell", rows)
        except NotComputedError:
            continue
        e = errors(held.y, held.log)
        xs.append(float(rows.data.frame.n))
        mape.append(100 * e.mape)
        median.append(100 * e.median_ape)
    if len(xs) < 2:
        raise NotComputedError("not computed: report with --effort all")
    series = [Series("MAPE", xs, mape, "line", 0), Series("median APE", xs, median, "line", 1)]
    axes = Axis("rows learned from and tested on", log=True), Axis("error, %", low=0.0)
    return [xy_chart("Error against rows", series, *axes)]


def _by_precision(m: Material, held: HeldOut) -> dict[str, float]:
    names = m.dataset.data.frame.category("precision")[held.index]
    out = {}
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        out[str(name)] = 100 * errors(held.y[rows], held.log[rows]).mape
    return out


def quantisation(m: Material) -> list[str]:
    """Error by precision with and without the features of the weight format."""
    hidden = next(a for a in ABLATIONS if a.name == "quantisation").hide(m.dataset)
    with_it = _by_precision(m, m.cells)
    without = _by_precision(m, m.held(m.throughput, "cell", hidden))
    bars = []
    for name, value in with_it.items():
        bars += [Bar(f"{name}, known", value, colour=0, text=f"{value:.1f} %"),
                 Bar(f"{name}, hidden", without[name], colour=1,
                     text=f"{without[name]:.1f} %")]  # fmt: skip
    return [bar_chart("Error with the weight format known and hidden", bars, Axis("MAPE, %"))]


def freshness(m: Material) -> list[str]:
    """Weight of a reading by its age, for each kind of reading."""
    if not m.site.freshness_s:
        raise NotComputedError("no site was named")
    groups: dict[float, list[str]] = {}
    for name, window_s in m.site.freshness_s.items():
        groups.setdefault(window_s, []).append(name.replace("_", " "))
    series = []
    for i, (window_s, names) in enumerate(sorted(groups.items())):
        ages = np.geomspace(window_s / 20, window_s * 4, 60)
        weights = 0.5 ** (ages / window_s)
        xs, ys = [*(ages / _HOUR_S), ages[-1] / _HOUR_S], [*weights, 0.0]
        series.append(Series(", ".join(names), xs, ys, "line", i % N_COLOURS))
    axes = Axis("age, hours", log=True), Axis("weight", low=0.0, high=1.0)
    return [xy_chart("How much a reading of some age counts", series, *axes)]


def _counted(values: NDArray[Any], title: str, unit: str) -> str:
    names, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_BARS]
    bars = [Bar(str(names[i]), float(counts[i]), text=f"{counts[i]:,}") for i in order]
    return bar_chart(title, bars, Axis(unit), titled=True)


def _octaves(values: NDArray[np.float64], title: str) -> str:
    octave = np.floor(np.log2(np.maximum(values, 1.0)))
    steps, counts = np.unique(octave, return_counts=True)
    bars = [
        Bar(f"{short(2.0**s)} to {short(2.0 ** (s + 1))}", float(n), text=f"{n:,}")
        for s, n in zip(steps, counts, strict=True)
    ]
    return bar_chart(title, bars, Axis("rows"), titled=True)


def axis_coverage(m: Material) -> list[str]:
    """Rows on each axis of the support envelope."""
    frame = m.dataset.data.frame
    stated = frame["concurrency_known"] > 0
    context = (frame["prompt_tokens"] + frame["output_tokens"])[frame["prompt_known"] > 0]
    return [
        _counted(frame.category("family"), "Rows by family", "rows"),
        _counted(frame.category("gpu_kind"), "Rows by GPU kind", "rows"),
        _counted(frame["n_gpus"].astype(int), "Rows by GPUs", "rows"),
        _counted(frame.category("precision"), "Rows by precision", "rows"),
        _octaves(frame["concurrency"][stated], "Rows by requests in flight"),
        _octaves(context, "Rows by context, tokens"),
    ]


def launches(m: Material) -> list[str]:
    """Share of launches and their success by GPU kind and number."""
    if not m.site.launches:
        raise NotComputedError("no launches on record: collect the cluster's jobs")
    counts = {
        name: LaunchCounts(min(good, tried), tried)
        for name, (good, tried) in m.site.launches.items()
    }
    top = sorted(counts, key=lambda name: -counts[name].attempts)[:_MOST_BARS]
    total = sum(c.attempts for c in counts.values())
    demand = [
        Bar(name, 100 * counts[name].attempts / total,
            text=f"{counts[name].attempts / total:.0%}") for name in top
    ]  # fmt: skip
    rates = launch_rates(counts)
    success = [
        Bar(name, 100 * rates[name].shrunk, 0.0, 1, 100 * rates[name].low, 100 * rates[name].high,
            f"{rates[name].shrunk:.0%}") for name in top
    ]  # fmt: skip
    return [
        bar_chart("Share of launches", demand, Axis("% of launches"), titled=True),
        bar_chart(
            "Launches that came up", success, Axis("%, with 80 % interval", high=100.0), titled=True
        ),
    ]


def calibration(m: Material) -> list[str]:
    """Share of labels inside central intervals of every level."""
    series = [
        Series("ideal", [0.0, 100.0], [0.0, 100.0], "line", 5, dashed=True),
    ]
    for i, split in enumerate(("cell", "model", "family", "gpu", "source")):
        try:
            held = m.cells if split == "cell" else m.held(m.throughput, split)
        except OmniPilotError:
            continue
        levels = np.linspace(0.05, 0.95, 19)
        inside = [_inside(held, float(level)) for level in levels]
        series.append(
            Series(f"{split} held out", [*(100 * levels)], [100 * v for v in inside], "line", i)
        )
    axes = (
        Axis("nominal coverage, %", low=0.0, high=100.0),
        Axis("labels inside, %", low=0.0, high=100.0),
    )
    return [xy_chart("Calibration of throughput intervals", series, *axes)]


def _inside(held: HeldOut, level: float) -> float:
    """Coverage of the central interval of a level: two-piece lognormal, as the utility draws it."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    below = (held.log[:, 1] - held.log[:, 3]) / Z90 * z
    above = (held.log[:, 4] - held.log[:, 1]) / Z90 * z
    inside = (held.y >= held.log[:, 1] - below) & (held.y <= held.log[:, 1] + above)
    return float(inside.mean())


def regret(m: Material) -> list[str]:
    """Relative regret of every policy, on a logarithmic axis."""
    d = m.decisions
    named = {"omnipilot": d, **d["baselines"]}
    values = {name: f["regret_relative"] for name, f in named.items()}
    least = min((v for v in values.values() if v > 0), default=1e-3)
    axis = Axis("relative regret, mean over decisions", log=True, low=min(1e-3, least) / 2)
    order = sorted(values, key=lambda name: values[name])
    bars = [
        Bar(name, values[name], colour=0 if name == "omnipilot" else 5, text=f"{values[name]:.4f}")
        for name in order
    ]
    return [bar_chart("Regret by policy", bars, axis)]


def predicted(m: Material) -> list[str]:
    """Predicted against measured throughput with the cells held out."""
    held = m.cells
    rng = np.random.default_rng(0)
    shown = rng.permutation(len(held.y))[:400]
    y, x = np.exp(held.log[shown, 1]), np.exp(held.y[shown])
    ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
    series = [
        Series("row", list(x), list(y), "dots", 0),
        Series("equal", ends, ends, "line", 1, dashed=True),
    ]
    axes = Axis("measured tokens/s", log=True), Axis("predicted tokens/s", log=True)
    return [xy_chart("Predicted and measured throughput", series, *axes)]


_DECIDE: Final = "omnipilot evaluate decision {rows}"
_ADVICE: Final = "{advice}"

# A further figure is one entry. They stand in the report in this order.
FIGURES: Final[tuple[FigureEntry, ...]] = (
    FigureEntry("regret", "Regret by policy", "Table 2",
                "Utility given up against the measured best arm, over the best utility.",
                regret, _DECIDE),
    FigureEntry("predicted", "Predicted and measured", "Figure 8",
                "Throughput with the workload cells held out, at most 400 rows drawn.", predicted),
    FigureEntry("decision-space", "Decision space", "Figure 2",
                "One dot an arm; the best arms by expected utility beside it.",
                decision_space, _ADVICE),
    FigureEntry("waterfall", "Utility of one recommendation", "Utility",
                "What the best arm earns and what it costs, term by term.", waterfall, _ADVICE),
    FigureEntry("fan", "Quantile fan", "Figure 4",
                "Predicted throughput of the best arm along the load.", fan, _ADVICE),
    FigureEntry("calibration", "Calibration", "C.3",
                "Labels inside central intervals of each level; on the dashed line all is well.",
                calibration),
    FigureEntry("learning-curve", "Learning curve", "Figure 3",
                "Error of throughput with a random share of the workload cells, rest discarded.",
                learning_curve),
    FigureEntry("quantisation", "Feature before data", "Figure 5a",
                "The same pipeline without the features of the weight format.", quantisation),
    FigureEntry("coverage-of-axes", "What was measured", "Figure 7",
                "Rows on each axis of the support envelope; at most twelve bars each.",
                axis_coverage),
    FigureEntry("launches", "Demand and launch success", "Figure 9",
                "Launches on record by GPU kind and number; rates shrunk toward the pooled one.",
                launches),
    FigureEntry("freshness", "Freshness", "Figure 6",
                "A reading counts half after its window and nothing after four.", freshness),
)  # fmt: skip
