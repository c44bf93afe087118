"""The runs of a plan carried out, each once, whatever interrupts it.

What was done is written nowhere but in the runs' folders: a run with a ``done`` file has ended, one
whose script or job lives is left to end, anything else that was started is started anew. So a
process that is killed at any moment loses nothing that the next one does not find.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import StateError, ToolError
from omnipilot.domain.frozen import dataclass
from omnipilot.launch.emit import is_done, outcome_of, read_marks
from omnipilot.launch.ingest import TAKEN_NAME
from omnipilot.launch.local import hold_folder
from omnipilot.launch.plan import read_plan, runs_folder
from omnipilot.launch.runners import has_begun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.launch.plan import Plan, PlannedRun
    from omnipilot.launch.runners import Runner
    from omnipilot.launch.spec import LaunchSpec

__all__ = ["MOST_TRIES", "Progress", "RunState", "plan_progress", "run_plan"]

MOST_TRIES: Final = 3
_POLL_S: Final = 5.0
_MOST_REFUSALS: Final = 3


@dataclass(frozen=True, slots=True)
class RunState:
    """How one run of a plan is.

    Args:
        state: "waiting", "started" (alive, or interrupted and not yet known to be), "ended", or
            "lost" (interrupted as often as it is tried).
        outcome: how it ended, in the script's word.
        tries: how often it was started.
        node_h: what it took, where it ended; what it is predicted to take, where it was started.
        folder: of the last try.
        taken: its rows are in the store.
    """

    run: PlannedRun
    state: str
    outcome: str
    tries: int
    node_h: float
    folder: Path
    taken: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a plan is."""

    states: tuple[RunState, ...]
    budget_node_h: float

    def count(self, state: str) -> int:
        """Runs in a state."""
        return sum(s.state == state for s in self.states)

    @property
    def spent_node_h(self) -> float:
        """Node-hours of what ended, and predicted of what was started."""
        return sum(s.node_h for s in self.states)

    @property
    def text(self) -> str:
        """One line for a person."""
        good = sum(s.outcome == "benchmarked" for s in self.states)
        ended = self.count("ended")
        parts = [f"{ended} of {len(self.states)} ended ({good} measured, {ended - good} failed)"]
        parts.append(f"{self.count('started')} started")
        if self.count("lost"):
            parts.append(f"{self.count('lost')} lost")
        parts.append(f"{self.spent_node_h:.2f} of {self.budget_node_h:g} node-hours")
        return ", ".join(parts)


def plan_progress(path: Path) -> Progress:
    """Read how far a plan is, without asking who runs it.

    Raises:
        BadInputError: the file is no plan.
    """
    plan = read_plan(path)
    base = runs_folder(path)
    return Progress(tuple(_state(run, base) for run in plan.runs), plan.budget_node_h)


def run_plan(
    path: Path,
    runner: Runner,
    take: Callable[[Path], object],
    *,
    sleep: Callable[[float], None],
    progress: Callable[[str], None] = lambda _: None,
    most_at_once: int = 0,
    poll_s: float = _POLL_S,
) -> Progress:
    """Carry out a plan until every run has ended or the budget is spent.

    Args:
        path: the plan.
        runner: starts runs, and tells which are alive.
        take: takes the rows of a run's folder into the store; may be asked twice.
        sleep: waits that many seconds.
        progress: told in words how far it is, whenever that changes.
        most_at_once: runs at a time, beside the plan's limit of GPUs; 0 for no further limit.
        poll_s: pause between two looks.

    Raises:
        BadInputError: the file is no plan.
        StateError: another process carries it out, or the folder cannot be written.
        ToolError: a run is refused again and again while everything else works.
    """
    plan = read_plan(path)
    base = runs_folder(path)
    with hold_folder(base) as held:
        if held is None:
            raise StateError(f"another process is carrying out {path}: wait for it or stop it")
        return _Loop(plan, base, runner, take, progress, most_at_once).run(sleep, poll_s)


def _state(run: PlannedRun, base: Path) -> RunState:
    tries = 0
    while _try_folder(base, run, tries + 1).is_dir():
        tries += 1
    folder = _try_folder(base, run, max(tries, 1))
    if not tries:
        return RunState(run, "waiting", "", 0, 0.0, folder, taken=False)
    if not is_done(folder):
        return RunState(run, "started", "", tries, run.node_h, folder, taken=False)
    taken = (folder / TAKEN_NAME).exists()
    return RunState(
        run, "ended", outcome_of(folder), tries, _node_h(run, folder), folder, taken=taken
    )


