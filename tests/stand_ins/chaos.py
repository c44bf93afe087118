"""Everything outside the advice that may be missing or wrong, as one table of faults.

A scene is a site's folder, the programs of Slurm as functions, a clock and a cost model. A fault
breaks one of them, and knows what the answer has to say of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from stand_in import StandInModel, StandInPredictions

from omnipilot.collect.command import Command, CommandResult
from omnipilot.domain import (
    ClusterJob,
    GpuHealth,
    GpuSnapshot,
    InferenceRun,
    StartupRun,
    ToolError,
)
from omnipilot.store import CLUSTER_LOG_NAME, Store

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from omnipilot.advisor import Advice
    from omnipilot.domain import Scenario, TargetPrediction

__all__ = ["FAULTS", "NOW_S", "ChaosModel", "Fault", "Scene", "fill_home"]

NOW_S: Final = 1_790_000_000.0
_DAY_S: Final = 86_400
_KINDS: Final = ("h100", "h200", "l40s")
_DOWN: Final = "{} failed (exit code 1): Unable to contact slurm controller (connect failure)"
_SLOW: Final = "{} did not answer within 5 s"


class _Predictions(StandInPredictions):
    """Answers of which some targets rest on the prior alone."""

    prior_only: frozenset[str] = frozenset()

    def targets(self, i: int) -> dict[str, TargetPrediction]:
        found = super().targets(i)
        return found | {name: found[name]._replace(source="prior") for name in self.prior_only}


@dataclass
class ChaosModel(StandInModel):
    """The cost model in round numbers; ``prior_only`` targets have no measured rows."""

    prior_only: frozenset[str] = frozenset()

    def predict(self, scenarios: Sequence[Scenario]) -> StandInPredictions:
        found = super().predict(scenarios)
        answer = _Predictions(found.values, found.support)
        answer.prior_only = self.prior_only
        return answer


def healthy_slurm(now_s: float, rng: random.Random) -> dict[str, bytes]:
    """What the programs print on a good day: three kinds of nodes, a queue, three partitions."""
    nodes = [
        {"name": f"{kind}n{i}", "state": ["MIXED"], "partitions": [f"gpu_{kind}"],
         "gres": f"gpu:{kind}:8", "gres_used": f"gpu:{kind}:{rng.choice((0, 4, 8))}"}
        for kind in _KINDS for i in (1, 2)
    ]  # fmt: skip
    jobs = [
        {"job_state": ["RUNNING" if i % 2 else "PENDING"], "partition": f"gpu_{kind}",
         "state_reason": "Resources", "tres_req_str": f"gres/gpu:{kind}={4}",
         "tres_alloc_str": f"gres/gpu:{kind}={4}" if i % 2 else "", "node_count": 1,
         "submit_time": int(now_s) - 3600, "start_time": int(now_s) - 1800 if i % 2 else 0,
         "end_time": int(now_s) + 7200 if i % 2 else 0, "time_limit": 240, "priority": 10 + i}
        for i, kind in enumerate(_KINDS * 2)
    ]  # fmt: skip
    lines = [f"PartitionName=gpu_{kind} State=UP MaxTime=UNLIMITED" for kind in _KINDS]
    return {
        "sinfo": json.dumps({"nodes": nodes}).encode(),
        "squeue": json.dumps({"jobs": jobs}).encode(),
        "scontrol": ("\n".join(lines) + "\n").encode(),
        "sbatch": f"sbatch: Job 9 to start at {now_s + 3600:.0f} using 1".encode(),
    }


@dataclass
class Scene:
    """One situation.

    ``programs`` are what Slurm's print, or the error that a call ends in; ``here`` whether they are
    on PATH. ``now_s`` is this machine's clock. ``model`` None lets the site's own folder answer.
    """

    home: Path
    rng: random.Random
    now_s: float = NOW_S
    programs: dict[str, bytes | str] = field(default_factory=dict)
    here: bool = True
    model: StandInModel | None = field(default_factory=ChaosModel)
    state_file: Path | None = None

    def __post_init__(self) -> None:
        self.programs.update(healthy_slurm(self.now_s, self.rng))

    def find_program(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if self.here else None

    def run_commands(self, commands: Sequence[Command]) -> list[CommandResult | ToolError]:
        return [self._answer(command.argv[0]) for command in commands]

    def _answer(self, name: str) -> CommandResult | ToolError:
        said = self.programs[name]
        if isinstance(said, str):
            return ToolError(said.format(name))
        told = said.decode(errors="replace") if name == "sbatch" else ""
        return CommandResult(0, b"" if name == "sbatch" else said, told, 0.01)

    @property
    def asks_slurm(self) -> bool:
        return self.here and self.state_file is None

    def lines_of(self, name: str) -> list[bytes]:
        return (self.home / name).read_bytes().splitlines(keepends=True)


@dataclass(frozen=True)
class Fault:
    """One thing gone wrong.

    Args:
        apply: does it to a scene.
        said: whether the answer names the loss; None where nothing that the advice needs is lost.
        refuses: words of the refusal, where there can be no answer.
        of: what it puts out of order; of two faults of one thing the second would hide the first.
    """

    name: str
    apply: Callable[[Scene], None]
    said: Callable[[Scene, Advice], bool] | None = None
    refuses: str = ""
    of: tuple[str, ...] = ()


def fill_home(home: Path, now_s: float = NOW_S) -> None:
    """A site with runs, starts, telemetry and a history of the cluster's jobs."""
    runs = [
        InferenceRun(
            source="site", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="H100", n_gpus=1,
            precision="bf16", mode="online", status="ok", prompt_tokens=512.0, output_tokens=128.0,
            concurrency=float(c), labels={"aggregate_tokens_per_s": 1000.0 * c},
        )
        for c in (1, 2, 4)
    ]  # fmt: skip
    starts = [
        StartupRun("site", "m", "vllm", "h100-80", 1, "fp8", "ok", {"cold_start_s": 60.0 + i})
        for i in range(6)
    ]
    telemetry = [GpuSnapshot("t", "h100", 16, {}, n_hosts=2, at_s=now_s - 60.0)]
    Store.open(home).append([*runs, *starts, *telemetry], now_s=now_s)
    jobs = [
        ClusterJob(
            "t", "lab", str(i), "FAILED" if i % 7 == 0 else "COMPLETED", _KINDS[i % 3], 1 + i % 4,
            partition=f"gpu_{_KINDS[i % 3]}", submit_s=int(now_s) - 20 * _DAY_S + 3600 * i,
            eligible_s=int(now_s) - 20 * _DAY_S + 3600 * i,
            start_s=int(now_s) - 20 * _DAY_S + 3600 * i + 600 * (i % 5),
            end_s=int(now_s) - 20 * _DAY_S + 3600 * i + 5400, elapsed_s=5000, time_limit_s=7200,
        )
        for i in range(1, 90)
    ]  # fmt: skip
    Store.open(home, log_name=CLUSTER_LOG_NAME).append(jobs, now_s=now_s)


