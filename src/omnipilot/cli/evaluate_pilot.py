"""``omnipilot evaluate pilot``: LLM-Pilot's S/O score."""

from __future__ import annotations

from pathlib import Path

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra


@click.command()
@click.option(
    "--data", "folder", required=True, type=click.Path(path_type=Path, exists=True),
    help="Folder of measured rows that holds llm_pilot/ with its prices.",
)  # fmt: skip
@click.option(
    "--probes", type=click.IntRange(0, 10), default=0, show_default=True, metavar="K",
    help="Profiles of the left-out LLM that are measured before deciding.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def pilot(folder: Path, probes: int, home: Path | None, form: str) -> int:
    """Score recommendations for LLMs never measured by the method of LLM-Pilot.

    Each LLM is left out of all rows; the profile that serves 200 users within the latency limits
    at the least predicted cost is compared with the measured best. success_rate and overspend are
    fractions, so_score is their harmonic mean 2 S (1 - O) / (S + 1 - O).

    \b
    Example:
      omnipilot evaluate pilot --data ../shared/data --probes 2 --format json
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import FOLDS_FOLDER  # noqa: PLC0415 - same
    from omnipilot.evaluate.pilot import pilot as score  # noqa: PLC0415 - same
    from omnipilot.evaluate.pilot import pilot_rows  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    catalog = Catalog.load(site)
    rows = pilot_rows(folder, catalog)
    dataset = build_dataset(read_runs(folder), catalog)
    figures = score(dataset, rows, probes, site / FOLDS_FOLDER, output.progress)
    if form == "json":
        output.emit_json(figures)
        return exits.OK
    click.echo(
        f"S {figures['success_rate']:.2f}, O {figures['overspend']:.3f}, "
        f"S/O {figures['so_score']:.2f} with {probes} probes"
    )
    output.emit_table(
        [output.Column("LLM"), output.Column("recommended"), output.Column("probed"),
         output.Column("success"), output.Column("overspend", number=True)],
        [
            [name, e["recommended"], ", ".join(e["probed"]) or "-",
             "yes" if e["success"] else "no",
             f"{e['overspend']:.1%}" if e["success"] else "-"]
            for name, e in figures["per_model"].items()
        ],
    )  # fmt: skip
    published = ", ".join(f"{k} {v:.2f}" for k, v in figures["published_so_score"].items())
    click.echo(f"published: {published}")
    return exits.OK
