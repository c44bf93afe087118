"""``omnipilot predict``: one answer for every row of a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omnipilot.advisor.predict import Batch

HEAD = ("row", "verdict", "supported", "confidence")


@click.command()
@click.option("--rows", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="CSV of the normalised columns, plain or gzip-compressed.")  # fmt: skip
@home_option
@format_option("csv", "json")
def predict(rows: Path, home: Path | None, form: str) -> int:
    """Predict every row of a CSV file.

    FILE has at least the columns model, gpu, n_gpus, precision, isl, osl and concurrency. Each row
    gets one output row, in order: its number from 0, whether the configuration starts, whether it
    is inside what was measured, the confidence, and quantiles and 80 % interval of every target
    in its unit. A row that cannot be resolved has verdict "unknown", empty numbers and a reason.
    Concurrency above what the KV cache holds is answered as queueing, not refused.

    \b
    Example:
      omnipilot predict --rows questions.csv.gz --format csv > answers.csv
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick

    batches = Advisor.open(home).predict(rows)
    write = _csv_lines if form == "csv" else _json_lines
    for text in write(batches):
        click.echo(text, nl=False)
    return exits.OK


def _csv_lines(batches: Iterable[Batch]) -> Iterator[str]:
    from omnipilot.advisor.predict import COLUMNS  # noqa: PLC0415 - keeps --help quick

    header = ",".join((*HEAD, *COLUMNS, "reason")) + "\n"
    numbers = ",".join(["%.6g"] * len(COLUMNS))
    for batch in batches:
        lines, header = [header], ""
        for i, (said, row) in enumerate(zip(batch.verdicts, batch.values.tolist(), strict=True)):
            middle = numbers % tuple(row)
            if "nan" in middle:
                middle = middle.replace("nan", "")
            supported = "true" if said.supported else "false"
            lines.append(
                f"{batch.first_row + i},{said.verdict},{supported},{said.confidence},{middle},"
                f"{_quoted(said.reason)}\n"
            )
        yield "".join(lines)
    yield header


def _quoted(text: str) -> str:
    if not text:
        return ""
    line = " ".join(text.split()).replace('"', '""')
    return f'"{line}"'


def _json_lines(batches: Iterable[Batch]) -> Iterator[str]:
    from omnipilot.advisor.predict import COLUMNS  # noqa: PLC0415 - keeps --help quick

    before = "["
    for batch in batches:
        for i, (said, row) in enumerate(zip(batch.verdicts, batch.values.tolist(), strict=True)):
            item = {
                "row": batch.first_row + i,
                "verdict": said.verdict,
                "supported": said.supported,
                "confidence": said.confidence,
                **{
                    name: None if math.isnan(value) else float(f"{value:.6g}")
                    for name, value in zip(COLUMNS, row, strict=True)
                },
                "reason": said.reason,
            }
            yield f"{before}\n{json.dumps(item, allow_nan=False, ensure_ascii=False)}"
            before = ","
    yield "[]\n" if before == "[" else "\n]\n"