def _notes(advice: Advice) -> str:
    return " ".join(advice.cluster.notes) if advice.cluster is not None else ""


def _says(words: str, *, where: str = "slurm") -> Callable[[Scene, Advice], bool]:
    """The notes hold the words, where the advice came to ask at all."""

    def said(scene: Scene, advice: Advice) -> bool:
        if where != "slurm":
            return words in _notes(advice)
        assert advice.cluster is not None
        silent = "Slurm did not answer" in _notes(advice)
        fresh = advice.cluster.origin == "cache" and not silent  # read seconds ago, asked nobody
        return not scene.asks_slurm or silent or fresh or words in _notes(advice)

    return said


def _program(name: str, *answers: bytes | str) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        scene.programs[name] = scene.rng.choice(answers)

    return apply


def _all_programs(error: str) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        scene.programs.update(dict.fromkeys(scene.programs, error))

    return apply


def _cut(name: str) -> Callable[[Scene], None]:
    """A pipe that broke: the first part of a JSON text."""

    def apply(scene: Scene) -> None:
        said = scene.programs[name]
        if isinstance(said, bytes):
            scene.programs[name] = said[: scene.rng.randrange(1, max(len(said) - 2, 2))]

    return apply


def _odd_numbers(name: str) -> Callable[[Scene], None]:
    """Numbers that no clock and no counter gives: negative, of the far past or the far future."""

    def apply(scene: Scene) -> None:
        said = scene.programs[name]
        if not isinstance(said, bytes):
            return
        try:
            value = json.loads(said)
        except ValueError:
            return
        for entry in value.get("jobs", value.get("nodes", ())):
            for key, old in entry.items():
                if isinstance(old, int) and scene.rng.random() < 0.5:
                    entry[key] = scene.rng.choice((-1, 0, 2**31, 2**62, -(2**40)))
        scene.programs[name] = json.dumps(value).encode()

    return apply


def _no_gpus(gres: str) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        nodes = [{"name": "n1", "state": ["IDLE"], "partitions": ["p"], "gres": gres}]
        scene.programs["sinfo"] = json.dumps({"nodes": nodes}).encode()

    return apply


def _skew(least_s: float, most_s: float) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        scene.now_s += scene.rng.choice((-1, 1)) * scene.rng.uniform(least_s, most_s)

    return apply


def _not_here(scene: Scene) -> None:
    scene.here = False


