"""``omnipilot models``: the cost models of a site, where they came from, which one answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.learning_data import ModelEntry
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.ledger import Entry


@click.group(no_args_is_help=False)
def models() -> None:
    """Show the cost models that answer.

    \b
    Example:
      omnipilot models list
      omnipilot models show --physics
      omnipilot models health
      omnipilot models rollback
    """


@models.command("list")
@home_option
@format_option("table", "json", "csv")
def list_(home: Path | None, form: str) -> int:
    """List the cost models; the first one answers.

    \b
    Example:
      omnipilot models list --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.learning_models import listed  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    found = listed(Advisor.open(home))
    if form == "json":
        output.emit_json({"models": found})
    elif form == "csv":
        output.emit_csv(
            ("version", "kind", "answers", "base", "rows", "site_rows", "mape", "coverage",
             "verdict"),
            [(m.version, m.kind, m.answers, m.base, m.rows, m.site_rows, m.mape, m.coverage,
              m.verdict) for m in found],
        )  # fmt: skip
    else:
        output.emit_table(
            [output.Column("version", narrow=True), output.Column("kind"),
             output.Column("base rows", number=True), output.Column("site rows", number=True),
             output.Column("MAPE", number=True), output.Column("coverage", number=True),
             output.Column("fitted (UTC)", narrow=True), output.Column("verdict")],
            [_row(m) for m in found],
        )  # fmt: skip
    return exits.OK


def _row(m: ModelEntry) -> list[str]:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    return [
        m.version + (" (answers)" if m.answers else ""), m.kind, f"{m.rows:,}", f"{m.site_rows:,}",
        "-" if m.mape is None else f"{m.mape:.1%}",
        "-" if m.coverage is None else f"{m.coverage:.1%}", output.moment(m.fitted_s), m.verdict,
    ]  # fmt: skip


@models.command()
@click.argument("version", default="")
@click.option("--base", is_flag=True, help="Show the shipped model even where the site has one.")
@click.option("--physics", is_flag=True, help="Show the fitted parameters of the physics prior.")
@home_option
@format_option("table", "json")
def show(version: str, base: bool, physics: bool, home: Path | None, form: str) -> int:
    """Show what a cost model was fitted on, its errors and what became of it.

    VERSION may be cut short; without it the model that answers is shown.

    \b
    Example:
      omnipilot models show --physics
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    wanted = use.SHIPPED if base else version
    model, card, found, entries = use.show(Advisor.open(home), wanted)
    document: dict[str, Any] = {"version": found, **card, "ledger": entries}
    if physics:
        document["physics"] = _physics(model)
    if form == "json":
        output.emit_json(document)
        return exits.OK
    from omnipilot.learn.train import render_card  # noqa: PLC0415 - same

    click.echo(render_card(found, card), nl=False)
    _emit_site(card, entries)
    if physics:
        _emit_physics(document["physics"])
    return exits.OK


def _emit_site(card: dict[str, Any], entries: list[Entry]) -> None:
    """What the model learned of the site, and its lines of the ledger."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    site = card.get("site")
    if site:
        output.emit_heading(f"Conditioned on {site['rows']:,} runs of the site")
        output.emit_lines(f"{n:,} of {name}" for name, n in site["sources"].items())
        output.emit_table(
            [output.Column("head"), output.Column("rows", number=True),
             output.Column("MAPE", number=True), output.Column("coverage", number=True),
             output.Column("log width", number=True)],
            [[name, f"{f['n']:,}", f"{f['mape']:.1%}", f"{f['coverage']:.1%}",
              f"{f['log_width']:.2f}"] for name, f in site["held_out"].items()],
        )  # fmt: skip
    if entries:
        output.emit_heading("Ledger")
        output.emit_lines(
            f"{output.moment(e.at_s)} {e.event}: {e.facts.get('reason', '')}" for e in entries
        )


@models.command()
@click.argument("one")
@click.argument("other", default="")
@home_option
@format_option("table", "json")
def diff(one: str, other: str, home: Path | None, form: str) -> int:
    """Show what differs between two cost models.

    ONE and OTHER are versions or 'shipped'; without OTHER the model that answers is taken.

    \b
    Example:
      omnipilot models diff shipped
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    found = use.diff(Advisor.open(home), one, other)
    if form == "json":
        output.emit_json(found)
        return exits.OK
    click.echo(f"{found['versions'][0]} against {found['versions'][1]}")
    click.echo(
        f"rows: {found['rows_added']:,} more, {found['rows_removed']:,} fewer, "
        f"{found['rows_reweighted']:,} count otherwise; base {' against '.join(found['base'])}"
    )
    output.emit_table(
        [output.Column("head"), output.Column("runs", number=True),
         output.Column("median change", number=True), output.Column("largest", number=True),
         output.Column("log width", number=True)],
        [[head, f"{c['rows']:,}", f"{c['median_change_frac']:+.1%}",
          f"{c['largest_change_frac']:.1%}",
          " against ".join(f"{w:.2f}" for w in c["mean_log_width"])]
         for head, c in found["answers"].items()],
    )  # fmt: skip
    return exits.OK


@models.command()
@click.argument("version")
@click.option("--force", is_flag=True, help="Promote it although the gate rejected it.")
@home_option
@format_option("table", "json")
def promote(version: str, force: bool, home: Path | None, form: str) -> int:
    """Make a cost model the one that answers.

    \b
    Example:
      omnipilot models promote 1a2b3c4d5e6f
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same

    moved = use.promote(Advisor.open(home), version, now_s=time.time(), force=force)
    return _emit_move(moved, form)


