"""Measured serving runs from CSV files of the normalised columns.

The columns are those of :mod:`omnipilot.collect.columns`; an empty cell means that
the source does not tell. Columns of other names are ignored (:func:`unread_columns` names them).
Values convert into the targets' units through :data:`omnipilot.domain.targets.TARGETS`; a label
may also stand under its target's name, in the target's unit. Names of models and GPUs stay the
source's text: whether the catalogue knows them is not this module's concern.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from omnipilot.collect.bench_numbers import offered_concurrency
from omnipilot.collect.columns import (
    DEFAULT_MODE,
    DESIGNED_COLUMNS,
    MODE_OF_SCENARIO,
    MODE_OF_SOURCE,
    MODE_OF_TEXT,
    NUMBER_COLUMNS,
    STATUSES,
    TEXT_COLUMNS,
    VERSION_OF_SOURCE,
)
from omnipilot.collect.records import Limits, Record, printable, read_records
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import InferenceRun
from omnipilot.domain.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "DEFAULT_LIMITS", "MEASUREMENTS", "QUESTIONS", "Use", "collect_csv", "find_tables",
    "unread_columns",
]  # fmt: skip

DEFAULT_LIMITS: Final = Limits()
# Distinct spellings remembered a column, so that a repeated name is checked once.
_SPELLINGS: Final = 4096


@dataclass(frozen=True, slots=True)
class Use:
    """What a file is read for: which columns must be there, and whether labels are read."""

    required: tuple[str, ...]
    labelled: bool


_ASKED: Final = ("model", "gpu", "n_gpus", "precision", "isl", "osl", "concurrency")
MEASUREMENTS: Final = Use(required=("source", "engine", *_ASKED, "status"), labelled=True)
QUESTIONS: Final = Use(required=_ASKED, labelled=False)


def find_tables(path: Path) -> list[Path]:
    """Find the files of measured rows that ``path`` means.

    Args:
        path: a file, or a folder of data sets: its ``combined/serving_rows.csv[.gz]`` where there
            is one, else every ``normalised.csv[.gz]`` below it.

    Returns:
        At least one path, sorted.

    Raises:
        BadInputError: nothing is there.
    """
    if path.is_dir():
        stacked = sorted(path.glob("combined/serving_rows.csv*"))
        found = stacked[:1] or sorted(path.glob("**/normalised.csv*"))
        found = [p for p in found if p.name.endswith((".csv", ".csv.gz"))]
        if not found:
            raise BadInputError(
                f"{path} holds neither combined/serving_rows.csv nor a normalised.csv: "
                "give a CSV file or a folder of data sets"
            )
        return found
    if not path.exists():
        raise BadInputError(f"no such file: {path}")
    return [path]


def collect_csv(
    path: Path, *, use: Use = MEASUREMENTS, limits: Limits = DEFAULT_LIMITS
) -> Iterator[InferenceRun | Rejection]:
    """Read the rows of one file in the normalised columns, plain or gzip-compressed.

    Args:
        path: the file.
        use: :data:`MEASUREMENTS`, or :data:`QUESTIONS` where labels and status are not needed.
        limits: what the file may cost.

    Yields:
        One item a record, in file order: the run, or why the record is none.

    Raises:
        BadInputError: the file is no CSV text, lacks columns or repeats one, or is too large.
    """
    records = read_records(path, limits)
    first = next(records, None)
    if first is None:
        raise BadInputError(f"{path} is empty: give a CSV file with a header line")
    if isinstance(first, Rejection):
        raise BadInputError(f"{path} has no readable header line: {first.reason}")
    reader = _RowReader(_header(path, first.fields, use), use)
    for record in records:
        yield record if isinstance(record, Rejection) else reader.row(record)


def unread_columns(path: Path, *, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Columns of a file, in its order, that :func:`collect_csv` does not know.

    Args:
        path: a file that :func:`collect_csv` has read.
        limits: what the file may cost.
    """
    first = next(read_records(path, limits), None)
    names = [name.strip() for name in first.fields] if isinstance(first, Record) else []
    return tuple(n for n in names if n and n not in NUMBER_COLUMNS and n not in TEXT_COLUMNS)