def _old_answer(scene: Scene) -> None:
    """An answer of before lies in the folder, from now to two days back or ahead."""
    state = {
        "taken_s": scene.now_s + scene.rng.choice((-2, -60, -200, -4000, -2 * _DAY_S, 3600)),
        "nodes": [{"name": "h100n1", "states": ["IDLE"], "partitions": ["gpu_h100"],
                   "gpus": [{"kind": "h100", "total": 8}]}],
    }  # fmt: skip
    (scene.home / "cluster_state.json").write_text(json.dumps(state), encoding="utf-8")


def _write(name: str, *texts: bytes) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        path = scene.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(scene.rng.choice(texts))

    return apply


def _tear(name: str) -> Callable[[Scene], None]:
    """The last row was being written when the machine stopped."""

    def apply(scene: Scene) -> None:
        data = (scene.home / name).read_bytes()
        cut = scene.rng.randrange(2, len(scene.lines_of(name)[-1]))
        (scene.home / name).write_bytes(data[:-cut])

    return apply


def _scribble(name: str) -> Callable[[Scene], None]:
    """Bytes of some rows are no longer those that were written."""

    def apply(scene: Scene) -> None:
        lines = scene.lines_of(name)
        for at in scene.rng.sample(range(len(lines)), 2):
            line = bytearray(lines[at])
            for _ in range(scene.rng.randrange(1, 9)):
                line[scene.rng.randrange(len(line) - 1)] = scene.rng.choice(b"\x00\xff9{}\"',")
            lines[at] = bytes(line).replace(b"\n", b" ") + b"\n"
        (scene.home / name).write_bytes(b"".join(lines))

    return apply


def _nan_rows(scene: Scene) -> None:
    """Telemetry whose readings are no numbers, as a hand or another program wrote them."""
    lines = [
        b'{"kind":"gpu_snapshot","source":"t","gpu":"h100","labels":{"power_mean_w":NaN}}\n',
        b'{"kind":"gpu_health","source":"t","host":"h100n1","last_s":Infinity}\n',
    ]
    with (scene.home / "history.jsonl").open("ab") as stream:
        stream.write(scene.rng.choice(lines))


def _faulty_node(scene: Scene) -> None:
    fault = GpuHealth("t", "h100n1", "GPU-1", "h100", "xid", "hardware", 79, last_s=scene.now_s)
    Store.open(scene.home).append([fault], now_s=scene.now_s)


def _telemetry(at_s: float) -> Callable[[Scene], None]:
    """Only telemetry of that time, relative to now, is on record."""

    def apply(scene: Scene) -> None:
        kept = [line for line in scene.lines_of("history.jsonl") if b"gpu_snapshot" not in line]
        (scene.home / "history.jsonl").write_bytes(b"".join(kept))
        row = GpuSnapshot("t", "h100", 8, {}, at_s=scene.now_s + at_s)
        Store.open(scene.home).append([row], now_s=scene.now_s)
        # The digest knows an append-only log by its size.
        (scene.home / "digest.json").unlink(missing_ok=True)

    return apply


def _no_telemetry(scene: Scene) -> None:
    kept = [line for line in scene.lines_of("history.jsonl") if b"gpu_" not in line]
    (scene.home / "history.jsonl").write_bytes(b"".join(kept))


def _stale_is_said(_: Scene, advice: Advice) -> bool:
    known = advice.cluster is not None and advice.cluster.origin != "none"
    return not known or "no node counts as healthy" in _notes(advice)


def _measured(*kinds: str) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        scene.model = replace(_of(scene), measured=frozenset(kinds))

    return apply


def _only_prior(*targets: str) -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        scene.model = replace(_of(scene), prior_only=frozenset(targets))

    return apply


def _of(scene: Scene) -> ChaosModel:
    assert isinstance(scene.model, ChaosModel)
    return scene.model


def _site_bundle(*, document: bytes | None, points_to: str = "v1") -> Callable[[Scene], None]:
    def apply(scene: Scene) -> None:
        folder = scene.home / "bundles"
        (folder / "v1").mkdir(parents=True)
        if document is not None:
            (folder / "v1" / "bundle.json").write_bytes(document)
        (folder / "current").symlink_to(points_to)
        scene.model = None

    return apply


def _bad_state_file(scene: Scene) -> None:
    scene.state_file = scene.home / "given.json"
    scene.state_file.write_bytes(scene.rng.choice((b"", b"{}", b"\xff", b'{"taken_s": NaN}')))


def _log_is_a_folder(scene: Scene) -> None:
    (scene.home / "history.jsonl").unlink()
    (scene.home / "history.jsonl").mkdir()


def _no_logs(scene: Scene) -> None:
    for name in ("history.jsonl", CLUSTER_LOG_NAME, "digest.json"):
        (scene.home / name).unlink(missing_ok=True)


