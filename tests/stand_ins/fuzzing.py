"""Many damaged inputs over every parser, each checked for crash, time, soundness and locality.

What damage may do: a value changed into another value that its field can hold is another record,
which no parser can know. What it may not do is checked here for every input:

- nothing but ``BadInputError`` comes out, and within the time limit;
- every refusal has a reason and a short code to count by;
- every row can be stored and read back, and holds only values that its fields can hold;
- damage in a few places changes rows of those places only: the others are as without it.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from omnipilot.collect import COLLECTORS
from omnipilot.collect.dcgm import Telemetry, Window
from omnipilot.collect.identity import SiteKey
from omnipilot.domain import BadInputError, labels
from omnipilot.domain.gpu_health import GPU_EVENTS, SEVERITIES
from omnipilot.domain.labels import FAILURE_BY_NAME
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.targets import TARGETS
from omnipilot.store.codec import decode_line, encode_row

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from omnipilot.domain import Row

__all__ = [
    "LIMIT_S",
    "Base",
    "Tally",
    "bomb",
    "damaged",
    "fuzz_one",
    "reader",
    "rows_of",
    "soundness",
]

LIMIT_S = 1.0
_TIME_FIELDS = ("at_s", "start_s", "end_s", "submit_s", "eligible_s", "first_s", "last_s")
_EARLIEST_S, _LATEST_S = 946_684_800, 4_102_444_800

_JUNK = (
    b"\0", b"\0" * 300, b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"9" * 400,
    b"1e999", b"-1e308", b"-1", b"NaN", b"Infinity", b"-0", b"1_0", b"0x10", b"[" * 5000,
    b"{" * 5000, b'"', b"\\", b"\n", b"\r", b"\r\n", b"}", b"]", b",", b"|", b"null", b"true",
    b"\x1b[31m", b"(" * 3000, b'\\"' * 3000, b" " * 5000, b"0." + b"0" * 3000, b"\\ud800",
    "\u0661\u0662".encode(), "\u202e".encode(), b"a" * 70_000, b"JS1:" + b"A" * 5000, b"#", b"=",
)  # fmt: skip
_NUMBERS = (
    b"0", b"-1", b"1e400", b"99999999999999999999999999", b"-9223372036854775809", b"0.1e-400",
    b"4294967296", b"18446744073709551616", b"1.7976931348623157e309", b"1795957803",
)  # fmt: skip


class Base(NamedTuple):
    """One sound text of one collector, and the rows that it gives."""

    collector: str
    name: str
    data: bytes


@dataclasses.dataclass
class Tally:
    """What became of the inputs of one collector."""

    inputs: int = 0
    rows: int = 0
    refused_files: int = 0
    slowest_s: float = 0.0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    faults: list[str] = dataclasses.field(default_factory=list)


def damaged(rng: random.Random, data: bytes) -> tuple[bytes, int, str]:
    """Damage a text in one to four places.

    Returns:
        The text, in how many places, and what was done ("flip+cut").
    """
    out = bytearray(data)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        kind = rng.choice(("flip", "cut", "drop", "repeat", "insert", "number", "digit", "swap"))
        if not out:
            break
        at, n = rng.randrange(len(out)), rng.randint(1, 200)
        if kind == "flip":
            out[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del out[at:]
        elif kind == "drop":
            del out[at : at + n]
        elif kind == "repeat":
            out[at:at] = out[at : at + n] * rng.randint(1, 20)
        elif kind == "insert":
            out[at:at] = rng.choice(_JUNK)
        elif kind == "swap":
            _swap_lines(rng, out)
        else:
            _change_number(rng, out, whole=kind == "number")
        done.append(kind)
    return bytes(out), len(done), "+".join(done)


def _swap_lines(rng: random.Random, out: bytearray) -> None:
    """Exchange two lines: reordering."""
    lines = bytes(out).splitlines(keepends=True)
    if len(lines) > 1:
        one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]
        out[:] = b"".join(lines)


def _change_number(rng: random.Random, out: bytearray, *, whole: bool) -> None:
    """Put another digit, or a huge number, in the place of a number near a random place."""
    at = rng.randrange(len(out))
    while at < len(out) and not 48 <= out[at] <= 57:
        at += 1
    end = at
    while end < len(out) and (48 <= out[end] <= 57):
        end += 1
    if at == end:
        return
    if whole:
        out[at:end] = rng.choice(_NUMBERS)
    else:
        out[rng.randrange(at, end)] = 48 + rng.randrange(10)


def bomb(rng: random.Random) -> bytes:
    """A gzip file that expands a thousandfold, to 80 to 160 MiB."""
    block = rng.choice((b"\0", b"1,2\n", b"[", b"vllm:x 1\n", b" "))
    size = rng.randint(80, 160) * 2**20
    return gzip.compress(block * (size // len(block)), compresslevel=1)


def reader(collector: str) -> Callable[[Path], Iterable[Row | Rejection]]:
    """Give the collector as a site uses it."""
    entry = next(entry for entry in COLLECTORS if entry.name == collector)
    collect: Any = entry.collect
    if entry.names_people:
        return lambda path: collect(path, key=SiteKey(b"k" * 32))
    if collector == "dcgm":
        telemetry = Telemetry(windows={"12": Window(1_795_957_600.0, 1_795_957_900.0)})
        return lambda path: collect(path, telemetry=telemetry)
    if getattr(entry, "takes_context", False):
        from omnipilot.collect.context import RunContext  # noqa: PLC0415 - only here

        context = RunContext(source="lab", gpu="H100", n_gpus=2)
        return lambda path: collect(path, context=context)
    return collect  # type: ignore[no-any-return]


def rows_of(base: Base, path: Path) -> Counter[bytes]:
    """Canonical rows of a sound text, with how often each comes; ``path`` is written."""
    path.write_bytes(base.data)
    try:
        return Counter(
            encode_row(item).payload
            for item in reader(base.collector)(path)
            if not isinstance(item, Rejection)
        )
    except BadInputError:
        return Counter()


def fuzz_one(
    collector: str, path: Path, tally: Tally, *, sound: Counter[bytes], places: int, what: str
) -> None:
    """Read one damaged file and note what is wrong with how it was read.

    Args:
        collector: name of the collector.
        path: the damaged file.
        tally: filled in.
        sound: rows of the undamaged file.
        places: in how many places it was damaged; 0 where that says nothing of its rows.
        what: how it was damaged, for the note.
    """
    tally.inputs += 1
    began_s = time.process_time()
    rows: list[Row] = []
    try:
        for item in reader(collector)(path):
            if isinstance(item, Rejection):
                tally.reasons[item.code] += 1
                if not (0 < len(item.reason) < 400 and 0 < len(item.code) <= 40):
                    tally.faults.append(f"{what}: odd rejection {item!r}"[:300])
            else:
                rows.append(item)
    except BadInputError as error:
        tally.refused_files += 1
        tally.reasons["whole file refused"] += 1
        rows.clear()
        if "\n" in str(error) or len(str(error)) > 600:
            tally.faults.append(f"{what}: odd message {str(error)[:200]!r}")
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        tally.faults.append(f"{what}: crash {type(error).__name__}: {error}"[:300])
        return
    took_s = time.process_time() - began_s
    tally.slowest_s = max(tally.slowest_s, took_s)
    tally.rows += len(rows)
    if took_s > LIMIT_S:
        tally.faults.append(f"{what}: took {took_s:.2f} s")
    changed: set[bytes] = set()
    for row in rows:
        payload = encode_row(row).payload
        tally.faults += [f"{what}: {fault} in {payload!r}"[:400] for fault in soundness(row)]
        if payload not in sound:
            changed.add(payload)
    # A damaged place lies in one record, or between two; a part that was repeated gives one seam.
    if places and len(sound) > 2 and len(changed) > 2 * places:
        tally.faults.append(f"{what}: {len(changed)} rows changed by damage in {places} places")


_UNIT_OF = {target.name: target.unit for target in TARGETS} | {
    label.name: label.unit
    for table in (
        labels.STARTUP_LABELS, labels.WINDOW_LABELS, labels.GPU_LABELS, labels.TRAINING_LABELS,
        labels.PROBE_LABELS, labels.RECOVERY_LABELS,
    )
    for label in table
}  # fmt: skip
_WORDS: dict[str, frozenset[str]] = {
    "job_class": frozenset({"", "vllm", "other"}),
    "ended_by": frozenset({"", "user", "system"}),
    "jobstats": frozenset({"", "ok", "short", "none", "damaged", "oversized"}),
    "severity": frozenset(SEVERITIES),
    "event": frozenset(event.name for event in GPU_EVENTS),
    "failure": frozenset({"", *FAILURE_BY_NAME}),
}


def soundness(row: Row) -> list[str]:
    """Say what a row holds that no record can; empty for a sound row."""
    faults = []
    encoded = encode_row(row)
    if decode_line(encoded.line(0.0)).row != row:
        faults.append("does not survive the store")
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        faults += [f"{field.name} {fault}" for fault in _faults(field.name, value)]
    for name in ("labels", "job_labels"):
        for label, value in getattr(row, name, {}).items():
            if label not in _UNIT_OF:
                faults.append(f"label {label} is unknown")
            elif not 0 <= value <= (1.0 if _UNIT_OF[label] == "fraction" else 1e18):
                faults.append(f"{label} is {value}")
    start, end = getattr(row, "start_s", 0), getattr(row, "end_s", 0)
    # Local clocks that went back in between make an hour less of it, as the time it ran tells.
    hour_back = getattr(row, "elapsed_s", 0) >= end - start + 3590
    if start and end and end < start and not hour_back:
        faults.append("ends before it begins")
    shares = getattr(row, "gpu_utilization_frac", ())
    if any(not 0 <= share <= 1 for share in shares):
        faults.append("GPU utilisation out of range")
    return faults


def _faults(name: str, value: object) -> list[str]:
    """Check one field by its name and type."""
    faults: list[str] = []
    if isinstance(value, bool):
        return faults
    if isinstance(value, str):
        if not value.isprintable() and name != "notes":
            faults.append("is not printable")
        if name in _WORDS and value not in _WORDS[name]:
            faults.append(f"is '{value}'")
        if name.endswith("_hash") and value and (len(value) not in {32, 64} or not value.isalnum()):
            faults.append("is no hash")
    elif isinstance(value, (int, float)):
        if not math.isfinite(value):
            faults.append("is not finite")
        elif name.endswith(_TIME_FIELDS):
            if value and not _EARLIEST_S <= value < _LATEST_S:
                faults.append(f"is {value}")
        elif value < (-1 if name in {"exit_code", "exit_signal", "restarts"} else 0):
            faults.append(f"is {value}")
    return faults
