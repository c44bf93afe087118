"""Rows as lines of JSON, each with the hash of its content.

A line is one JSON object: ``content_hash`` and ``ingested_at_s`` first, then the row's fields in
alphabetic order (``kind``, ``schema_version``, ``stack``, ...). The hash is the SHA-256 of the
canonical row: the same object without those two members, keys sorted, no blanks.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.probe_rows import HardwareProbe, RecoveryRun, TrainingRun
from omnipilot.domain.rows import (
    SCHEMA_VERSION,
    ClusterJob,
    InferenceRun,
    JobStatistics,
    LabelledRun,
    Row,
    ServingWindow,
    StartupRun,
)
from omnipilot.domain.telemetry_rows import GpuHealth, GpuSnapshot, GpuWindow
from omnipilot.store.migrate import UnknownSchemaError, upgrade

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LINE_BYTES", "ROW_TYPES", "EncodedRow", "StoredRow", "UnknownKindError", "UnreadableLineError",
    "decode_line", "digest_of_line", "encode_line", "encode_row", "is_unaltered", "known_digest",
    "time_stamp",
]  # fmt: skip

# Kinds of rows by the name in their ``kind`` field; a new kind is one entry.
ROW_TYPES: Final[dict[str, type[Row]]] = {
    "inference_run": InferenceRun,
    "labelled_run": LabelledRun,
    "startup_run": StartupRun,
    "serving_window": ServingWindow,
    "cluster_job": ClusterJob,
    "job_statistics": JobStatistics,
    "gpu_window": GpuWindow,
    "gpu_health": GpuHealth,
    "gpu_snapshot": GpuSnapshot,
    "training_run": TrainingRun,
    "recovery_run": RecoveryRun,
    "hardware_probe": HardwareProbe,
}

LINE_BYTES: Final = 2**20
_HEAD: Final = b'{"content_hash":"'
_DIGEST_END: Final = len(_HEAD) + 64
# What stands before the content in the lines written here; the time is a number of JSON.
_WHOLE: Final = re.compile(
    rb'\{"content_hash":"([0-9a-f]{64})","ingested_at_s":'
    rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?,"
)

_FLOAT_FIELDS: Final = {
    row: tuple(f.name for f in fields(row) if f.type in {"float", float})
    for row in ROW_TYPES.values()
}
_FLOAT_TUPLES: Final = {
    row: tuple(f.name for f in fields(row) if f.type == "tuple[float, ...]")
    for row in ROW_TYPES.values()
}
_FLOAT_MAPPINGS: Final = {
    row: tuple(f.name for f in fields(row) if f.type == "dict[str, float]")
    for row in ROW_TYPES.values()
}

# Fields that came after rows of the schema were stored, with what they say where they say nothing:
# left out then, so that a row given again has the hash that it is stored under.
_LATER_NAMES: Final = frozenset({"pipeline_parallel", "expert_parallel", "engine_settings"})
_LATER: Final[dict[type, dict[str, object]]] = {
    row: {f.name: f.default for f in fields(row) if f.name in _LATER_NAMES}
    for row in (InferenceRun, LabelledRun)
}

_encoder = msgspec.json.Encoder(order="sorted")
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_row_decoders = {kind: msgspec.json.Decoder(row) for kind, row in ROW_TYPES.items()}


class _Envelope(msgspec.Struct):
    content_hash: str
    ingested_at_s: float
    kind: str
    schema_version: int


_envelope_decoder = msgspec.json.Decoder(_Envelope)


class UnreadableLineError(Exception):
    """A line that is no whole, unaltered row; its text is a short class of what is wrong."""


class UnknownKindError(Exception):
    """A line that this version has no type for; its text is the kind, or kind and schema."""


class EncodedRow(NamedTuple):
    """A row ready to be written: 32-byte content hash and canonical JSON."""

    digest: bytes
    payload: bytes

    def line(self, now_s: float) -> bytes:
        """Give the line of the log, newline included."""
        return _line(self.payload, self.digest.hex().encode(), time_stamp(now_s))


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row of the log with when it was taken in (Unix seconds)."""

    row: Row
    content_hash: str
    ingested_at_s: float


def encode_row(row: Row) -> EncodedRow:
    """Encode one row canonically: 64 and 64.0 in a float field are the same content.

    Raises:
        BadInputError: a number that is not finite, text that is not Unicode, or a huge row.
    """
    payload = _payload(row)
    return EncodedRow(hashlib.sha256(payload).digest(), payload)


def time_stamp(now_s: float) -> bytes:
    """Encode the time of taking in, once for many rows; see :func:`encode_line`."""
    return _encoder.encode(float(now_s))


def encode_line(row: Row, stamp: bytes) -> bytes:
    """Encode one row as a line of the log, newline included.

    Raises:
        BadInputError: as :func:`encode_row`.
    """
    payload = _payload(row)
    return _line(payload, hashlib.sha256(payload).hexdigest().encode(), stamp)


