"""How long a command takes from its start to its end, and what it holds: fresh processes only.

    python benchmarks/command_speed.py [--repeats N] [--aiconfigurator PYTHON]

Each command runs on a new site, without Slurm, with one thread. Beside every time stands its ratio
to a loop of 5,000,000 additions that is timed again before each command, because a machine's speed
changes while it is measured. Exit code 1 where a goal is missed: the median ratio is held against
what the goal is on a calm machine. ``--aiconfigurator`` names a Python that has NVIDIA's package of
that name: questions that both answer are then put to it too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from omnipilot.advisor import Advisor, Question
from omnipilot.domain.request import ServingRequest

GAUGE_LOOPS: Final = 5_000_000
CALM_LOOP_S: Final = 0.19
WALL_GOAL_S, RSS_GOAL_MB, IMPORT_GOAL_S, WARM_GOAL_S = 1.0, 250.0, 0.35, 0.015
ADVISE: Final = (
    "advise", "--model", "Qwen/Qwen2.5-7B-Instruct", "--concurrency", "200", "--context", "4096",
)  # fmt: skip
FITS: Final = ("fits", "--model", "Qwen/Qwen2.5-72B-Instruct", "--gpu", "h100-80", "--tp", "2")
# Kinds and precisions of which 84 arms start for that model.
WARM_KINDS: Final = (
    "a100-40", "a100-80", "h100-80", "h200-141", "b200-180", "l40s-48", "a10g-24",
)  # fmt: skip
WARM_PRECISIONS: Final = ("bf16", "fp8", "gptq", "awq")
# One question that both programs answer: which tensor parallel on up to eight H200, and how fast.
SHARED_MODEL, SHARED_LOAD = "Qwen/Qwen3-32B", 64
SHARED_ADVISE: Final = (
    "advise", "--model", SHARED_MODEL, "--concurrency", str(SHARED_LOAD), "--context", "4096",
    "--gpus", "h200-141", "--precisions", "bf16", "--format", "json",
)  # fmt: skip
_LENGTHS: Final = ("--isl", "3072", "--osl", "1024")
_THEIR_ARM: Final = ("--model-path", SHARED_MODEL, "--system", "h200_sxm", "--backend", "vllm")
THEIR_ESTIMATE: Final = (
    "cli", "estimate", *_THEIR_ARM, "--estimate-mode", "agg", *_LENGTHS,
    "--batch-size", str(SHARED_LOAD), "--tp-size", "2",
)  # fmt: skip
THEIR_DEFAULT: Final = (
    "cli", "default", *_THEIR_ARM, "--total-gpus", "8", "--serving-mode", "agg", *_LENGTHS,
    "--ttft", "2000", "--tpot", "50",
)  # fmt: skip
THEIR_SDK: Final = """
import contextlib, io, json, logging, sys, time
with contextlib.redirect_stdout(io.StringIO()):
    from aiconfigurator.cli.api import cli_default, cli_estimate
    logging.disable(logging.CRITICAL)
    model, system, lengths = sys.argv[1], "h200_sxm", dict(isl=3072, osl=1024)
    work = {
        "estimate": lambda: cli_estimate(
            model, system, backend_name="vllm", batch_size=int(sys.argv[2]), tp_size=2, **lengths
        ),
        "default": lambda: cli_default(
            model, 8, system, backend="vllm", ttft=2000.0, tpot=50.0, **lengths
        ),
    }
    times = {name: [] for name in work}
    for name, ask in work.items():
        for _ in range(1 + int(sys.argv[3])):
            start = time.perf_counter()
            ask()
            times[name].append(time.perf_counter() - start)
    # Their innermost call, as its documentation builds it: one arm, another batch each time.
    from aiconfigurator.sdk.backends.factory import get_backend
    from aiconfigurator.sdk.config import ModelConfig, RuntimeConfig
    from aiconfigurator.sdk.inference_session import InferenceSession
    from aiconfigurator.sdk.models import get_model
    from aiconfigurator.sdk.perf_database import get_database
    version = cli_estimate(model, system, backend_name="vllm", tp_size=2, **lengths).backend_version
    session = InferenceSession(
        get_model(model, ModelConfig(tp_size=2, pp_size=1), "vllm"),
        get_database(system, "vllm", version), get_backend("vllm"),
    )
    times["run_agg"] = []
    for batch in range(int(sys.argv[2]), int(sys.argv[2]) + 1 + int(sys.argv[3])):
        config = RuntimeConfig(batch_size=batch, **lengths)
        start = time.perf_counter()
        session.run_agg(config, ctx_tokens=lengths["isl"])
        times["run_agg"].append(time.perf_counter() - start)
