"""Predictions for rows that came over HTTP."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain import TARGET_NAMES, BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnipilot.advisor.predict import Batch
    from omnipilot.web.asking import PredictBody
    from omnipilot.web.snapshot import Snapshot

POINTS: Final = ("q10", "q50", "q90", "lower", "upper")
_COLUMNS: Final = (
    "model", "gpu", "n_gpus", "precision", "isl", "osl", "concurrency", "engine",
    "engine_version", "kv_dtype", "max_model_len", "gpu_mem_gb",
)  # fmt: skip


def csv_of(body: PredictBody) -> bytes:
    """The rows of a body in the normalised columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in body.rows:
        values = [getattr(row, name) for name in _COLUMNS]
        writer.writerow(["" if value is None else value for value in values])
    return buffer.getvalue().encode("utf-8", "replace")


def predicted(snapshot: Snapshot, text: bytes) -> dict[str, Any]:
    """Answers to every row of a CSV text."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="omnipilot-") as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(text)
        for batch in _batches(snapshot, path):
            for i, (said, values) in enumerate(
                zip(batch.verdicts, batch.values.tolist(), strict=True)
            ):
                points = iter(values)
                rows.append(
                    {
                        "row": batch.first_row + i,
                        "verdict": said.verdict,
                        "supported": said.supported,
                        "confidence": said.confidence,
                        "reason": said.reason,
                        "targets": {
                            name: {p: _finite(next(points)) for p in POINTS}
                            for name in TARGET_NAMES
                        },
                    }
                )
    return {"model_version": snapshot.version, "rows": rows}


def _batches(snapshot: Snapshot, path: Path) -> Iterator[Batch]:
    try:
        yield from snapshot.advisor.predict(path)
    except BadInputError as error:
        raise without_path(error, path) from error


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def without_path(error: BadInputError, path: Path) -> BadInputError:
    """The same error; the place on this machine is nobody's business."""
    return BadInputError(str(error).replace(str(path), "the body"))
