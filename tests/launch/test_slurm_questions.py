"""What a launch asks of Slurm, against made-up programs that answer as the real ones do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from omnipilot.catalog import Catalog
from omnipilot.decide.cluster_gpus import GpuNaming
from omnipilot.domain import Arm, ToolError
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
        "printf 'cpu*|up|infinite|(null)|(null)|c[1-9]\\nsmall|up|1:00:00|gpu:h100:1|x|s1\\n"
        "gpu_h100|up|infinite|gpu:h100:4(S:0-1)|x|h[1-2]\\n"
        "gpu_a100|up|infinite|gpu:a100:4|x|a1\\nold|down|infinite|gpu:h100:8|x|o1\\n'"
    ))  # fmt: skip
    facts = GpuNaming(Catalog.load())
    assert places_of(facts, "h100-80", 2) == [Place("gpu_h100", "h100")]
    assert [p.allows(3601) for p in places_of(facts, "h100-80", 1)] == [False, True]
    assert [p.partition for p in places_of(facts, "h100-80", 1)] == ["small", "gpu_h100"]
    # "a100" may be the part of 40 or of 80 GB.
    assert [p.partition for p in places_of(facts, "a100-40", 4)] == ["gpu_a100"]
    assert [p.partition for p in places_of(facts, "a100-80", 4)] == ["gpu_a100"]
    assert places_of(facts, "h200-141", 1) == []


@pytest.mark.parametrize(("word", "gres"), [("a100:", "gpu:a100:2"), ("", "gpu:2")])
def test_a_run_keeps_away_from_other_kinds_under_the_same_type(
    tools: Path, tmp_path: Path, word: str, gres: str
) -> None:
    program(tools, "sinfo", (
        f"printf 'gpu|up|infinite|gpu:{word}4|a100,hbm40|n[3-4]\\n"
        f"gpu|up|infinite|gpu:{word}4|a100,hbm80|n[1-2]\\n"
        f"other|up|infinite|gpu:{word}4|a100,hbm40|n[8-9]\\n'"
    ))  # fmt: skip
    program(tools, "sbatch", "echo 7")
    (tmp_path / "run").mkdir()
    SlurmRunner(Catalog.load()).start(launch_of(arm=Arm("a100-80", 2, "bf16")), tmp_path / "run")
    script = (tmp_path / "run" / "launch.sh").read_text().splitlines()
    for line in ("--partition=gpu", f"--gres={gres}", "--exclude=n3,n4"):
        assert f"#SBATCH {line}" in script


def test_a_run_goes_where_it_may_be_long_enough(tools: Path, tmp_path: Path) -> None:
    program(tools, "sinfo", (
        "printf 'short|up|30:00|gpu:h100:4|x|n1\\nlong|up|1-00:00:00|gpu:h100:4|x|n1\\n'"
    ))  # fmt: skip
    program(tools, "sbatch", "echo 7")
    SlurmRunner(Catalog.load()).start(launch_of(), tmp_path / "run")
    assert "#SBATCH --partition=long\n" in (tmp_path / "run" / "launch.sh").read_text()


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