def _line(payload: bytes, digest: bytes, stamp: bytes) -> bytes:
    return b'%b%b","ingested_at_s":%b,%b\n' % (_HEAD, digest, stamp, payload[1:])


def _payload(row: Row) -> bytes:
    try:
        payload = _encoder.encode(row)
        if not _holds_floats(row):
            payload = _encoder.encode(_row_decoders[row.kind].decode(payload))
        later = _LATER.get(type(row))
        if later is not None:
            told = _object_decoder.decode(payload).items()
            payload = _encoder.encode({k: v for k, v in told if k not in later or v != later[k]})
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.MsgspecError) as error:
        raise BadInputError(f"a row of kind {row.kind} cannot be stored: {error}") from error
    # JSON has no NaN and no infinity: msgspec writes null (which may also stand inside a text).
    if b"null" in payload and None in _leaves(_object_decoder.decode(payload)):
        raise BadInputError(f"a row of kind {row.kind} holds a number that is not finite")
    if len(payload) > LINE_BYTES - 256:
        raise BadInputError(f"a row of kind {row.kind} is longer than {LINE_BYTES} bytes")
    return payload


def _holds_floats(row: Row) -> bool:
    # Plain loops: this runs for every row, and generators would double its time.
    of = type(row)
    for name in _FLOAT_FIELDS[of]:
        if type(getattr(row, name)) is not float:
            return False
    for name in _FLOAT_TUPLES[of]:
        for value in getattr(row, name):
            if type(value) is not float:
                return False
    for name in _FLOAT_MAPPINGS[of]:
        for value in getattr(row, name).values():
            if type(value) is not float:
                return False
    return True


def _leaves(fields: Mapping[str, Any]) -> list[Any]:
    """Give the values of an object and of the objects and lists right below it."""
    leaves = list(fields.values())
    for value in fields.values():
        if isinstance(value, dict):
            leaves.extend(value.values())
        elif isinstance(value, list):
            leaves.extend(value)
    return leaves


def digest_of_line(line: bytes) -> bytes | None:
    """Read the content hash of a line (32 bytes); None where the line holds none.

    The place of the hash is fixed in the lines written here, so that half a million of them are
    indexed without decoding; lines written elsewhere are decoded.
    """
    try:
        if line.startswith(_HEAD) and line[_DIGEST_END : _DIGEST_END + 1] == b'"':
            return binascii.unhexlify(line[len(_HEAD) : _DIGEST_END])
        digest = binascii.unhexlify(_envelope_decoder.decode(line).content_hash)
    except (msgspec.MsgspecError, ValueError):
        return None
    return digest if len(digest) == 32 else None


def known_digest(line: bytes) -> bytes | None:
    """Read the content hash of a line that can be read and holds that content; None for any other.

    A line that was torn, glued to another or altered names a row that nobody can read any more.
    """
    found = _WHOLE.match(line)
    if found is not None:
        digest = hashlib.sha256(b"{" + line[found.end() : -1]).digest()
        if digest.hex().encode() == found[1]:
            return digest
    try:
        stated = _envelope_decoder.decode(line).content_hash
        return binascii.unhexlify(stated) if is_unaltered(line, stated) else None
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def decode_line(line: bytes) -> StoredRow:
    """Decode one line of the log, older schemas included.

    Raises:
        UnreadableLineError: no JSON object of this log, or its content does not match its hash.
        UnknownKindError: a kind or a schema that this version does not know.
    """
    try:
        head = _envelope_decoder.decode(line)
        if head.kind not in ROW_TYPES:
            raise UnknownKindError(head.kind)
        if not is_unaltered(line, head.content_hash):
            raise UnreadableLineError("altered")
        if head.schema_version == SCHEMA_VERSION:
            row = _row_decoders[head.kind].decode(line)
        else:
            members = _object_decoder.decode(line)
            row = msgspec.convert(
                upgrade(members, head.kind, head.schema_version), ROW_TYPES[head.kind]
            )
    except UnknownSchemaError as error:
        raise UnknownKindError(f"{head.kind} schema {head.schema_version}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableLineError("not a row") from error
    return StoredRow(row, head.content_hash, head.ingested_at_s)


def is_unaltered(line: bytes, content_hash: str) -> bool:
    """Check content against hash; lines whose members stand in another order are re-encoded."""
    if line.startswith(_HEAD):
        payload = b"{" + line[line.find(b",", _DIGEST_END + 2) + 1 :].rstrip(b"\r\n")
        if hashlib.sha256(payload).hexdigest() == content_hash:
            return True
    members = _object_decoder.decode(line)
    del members["content_hash"], members["ingested_at_s"]
    return hashlib.sha256(_encoder.encode(members)).hexdigest() == content_hash
