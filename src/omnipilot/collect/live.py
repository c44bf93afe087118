"""The cluster as Slurm tells it now: one call of sinfo, squeue and scontrol each, side by side."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Final

from omnipilot.collect.command import Command, CommandResult, run_commands
from omnipilot.collect.live_control import CONTROL_QUESTIONS, read_partitions, read_reservations
from omnipilot.collect.live_jobs import SQUEUE_FORMAT, read_jobs_json, read_jobs_text
from omnipilot.collect.live_nodes import SINFO_FORMAT, read_nodes_json, read_nodes_text
from omnipilot.domain.cluster import ClusterState, StartEstimate
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.collect.live_nodes import NodeList
    from omnipilot.domain.cluster import QueuedJob, Reservation

__all__ = ["ask_starts", "read_cluster"]

_ENV: Final = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
_OUTPUT_BYTES: Final = 256 * 2**20

_SINFO_JSON: Final = ("sinfo", "-N", "--json")
_SINFO_TEXT: Final = ("sinfo", "-h", "-a", "-N", "-O", SINFO_FORMAT)
_SQUEUE_JSON: Final = ("squeue", "-a", "--json")
_SQUEUE_TEXT: Final = ("squeue", "-h", "-a", "-O", SQUEUE_FORMAT)
_SCONTROL: Final = ("scontrol", "-o", "-a")
_STARTS: Final = re.compile(r"to start at ([0-9]{9,11})\b")
_HUNG: Final = "did not answer within"


def read_cluster(*, now_s: float, timeout_s: float) -> ClusterState:
    """Read nodes, queue, partitions and reservations.

    JSON is asked for, and text where the version or the build has none. Without an answer of
    squeue or scontrol the rest is still told, with a note.

    Args:
        now_s: Unix seconds.
        timeout_s: longest wait for all answers together.

    Raises:
        ToolError: sinfo is missing, failed or did not answer.
    """
    first = [
        _command(_SINFO_JSON, timeout_s),
        _command(_SQUEUE_JSON, timeout_s),
        Command(_SCONTROL, timeout_s=timeout_s, stdin=CONTROL_QUESTIONS, env=_ENV),
    ]
    began_s = time.monotonic()
    sinfo, squeue, scontrol = run_commands(first)
    left_s = round(max(timeout_s - (time.monotonic() - began_s), 0.0), 1)
    again = [
        _command(text, left_s)
        for answer, text in ((sinfo, _SINFO_TEXT), (squeue, _SQUEUE_TEXT))
        if _lacks_json(answer)
    ]
    texts = iter(run_commands(again) if again else ())
    sinfo_text = next(texts) if _lacks_json(sinfo) else None
    squeue_text = next(texts) if _lacks_json(squeue) else None
    listed = _nodes(sinfo, sinfo_text)
    notes: list[str] = []
    jobs = _jobs(squeue, squeue_text, notes)
    partitions = listed.partitions
    reservations: tuple[Reservation, ...] = ()
    told = read_partitions(scontrol.stdout) if isinstance(scontrol, CommandResult) else ()
    if isinstance(scontrol, CommandResult) and told:
        partitions = told
        reservations = read_reservations(scontrol.stdout)
    else:
        # Every cluster has a partition: an answer without any was cut short or is no answer.
        why = scontrol if isinstance(scontrol, ToolError) else "scontrol names no partition"
        notes.append(f"Reservations are not known: {why}.")
    return ClusterState(
        taken_s=now_s,
        nodes=listed.nodes,
        partitions=partitions,
        reservations=reservations,
        jobs=jobs,
        version=listed.version,
        notes=tuple(notes),
    )


def ask_starts(
    shapes: Sequence[tuple[str, str, int]], *, limit_s: float, timeout_s: float
) -> list[StartEstimate]:
    """Ask ``sbatch --test-only`` when requests would start, side by side.

    Each question uses up a job number of Slurm's, so ask few.

    Args:
        shapes: partition, GPU kind as the scheduler names it ("" for any), GPUs of one node.
        limit_s: time limit of the job.
        timeout_s: longest wait.

    Returns:
        One estimate a shape that was answered, in order.
    """
    minutes = str(max(1, math.ceil(limit_s / 60.0)))
    commands = [
        _command(
            (
                "sbatch", "--test-only", f"--partition={partition}", "--nodes=1",
                f"--gres=gpu:{gpu}:{n}" if gpu else f"--gres=gpu:{n}", f"--time={minutes}",
                "--wrap=true",
            ),
            timeout_s,
        )
        for partition, gpu, n in shapes
    ]  # fmt: skip
    estimates = []
    for (partition, gpu, n), answer in zip(shapes, run_commands(commands), strict=True):
        if isinstance(answer, CommandResult):
            found = _STARTS.search(answer.stderr) or _STARTS.search(
                answer.stdout.decode(errors="replace")
            )
            if found:
                estimates.append(StartEstimate(partition, gpu, n, float(found[1])))
        elif _HUNG not in str(answer):
            estimates.append(StartEstimate(partition, gpu, n, None, _refusal(str(answer))))
    return estimates


def _command(argv: tuple[str, ...], timeout_s: float) -> Command:
    return Command(argv, timeout_s=timeout_s, output_bytes=_OUTPUT_BYTES, env=_ENV)


def _lacks_json(answer: CommandResult | ToolError) -> bool:
    """Whether the program refused the option or lacks the plugin, rather than the cluster."""
    if isinstance(answer, CommandResult):
        return answer.stdout[:64].lstrip()[:1] != b"{"
    text = str(answer).lower()
    return any(word in text for word in ("json", "serializ", "option", "plugin"))


def _nodes(sinfo: CommandResult | ToolError, text: CommandResult | ToolError | None) -> NodeList:
    if text is not None:
        if isinstance(text, ToolError):
            raise text
        return read_nodes_text(text.stdout)
    if isinstance(sinfo, ToolError):
        raise sinfo
    return read_nodes_json(sinfo.stdout)


def _jobs(
    squeue: CommandResult | ToolError, text: CommandResult | ToolError | None, notes: list[str]
) -> tuple[QueuedJob, ...]:
    try:
        if isinstance(text, CommandResult):
            return read_jobs_text(text.stdout)
        if text is None and isinstance(squeue, CommandResult):
            return read_jobs_json(squeue.stdout)
        error = text if isinstance(text, ToolError) else squeue
    except ToolError as unreadable:
        error = unreadable
    notes.append(f"The queue is not known: {error}.")
    return ()


def _refusal(text: str) -> str:
    """Slurm's own words out of the message of a failed call."""
    words = text.rpartition("allocation failure: ")[2] or text
    return words.removeprefix("sbatch: ").strip()