def _try_folder(base: Path, run: PlannedRun, n: int) -> Path:
    return base / run.run_id / f"try-{n}"


def _node_h(run: PlannedRun, folder: Path) -> float:
    """What a run took, from its own clock; what it was predicted to take where that is lost."""
    times = read_marks(folder).values()
    return run.node_share * (max(times) - min(times)) / 3600 if times else run.node_h


class _Loop:
    """One process's work on a plan."""

    def __init__(
        self,
        plan: Plan,
        base: Path,
        runner: Runner,
        take: Callable[[Path], object],
        progress: Callable[[str], None],
        most_at_once: int,
    ) -> None:
        self._plan, self._base, self._runner = plan, base, runner
        self._take, self._progress = take, progress
        self._most_at_once = most_at_once or len(plan.runs)
        self._states = {run.run_id: _state(run, base) for run in plan.runs}
        self._refusals = 0
        self._missing: dict[str, int] = {}
        self._said = ""

    def run(self, sleep: Callable[[float], None], poll_s: float) -> Progress:
        while True:
            try:
                alive = self._look()
            except ToolError as error:
                # A scheduler that is down keeps nobody's job from running: wait for it.
                self._say(f"{error}; waiting for it")
                sleep(poll_s)
                continue
            waits = self._start_more(alive)
            done = self._told()
            if not alive and not waits:
                return done
            sleep(poll_s)

    def _told(self) -> Progress:
        done = Progress(tuple(self._states.values()), self._plan.budget_node_h)
        self._say(done.text)
        return done

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._progress(text)

    def _look(self) -> set[str]:
        """Take in what has ended; names of the runs that are alive.

        Raises:
            ToolError: nobody knows which are alive; what has ended is taken in all the same.
        """
        self._take_ended()
        started = [s for s in self._states.values() if s.state == "started"]
        folders = self._runner.alive([(_spec(s.run.spec, s.tries), s.folder) for s in started])
        alive = set()
        for state in started:
            name = state.run.run_id
            self._missing[name] = self._missing.get(name, 0) + 1
            if state.folder in folders:
                self._missing[name] = 0
                alive.add(name)
            elif is_done(state.folder):
                self._refresh(name)
            elif self._missing[name] < self._runner.looks:
                alive.add(name)
            elif state.tries >= MOST_TRIES:
                self._states[name] = replace(state, state="lost")
        self._take_ended()
        return alive

    def _take_ended(self) -> None:
        for name, state in self._states.items():
            if state.state == "started" and is_done(state.folder):
                self._refresh(name)
        for name, state in self._states.items():
            if state.state == "ended" and not state.taken:
                self._take(state.folder)
                self._states[name] = replace(state, taken=True)

    def _refresh(self, name: str) -> None:
        self._states[name] = _state(self._states[name].run, self._base)

    def _start_more(self, alive: set[str]) -> bool:
        """Start what fits; whether anything is left that a later look may start."""
        states = self._states.values()
        gpus = sum(s.run.spec.arm.tensor_parallel for s in states if s.run.run_id in alive)
        spent_h = sum(s.node_h for s in states)
        waits = False
        for name, state in list(self._states.items()):
            if name in alive or state.state not in ("waiting", "started"):
                continue
            width = state.run.spec.arm.tensor_parallel
            new = state.state == "waiting"
            if new and spent_h + state.run.node_h > self._plan.budget_node_h:
                continue
            if gpus + width > self._plan.max_gpus or len(alive) >= self._most_at_once:
                waits = True
                continue
            if not self._start(state):
                return True
            alive.add(name)
            gpus += width
            spent_h += state.run.node_h if new else 0.0
        return waits

    def _start(self, state: RunState) -> bool:
        """Start a run, or anew where it was interrupted; False where it cannot be now."""
        again = state.tries and not has_begun(state.folder)
        n = state.tries if again else state.tries + 1
        folder = _try_folder(self._base, state.run, n)
        try:
            self._runner.start(_spec(state.run.spec, n), folder)
        except ToolError as error:
            self._refusals += 1
            if self._refusals >= _MOST_REFUSALS:
                raise
            self._say(f"{error}; trying again")
            return False
        self._refusals = 0
        self._missing[state.run.run_id] = 0
        self._refresh(state.run.run_id)
        return True


def _spec(spec: LaunchSpec, n: int) -> LaunchSpec:
    """A try's launch: later ones have names of their own, so that their jobs are told apart."""
    return spec if n <= 1 else replace(spec, run_id=f"{spec.run_id}.{n}")
