"""What jobstats left in a job's AdminComment: use of each GPU, of memory and of CPUs.

The field is ``JS1:`` and base64 of gzip of compact JSON, or ``JS1:Short`` (the job ran less than
two samples), or ``JS1:None`` (no samples); format of github.com/PrincetonUniversity/jobstats.
Memory is a peak in bytes, GPU utilisation a mean in percent, a node's ``total_time`` CPU-seconds,
the outer one elapsed seconds. Names of nodes are not kept.
"""

from __future__ import annotations

import binascii
import re
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from omnipilot.collect.lines import Limits, decode_line, open_lines
from omnipilot.collect.slurm_values import MOST_COUNT, MOST_GPUS, FieldError, is_step, job_number
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import JobStatistics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["MARK", "NO_STATISTICS", "Statistics", "collect_jobstats", "read_statistics"]

MARK: Final = "JS1:"
# A node with eight GPUs takes about 1 KB of JSON: this is room for thousands of nodes.
_MOST_JSON_BYTES: Final = 4 * 2**20
_MOST_BLOB_CHARACTERS: Final = 2**20
_GZIP: Final = 16 + zlib.MAX_WBITS
_GIB: Final = 2.0**30
_MOST_BYTES: Final = 2.0**60
_MOST_SECONDS: Final = 1e13
# The peak is sampled and the total rounded, by different tools.
_MEMORY_SLACK: Final = 1.05
_NO_BLOB: Final = {"Short": "short", "None": "none"}
DEFAULT_LIMITS: Final = Limits()


class Statistics(NamedTuple):
    """One record, or why there is none; fields as in :class:`omnipilot.domain.JobStatistics`.

    Args:
        status: "ok", or "" (no record), "short", "none", "damaged", "oversized".
        reason: for a person, where damaged or oversized.
    """

    status: str
    reason: str = ""
    elapsed_s: float = 0.0
    n_nodes: int = 0
    gpu_utilization_frac: tuple[float, ...] = ()
    gpu_memory_used_gib: tuple[float, ...] = ()
    gpu_memory_total_gib: tuple[float, ...] = ()
    n_cpus: int = 0
    cpu_seconds: float = 0.0
    memory_used_gib: float = 0.0
    memory_total_gib: float = 0.0


NO_STATISTICS: Final = Statistics("")
_STATUS_ONLY: Final = {word: Statistics(status) for word, status in _NO_BLOB.items()}


class _Node(msgspec.Struct):
    total_memory: float = 0.0
    used_memory: float = 0.0
    total_time: float = 0.0
    cpus: float = 0.0
    gpu_total_memory: dict[str, float] = {}
    gpu_used_memory: dict[str, float] = {}
    gpu_utilization: dict[str, float] = {}


class _Summary(msgspec.Struct):
    nodes: dict[str, _Node]
    total_time: float = 0.0


_decoder = msgspec.json.Decoder(_Summary)


class _BlobError(Exception):
    """Why a blob is no record."""

    def __init__(self, status: str, reason: str) -> None:
        self.status = status
        super().__init__(reason)


def read_statistics(comment: str) -> Statistics:
    """Read an AdminComment.

    Args:
        comment: the field; anything that does not begin with ``JS1:`` is no record.

    Returns:
        The record, or why there is none; never raises.

    Example:
        >>> read_statistics("JS1:Short").status, read_statistics("JS1:H4sI").status
        ('short', 'damaged')
    """
    if not comment.startswith(MARK):
        # sacctmgr of Slurm 22.05 lower-cases what it is given, which destroys base64.
        if comment.startswith("js1:"):
            word = comment[len(MARK) :].capitalize()
            reason = "lower-cased, as by sacctmgr of Slurm 22.05"
            return _STATUS_ONLY.get(word) or Statistics("damaged", reason)
        return NO_STATISTICS
    blob = comment[len(MARK) :].strip()
    known = _STATUS_ONLY.get(blob)
    if known is not None:
        return known
    try:
        return _statistics(_decoded(blob))
    except _BlobError as error:
        return Statistics(error.status, str(error))


