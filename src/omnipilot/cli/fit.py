"""``omnipilot fit``: train a cost-model bundle on measured rows."""

from __future__ import annotations

import time
from pathlib import Path

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra


@click.command()
@click.option(
    "--data", "folder", required=True, type=click.Path(path_type=Path, exists=True),
    help="Folder (or CSV file) of measured rows in the normalised columns.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the bundle; HOME/bundles/current is the one that a site answers from.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def fit(folder: Path, out: Path, home: Path | None, form: str) -> int:
    """Train a cost-model bundle on measured rows.

    Takes some minutes on two cores and needs the extra 'fit'. The same rows give the same bundle,
    bit for bit; its model card tells sources, row counts and held-out errors.

    \b
    Example:
      omnipilot fit --data ../shared/data --out ~/omnipilot/bundles/current
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.learn.train import train_bundle  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    started = time.monotonic()
    dataset = build_dataset(read_runs(folder), Catalog.load(home or default_home()))
    output.progress(
        f"{dataset.data.frame.n:,} rows to learn from, {dataset.excluded.total:,} left out"
    )
    version, card = train_bundle(
        dataset, out, lambda text: output.progress(f"{time.monotonic() - started:4.0f} s  {text}")
    )
    if form == "json":
        output.emit_json({"version": version, "out": str(out), "card": card})
        return exits.OK
    click.echo(f"cost model {version} of {card['rows']:,} rows in {out}")
    output.emit_table(
        [
            output.Column("head"), output.Column("held out"), output.Column("rows", number=True),
            output.Column("MAPE", number=True), output.Column("median APE", number=True),
            output.Column("coverage", number=True),
        ],
        [
            [name, label, f"{e['rows']:,}", f"{e['mape']:.1%}", f"{e['median_ape']:.1%}",
             f"{e['nested_coverage']:.1%}"]
            for name, classes in card["held_out"].items() for label, e in classes.items()
        ],
    )  # fmt: skip
    return exits.OK