print(json.dumps(times))
"""


class Run(NamedTuple):
    """One process: seconds from start to end, of processor time, and the most memory it held."""

    wall_s: float
    cpu_s: float
    rss_mb: float


def gauge_s() -> float:
    """Seconds of a plain loop now."""
    start = time.perf_counter()
    total = 0
    for i in range(GAUGE_LOOPS):
        total += i
    return time.perf_counter() - start


def run(argv: tuple[str, ...], env: dict[str, str], out: Path, err: Path) -> Run:
    """Run one process to its end.

    Raises:
        SystemExit: it failed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [(os.POSIX_SPAWN_OPEN, fd, str(to), flags, 0o600) for fd, to in ((1, out), (2, err))]
    start = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, env, file_actions=files)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - start
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(argv)[:200]}: exit code {code}\n{err.read_text()[-2000:]}")
    return Run(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def show(name: str, times_s: list[float], gauges_s: list[float], more: str = "") -> float:
    """Print the best and the median time, and the median ratio to the loop, which is given back."""
    best_s, median_s = min(times_s), statistics.median(times_s)
    ratio = statistics.median(t / g for t, g in zip(times_s, gauges_s, strict=True))
    print(
        f"{name:<44} best {best_s * 1e3:8.1f} ms  median {median_s * 1e3:8.1f} ms  "
        f"{ratio:7.3f} loops{more}"
    )
    return ratio


class Bench:
    """Repeats each measurement and prints it."""

    def __init__(self, repeats: int, folder: Path) -> None:
        self._repeats = repeats
        self.missed: list[str] = []
        self._out, self._err = folder / "out", folder / "err"
        home = folder / "home"
        home.mkdir()
        self.env = {
            "PATH": str(home), "OMNIPILOT_HOME": str(home), "OPENBLAS_NUM_THREADS": "1",
            "HOME": str(home), "HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8",
        }  # fmt: skip
        if paths := os.environ.get("PYTHONPATH"):
            self.env["PYTHONPATH"] = paths

    def _judge(self, name: str, ratio: float, goal_s: float) -> None:
        if ratio * CALM_LOOP_S > goal_s:
            self.missed.append(f"{name}: {ratio * CALM_LOOP_S:.3f} s of {goal_s:g} s when calm")

    def command(self, name: str, argv: tuple[str, ...], goal_s: float = math.inf) -> None:
        """Time a command in fresh processes, after one that warms the disk's cache."""
        run(argv, self.env, self._out, self._err)
        runs, gauges_s = [], []
        for _ in range(self._repeats):
            gauges_s.append(gauge_s())
            runs.append(run(argv, self.env, self._out, self._err))
        rss_mb = max(r.rss_mb for r in runs)
        cpu_ms = statistics.median(r.cpu_s for r in runs) * 1e3
        more = f"  cpu {cpu_ms:7.1f} ms  peak {rss_mb:5.1f} MB"
        self._judge(name, show(name, [r.wall_s for r in runs], gauges_s, more), goal_s)
        if rss_mb > RSS_GOAL_MB and goal_s < math.inf:
            self.missed.append(f"{name}: {rss_mb:.0f} MB of {RSS_GOAL_MB:.0f} MB")

    def imports(self, name: str, argv: tuple[str, ...]) -> None:
        """Time the imports of a command as Python itself tells them, less those of no command."""
        times_s, gauges_s = [], []
        for _ in range(self._repeats):
            gauges_s.append(gauge_s())
            timed = (argv[0], "-X", "importtime", *argv[1:])
            bare = self._import_s((argv[0], "-X", "importtime", "-c", "pass"))
            times_s.append(self._import_s(timed) - bare)
        self._judge(name, show(name, times_s, gauges_s), IMPORT_GOAL_S)

    def _import_s(self, argv: tuple[str, ...]) -> float:
        run(argv, self.env, self._out, self._err)
        total_us = 0
        for line in self._err.read_text(encoding="utf-8").splitlines():
            own = line.removeprefix("import time:").split("|")[0].strip()
            total_us += int(own) if own.isdigit() else 0
        return total_us / 1e6

    def warm(self, name: str, question: Question, goal_s: float = math.inf) -> None:
        """Time the same question put again and again to one advisor."""
        advisor = Advisor.open(Path(self.env["OMNIPILOT_HOME"]))
        advice = advisor.advise(question).recommendation
        arms = len(advice.ranked) + len(advice.infeasible)
        times_s: list[float] = []
        gauges_s: list[float] = []
        for _ in range(5 * self._repeats):
            gauge = gauge_s() if len(times_s) % 5 == 0 else gauges_s[-1]
            gauges_s.append(gauge)
            start = time.perf_counter()
            advisor.advise(question)
            times_s.append(time.perf_counter() - start)
        ratio = show(f"{name}, {arms} arms, {len(advice.ranked)} start", times_s, gauges_s)
        self._judge(name, ratio, goal_s)

    def their_sdk(self, python: str) -> None:
        """Time AIConfigurator's Python calls: the first one loads its tables."""
        gauge = gauge_s()
        argv = (python, "-c", THEIR_SDK, SHARED_MODEL, str(SHARED_LOAD), str(self._repeats))
        run(argv, self.env, self._out, self._err)
        found = json.loads(self._out.read_text(encoding="utf-8").splitlines()[-1])
        for name, times_s in found.items():
            if name != "run_agg":  # the calls before have loaded its tables
                show(f"aiconfigurator SDK {name}, first", times_s[:1], [gauge])
            show(f"aiconfigurator SDK {name}, warm", times_s[1:], [gauge] * (len(times_s) - 1))


def question(model_id: str, concurrency: int, gpus: tuple[str, ...], *precisions: str) -> Question:
    """A question of 3,072 prompt and 1,024 output tokens."""
    request = ServingRequest(model_id, concurrency, 4096, 3072, 1024)
    return Question(request, gpus=gpus, precisions=precisions, now_s=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--aiconfigurator", metavar="PYTHON", help="a Python that has the package")
    options = parser.parse_args()
    omnipilot = (sys.executable, "-m", "omnipilot")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.repeats, Path(folder))
        gauges_s = [gauge_s() for _ in range(5)]
        show(f"loop of {GAUGE_LOOPS:,} additions", gauges_s, gauges_s)
        bench.command("python -c pass", (sys.executable, "-c", "pass"))
        bench.command("python -c 'import numpy'", (sys.executable, "-c", "import numpy"))
        bench.command("python -c 'import omnipilot'", (sys.executable, "-c", "import omnipilot"))
        bench.command("omnipilot --help", (*omnipilot, "--help"))
        bench.command("omnipilot advise --help", (*omnipilot, "advise", "--help"))
        bench.command("omnipilot fits", (*omnipilot, *FITS))
        bench.command("omnipilot advise", (*omnipilot, *ADVISE), WALL_GOAL_S)
        as_json = (*omnipilot, *ADVISE, "--format", "json")
        bench.command("omnipilot advise --format json", as_json, WALL_GOAL_S)
        bench.imports("imports of omnipilot advise", (*omnipilot, *ADVISE))
        if options.aiconfigurator:
            theirs = (options.aiconfigurator, "-m", "aiconfigurator.main")
            print(f"\n{SHARED_MODEL}, H200, bf16, {SHARED_LOAD} requests of 3,072 + 1,024 tokens")
            bench.command("omnipilot advise, 4 arms", (*omnipilot, *SHARED_ADVISE))
            bench.command("aiconfigurator cli estimate, 1 arm", (*theirs, *THEIR_ESTIMATE))
            bench.command("aiconfigurator cli default, 8 GPUs", (*theirs, *THEIR_DEFAULT))
            bench.their_sdk(options.aiconfigurator)
            asked = question(SHARED_MODEL, SHARED_LOAD, ("h200-141",), "bf16")
            bench.warm("omnipilot Advisor.advise again", asked)
            print()
        # Last, because a process that was started from a large one is counted as large.
        asked = question("Qwen/Qwen2.5-7B-Instruct", 200, WARM_KINDS, *WARM_PRECISIONS)
        bench.warm("advise again", asked, WARM_GOAL_S)
        print(
            f"goals on a calm machine: advise {WALL_GOAL_S * 1e3:,.0f} ms and {RSS_GOAL_MB:.0f} MB,"
            f" imports {IMPORT_GOAL_S * 1e3:.0f} ms, again {WARM_GOAL_S * 1e3:.0f} ms"
        )
        print("missed: " + ("; ".join(bench.missed) or "none"))
    return int(bool(bench.missed))


if __name__ == "__main__":
    sys.exit(main())
