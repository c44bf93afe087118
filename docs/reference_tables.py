"""Sphinx extension: tables of the reference, written from the program's own at build time.

A page says ``{omnipilot-table} targets`` in a fence; the rows come from :data:`TABLES`, so that no
reference can lag behind the program.
"""
# ruff: noqa: INP001 - Sphinx loads it by its place beside conf.py

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from omnipilot.catalog import Catalog
from omnipilot.cli.app import COMMANDS
from omnipilot.collect import COLLECTORS
from omnipilot.costmodel.envelope import AXES as SUPPORT_AXES
from omnipilot.costmodel.features import FEATURES, ONE_HOT
from omnipilot.costmodel.novelty import NOVELTY, SEEN
from omnipilot.costmodel.physics import PARAMETERS
from omnipilot.costmodel.physics_fit import OFFSET_GROUPS
from omnipilot.decide.probes import load_menu
from omnipilot.decide.profiles import PROFILES
from omnipilot.decide.utility import TERMS
from omnipilot.domain import TARGETS
from omnipilot.domain.labels import FAILURES
from omnipilot.evaluate.ablations import ABLATIONS
from omnipilot.evaluate.baselines import POLICIES
from omnipilot.launch.axes import AXES as LAUNCH_AXES
from omnipilot.web.endpoints import ENDPOINTS
from omnipilot.web.metrics import METRICS
from omnipilot.web.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

__all__ = ["TABLES", "ReferenceTable", "markdown", "setup"]


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """One table of the reference: its columns, and its rows out of a table of the program."""

    columns: tuple[str, ...]
    rows: Callable[[], Iterable[Sequence[object]]]


def _code(text: object) -> str:
    return f"`{text}`" if text not in ("", None) else ""


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(_code, names))


def _better(higher: bool | None) -> str:
    return "" if higher is None else "higher" if higher else "lower"


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


def _gpus() -> Iterable[Sequence[object]]:
    return (
        (_code(g.kind), g.architecture, f"{g.memory_gib:.1f}",
         f"{g.bandwidth_bytes_per_s / 1e12:.2f}", f"{max(g.bf16_flops, g.fp16_flops) / 1e12:,.0f}",
         f"{g.fp8_flops / 1e12:,.0f}" if g.fp8_flops else "", f"{g.tdp_w:.0f}", g.source)
        for g in Catalog.load().gpus(include_mig=False)
    )  # fmt: skip


def _precisions() -> Iterable[Sequence[object]]:
    return (
        (_code(p.name), f"{p.effective_bits:g}", p.compute, f"{p.min_compute_capability:g}",
         p.source)
        for p in Catalog.load().precisions()
    )  # fmt: skip


TABLES: Final[dict[str, ReferenceTable]] = {
    "targets": ReferenceTable(
        ("name", "unit", "better", "label's column", "meaning"),
        lambda: ((_code(t.name), t.unit, _better(t.higher_is_better), _code(t.column), t.meaning)
                 for t in TARGETS),
    ),
    "features": ReferenceTable(
        ("name", "scale"),
        lambda: (*((_code(f.name), f.scale) for f in FEATURES),
                 *((_code(name), "one column a level") for name in ONE_HOT)),
    ),
    "physics": ReferenceTable(
        ("name", "unit", "starts at", "meaning", "moved by"),
        lambda: ((_code(p.name), p.unit, f"{p.start:g}", p.meaning,
                  _codes(g.category for g in OFFSET_GROUPS if p.name in g.parameters))
                 for p in PARAMETERS),
    ),
    "support": ReferenceTable(
        ("axis", "measured as", "unit"),
        lambda: ((a.name, "levels seen" if a.category else "range seen", a.unit)
                 for a in SUPPORT_AXES),
    ),
    "novelty": ReferenceTable(
        ("class", "a question belongs to it when", "hidden from the spread"),
        lambda: ((_code(c.name), "nothing of it is new" if c.name == SEEN
                  else f"its {c.category.replace('_', ' ')} is new", _codes(c.withheld))
                 for c in NOVELTY),
    ),
    "terms": ReferenceTable(
        ("name", "sign", "formula", "meaning"),
        lambda: ((_code(t.name), "+" if t.sign > 0 else "−", t.formula, t.meaning) for t in TERMS),
    ),
    "profiles": ReferenceTable(
        ("name", "USD a token", "meaning"),
        lambda: ((_code(p.name), f"{p.value_per_token_usd:g}", p.meaning) for p in PROFILES),
    ),
    "probes": ReferenceTable(
        ("name", "measures", "meaning"),
        lambda: ((_code(p.name), _codes(p.measures), p.meaning) for p in load_menu()),
    ),
    "collectors": ReferenceTable(
        ("name", "reads", "rows go to"),
        lambda: ((_code(c.name.replace("_", "-")), c.reads,
                  "the cluster's log" if c.of_cluster else "the site's log") for c in COLLECTORS),
    ),
    "commands": ReferenceTable(
        ("command", "answers"),
        lambda: ((f"[`omnipilot {name}`](commands.md#omnipilot-{name})", entry.summary)
                 for name, entry in COMMANDS.items()),
    ),
    "endpoints": ReferenceTable(
        ("method", "address", "scope", "answers"),
        lambda: ((e.method, _code(e.path), e.scope or "anybody", _first_line(e.handler.__doc__))
                 for e in ENDPOINTS),
    ),
    "problems": ReferenceTable(
        ("type", "status", "title"),
        lambda: ((_code(p.type), p.status, p.title) for p in PROBLEMS.values()),
    ),
    "metrics": ReferenceTable(
        ("name", "kind", "labels", "meaning"),
        lambda: ((_code(m.name), m.kind, _codes(m.labels), m.meaning) for m in METRICS),
    ),
    "failures": ReferenceTable(
        ("class", "status", "meaning"),
        lambda: ((_code(f.name), _code(f.status), f.meaning) for f in FAILURES),
    ),
    "policies": ReferenceTable(
        ("name", "rule"), lambda: ((_code(p.name), p.meaning) for p in POLICIES)
    ),
    "ablations": ReferenceTable(
        ("name", "hides"), lambda: ((_code(a.name), a.meaning) for a in ABLATIONS)
    ),
    "axes": ReferenceTable(
        ("axis", "field of the question", "field of the launch"),
        lambda: ((_code(a.name), _code(a.scenario_field), _code(a.fit_field))
                 for a in LAUNCH_AXES.values()),
    ),
    "gpus": ReferenceTable(
        ("kind", "architecture", "GiB", "TB/s", "16-bit TFLOP/s", "fp8 TFLOP/s", "W", "source"),
        _gpus,
    ),
    "precisions": ReferenceTable(
        ("name", "bits a weight", "multiplied by", "from compute capability", "source"),
        _precisions,
    ),
}  # fmt: skip


def markdown(table: ReferenceTable) -> str:
    """The table in Markdown, one line a row."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows()]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in line)} |" for line in lines
    )


class TableDirective(SphinxDirective):
    """``{omnipilot-table} NAME``: one table of :data:`TABLES`."""

    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        """Give the table, read as Markdown of the page."""
        name = self.arguments[0]
        if name not in TABLES:
            raise ExtensionError(f"no table {name!r}: there are {', '.join(TABLES)}")
        return self.parse_text_to_nodes(markdown(TABLES[name]))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("omnipilot-table", TableDirective)
    return {"parallel_read_safe": True}