_GARBAGE: Final = (
    b"", b"\x00\xff\xfe", b"slurm_load: error", b"[" * 9000, b"{}", b'{"nodes": 3, "jobs": "x"}',
    b'{"nodes": [null], "jobs": [[]]}', b"NaN",
    b'{"nodes": [{"name": 7}], "jobs": [{"priority": "a"}]}',
)  # fmt: skip

FAULTS: Final[tuple[Fault, ...]] = (
    Fault("no slurm", _not_here, of=("sinfo",)),
    Fault("slurm is down", _all_programs(_DOWN), _says("Slurm did not answer"), of=("sinfo",)),
    Fault("slurm is slow", _all_programs(_SLOW), _says("Slurm did not answer"), of=("sinfo",)),
    Fault("sinfo prints garbage", _program("sinfo", *_GARBAGE), _says("Slurm"), of=("sinfo",)),
    Fault("sinfo is cut", _cut("sinfo"), _says("Slurm did not answer"), of=("sinfo",)),
    Fault("squeue is down", _program("squeue", _DOWN, _SLOW),
          _says("The queue is not known"), of=("squeue",)),
    Fault("squeue prints garbage", _program("squeue", *_GARBAGE[2:]),
          _says("The queue is not known"), of=("squeue",)),
    Fault("squeue is cut", _cut("squeue"), _says("The queue is not known"), of=("squeue",)),
    Fault("squeue's numbers are wild", _odd_numbers("squeue"), of=("squeue",)),
    Fault("scontrol is down", _program("scontrol", _DOWN, _SLOW),
          _says("Reservations are not known"), of=("scontrol",)),
    Fault("scontrol prints garbage", _program("scontrol", *_GARBAGE),
          _says("Reservations are not known"), of=("scontrol",)),
    Fault("sbatch is slow or refuses", _program("sbatch", _SLOW, _DOWN, *_GARBAGE[:4])),
    Fault("no GPUs in sinfo", _no_gpus("(null)"), _says("names no GPU"), of=("sinfo",)),
    Fault("GPUs nobody knows", _no_gpus("gpu:abacus:8"), _says("names no GPU"), of=("sinfo",)),
    Fault("clock off by minutes", _skew(10, 3600)),
    Fault("clock off by years", _skew(_DAY_S * 365, _DAY_S * 3650)),
    Fault("an answer of before", _old_answer, of=("cache",)),
    Fault("damaged answer of before", _write("cluster_state.json", *_GARBAGE), of=("cache",)),
    Fault("damaged digest", _write("digest.json", *_GARBAGE, b'{"version": 2, "waits": [1]}')),
    Fault("torn log", _tear("history.jsonl"), _says("damaged", where="any"), of=("runs",)),
    Fault("scribbled log", _scribble("history.jsonl"), _says("damaged", where="any"), of=("runs",)),
    Fault("torn cluster log", _tear("cluster_history.jsonl"), of=("jobs",)),
    Fault("scribbled cluster log", _scribble("cluster_history.jsonl"), of=("jobs",)),
    Fault("telemetry is no number", _nan_rows, _says("damaged", where="any"), of=("runs",)),
    Fault("a node has a fault", _faulty_node, of=("runs",)),
    Fault("telemetry is stale", _telemetry(-2.0 * _DAY_S), _stale_is_said, of=("runs",)),
    Fault("telemetry is of the future", _telemetry(2.0 * _DAY_S), _stale_is_said, of=("runs",)),
    Fault("no telemetry", _no_telemetry, of=("runs",)),
    Fault("no logs", _no_logs, of=("runs", "jobs")),
    Fault("one kind measured", _measured("h100-80"), of=("model",)),
    Fault("nothing measured", _measured(), of=("model",)),
    Fault("throughput from the prior", _only_prior("aggregate_tokens_per_s"), of=("model",)),
    Fault("latency from the prior", _only_prior("ttft_p50_s", "tpot_p50_s"), of=("model",)),
    Fault("site bundle gone", _site_bundle(document=None),
          refuses="no model bundle", of=("model",)),
    Fault("site bundle's pointer dangles", _site_bundle(document=None, points_to="v9"),
          refuses="no model bundle", of=("model",)),
    Fault("site bundle is cut", _site_bundle(document=b'{"format": 1, "card"'),
          refuses="restore it or fit again", of=("model",)),
    Fault("site bundle of another format", _site_bundle(document=b'{"format": 999}'),
          refuses="fit again", of=("model",)),
    Fault("state file is none", _bad_state_file, refuses="holds no cluster state"),
    Fault("settings are no TOML", _write("settings.toml", b"pue =", b"\xff", b"pue = nan"),
          refuses="settings.toml"),
    Fault("a GPU file is no TOML", _write("gpus/x.toml", b"[x", b"\xff", b"[x]\nvendor = 1\n"),
          refuses="x.toml"),
    Fault("the log is a folder", _log_is_a_folder, refuses="history.jsonl", of=("runs",)),
)  # fmt: skip
