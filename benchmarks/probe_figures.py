"""The two figures of docs/probes.md, as SVG that follows the reader's light or dark mode.

    python benchmarks/probe_figures.py --results DIR [--out docs/figures]

DIR holds answers of ``omnipilot evaluate probes --format json``, one file a set. The first figure
asks the shipped cost model about a 7B model at 1,000 concurrent requests on H100 and H200.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.probing import ProbeReport, probe
from omnipilot.decide.voi import Belief, value_usd
from omnipilot.domain import ServingRequest

WIDTH = 640
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-weight: 600 }
.axis { stroke: #999; fill: none } .a { stroke: #c2410c } .b { stroke: #1d4ed8 }
.a, .b { fill: none; stroke-width: 2 } .flat { stroke-dasharray: 5 4; opacity: .8 }
.gain { fill: #16a34a; opacity: .25 } .ta { fill: #c2410c } .tb { fill: #1d4ed8 }
.tg { fill: #15803d } .no { fill: #9ca3af } .rnd { fill: #f59e0b } .gate { fill: #16a34a }
.ci { stroke: #555 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis, .ci { stroke: #888 }
.a { stroke: #fb923c } .b { stroke: #93c5fd } .ta { fill: #fb923c } .tb { fill: #93c5fd }
.tg { fill: #86efac } }
</style>"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def picture(height: float, title: str, body: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n{STYLE}\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def path(xs: np.ndarray[Any, Any], ys: np.ndarray[Any, Any], kind: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f'<polyline class="{kind}" points="{points}"/>'


def close_arms() -> tuple[ProbeReport, int, int, int]:
    """The gate's report, the arm taken, its closest rival of the other kind, and the probe."""
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 1000, 4096, 3072, 1024)
    kinds = ("h100-80", "h200-141")
    report = probe(Advisor(Path("no-such-site")), Question(request, gpus=kinds))
    ranked = report.advice.recommendation.ranked
    taken = int(report.situation.stakes.taken[0])
    rival = next(i for i, r in enumerate(ranked) if r.arm.gpu_kind != ranked[taken].arm.gpu_kind)
    at = next(
        i
        for i, o in enumerate(report.situation.options)
        if o.probe.name == "target-short" and o.arm == taken
    )
    return report, taken, rival, at


def why() -> str:
    """Two arms' expected utilities by what a probe shows: the paper's rule, and conditioning."""
    report, taken, rival, at = close_arms()
    stakes = report.situation.stakes
    quantity = stakes.quantities[0]
    loading = Belief.empty(stakes).loadings(stakes, np.array([at]))[0][:, 0]
    z = np.linspace(-2.0, 2.0, 161)
    arms = [taken, rival]
    moved = [
        stakes.total_usd[i]
        + quantity.worth_usd[i] * (np.exp(loading[i] * z - loading[i] ** 2 / 2) - 1.0)
        for i in arms
    ]
    names = [report.advice.recommendation.ranked[i].arm.label for i in arms]
    two = stakes.among(np.sort(np.array(arms)))
    worth = value_usd(two, (at,))
    high, low = max(m.max() for m in moved), min(m.min() for m in moved)
    body = [text(WIDTH / 2, 16, f"A probe of {names[0]}, seen from before it is made", "title",
                 "middle")]  # fmt: skip
    for panel, (title, lines) in enumerate(
        (
            ("Means stay, intervals shrink: 0 USD",
             [np.full_like(z, stakes.total_usd[i]) for i in arms]),
            (f"Means move: {worth:.2f} USD", moved),
        )
    ):  # fmt: skip
        left, right, top, bottom = 48 + 310 * panel, 318 + 310 * panel, 52, 250

        def x_of(v: Any, a: int = left, b: int = right) -> Any:  # noqa: ANN401
            return a + (v + 2.0) / 4.0 * (b - a)

        def y_of(v: Any, a: int = top, b: int = bottom) -> Any:  # noqa: ANN401
            return b - (v - low) / (high - low) * (b - a)

        body.append(text((left + right) / 2, 38, title, "tg" if panel else "", "middle"))
        body.append(f'<path class="axis" d="M{left},{top} V{bottom} H{right}"/>')
        if panel:
            better = np.maximum(lines[1], lines[0])
            ys = np.r_[y_of(better), y_of(lines[0])[::-1]]
            xs = np.r_[x_of(z), x_of(z)[::-1]]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
            body.append(f'<polygon class="gain" points="{points}"/>')
        for line, kind in zip(lines, "ab", strict=True):
            body.append(path(x_of(z), y_of(line), kind if panel else f"{kind} flat"))
        ticks = [v for v in (-2, -1, 0, 1, 2) if not panel or v > -2]
        body += [text(float(x_of(v)), bottom + 16, f"{v:+d}" if v else "0", "", "middle")
                 for v in ticks]  # fmt: skip
        body.append(text((left + right) / 2, bottom + 34,
                         "what the probe shows, standard deviations", "", "middle"))  # fmt: skip
        step = 10.0 ** np.floor(np.log10(high - low)) / 2
        for v in np.arange(np.ceil(low / step) * step, high, step):
            body.append(text(left - 6, float(y_of(v)) + 4, f"{round(v, 9) + 0:g}", "", "end"))
    body.append(text(48, 306, f"— {names[0]}, taken now", "ta"))
    body.append(text(250, 306, f"— {names[1]}", "tb"))
    body.append(text(400, 306, "▇ gained by changing over", "tg"))
    body.append(text(48, 326, "Expected utility of one hour in USD, shipped cost model."))
    return picture(336, "Expected utility of two arms by what a probe shows", body)


