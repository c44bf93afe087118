"""A plan is carried out, each run once, whatever interrupts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from launch_builders import launch_of, plan_of, quick_script

from omnipilot.domain import BadInputError, InferenceRun, StateError, ToolError
from omnipilot.launch.bench import MOST_TRIES, plan_progress, run_plan
from omnipilot.launch.local import hold_folder
from omnipilot.launch.plan import Plan, PlannedRun, read_plan, runs_folder, write_plan
from omnipilot.launch.runners import LocalRunner
from omnipilot.store import Store

if TYPE_CHECKING:
    from omnipilot.launch.spec import LaunchSpec

HERE = Path(__file__).parent


class MadeUpRunner:
    """Runs that end when they are looked at ``looks_until_done`` times; counts starts."""

    looks = 1

    def __init__(self, looks_until_done: int = 1) -> None:
        self.started: list[str] = []
        self.most_gpus = 0
        self._left: dict[Path, int] = {}
        self._width: dict[Path, int] = {}
        self._n = looks_until_done

    def start(self, spec: LaunchSpec, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "marks").write_text("script_start 100\nserve_end 3700\n")
        self.started.append(spec.run_id)
        self._left[folder] = self._n
        self._width[folder] = spec.arm.tensor_parallel
        self.most_gpus = max(self.most_gpus, sum(self._width[f] for f in self._left))

    def alive(self, started: object, /) -> set[Path]:
        del started
        for folder in list(self._left):
            self._left[folder] -= 1
            if self._left[folder] <= 0:
                del self._left[folder]
                self.finish(folder)
        return set(self._left)

    def finish(self, folder: Path) -> None:
        (folder / "done").write_text("benchmarked\n")


def carry_out(path: Path, runner: MadeUpRunner | LocalRunner, taken: list[Path] | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN201
    into = [] if taken is None else taken
    return run_plan(path, runner, into.append, sleep=lambda _: None, poll_s=0)


def saved(tmp_path: Path, plan: Plan) -> Path:
    path = tmp_path / "grid.json"
    write_plan(path, plan)
    return path


def test_every_run_is_started_once_and_its_rows_are_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(7))
    runner, taken = MadeUpRunner(), list[Path]()
    done = carry_out(path, runner, taken)
    assert sorted(runner.started) == [f"run-{i:04d}" for i in range(1, 8)]
    assert len(taken) == 7
    assert done.count("ended") == 7
    assert plan_progress(path).text.startswith("7 of 7 ended (7 measured, 0 failed)")


def test_no_more_gpus_are_in_use_than_the_limit(tmp_path: Path) -> None:
    runner = MadeUpRunner(looks_until_done=3)
    carry_out(saved(tmp_path, plan_of(20, max_gpus=3)), runner)
    assert runner.most_gpus == 3


def test_the_budget_is_of_what_ended_and_predicted_of_what_was_started(tmp_path: Path) -> None:
    # Each run is predicted to take 0.125 node-hours and takes 3600 s of an eighth of a node: the
    # same. A budget of 1.0 is 8 runs.
    path = saved(tmp_path, plan_of(20, budget_node_h=1.0))
    runner = MadeUpRunner()
    done = carry_out(path, runner)
    assert len(runner.started) == 8
    assert done.spent_node_h == pytest.approx(1.0)
    assert done.count("waiting") == 12


def test_a_plan_that_has_ended_is_not_carried_out_again(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(3))
    carry_out(path, MadeUpRunner())
    again = MadeUpRunner()
    carry_out(path, again)
    assert again.started == []


def test_a_run_that_is_interrupted_every_time_is_lost_after_three_tries(tmp_path: Path) -> None:
    class Vanishing(MadeUpRunner):
        def finish(self, folder: Path) -> None:
            del folder

    runner = Vanishing()
    done = carry_out(saved(tmp_path, plan_of(1)), runner)
    assert runner.started == ["run-0001", "run-0001.2", "run-0001.3"]
    assert len(runner.started) == MOST_TRIES
    assert done.count("lost") == 1
    assert "1 lost" in done.text


def test_two_processes_do_not_carry_out_one_plan(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(1))
    with hold_folder(runs_folder(path)), pytest.raises(StateError, match="another process"):
        carry_out(path, MadeUpRunner())


def test_a_scheduler_that_is_down_is_waited_for_and_ended_runs_are_taken(tmp_path: Path) -> None:
    class Down(MadeUpRunner):
        down = 0

        def alive(self, started: object, /) -> set[Path]:
            if self.started and self.down < 5:
                self.down += 1
                for folder in self._left:
                    self.finish(folder)
                raise ToolError("squeue has been silent")
            return super().alive(started)

    said: list[str] = []
    runner, taken = Down(), list[Path]()
    path = saved(tmp_path, plan_of(2))
    done = run_plan(path, runner, taken.append, sleep=lambda _: None, progress=said.append)
    assert runner.started == ["run-0001", "run-0002"]
    assert (done.count("ended"), len(taken)) == (2, 2)
    assert any("waiting for it" in text for text in said)


def test_a_refusal_that_stays_is_told(tmp_path: Path) -> None:
    class Refusing(MadeUpRunner):
        asked = 0

        def start(self, spec: LaunchSpec, folder: Path) -> None:
            del spec, folder
            self.asked += 1
            raise ToolError("sbatch: invalid account")

    runner = Refusing()
    with pytest.raises(ToolError, match="invalid account"):
        carry_out(saved(tmp_path, plan_of(2)), runner)
    assert runner.asked == 3


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = plan_of(3)
    assert read_plan(saved(tmp_path, plan)) == plan


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"axes": 3}')
    with pytest.raises(BadInputError, match="no plan"):
        read_plan(tmp_path / "x.json")


def test_a_run_wider_than_the_limit_is_refused() -> None:
    wide = launch_of().arm.__class__("h100-80", 8, "bf16")
    run = PlannedRun(launch_of(arm=wide), 1.0, 1.0, 1.0)
    with pytest.raises(BadInputError, match="more than the limit of 4"):
        Plan({}, 1.0, 4, "v", (run,), ())


def test_a_script_that_outlives_its_starter_is_waited_for_and_not_started_again(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, plan_of(1))

    def slow(spec: LaunchSpec, folder: Path) -> str:
        return "sleep 0.6\n" + quick_script(spec, folder)

    folder = runs_folder(path) / "run-0001" / "try-1"
    other = LocalRunner(slow)  # stands for a starter that was killed
    other.start(read_plan(path).runs[0].spec, folder)
    taken: list[Path] = []
    run_plan(path, LocalRunner(quick_script), taken.append, sleep=time.sleep, poll_s=0.02)
    assert taken == [folder]
    assert executions(path)["began run-0001"] == 1
    assert other.alive([]) == set()


def test_a_plan_ends_when_its_last_script_is_gone(tmp_path: Path) -> None:
    path = saved(tmp_path, plan_of(1))

    def tidy(spec: LaunchSpec, folder: Path) -> str:
        return f"{quick_script(spec, folder)}sleep 0.3\ntouch '{folder}/tidied'\n"

    taken: list[Path] = []
    run_plan(path, LocalRunner(tidy), taken.append, sleep=time.sleep, poll_s=0.02)
    assert (taken[0] / "tidied").exists()


def executions(plan: Path) -> Counter[str]:
    return Counter((runs_folder(plan) / "executions").read_text().splitlines())


def start_driver(path: Path, home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, HERE / "bench_driver.py", path, home],
        stdin=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(HERE)},
    )  # fmt: skip


def test_a_grid_of_500_runs_killed_20_times_ends_with_every_run_once(tmp_path: Path) -> None:
    n, kills, rng = 500, 20, Random(5)  # noqa: S311 - moments to kill at
    path, home = saved(tmp_path, plan_of(n)), tmp_path / "home"
    log = runs_folder(path) / "executions"
    for k in range(1, kills + 1):
        driver = start_driver(path, home)
        # Sooner on a fast machine, so that runs are left for every kill.
        until, most = time.monotonic() + rng.uniform(0.15, 0.5), k * n // (kills + 1)
        while time.monotonic() < until and not (
            log.is_file() and log.read_text().count("began") >= most
        ):
            time.sleep(0.01)
        assert driver.poll() is None
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert start_driver(path, home).wait(120) == 0
    done = plan_progress(path)
    assert done.count("ended") == n
    assert all(state.taken and state.tries == 1 for state in done.states)
    # Every script was executed once, to its end ...
    assert set(executions(path).values()) == {1}
    assert len(executions(path)) == 2 * n
    # ... and the store holds one row of each.
    loads = [s.row.concurrency for s in Store(home).rows() if isinstance(s.row, InferenceRun)]
    assert sorted(loads) == [float(i) for i in range(1, n + 1)]
