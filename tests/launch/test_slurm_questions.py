"""What a launch asks of Slurm, against made-up programs that answer as the real ones do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from omnipilot.catalog import Catalog
from omnipilot.domain import ToolError
from omnipilot.launch.runners import SlurmRunner
from omnipilot.launch.script import job_name
from omnipilot.launch.slurm import Place, jobs_named, places_of, queued_jobs, submit

from launch_builders import launch_of  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\necho \"$@\" >>'{tools}/{name}.asked'\n{body}\n")
    (tools / name).chmod(0o755)


def test_the_number_of_a_submitted_job_is_read(tools: Path, tmp_path: Path) -> None:
    program(tools, "sbatch", "echo '4711;lab'")
    assert submit(tmp_path / "launch.sh") == "4711"
    program(tools, "sbatch", "echo hello")
    with pytest.raises(ToolError, match="no job number"):
        submit(tmp_path / "launch.sh")


def test_a_silent_sbatch_costs_its_time_out_at_most(tools: Path, tmp_path: Path) -> None:
    program(tools, "sbatch", "sleep 30")
    with pytest.raises(ToolError, match="sbatch"):
        submit(tmp_path / "launch.sh", timeout_s=0.3)


def test_the_latest_job_of_a_name_counts_and_accounting_knows_the_rest(tools: Path) -> None:
    program(tools, "squeue", "printf '7|COMPLETED|a\\n12|RUNNING|a\\n9|PENDING|other\\n'")
    program(tools, "sacct", "printf '3|CANCELLED by 0|b\\n'")
    jobs = jobs_named(["a", "b", "c"])
    assert {name: (job.job_id, job.state) for name, job in jobs.items()} == {
        "a": ("12", "RUNNING"), "b": ("3", "CANCELLED"),
    }  # fmt: skip
    assert [jobs["a"].is_active, jobs["b"].is_active] == [True, False]


def test_a_job_that_only_accounting_calls_running_is_not_alive(tools: Path, tmp_path: Path) -> None:
    program(tools, "squeue", "true")
    program(tools, "sacct", f"echo '5|RUNNING|{job_name(launch_of())}'")
    assert queued_jobs([job_name(launch_of())]) == {}
    assert SlurmRunner(Catalog.load()).alive([(launch_of(), tmp_path)]) == set()


def test_partitions_that_are_up_and_have_enough_of_the_kind_are_found(tools: Path) -> None:
    program(tools, "sinfo", (
        "printf 'cpu*|up|(null)\\nsmall|up|gpu:h100:1\\ngpu_h100|up|gpu:h100:4(S:0-1)\\n"
        "gpu_a100|up|gpu:a100:4\\nold|down|gpu:h100:8\\n'"
    ))  # fmt: skip
    facts = Catalog.load()
    assert places_of(facts, "h100-80", 2) == [Place("gpu_h100", "h100", 4)]
    assert [p.partition for p in places_of(facts, "h100-80", 1)] == ["small", "gpu_h100"]
    # "a100" may be the part of 40 or of 80 GB.
    assert [p.partition for p in places_of(facts, "a100-40", 4)] == ["gpu_a100"]
    assert [p.partition for p in places_of(facts, "a100-80", 4)] == ["gpu_a100"]
    assert places_of(facts, "h200-141", 1) == []


def test_a_submission_whose_answer_got_lost_is_not_repeated(tools: Path, tmp_path: Path) -> None:
    program(tools, "sinfo", "true")
    program(tools, "squeue", "true")
    program(tools, "sacct", "true")
    program(tools, "sbatch", "echo sbatch: error: timed out >&2; exit 1")
    runner, spec = SlurmRunner(Catalog.load()), launch_of()
    with pytest.raises(ToolError):
        runner.start(spec, tmp_path / "run")
    # The job was made all the same: it is found by its name.
    program(tools, "squeue", f"echo '44|PENDING|{job_name(spec)}'")
    program(tools, "sbatch", "echo 45")
    (tools / "sbatch.asked").unlink()
    runner.start(spec, tmp_path / "run")
    runner.start(spec, tmp_path / "run")
    assert (tmp_path / "run" / "jobid").read_text().strip() == "44"
    assert not (tools / "sbatch.asked").exists()