def _header(path: Path, fields: Sequence[str], use: Use) -> list[str]:
    names = [name.strip() for name in fields]
    missing = [name for name in use.required if name not in names]
    if missing:
        hint = ""
        if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
            hint = " (separate the columns with commas)"
        elif not any(name in NUMBER_COLUMNS or name in TEXT_COLUMNS for name in names):
            hint = " (its first line is no header of normalised columns)"
        raise BadInputError(f"{path} lacks the columns {', '.join(missing)}{hint}")
    twice = [name for name, n in Counter(names).items() if n > 1 and name]
    if twice:
        shown = ", ".join(printable(name) for name in twice)
        raise BadInputError(f"{path} has the columns {shown} more than once: keep one of each")
    for target in TARGETS:
        if target.name != target.column and {target.name, target.column} <= set(names):
            raise BadInputError(
                f"{path} has the columns {target.column} and {target.name}, which are the same "
                "label: keep one"
            )
    return names


class _RowReader:
    """Turns records into rows by one header."""

    def __init__(self, names: Sequence[str], use: Use) -> None:
        self._names = list(names)
        self._labelled = use.labelled
        at = {name: i for i, name in enumerate(names)}
        known: dict[str, dict[str, str]] = {name: {} for name in TEXT_COLUMNS}
        self._texts = [
            (at[name], name, most, known[name]) for name, most in TEXT_COLUMNS.items() if name in at
        ]
        labels = {name for target in TARGETS for name in (target.column, target.name)}
        self._numbers: list[tuple[int, str, float, float, bool, dict[str, float] | None]] = [
            (at[name], name, *bounds, {} if name in DESIGNED_COLUMNS else None)
            for name, bounds in NUMBER_COLUMNS.items()
            if name in at and (use.labelled or name not in labels)
        ]
        self._targets = [
            (t, name, t.column_scale if name == t.column else 1.0)
            for t in TARGETS
            for name in dict.fromkeys((t.column, t.name))
            if use.labelled and name in at
        ]
        self._stacks: dict[tuple[str, ...], StackFingerprint] = {}

    def row(self, record: Record) -> InferenceRun | Rejection:
        """Turn one record into a row, or into the reason why it is none."""
        try:
            return self._row(record.fields)
        except RowFault as fault:
            return Rejection(record.line, str(fault), fault.code)

    def _row(self, fields: list[str]) -> InferenceRun:
        if len(fields) != len(self._names):
            raise self._wrong_width(fields)
        text = self._text_fields(fields)
        for name in ("model", "gpu", *(("source",) if self._labelled else ())):
            if not text[name]:
                raise self._blank(name, fields)
        number = self._number_fields(fields)
        if "n_gpus" not in number:
            raise self._blank("n_gpus", fields)
        status = self._status(text["status"])
        mode = _mode(text["mode"], text["scenario"], text["source"])
        return InferenceRun(
            source=text["source"],
            model=text["model"],
            engine=text["engine"],
            gpu=text["gpu"],
            n_gpus=int(number["n_gpus"]),
            precision=text["precision"],
            mode=mode,
            status=status,
            labels=self._labels(number, status),
            prompt_tokens=number.get("isl", 0.0),
            output_tokens=number.get("osl", 0.0),
            concurrency=_concurrency(number, mode),
            kv_dtype=text["kv_dtype"],
            max_model_len=int(number.get("max_model_len", 0)),
            gpu_memory_gb=number.get("gpu_mem_gb", 0.0),
            pipeline_parallel=max(int(number.get("pp", 1.0)), 1),
            attention_dp=(
                number.get("attn_dp", 0.0) > 1
                or "DP for attention" in text["notes"]
                or text["parallelism"] == "dep"
            ),
            expert_parallel=(
                max(number.get("ep", 0.0), number.get("moe_ep", 0.0)) > 1
                or text["parallelism"] in {"dep", "tep"}
            ),
            engine_settings=" ".join((text["engine_settings"] or text["config"]).split()),
            workload=text["workload"] or text["task"] or text["payload"],
            notes=text["notes"],
            stack=self._stack(
                text["engine_version"]
                or VERSION_OF_SOURCE.get((text["source"], text["engine"]), ""),
                text["cuda"],
                text["driver"],
                text["image_digest"],
            ),
        )

    def _text_fields(self, fields: list[str]) -> dict[str, str]:
        text = dict.fromkeys(TEXT_COLUMNS, "")
        for i, name, most, known in self._texts:
            field = fields[i]
            if field:
                value = known.get(field)
                if value is None:
                    value = _text(field, name, most)
                    if len(known) < _SPELLINGS and len(field) < 256:
                        known[field] = value
                text[name] = value
        return text

    def _number_fields(self, fields: list[str]) -> dict[str, float]:
        number: dict[str, float] = {}
        for i, name, low, high, whole, known in self._numbers:
            field = fields[i]
            if field:
                if known is not None and field in known:
                    number[name] = known[field]
                    continue
                try:
                    quantity = float(field)
                except ValueError:
                    quantity = math.nan
                # float() also takes 1_000 and digits of other scripts, which no exporter writes.
                if (
                    low <= quantity <= high
                    and field.isascii()
                    and "_" not in field
                    and (not whole or quantity.is_integer())
                ):
                    number[name] = quantity
                    if known is not None and len(known) < _SPELLINGS:
                        known[field] = quantity
                elif not field.isspace():
                    raise _number_fault(field, name)
        return number

    def _wrong_width(self, fields: list[str]) -> RowFault:
        n, wanted = len(fields), len(self._names)
        if n > wanted:
            return RowFault("too many fields", f"{n} fields where the header has {wanted}")
        return RowFault(
            "too few fields", f"{n} fields where the header has {wanted}: is the file cut short?"
        )

    def _blank(self, name: str, fields: list[str]) -> RowFault:
        if not any(field.strip() for field in fields):
            return RowFault("blank row", "all fields are blank")
        return RowFault(f"{name} blank", f"{name} is blank")

    def _status(self, text: str) -> str:
        status = text.lower()
        if status in STATUSES:
            return status
        if not self._labelled:
            return "ok"
        if not status:
            raise RowFault("status blank", "status is blank: say ok or the kind of failure")
        if status == "status":
            raise RowFault("repeated header", "repeats the header line")
        known = ", ".join(STATUSES)
        raise RowFault("unknown status", f"status '{printable(text)}' is none of {known}")

    def _labels(self, number: dict[str, float], status: str) -> dict[str, float]:
        labels = {}
        for target, column, scale in self._targets:
            value = number.get(column)
            if value is None:
                continue
            if value > 0 or target.fraction:
                labels[target.name] = value * scale
            elif status == "ok":
                reason = f"{column} is 0 in a run whose status is ok"
                raise RowFault("out of range", reason)
            # A failed run that finished nothing reports rates of 0: no measurement of speed.
        return labels

    def _stack(self, *parts: str) -> StackFingerprint:
        stack = self._stacks.get(parts)
        if stack is None:
            stack = StackFingerprint(*parts)
            if len(self._stacks) < 10_000:
                self._stacks[parts] = stack
        return stack


