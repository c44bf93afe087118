"""``omnipilot prior``: launch rates, demand and queue waits of the cluster's history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import NOT_NEGATIVE, Number, format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.prior import PriorReport

_OUTCOMES = ("success", "failure", "excluded")


class StateOutcome(click.ParamType[tuple[str, str]]):
    """``STATE=success``, ``failure`` or ``excluded``."""

    name = "STATE=OUTCOME"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - the type that click passes
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        """Split at the equals sign."""
        if isinstance(value, tuple):
            return value
        state, _, outcome = str(value).partition("=")
        if outcome not in _OUTCOMES or not state.replace("_", "").isalpha():
            self.fail(f"'{value}' is not of the form TIMEOUT=failure", param, ctx)
        return state.upper(), outcome


@click.command()
@click.option(
    "--min-runtime-s",
    type=NOT_NEGATIVE,
    help="A launch that ended sooner did not come up; the site's setting if left out.",
)
@click.option(
    "--user-cancel",
    type=click.Choice(("excluded", "failure", "runtime")),
    help="What a launch that its user cancelled counts as; the site's setting if left out.",
)
@click.option(
    "--outcome",
    "outcomes",
    type=StateOutcome(),
    multiple=True,
    help="What an end state counts as; repeatable.",
)
@click.option(
    "--job-class",
    type=click.Choice(("all", "vllm", "other")),
    default="all",
    show_default=True,
    help="Count jobs of this class only.",
)
@click.option(
    "--window-d",
    type=NOT_NEGATIVE,
    default=0.0,
    show_default=True,
    help="Days after which a launch counts half; 0 counts all alike.",
)
@click.option(
    "--wait-window-d",
    type=NOT_NEGATIVE,
    default=0.0,
    show_default=True,
    help="Days after which a queue wait counts half; 0 counts all alike.",
)
@click.option(
    "--level",
    type=Number(min=0.01, max=0.999),
    default=0.8,
    show_default=True,
    help="Probability that the intervals hold.",
)
@click.option(
    "--spark",
    "spark_master",
    metavar="MASTER",
    help="Count at this Spark master; the site's setting if left out.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Configurations and waits that the tables show.",
)
@home_option
@format_option("table", "json", "csv")
def prior(
    min_runtime_s: float | None,
    user_cancel: str | None,
    outcomes: tuple[tuple[str, str], ...],
    job_class: str,
    window_d: float,
    wait_window_d: float,
    level: float,
    spark_master: str | None,
    top: int,
    home: Path | None,
    form: str,
) -> int:
    """Show how often jobs of each size came up, how much they are asked for, and how they waited.

    Counted from what omnipilot collect sacct has taken in. Rates are shrunk toward the pooled
    rate, as strongly as the configurations resemble one another.

    \b
    Example:
      omnipilot prior
      omnipilot prior --min-runtime-s 300 --user-cancel runtime --format json
      omnipilot prior --outcome TIMEOUT=failure --job-class vllm --window-d 30
    """  # fmt: skip
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.prior import launch_definition  # noqa: PLC0415 - same
    from omnipilot.advisor.prior import prior as ask  # noqa: PLC0415 - same

    advisor = Advisor.open(home)
    settings = advisor.settings
    definition = launch_definition(
        settings,
        min_runtime_s=min_runtime_s,
        user_cancel=user_cancel,
        outcomes=dict(outcomes),
        job_class="" if job_class == "all" else job_class,
        window_d=window_d,
        wait_window_d=wait_window_d,
    )
    report = ask(
        advisor.home,
        definition,
        now_s=time.time(),
        kind_of_partition=settings.gpu_kind_of_partition,
        level=level,
        spark_master=settings.spark_master if spark_master is None else spark_master,
    )
    {"json": _emit_json, "csv": _emit_csv, "table": _emit_tables}[form](report, top)
    return exits.OK


def _emit_json(report: PriorReport, _top: int) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    definition = report.definition
    output.emit_json(
        {
            "definition": {
                "outcomes": dict(definition.outcomes),
                "min_runtime_s": definition.min_runtime_s,
                "user_cancel": definition.user_cancel,
                "job_class": definition.job_class or "all",
                "window_s": definition.window_s,
                "wait_window_s": definition.wait_window_s,
            },
            "level": report.level,
            "pooled_rate": report.pooled_rate,
            "strength": report.strength,
            "strengths": report.strengths,
            "configurations": report.configurations,
            "wait_quantiles": report.wait_quantiles,
            "waits": report.waits,
            "jobs": report.jobs,
            "untyped": report.untyped,
            "without_gpus": report.without_gpus,
            "damaged": report.damaged,
            "outcomes": [
                {"state": state, "outcome": outcome, "runs": n}
                for (state, outcome), n in report.outcomes.items()
            ],
        }
    )


_CSV_FIELDS = (
    "gpu", "n_gpus", "jobs", "launches", "attempts", "successes", "excluded", "demand_frac",
    "raw_rate", "shrunk_rate", "low", "high",
)  # fmt: skip


def _emit_csv(report: PriorReport, _top: int) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rows = [[getattr(c, name) for name in _CSV_FIELDS] for c in report.configurations]
    output.emit_csv(_CSV_FIELDS, rows)


def _emit_tables(report: PriorReport, top: int) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.output import Column  # noqa: PLC0415 - same

    click.echo(
        f"{report.jobs:,} GPU jobs in {len(report.configurations):,} configurations; "
        f"{report.without_gpus:,} jobs without GPUs left out"
    )
    if not report.jobs:
        click.echo("No GPU job is known: omnipilot collect sacct --since 2026-01-01 takes them in.")
        return
    if report.untyped:
        click.echo(
            f"{report.untyped:,} of them of a kind that Slurm does not tell: say it in "
            "[gpu_kind_of_partition] of settings.toml"
        )
    if report.damaged:
        click.echo(f"{report.damaged:,} lines of the history are damaged and left out")
    output.emit_heading("Launches")
    shown = report.configurations[:top]
    output.emit_table(
        (
            Column("configuration", narrow=True), Column("jobs", number=True),
            Column("demand", number=True), Column("launches", number=True),
            Column("came up", number=True), Column("raw", number=True),
            Column("shrunk", number=True), Column(f"{report.level:.0%} interval", number=True),
        ),
        [
            (
                _name(c.gpu, c.n_gpus), f"{c.jobs:,}", f"{c.demand_frac:.1%}", f"{c.launches:,}",
                output.number(c.successes, 5), "-" if c.raw_rate is None else f"{c.raw_rate:.1%}",
                f"{c.shrunk_rate:.1%}", f"{c.low:.1%}-{c.high:.1%}",
            )
            for c in shown
        ],
    )  # fmt: skip
    click.echo(
        f"shrunk toward {report.pooled_rate:.1%}, which is worth {report.strength:,.0f} launches"
    )
    output.emit_heading("Shrunk rates, were the pooled rate worth this many launches")
    output.emit_table(
        (
            Column("configuration", narrow=True),
            *(Column(f"{strength:g}", number=True) for strength in report.strengths),
        ),
        [
            (_name(c.gpu, c.n_gpus), *(f"{rate:.1%}" for rate in c.sensitivity)) for c in shown
        ],
    )  # fmt: skip
    output.emit_heading("Queue waits from eligible to start")
    waits = sorted(report.waits, key=lambda wait: -wait.jobs)[:top]
    output.emit_table(
        (
            Column("partition", narrow=True), Column("GPUs", number=True),
            Column("jobs", number=True),
            *(Column(f"{level:.0%}", number=True) for level in report.wait_quantiles),
            Column("mean", number=True),
        ),
        [
            (
                wait.partition or "(none)", f"{wait.n_gpus}", f"{wait.jobs:,}",
                *(_hours(s) for s in wait.quantiles_s), _hours(wait.mean_s),
            )
            for wait in waits
        ],
    )  # fmt: skip


def _name(gpu: str, n_gpus: int) -> str:
    return f"{gpu or '(untyped)'} × {n_gpus}"


def _hours(value_s: float) -> str:
    minutes = round(value_s / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 1 else f"{value_s:.0f} s"