@models.command()
@click.option(
    "--to", "version", default="", metavar="VERSION",
    help="The version that shall answer again, or 'shipped'; the one before if left out.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def rollback(version: str, home: Path | None, form: str) -> int:
    """Make the cost model before answer again.

    \b
    Example:
      omnipilot models rollback
      omnipilot models rollback --to shipped
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same

    return _emit_move(use.roll_back(Advisor.open(home), version, now_s=time.time()), form)


def _emit_move(moved: tuple[str, str], form: str) -> int:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    now, before = (version or "shipped" for version in moved)
    if form == "json":
        output.emit_json({"answers": now, "before": before})
    elif now == before:
        click.echo(f"{now} answers already")
    else:
        click.echo(f"{now} answers now; {before} did before")
    return exits.OK


@models.command()
@click.argument("version")
@click.option("--admit", is_flag=True, help="Let them in again instead.")
@home_option
@format_option("table", "json")
def withhold(version: str, admit: bool, home: Path | None, form: str) -> int:
    """Take the rows that a version learned anew out of further fits.

    Says nothing about the model that answers: fit again, or roll back.

    \b
    Example:
      omnipilot models withhold 1a2b3c4d5e6f
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    n = use.withhold(Advisor.open(home), version, now_s=time.time(), admit=admit)
    if form == "json":
        output.emit_json({"rows": n, "withheld": not admit})
    else:
        click.echo(f"{n:,} runs {'let in again' if admit else 'taken out of further fits'}")
    return exits.OK


@models.command()
@home_option
@format_option("table", "json")
def health(home: Path | None, form: str) -> int:
    """Tell how the model that answers stands up to rows measured since.

    New rows are held against their intervals by engine version, GPU kind and target. An alarm
    means that chance does not explain them; the rate of false alarms is stated.

    \b
    Example:
      omnipilot models health
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor import learning_models as use  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.learning_tables import emit_streams  # noqa: PLC0415 - same

    found = use.health(Advisor.open(home))
    if form == "json":
        output.emit_json(found.data())
        return exits.OK
    alarms = len(found.alarms)
    click.echo(
        f"Cost model {found.version}: {found.new_rows:,} runs measured since, "
        + (f"{alarms} alarm{'s' if alarms != 1 else ''}" if alarms else "no alarm")
        + f" (false alarms: {found.false_alarm_rate:.0%} at most)."
    )
    output.emit_lines(found.notes)
    if found.streams:
        output.emit_heading("New rows against their 80 % intervals")
        emit_streams(found.streams[:12])
    return exits.OK


def _physics(model: FittedModel) -> list[dict[str, Any]]:
    """Each parameter: base value with unit, and the factor of every level that moves it."""
    import numpy as np  # noqa: PLC0415 - keeps --help quick

    from omnipilot.costmodel.physics import PARAMETERS  # noqa: PLC0415 - same

    fitted = model.physics
    return [
        {
            "name": p.name,
            "value": float(p.bounded(np.exp(fitted.base[j]))),
            "unit": p.unit,
            "meaning": p.meaning,
            "factors": {
                category: {level: float(np.exp(v[j])) for level, v in levels.items()}
                for category, levels in fitted.offsets.items()
            },
        }
        for j, p in enumerate(PARAMETERS)
    ]


def _emit_physics(parameters: list[dict[str, Any]]) -> None:
    """The parameters, each with the levels that move it by more than a tenth."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    output.emit_heading("Physics prior: effective parameters, and factors of 10 % and more")
    rows = []
    for p in parameters:
        moved = sorted(
            ((abs(f - 1.0), f"{level} ×{f:.2f}")
             for levels in p["factors"].values() for level, f in levels.items()
             if not 0.9 < f < 1.1),
            reverse=True,
        )  # fmt: skip
        rows.append(
            [p["name"], f"{p['value']:.3g} {p['unit']}", p["meaning"],
             ", ".join(text for _, text in moved[:6])]
        )  # fmt: skip
    output.emit_table(
        [output.Column("parameter"), output.Column("value"), output.Column("meaning"),
         output.Column("largest factors")],
        rows,
    )  # fmt: skip