def _text(field: str, name: str, most: int) -> str:
    value = field.strip()
    if len(value) > most:
        raise RowFault("text too long", f"{name} is longer than {most} characters")
    if not value.isprintable() and name != "notes":
        raise RowFault("control characters", f"{name} holds control characters")
    return value


def _number_fault(field: str, name: str) -> RowFault:
    """Say what is wrong with a number."""
    shown = printable(field.strip())
    if shown == name:
        return RowFault("repeated header", "repeats the header line")
    try:
        value = float(field) if field.isascii() and "_" not in field else None
    except ValueError:
        value = None
    if value is None:
        return RowFault("not a number", f"{name} '{shown}' is not a number")
    if not math.isfinite(value):
        return RowFault("not finite", f"{name} is {shown}, not a finite number")
    low, high, _ = NUMBER_COLUMNS[name]
    if low <= value <= high:
        return RowFault("not whole", f"{name} {shown} is not a whole number")
    return RowFault("out of range", f"{name} {shown} is outside {low:g} to {high:g}")


def _concurrency(number: Mapping[str, float], mode: str) -> float:
    """The clients of a closed loop, or what open arrivals at the rate told keep in flight."""
    told = number.get("concurrency", 0.0)
    rate_per_s = number.get("request_rate", 0.0)
    if mode != "poisson" or rate_per_s <= 0:
        return told
    return offered_concurrency(rate_per_s, told, number.get("num_prompts", 0.0))


def _mode(text: str, scenario: str, source: str) -> str:
    if not text:
        by_source = MODE_OF_SOURCE.get(source, DEFAULT_MODE)
        return MODE_OF_SCENARIO.get(scenario.lower(), by_source)
    mode = MODE_OF_TEXT.get(text.lower())
    if mode is None:
        known = ", ".join(MODE_OF_TEXT)
        raise RowFault("unknown mode", f"mode '{printable(text)}' is none of {known}")
    return mode