def regrets(folder: Path) -> str:
    """Regret without, with random and with the gate's probes, set by set."""
    sets = [
        (p.stem, json.loads(p.read_text(encoding="utf-8"))) for p in sorted(folder.glob("*.json"))
    ]
    top, row = 56.0, 66.0
    most = max(f[f"regret_{p}_ci"][1] for _, f in sets for p in ("no_probe", "random", "chosen"))
    left, right = 190.0, WIDTH - 52.0
    k = sets[0][1]["probes"]
    body = [
        text(WIDTH / 2, 16, "Regret of decisions on hidden models and kinds", "title", "middle"),
        text(WIDTH / 2, 34, "share of the best arm's revenue, 95 % intervals over decisions", "",
             "middle"),
    ]  # fmt: skip
    for i, (_, f) in enumerate(sets):
        y = top + i * row
        name = ", ".join(f["filter"]["sources"])
        body.append(text(8, y + 20, name, "title"))
        body.append(text(8, y + 36, f"{f['split']} hidden, {f['cells']} decisions"))
        for j, (policy, kind) in enumerate(
            (("no_probe", "no"), ("random", "rnd"), ("chosen", "gate"))
        ):
            at = y + 4 + j * 17
            value = f[f"regret_{policy}"]
            low, high = f[f"regret_{policy}_ci"]
            length = value / most * (right - left)
            x1, x2 = (left + v / most * (right - left) for v in (low, high))
            body.append(
                f'<rect class="{kind}" x="{left}" y="{at}" width="{length:.1f}" height="13"/>'
            )
            body.append(f'<path class="ci" d="M{x1:.1f},{at + 6.5} H{x2:.1f}"/>')
            body.append(text(max(x2, left + length) + 6, at + 11, f"{value:.2%}"))
    end = top + len(sets) * row + 14
    for x, kind, words in ((left, "no", "no probe"), (left + 110, "rnd", f"{k} random"),
                           (left + 220, "gate", f"{k} chosen by the gate")):  # fmt: skip
        body.append(f'<rect class="{kind}" x="{x}" y="{end - 10}" width="12" height="12"/>')
        body.append(text(x + 18, end, words))
    return picture(end + 14, "Regret with and without probes on measured rows", body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, help="folder of answers of evaluate probes")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "probe-why.svg").write_text(why(), encoding="utf-8")
    if options.results:
        (options.out / "probe-regret.svg").write_text(regrets(options.results), encoding="utf-8")


if __name__ == "__main__":
    main()
