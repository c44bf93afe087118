"""The script of a launch, run by a real bash."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import vllm_stand_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launch_builders import MODEL, launch_of

from omnipilot.domain import Arm, BadInputError, InferenceRun
from omnipilot.domain.engine import EngineParameters
from omnipilot.launch.emit import outcome_of, read_marks, run_rows
from omnipilot.launch.ingest import find_runs
from omnipilot.launch.script import job_name, launch_script
from omnipilot.launch.spec import JobRequest, LaunchSpec, Software, read_spec, write_spec

if TYPE_CHECKING:
    from pathlib import Path

BASH = shutil.which("bash") or "/bin/bash"
# Words that do harm as soon as one quote is missing.
HOSTILE = (
    "x'; touch PWNED; '", "$(touch PWNED)", "`touch PWNED`", 'a" ; touch PWNED; "', "x;touch PWNED",
    "x | touch PWNED", "x && touch PWNED", "${IFS}touch${IFS}PWNED", "a'$(touch PWNED)'b", "*", "~",
    "x > PWNED", "\\'; touch PWNED #", "!!", "x &", "#nothing", "a b  c", "é漢", "x\\", "$'\\x27'",
)  # fmt: skip


def header_of(script: str) -> str:
    """The values, and a body that prints them instead of starting anything."""
    values = script.split("\n# ----", maxsplit=1)[0]
    return values + (
        '\nprintf \'%s\\0\' "$model" "$checkpoint" "$run_dir" "$image" '
        '"${variables[@]}" "${serve_arguments[@]}" "${modules[@]}"\n'
    )


def printed(script: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [BASH, "-c", header_of(script)], cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


def said(spec: LaunchSpec, run_dir: Path) -> list[str]:
    return [
        spec.model_id, spec.checkpoint, str(run_dir), spec.software.image,
        *(f"{k}={v}" for k, v in spec.software.environment),
        "--tensor-parallel-size", "1", "--max-model-len", "4096",
        "--gpu-memory-utilization", "0.9", "--max-num-seqs", "64",
        *spec.parameters.arguments, *spec.software.modules,
    ]  # fmt: skip


@pytest.mark.parametrize("word", HOSTILE)
def test_no_value_becomes_a_command(word: str, tmp_path: Path) -> None:
    spec = launch_of(
        model_id=f"org/{word}",
        checkpoint=f"/models/{word}",
        parameters=EngineParameters(4096, 0.9, 64, arguments=(word, f"--x={word}")),
        software=Software(image=word, modules=(word,), environment=(("NAME", word),)),
    )
    assert printed(launch_script(spec, tmp_path), tmp_path) == said(spec, tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_model_name_comes_through_as_it_is_or_is_refused(tmp_path: Path, word: str) -> None:
    try:
        spec = launch_of(model_id=word, checkpoint=word)
    except BadInputError:
        assert word.startswith("-") or not word.isprintable()
        return
    assert printed(launch_script(spec, tmp_path), tmp_path)[:2] == [word, word]
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_model_is_served_under_its_name_and_runs_nothing(tmp_path: Path) -> None:
    model = "org/x'; touch PWNED; $(touch PWNED) `touch PWNED`"
    spec = launch_of(model_id=model, checkpoint=model)
    code, run = run_launch(tmp_path, spec)
    assert code == 0, (run / "job.log").read_text()
    assert not list(tmp_path.rglob("PWNED*"))
    assert model in (run / "server.log").read_text()


@pytest.mark.parametrize("field", ["partition", "account", "qos", "gres"])
@pytest.mark.parametrize("value", ["x\n#SBATCH --uid=0", "a b", "x;y", "$(id)", "x'", "-" * 300])
def test_a_name_for_slurm_that_could_change_the_header_is_refused(field: str, value: str) -> None:
    with pytest.raises(BadInputError, match=field):
        JobRequest(**{field: value})  # type: ignore[arg-type]


def test_names_that_are_none_are_refused() -> None:
    for changes in (
        {"model_id": "--help"}, {"checkpoint": "x\ny"}, {"run_id": "../x"}, {"model_id": ""},
    ):  # fmt: skip
        with pytest.raises(BadInputError):
            launch_of(**changes)
    for software in (
        {"environment": (("A B", "x"),)}, {"image": "i", "venv": "v"}, {"venv": "a\nb"},
    ):  # fmt: skip
        with pytest.raises(BadInputError):
            Software(**software)


def test_a_folder_that_slurm_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="blanks"):
        launch_script(launch_of(), tmp_path / "a b")


def test_an_engine_without_a_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="vllm only"):
        launch_script(launch_of(arm=Arm("h100-80", 1, "bf16", "sglang")), tmp_path)


def test_the_lines_for_slurm_say_what_was_asked(tmp_path: Path) -> None:
    job = JobRequest("gpu_h100", "lab", "high", "gpu:h100:1", 90, cpus=8, memory_gib=64)
    spec = launch_of(job=job)
    lines = launch_script(spec, tmp_path).splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert set(options) == {
        f"--job-name={job_name(spec)}", "--nodes=1", "--ntasks=1", "--gres=gpu:h100:1", "--time=90",
        f"--output={tmp_path}/job.out", "--open-mode=append", "--no-requeue",
        "--partition=gpu_h100", "--account=lab", "--qos=high", "--cpus-per-task=8", "--mem=64G",
        "--signal=B:TERM@60",
    }  # fmt: skip
    assert "vllm" in job_name(spec)
    assert lines[0] == "#!/bin/bash"


def test_a_launch_survives_its_file(tmp_path: Path) -> None:
    spec = launch_of(software=Software(environment=(("A", "b c"),)))
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec


def run_launch(
    folder: Path, spec: LaunchSpec, *, path: str = "", **environment: str
) -> tuple[int, Path]:
    """Run a launch with the stand-in; its exit code and its folder."""
    venv = vllm_stand_in.install(folder / "venv")
    spec = replace(spec, software=replace(spec.software, venv=str(venv)))
    run = folder / "run"
    write_spec(run, spec)
    (folder / "launch.sh").write_text(launch_script(spec, run))
    env = {"PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"],
           "TMPDIR": str(folder), **environment}  # fmt: skip
    with (run / "job.log").open("wb") as log:
        done = subprocess.run(
            [BASH, folder / "launch.sh"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=env, timeout=60, check=False,
        )  # fmt: skip
    return done.returncode, run


def test_a_good_launch_leaves_its_moments_in_order_and_no_cache_behind(tmp_path: Path) -> None:
    code, run = run_launch(tmp_path, launch_of())
    assert (code, outcome_of(run)) == (0, "benchmarked")
    marks = read_marks(run)
    names = ["script_start", "server_start", "serve_start", "bench_start", "bench_end", "serve_end"]
    assert list(marks) == names
    assert list(marks.values()) == sorted(marks.values())
    assert not list(tmp_path.glob("omnipilot-????????"))
    assert 20000 <= int((run / "port").read_text()) < 30000


def test_a_launch_whose_reader_is_gone_ends_as_it_should_and_takes_its_rows_in(
    tmp_path: Path,
) -> None:
    venv = vllm_stand_in.install(tmp_path / "venv")
    run = tmp_path / "run"
    spec = launch_of(software=Software(venv=str(venv)))
    write_spec(run, spec)
    emit = [shutil.which("touch") or "/bin/touch", str(run / "taken")]
    (tmp_path / "launch.sh").write_text(launch_script(spec, run, emit))
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [BASH, tmp_path / "launch.sh"], stdin=subprocess.DEVNULL, stdout=write, stderr=write,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert done.returncode == 0
    assert outcome_of(run) == "benchmarked"
    assert (run / "taken").exists()


def test_a_failed_launch_ends_with_an_error(tmp_path: Path) -> None:
    spec = launch_of(software=Software(environment=(("STAND_IN_FAIL", "oom_weights"),)))
    code, run = run_launch(tmp_path, spec)
    assert (code, outcome_of(run)) == (1, "failed")
    assert "serve_start" not in read_marks(run)


def test_a_script_that_is_run_again_starts_clean_and_loses_no_row(tmp_path: Path) -> None:
    _, run = run_launch(tmp_path, launch_of())
    (run / "taken").touch()
    code, _ = run_launch(tmp_path, launch_of(), STAND_IN_FAIL="oom_weights")
    assert (code, outcome_of(run), (run / "taken").exists()) == (1, "failed", False)
    (run / "done").unlink()  # a node that failed
    run_launch(tmp_path, launch_of(), STAND_IN_FAIL="unsupported")
    told = [
        (folder.name, outcome_of(folder), [row.status for row in run_rows(folder)
                                           if isinstance(row, InferenceRun)])
        for folder in find_runs([run])
    ]  # fmt: skip
    assert told == [
        ("earlier-1", "benchmarked", ["ok"]), ("earlier-2", "interrupted", ["oom"]),
        ("run", "failed", ["unsupported"]),
    ]  # fmt: skip


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    code, run = run_launch(tmp_path, launch_of(health_wait_s=1, software=Software(
        environment=(("STAND_IN_MUTE", "1"),))))  # fmt: skip
    assert (code, outcome_of(run)) == (1, "failed")
    assert "health_timeout" in read_marks(run)


def test_a_venv_without_the_engine_is_told_apart_from_a_failed_start(tmp_path: Path) -> None:
    spec = launch_of(software=Software(venv=str(tmp_path / "empty")))
    run = tmp_path / "run"
    (tmp_path / "launch.sh").write_text(launch_script(spec, run))
    done = subprocess.run(
        [BASH, tmp_path / "launch.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "vllm was not found: there is none in" in done.stdout
    assert outcome_of(run) == "not_started"


@pytest.mark.parametrize("program", ["#!/nonexistent/python\n", "#!/bin/sh\nexec nonexistent\n"])
def test_an_engine_that_cannot_be_run_is_told_apart_from_a_failed_start(
    program: str, tmp_path: Path
) -> None:
    vllm = tmp_path / "vllm"
    vllm.write_text(program)
    vllm.chmod(0o755)
    run = tmp_path / "run"
    write_spec(run, launch_of())
    (tmp_path / "launch.sh").write_text(launch_script(launch_of(), run))
    done = subprocess.run(
        [BASH, tmp_path / "launch.sh"], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "vllm was not found, or could not be run" in done.stdout
    assert outcome_of(run) == "not_started"
    assert list(run_rows(run)) == []


@pytest.mark.parametrize(
    ("given_devices", "seen"),
    [
        ("GPU-aaaa1111,GPU-cccc3333", "0,2"),
        ("GPU-bbbb", "1"),
        ("MIG-1f2e3d", "0"),
        ("GPU-unknown", "GPU-unknown"),
        ("1,3", "1,3"),
    ],
)
def test_gpu_uuids_become_the_indices_that_the_engine_reads(
    given_devices: str, seen: str, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\nprintf '0, GPU-aaaa1111\\n1, GPU-bbbb2222\\n2, GPU-cccc3333\\n'\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    _, run = run_launch(
        tmp_path,
        launch_of(software=Software(environment=(("STAND_IN_FAIL", "bad_arguments"),))),
        path=str(tools),
        CUDA_VISIBLE_DEVICES=given_devices,
    )
    assert f"CUDA_VISIBLE_DEVICES={seen}\n" in (run / "server.log").read_text()


def test_two_launches_of_one_job_number_take_different_ports(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        folder = tmp_path / name
        venv = vllm_stand_in.install(folder / "venv")
        spec = launch_of(bench=None, software=Software(venv=str(venv)))
        run = folder / "run"
        folder.joinpath("launch.sh").write_text(launch_script(spec, run))
        process = subprocess.Popen(
            [BASH, folder / "launch.sh"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"SLURM_JOB_ID": "7", "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        runs.append((run, process))
    ports = [wait_ready(run) for run, _ in runs]
    for _, process in runs:
        process.terminate()
    codes = [process.wait(timeout=30) for _, process in runs]
    assert len(set(ports)) == 2
    # A server that is told to stop has served.
    assert codes == [0, 0]
    assert [outcome_of(run) for run, _ in runs] == ["served", "served"]
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def wait_ready(run: Path) -> int:
    until = time.monotonic() + 30
    while "serve_start" not in read_marks(run):
        assert time.monotonic() < until
        time.sleep(0.05)
    return int((run / "port").read_text())


def test_the_operator_s_variables_win_over_the_advice_s(tmp_path: Path) -> None:
    spec = launch_of(
        model_id=MODEL,
        parameters=EngineParameters(4096, 0.9, 64, environment=(("STAND_IN_FAIL", "error"),),
                                    unset=("GONE",)),
        software=Software(environment=(("STAND_IN_FAIL", "bad_arguments"),)),
    )  # fmt: skip
    _, run = run_launch(tmp_path, spec, GONE="still there")
    log = (run / "server.log").read_text()
    assert "unrecognized arguments" in log
    assert "GONE" not in log
