"""Rows that a site's own tools write as JSON: training, recovery, probes of the hardware.

One object a row, or several in an array or one after another; ``kind`` says which row it is and
the members are the row's own (:mod:`omnipilot.domain.probe_rows`). What is misspelt, missing or
not a number of its unit is refused with its place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from omnipilot.collect.json_values import JSON_LIMITS, JsonValue, decode_json, read_json_values
from omnipilot.collect.lines import Limits, printable
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.labels import PROBE_LABELS, RECOVERY_LABELS, TRAINING_LABELS
from omnipilot.domain.probe_rows import HardwareProbe, RecoveryRun, TrainingRun
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.labels import RowLabel

__all__ = ["ACCEPTED", "collect_rows"]

TypedRow: TypeAlias = TrainingRun | RecoveryRun | HardwareProbe


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a row of one kind may say: labels, and the words of its fields that are of a list."""

    row: type[TypedRow]
    labels: tuple[RowLabel, ...]
    words: dict[str, tuple[str, ...]]


ACCEPTED: Final[dict[str, _Kind]] = {
    "training_run": _Kind(
        TrainingRun,
        TRAINING_LABELS,
        {"status": ("ok", "oom", "error", "crash", "preempted", "cancelled")},
    ),
    "recovery_run": _Kind(
        RecoveryRun,
        RECOVERY_LABELS,
        {
            "cause": (
                "node_fail", "gpu_fault", "oom", "preempted", "time_limit", "crash", "other",
            ),
            "status": ("recovered", "failed", "abandoned"),
        },
    ),
    "hardware_probe": _Kind(
        HardwareProbe,
        PROBE_LABELS,
        {
            "probe": ("node_admission", "flop_utilization", "checkpoint_throughput"),
            "status": ("pass", "fail", "error"),
        },
    ),
}  # fmt: skip
_MOST_VALUE: Final = 1e18
_MOST_GPUS: Final = 1_000_000
_TEXT_CHARACTERS: Final = 200
_LATEST_S: Final = 4_102_444_800.0  # 2100-01-01
_TIMES: Final = ("start_s", "end_s", "at_s")


def collect_rows(path: Path, *, limits: Limits = JSON_LIMITS) -> Iterator[TypedRow | Rejection]:
    """Read a file of typed rows.

    Args:
        path: the file, plain or gzip-compressed.
        limits: what the file may cost.

    Yields:
        One item an object, in file order: the row, or why it is none.

    Raises:
        BadInputError: the file cannot be read, is too large or holds no JSON object.
    """
    for value in read_json_values(path, "JSON rows, each with its kind", limits):
        yield value if isinstance(value, Rejection) else _row(value)


def _row(value: JsonValue) -> TypedRow | Rejection:
    members = decode_json(value, dict[str, Any])
    if isinstance(members, Rejection):
        return members
    try:
        return _checked(members)
    except RowFault as fault:
        return Rejection(value.line, str(fault), fault.code)


def _checked(members: dict[str, Any]) -> TypedRow:
    kind = ACCEPTED.get(str(members.get("kind", "")))
    if kind is None:
        shown = printable(str(members.get("kind", "")))
        raise RowFault("unknown kind", f"kind '{shown}' is none of {', '.join(ACCEPTED)}")
    if members.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise RowFault("other schema", f"schema_version must be {SCHEMA_VERSION}")
    known = {f.name for f in dataclasses.fields(kind.row)}
    if odd := [name for name in members if name not in known]:
        raise RowFault("unknown field", f"no field '{printable(odd[0])}' in {members['kind']}")
    try:
        row = msgspec.convert(members, kind.row)
    except msgspec.ValidationError as error:
        raise RowFault("wrong shape", printable(str(error), 160)) from None
    _check_words(row, kind)
    _check_numbers(row, kind)
    return row


def _check_words(row: TypedRow, kind: _Kind) -> None:
    for name, words in kind.words.items():
        if getattr(row, name) not in words:
            raise RowFault(f"unknown {name}", f"{name} must be one of {', '.join(words)}")
    for field in dataclasses.fields(row):
        text = getattr(row, field.name)
        # Paths and addresses of people have no place in the site's logs.
        if isinstance(text, str) and (
            len(text) > _TEXT_CHARACTERS
            or not text.isprintable()
            or "@" in text
            or text.startswith(("/", "~"))
        ):
            raise RowFault(
                "odd text", f"{field.name} is too long, a path, an address or unprintable"
            )
    if not row.source or not row.gpu:
        raise RowFault("no source or GPU", "source and gpu must be told")


def _check_numbers(row: TypedRow, kind: _Kind) -> None:
    if not 0 < row.n_gpus <= _MOST_GPUS:
        raise RowFault("n_gpus out of range", f"n_gpus must be from 1 to {_MOST_GPUS}")
    labels = {label.name: label for label in kind.labels}
    for name, number in row.labels.items():
        label = labels.get(name)
        if label is None:
            raise RowFault("unknown label", f"no label '{printable(name)}' in {row.kind}")
        most = 1.0 if label.unit == "fraction" else _MOST_VALUE
        if not 0.0 <= number <= most:
            raise RowFault("label out of range", f"{name} must be from 0 to {most:g} {label.unit}")
    for name in _TIMES:
        if not 0.0 <= getattr(row, name, 0.0) < _LATEST_S:
            raise RowFault("time out of range", f"{name} is no time in Unix seconds")
