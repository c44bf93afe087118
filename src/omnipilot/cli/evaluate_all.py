"""``omnipilot evaluate all``: every figure of the evaluation page."""

from __future__ import annotations

from pathlib import Path

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra


@click.command(name="all")
@click.option(
    "--data", "folder", required=True, type=click.Path(path_type=Path, exists=True),
    help="Folder of measured rows in the normalised columns.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page to this Markdown file.",
)  # fmt: skip
@click.option(
    "--extra", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Markdown put before the commands: what falls short, tables of benchmarks.",
)  # fmt: skip
@click.option(
    "--kept-only", is_flag=True, help="Leave out what would need a new fit.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def everything(
    folder: Path,
    out: Path | None,
    extra: Path | None,
    kept_only: bool,
    home: Path | None,
    form: str,
) -> int:
    """Ask every question of the evaluation page and write the page.

    A first run fits some forty folds, a few minutes each; they are kept in the site's folder
    (cache/folds), so a run that was cut takes up where it stopped.

    \b
    Example:
      omnipilot evaluate all --data ../shared/data --out EVALUATION.md
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import FOLDS_FOLDER  # noqa: PLC0415 - same
    from omnipilot.evaluate.page import evaluate_all, is_kept, write_page  # noqa: PLC0415 - same
    from omnipilot.evaluate.pilot import LATENCIES, pilot, pilot_rows  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    catalog, cache = Catalog.load(site), site / FOLDS_FOLDER
    dataset = build_dataset(read_runs(folder), catalog)
    figures = evaluate_all(dataset, cache, output.progress, kept_only=kept_only)
    rows = pilot_rows(folder, catalog)
    ready = not kept_only or all(is_kept(dataset, q, cache) for q in LATENCIES)
    pilots = [pilot(dataset, rows, k, cache, output.progress) for k in (0, 1, 2)] if ready else []
    page = write_page(figures, pilots, extra.read_text(encoding="utf-8") if extra else "")
    if out is not None:
        out.write_text(page, encoding="utf-8")
    if form == "json":
        output.emit_json({**figures, "pilot": pilots})
    else:
        click.echo(page)
    return exits.OK
