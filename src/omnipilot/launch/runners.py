"""Where the runs of a grid run: a runner starts them and knows which are alive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from omnipilot.decide.cluster_gpus import GpuNaming
from omnipilot.launch.emit import is_done
from omnipilot.launch.local import is_running, start_script
from omnipilot.launch.script import SCRIPT_NAME, job_name, launch_script
from omnipilot.launch.slurm import jobs_named, places_of, queued_jobs, submit
from omnipilot.launch.spec import LaunchSpec, write_atomically, write_spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from omnipilot.catalog import Catalog

    Started = Sequence[tuple[LaunchSpec, Path]]

__all__ = ["LocalRunner", "Runner", "SlurmRunner", "has_begun"]

_SUBMITTING: Final = "submitting"
_JOB_ID: Final = "jobid"
_MARKS: Final = "marks"


def has_begun(folder: Path) -> bool:
    """Whether the run of a folder was really started, so that another try needs another folder."""
    return (folder / _JOB_ID).exists() or (folder / _MARKS).exists()


class Runner(Protocol):
    """Starts runs and knows which of them are alive, also those that another process started.

    ``looks`` is how often in a row a run must be found neither alive nor ended before it counts as
    interrupted.
    """

    looks: int

    def start(self, spec: LaunchSpec, folder: Path) -> None:
        """Start a run in its folder, once, however often it is asked.

        Raises:
            OmniPilotError: it cannot be started now.
        """
        ...

    def alive(self, started: Started, /) -> set[Path]:
        """Folders whose run is queued or running.

        Raises:
            ToolError: nobody knows now.
        """
        ...


class LocalRunner:
    """Runs on this machine.

    Args:
        script_of: writes a run's script.
    """

    looks = 1

    def __init__(self, script_of: Callable[[LaunchSpec, Path], str] = launch_script) -> None:
        self._script_of = script_of
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, spec: LaunchSpec, folder: Path) -> None:
        """Start a run; one that another process started and that still lives is left alone."""
        write_spec(folder, spec)
        script = folder / SCRIPT_NAME
        write_atomically(script, self._script_of(spec, folder).encode())
        process = start_script(script, folder)
        if process is not None:
            self._children[folder] = process

    def alive(self, started: Started, /) -> set[Path]:
        """Folders whose script holds its lock; what has ended is waited for until it is gone.

        A script that is done still clears up and takes its rows in, and its lock goes a moment
        before it does.
        """
        for folder, child in list(self._children.items()):
            if is_done(folder) or not is_running(folder):
                child.wait()
                del self._children[folder]
        return {folder for _, folder in started if is_running(folder)}


class SlurmRunner:
    """Runs as jobs of Slurm, one each, found again by their names.

    Args:
        catalog: tells which GPU kind Slurm's type words mean.
    """

    # A shared file system may show what a node wrote half a minute later.
    looks = 8

    def __init__(self, catalog: Catalog) -> None:
        self._naming = GpuNaming(catalog)

    def start(self, spec: LaunchSpec, folder: Path) -> None:
        """Submit a run, unless a submission whose answer got lost has made its job already."""
        if (folder / _JOB_ID).exists():
            return
        name = job_name(spec)
        if (folder / _SUBMITTING).exists():
            found = jobs_named([name]).get(name)
            if found is not None:
                write_atomically(folder / _JOB_ID, f"{found.job_id}\n".encode())
                return
        spec = self._placed(spec)
        write_spec(folder, spec)
        script = folder / SCRIPT_NAME
        write_atomically(script, launch_script(spec, folder).encode())
        write_atomically(folder / _SUBMITTING, b"")
        write_atomically(folder / _JOB_ID, f"{submit(script)}\n".encode())

    def alive(self, started: Started, /) -> set[Path]:
        """Folders whose job is queued or running, from one question for all."""
        folders = {job_name(spec): folder for spec, folder in started}
        if not folders:
            return set()
        jobs = queued_jobs(list(folders))
        return {folders[name] for name, job in jobs.items() if job.is_active}

    def _placed(self, spec: LaunchSpec) -> LaunchSpec:
        """Name the partition and the GPU type where the plan leaves them to Slurm.

        Nodes whose GPUs are of another kind under the same type are kept away from.
        """
        job = spec.job
        if job.gres:
            return spec
        places = places_of(self._naming, spec.arm.gpu_kind, spec.arm.tensor_parallel)
        places = [p for p in places if job.partition in ("", p.partition)]
        if not places:
            return spec
        at = next((p for p in places if p.allows(60 * job.time_limit_min)), places[0])
        request = replace(
            job, partition=job.partition or at.partition, gres=at.gres(spec.arm.tensor_parallel),
            exclude=tuple(sorted({*job.exclude, *at.others})),
        )  # fmt: skip
        return replace(spec, job=request)