def _decoded(blob: str) -> _Summary:
    if len(blob) > _MOST_BLOB_CHARACTERS:
        raise _BlobError("oversized", f"longer than {_MOST_BLOB_CHARACTERS} characters")
    try:
        packed = binascii.a2b_base64(blob.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _BlobError("damaged", "not base64") from None
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        text = unpacker.decompress(packed, _MOST_JSON_BYTES + 1)
    except zlib.error:
        raise _BlobError("damaged", "not gzip") from None
    if len(text) > _MOST_JSON_BYTES:
        raise _BlobError("oversized", f"unpacks to more than {_MOST_JSON_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise _BlobError("damaged", "cut short, or followed by something else")
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _BlobError("damaged", "not the JSON of jobstats") from None


def _statistics(summary: _Summary) -> Statistics:
    utilization: list[float] = []
    used: list[float] = []
    total: list[float] = []
    n_gpus = 0
    cpus = cpu_seconds = memory_used = memory_total = 0.0
    nodes = summary.nodes
    for name in nodes if len(nodes) == 1 else sorted(nodes):
        node = nodes[name]
        if not (
            0.0 <= node.cpus <= MOST_COUNT
            and 0.0 <= node.total_time <= _MOST_SECONDS
            and 0.0 <= node.used_memory <= _MOST_BYTES
            and 0.0 <= node.total_memory <= _MOST_BYTES
        ):
            raise _BlobError("damaged", "CPUs, CPU time or memory are out of bounds")
        cpus += node.cpus
        cpu_seconds += node.total_time
        memory_used += node.used_memory
        memory_total += node.total_memory
        n_gpus += _add_gpus(node, utilization, used, total)
    # Slices of a GPU (MIG) have no utilisation; a table with only some of the GPUs is damage.
    if len(utilization) not in {0, n_gpus} or len(used) not in {0, n_gpus}:
        raise _BlobError("damaged", "its tables name different GPUs")
    if n_gpus > MOST_GPUS:
        raise _BlobError("oversized", f"more than {MOST_GPUS} GPUs")
    if not (0.0 <= summary.total_time <= _MOST_SECONDS and float(cpus).is_integer()):
        raise _BlobError("damaged", "elapsed time or CPUs are out of bounds")
    # By position: naming the fields takes as long as reading them.
    return Statistics(
        "ok", "", float(summary.total_time), len(nodes), tuple(utilization), tuple(used),
        tuple(total), int(cpus), float(cpu_seconds), memory_used / _GIB, memory_total / _GIB,
    )  # fmt: skip


def _add_gpus(node: _Node, utilization: list[float], used: list[float], total: list[float]) -> int:
    """Append the GPUs of one node in the order of their numbers; returns how many there are."""
    shares, peaks, sizes = node.gpu_utilization, node.gpu_used_memory, node.gpu_total_memory
    if not shares and not sizes:
        return 0
    names = list(sizes if sizes.keys() == shares.keys() else sizes.keys() | shares.keys())
    if len(names) > 1:
        names.sort()
        names.sort(key=len)  # "2" before "10"
    if shares:
        percent = [shares[gpu] for gpu in names if gpu in shares]
        if not (min(percent) >= 0.0 and max(percent) <= 100.0):
            raise _BlobError("damaged", "GPU utilisation is out of bounds")
        utilization += [share / 100.0 for share in percent]
    if sizes:
        try:
            pairs = [(peaks[gpu], sizes[gpu]) for gpu in names if gpu in sizes]
        except KeyError:
            raise _BlobError("damaged", "GPU memory is out of bounds") from None
        for peak, size in pairs:
            if not (0.0 <= size <= _MOST_BYTES and 0.0 <= peak <= size * _MEMORY_SLACK):
                raise _BlobError("damaged", "GPU memory is out of bounds")
        used += [peak / _GIB for peak, _ in pairs]
        total += [size / _GIB for _, size in pairs]
    return len(names)


# An optional job number, then the field: what sacct prints for JobID and AdminComment.
_LINE: Final = re.compile(r"(?:([^\s|,;]{1,200})[\s|,;]+)?((?:JS1|js1):.*)", re.ASCII)


def collect_jobstats(
    path: Path, *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[JobStatistics | Rejection]:
    """Read a file of jobstats fields, one a line, each with or without its job's number.

    ``sacct -n -P -X --format=JobID,AdminComment`` prints such a file; jobs without the field are
    passed over.

    Args:
        path: the file, plain or gzip-compressed.
        limits: what the file may cost.

    Yields:
        One item a line that holds a field: the row, or why it is none.

    Raises:
        BadInputError: the file is not text, cannot be read or is too large.
    """
    with open_lines(path, limits, "a file of jobstats fields") as lines:
        for number, line in lines:
            text = decode_line(number, line, limits)
            if isinstance(text, Rejection):
                yield text
            elif MARK in text or "js1:" in text:
                yield _row(number, text.strip().rstrip("|"))


def _row(number: int, text: str) -> JobStatistics | Rejection:
    found = _LINE.fullmatch(text)
    if found is None:
        reason = "not a job number and a JS1 field: print JobID and AdminComment alone"
        return Rejection(number, reason, "not a jobstats line")
    job_id = found[1] or ""
    try:
        if job_id and not is_step(job_id):
            job_number(job_id)
    except FieldError as error:
        return Rejection(number, str(error), error.code)
    told = read_statistics(found[2])
    if told.status != "ok":
        shown = told.reason or _WHY_NONE[told.status]
        return Rejection(number, f"jobstats {told.status}: {shown}", f"jobstats {told.status}")
    return JobStatistics(
        source="jobstats",
        job_id=job_id,
        elapsed_s=told.elapsed_s,
        n_nodes=told.n_nodes,
        gpu_utilization_frac=told.gpu_utilization_frac,
        gpu_memory_used_gib=told.gpu_memory_used_gib,
        gpu_memory_total_gib=told.gpu_memory_total_gib,
        n_cpus=told.n_cpus,
        cpu_seconds=told.cpu_seconds,
        memory_used_gib=told.memory_used_gib,
        memory_total_gib=told.memory_total_gib,
    )


_WHY_NONE: Final = {
    "short": "the job ran less than two samples",
    "none": "no samples of the job",
}
