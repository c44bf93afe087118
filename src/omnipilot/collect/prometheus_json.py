"""Answers of a Prometheus server: series of readings out of ``query`` and ``query_range`` JSON.

Format: prometheus.io, "HTTP API". An error answer, a cut one and a scalar hold no series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from omnipilot.collect.json_values import JsonValue, decode_json
from omnipilot.collect.lines import printable
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Series", "series_of"]

_EARLIEST_S: Final = 946_684_800.0  # 2000-01-01
_LATEST_S: Final = 4_102_444_800.0  # 2100-01-01
_MOST_LABELS: Final = 100
_LABEL_CHARACTERS: Final = 1024


class Series(NamedTuple):
    """One metric of one source: where it was, its labels, times (n,) in Unix seconds, values (n,).

    Times rise; a value that is not finite was not recorded.
    """

    line: int
    name: str
    labels: dict[str, str]
    times_s: NDArray[np.float64]
    values: NDArray[np.float64]


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[msgspec.Raw]
    result_type: str = msgspec.field(name="resultType", default="")


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def series_of(value: JsonValue) -> Iterator[Series | Rejection]:
    """Read the series of one answer; a series that is no series is refused alone.

    Args:
        value: the answer's JSON.

    Example:
        >>> text = b'{"status":"success","data":{"resultType":"vector","result":[{"metric":'
        >>> text += b'{"__name__":"up"},"value":[1795957523.3,"1"]}]}}'
        >>> next(series_of(JsonValue(1, text))).values
        array([1.])
    """
    answer = decode_json(value, _Answer)
    if isinstance(answer, Rejection):
        yield answer
        return
    if answer.status != "success" or answer.data is None:
        told = printable(answer.error, 120) or "no reason told"
        yield Rejection(value.line, f"the server answered with an error: {told}", "error answer")
        return
    if answer.data.result_type not in {"matrix", "vector"}:
        shown = printable(answer.data.result_type)
        yield Rejection(value.line, f"an answer of type '{shown}' has no series", "no series")
        return
    for raw in answer.data.result:
        yield _series(value.line, bytes(raw))


def _series(line: int, raw: bytes) -> Series | Rejection:
    result = decode_json(JsonValue(line, raw), _Result)
    if isinstance(result, Rejection):
        return result
    labels = dict(result.metric)
    name = labels.pop("__name__", "")
    try:
        return Series(line, name, labels, *_readings(result, name, labels))
    except RowFault as error:
        return Rejection(line, str(error), error.code)


def _readings(
    result: _Result, name: str, labels: dict[str, str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give times and values, checked."""
    readings = result.values or ([result.value] if result.value is not None else [])
    if not name or not readings:
        raise RowFault("empty series", "a series without a name or a reading")
    shown = f"a series of {printable(name)}"
    if len(labels) > _MOST_LABELS or any(len(v) > _LABEL_CHARACTERS for v in labels.values()):
        raise RowFault("huge labels", f"{shown} has huge labels")
    try:
        values = np.array([_number(text) for _, text in readings], dtype=np.float64)
    except (ValueError, OverflowError):
        raise RowFault("not a number", f"{shown} holds a value that is no number") from None
    times_s = np.array([when for when, _ in readings], dtype=np.float64)
    if not (times_s.min() >= _EARLIEST_S and times_s.max() < _LATEST_S):
        raise RowFault("time out of range", f"{shown} has a time before 2000 or after 2100")
    if bool(np.any(np.diff(times_s) <= 0)):
        raise RowFault("times out of order", f"the readings of {shown} are out of order")
    return times_s, values


def _number(text: Any) -> float:  # noqa: ANN401 - checked here
    # Python also reads "1_0" and digits of other scripts, which Prometheus never prints.
    if not text.isascii() or "_" in text or len(text) > 64 or text != text.strip():
        raise ValueError(text)
    return float(text)
