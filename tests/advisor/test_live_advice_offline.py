"""Advice with a saved state of the cluster, and what the site's logs add to it; no Slurm needed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.digest import DIGEST_NAME, read_digest, refresh_digest
from omnipilot.advisor.doctor import Surroundings, examine
from omnipilot.catalog import Catalog
from omnipilot.decide.cluster_gpus import GpuNaming, name_gpus
from omnipilot.domain import ClusterJob, GpuSnapshot, ServingRequest, StartupRun
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition, QueuedJob
from omnipilot.settings import Settings
from omnipilot.store import CLUSTER_LOG_NAME, Store, priors
from omnipilot.store.compacted import compact
from omnipilot.store.query import write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from omnipilot.advisor.doctor import CheckResult
    from omnipilot.domain import Arm
    from omnipilot.store.codec import StoredRow
    from omnipilot.store.log import ReadTally

NOW_S = 1_790_000_000.0
DAY_S = 86_400
SITE = Settings.load()


def nodes(kind: str, states: tuple[str, ...] = ("IDLE",), used: int = 0) -> ClusterNode:
    return ClusterNode(f"{kind}n1", states, (f"gpu_{kind}",), (GpuCount(kind, 8, used),))


STATE = ClusterState(
    NOW_S,
    (nodes("h100"), nodes("h200"), nodes("l40s")),
    tuple(Partition(f"gpu_{kind}") for kind in ("h100", "h200", "l40s")),
)


def started(gpu: str) -> StartupRun:
    return StartupRun("site", "m", "vllm", gpu, 1, "fp8", "ok", {"cold_start_s": 60.0})


@pytest.fixture
def advisor(tmp_path: Path) -> Advisor:
    return Advisor(tmp_path / "home", model=StandInModel())


def ask(advisor: Advisor, tmp_path: Path, state: ClusterState, **changes: object) -> Question:
    del advisor
    path = tmp_path / f"state-{abs(hash(state))}.json"
    path.write_bytes(msgspec.json.encode(state))
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024)
    fields = {"state_file": path, "now_s": NOW_S + 5, **changes}
    return Question(request=request, **fields)  # type: ignore[arg-type]


def best(advisor: Advisor, question: Question) -> Arm:
    return advisor.advise(question).recommendation.ranked[0].arm


def test_the_clusters_own_kinds_are_tried_unasked(advisor: Advisor, tmp_path: Path) -> None:
    advice = advisor.advise(ask(advisor, tmp_path, STATE))
    kinds = {r.arm.gpu_kind for r in advice.recommendation.ranked}
    assert kinds == {"h100-80", "h200-141", "l40s-48"}
    assert advice.cluster is not None
    assert advice.cluster.gpus["h100-80"] == (8, 8)
    assert (advice.cluster.origin, advice.cluster.age_s) == ("file", 0.0)


def test_a_named_kind_that_the_cluster_lacks_cannot_start(advisor: Advisor, tmp_path: Path) -> None:
    advice = advisor.advise(ask(advisor, tmp_path, STATE, gpus=("b200", "h100")))
    codes = {i.arm.gpu_kind: i.reason_code for i in advice.recommendation.infeasible}
    assert codes["b200-180"] == "not_on_cluster"
    assert advice.recommendation.ranked[0].arm.gpu_kind == "h100-80"


def test_nodes_larger_than_the_site_says_take_wider_arms(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings.toml").write_text("[gpus_per_node]\nh100-80 = 2\n", encoding="utf-8")
    advisor = Advisor(home, model=StandInModel())
    ranked = advisor.advise(ask(advisor, tmp_path, STATE, gpus=("h100",))).recommendation.ranked
    assert {r.arm.tensor_parallel for r in ranked} == {1, 2, 4}


def test_where_the_cluster_can_take_nothing_it_is_said(advisor: Advisor, tmp_path: Path) -> None:
    state = replace(STATE, nodes=(nodes("h100", ("IDLE", "DRAIN")),))
    advice = advisor.advise(ask(advisor, tmp_path, state))
    abstention = advice.recommendation.abstention
    assert abstention is not None
    assert "the only node with h100-80: drained" in abstention.reason
    assert "--no-live" in abstention.reason


def test_a_line_of_jobs_moves_the_advice_to_another_kind(advisor: Advisor, tmp_path: Path) -> None:
    first = best(advisor, ask(advisor, tmp_path, STATE)).gpu_kind
    name = {"h100-80": "h100", "h200-141": "h200", "l40s-48": "l40s"}[first]
    job = QueuedJob((f"gpu_{name}",), name, 8, running=True, end_s=int(NOW_S + 20 * DAY_S))
    full = replace(
        STATE,
        nodes=tuple(nodes(k, used=8 if k == name else 0) for k in ("h100", "h200", "l40s")),
        jobs=(job,),
    )
    advice = advisor.advise(ask(advisor, tmp_path, full))
    assert advice.recommendation.ranked[0].arm.gpu_kind != first
    assert advice.cluster is not None
    waits = {arm.gpu_kind: found.wait.median_h for arm, found in advice.cluster.arms.items()}
    assert waits[first] == pytest.approx(240.0, abs=1.0)
    costs = {r.arm.gpu_kind: r.utility.queue_usd for r in advice.recommendation.ranked}
    assert costs[first] > 200.0


# One node is held for half an hour more; the other is idle, and Slurm has planned it.
HALF = ClusterState(
    NOW_S,
    (
        ClusterNode("n1", ("ALLOCATED",), ("gpu",), (GpuCount("h100", 8, 8),)),
        ClusterNode("n2", ("IDLE", "PLANNED"), ("gpu",), (GpuCount("h100", 8),)),
    ),
    (Partition("gpu", is_default=True), Partition("other")),
    jobs=(
        QueuedJob(
            ("gpu",), "h100", 8, running=True, end_s=int(NOW_S + 1800), time_limit_s=5400
        ),
    ),
)  # fmt: skip
BOTH_NODES = QueuedJob(
    ("gpu",), "h100", 16, running=False, n_nodes=2, time_limit_s=2 * DAY_S, priority=9
)


def outlook_of(
    advisor: Advisor, tmp_path: Path, state: ClusterState, hours: float
) -> tuple[bool, float]:
    """Whether GPUs are free now, and the median wait (h), for a single H100 of HALF."""
    question = ask(advisor, tmp_path, state, gpus=("h100",), precisions=("bf16",))
    question = replace(question, request=replace(question.request, duration_h=hours))
    report = advisor.advise(question).cluster
    assert report is not None
    found = next(o for arm, o in report.arms.items() if arm.tensor_parallel == 1)
    assert found.place is not None
    return found.place.free_now, found.wait.median_h


def test_what_is_planned_for_jobs_in_line_is_free_only_for_who_ends_before(
    advisor: Advisor, tmp_path: Path
) -> None:
    state = replace(HALF, jobs=(*HALF.jobs, BOTH_NODES))
    assert outlook_of(advisor, tmp_path, state, hours=0.2) == (True, 0.0)
    free_now, wait_h = outlook_of(advisor, tmp_path, state, hours=24.0)
    # Half of the plan: the two days of the job in line after the half hour of the one that runs.
    assert not free_now
    assert wait_h == pytest.approx(24.25)


@pytest.mark.parametrize(
    "changes",
    [{"partitions": ("other",)}, {"competes": False}, {"gpu": "a100"}, {"n_gpus": 32}],
)
def test_who_waits_for_something_else_leaves_free_gpus_free(
    advisor: Advisor, tmp_path: Path, changes: dict[str, Any]
) -> None:
    state = replace(HALF, jobs=(*HALF.jobs, replace(BOTH_NODES, **changes)))
    assert outlook_of(advisor, tmp_path, state, hours=24.0) == (True, 0.0)


def test_gpus_that_no_kind_answers_to_leave_the_cluster_aside(
    advisor: Advisor, tmp_path: Path
) -> None:
    odd = ClusterState(NOW_S, (nodes("abacus"),))
    advice = advisor.advise(ask(advisor, tmp_path, odd))
    assert advice.cluster is not None
    assert "names no GPU that the catalogue knows" in advice.cluster.notes[0]
    assert advice.recommendation.ranked


@pytest.mark.parametrize(
    ("gpu", "features", "kinds"),
    [
        ("a100", ("a100", "hbm40"), ("a100-40",)),
        ("a100", ("a100-80gb",), ("a100-80",)),
        ("a100", (), ("a100-40", "a100-80")),
        ("nvidia_h100_80gb_hbm3", (), ("h100-80",)),
        ("", ("gpu", "h200"), ("h200-141",)),
        ("1g.10gb", ("h100",), ("h100-80.mig-1g.10gb",)),
        ("abacus", ("intel",), ()),
    ],
)
def test_a_schedulers_name_is_settled_by_features_then_by_the_sites_kinds(
    gpu: str, features: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    naming = GpuNaming(Catalog.load(), ("a100-40", "a100-80", "h100-80"))
    assert naming.kinds(gpu, features) == kinds
    node = ClusterNode("n", ("IDLE",), ("p",), (GpuCount(gpu, 2),), features=features)
    assert [g.kinds for g in name_gpus(ClusterState(0.0, (node,)), naming)] == [kinds] * bool(kinds)


class TestAsking:
    """Slurm's programs are shell scripts here."""

    @pytest.fixture
    def put(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
        folder = tmp_path / "bin"
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

        def put(name: str, script: str) -> None:
            path = folder / name
            path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            path.chmod(0o755)

        full = [
            {"name": f"n{i}", "state": ["ALLOCATED"], "partitions": ["first", "second"],
             "gres": "gpu:h100:8", "gres_used": "gpu:h100:8"}
            for i in range(2)
        ]  # fmt: skip
        put("sinfo", f"echo sinfo >>{tmp_path}/calls; echo '{json.dumps({'nodes': full})}'")
        put("squeue", "echo '{\"jobs\": []}'")
        put("scontrol", "echo PartitionName=first State=UP Default=YES; "
            "echo PartitionName=second State=UP Default=NO")  # fmt: skip
        return put

    def live(self, now_s: float = NOW_S) -> Question:
        request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024)
        return Question(request, live=True, now_s=now_s)

    def test_a_refused_partition_gives_way_to_the_next(
        self, advisor: Advisor, put: Callable[[str, str], None], tmp_path: Path
    ) -> None:
        put(
            "sbatch",
            f'echo asked >>{tmp_path}/asked; case "$*" in *partition=first*) echo \'allocation '
            "failure: Invalid account or account/partition combination specified' >&2; exit 1;; "
            f"*) echo 'sbatch: Job 9 to start at {NOW_S + 7200:.0f} using 1 processors' >&2;; esac",
        )
        advice = advisor.advise(self.live())
        assert advice.cluster is not None
        best_arm = advice.recommendation.ranked[0].arm
        assert {o.place.partition for o in advice.cluster.arms.values() if o.place} >= {"second"}
        place = advice.cluster.arms[best_arm].place
        assert place is not None
        asked = (tmp_path / "asked").read_text(encoding="utf-8").split()
        assert 1 <= len(asked) <= 4

    def test_what_sbatch_says_replaces_the_own_plan(
        self, advisor: Advisor, put: Callable[[str, str], None]
    ) -> None:
        put("sbatch", f"echo 'sbatch: Job 9 to start at {NOW_S + 7200:.0f} using 1' >&2")
        advice = advisor.advise(self.live())
        assert advice.cluster is not None
        waits = {o.wait.median_h for o in advice.cluster.arms.values()}
        # Half of the two hours, as is assumed without a history.
        assert waits == {1.0}

    @pytest.mark.parametrize(("after_s", "free_now", "wait_h"), [(10, True, 0.0), (7200, False, 1)])
    def test_slurm_is_asked_about_free_gpus_that_somebody_is_in_line_for(
        self,
        advisor: Advisor,
        put: Callable[[str, str], None],
        after_s: int,
        wait_h: float,
        *,
        free_now: bool,
    ) -> None:
        node = {"name": "n1", "state": ["IDLE", "PLANNED"], "partitions": ["first"],
                "gres": "gpu:h100:8", "gres_used": "gpu:h100:0"}  # fmt: skip
        job = {"job_state": ["PENDING"], "partition": "first", "state_reason": "Priority",
               "tres_req_str": "gres/gpu:h100=8", "time_limit": 9999}  # fmt: skip
        put("sinfo", f"echo '{json.dumps({'nodes': [node]})}'")
        put("squeue", f"echo '{json.dumps({'jobs': [job]})}'")
        put("sbatch", f"echo 'sbatch: Job 9 to start at {NOW_S + after_s:.0f} using 1' >&2")
        report = advisor.advise(self.live()).cluster
        assert report is not None
        found = [o for arm, o in report.arms.items() if arm.tensor_parallel == 1]
        assert {o.place.free_now for o in found if o.place} == {free_now}
        assert {o.wait.median_h for o in found} == {wait_h}

    def test_the_start_is_asked_for_in_the_time_that_the_state_left(
        self,
        advisor: Advisor,
        put: Callable[[str, str], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        put("scontrol", "sleep 0.4; exit 1")
        given_s: list[float] = []

        def ask_starts(_: object, *, limit_s: float, timeout_s: float) -> list[object]:
            del limit_s
            given_s.append(timeout_s)
            return []

        monkeypatch.setattr("omnipilot.collect.live.ask_starts", ask_starts)
        advisor.advise(self.live())
        assert len(given_s) == 1
        assert 0.0 < given_s[0] <= advisor.settings.slurm_timeout_s - 0.4

    def test_a_second_advice_soon_after_asks_nobody(
        self, advisor: Advisor, put: Callable[[str, str], None], tmp_path: Path
    ) -> None:
        put("sbatch", "exit 1")
        for after_s, calls, origin in ((0.0, 1, "slurm"), (4.0, 1, "cache"), (6.0, 2, "slurm")):
            report = advisor.advise(self.live(NOW_S + after_s)).cluster
            assert report is not None
            assert report.origin == origin
            said = (tmp_path / "calls").read_text(encoding="utf-8").split()
            assert len(said) == calls

    def test_where_slurm_falls_silent_the_last_answer_is_used_for_four_minutes(
        self, advisor: Advisor, put: Callable[[str, str], None]
    ) -> None:
        put("sbatch", "exit 1")
        advisor.advise(self.live())
        put("sinfo", "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1")
        soon = advisor.advise(self.live(NOW_S + 100)).cluster
        late = advisor.advise(self.live(NOW_S + 300)).cluster
        assert soon is not None
        assert late is not None
        assert (soon.origin, soon.age_s) == ("cache", 100.0)
        assert "an answer of before is used" in soon.notes[0]
        assert late.origin == "none"
        assert "Unable to contact slurm controller" in late.notes[0]

    def test_without_slurm_there_is_nothing_to_say(
        self, advisor: Advisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        report = advisor.advise(self.live()).cluster
        assert report is not None
        assert (report.origin, report.notes) == ("none", ())


class TestDigest:
    def jobs(self, n: int = 400) -> list[ClusterJob]:
        """One node of eight: every other job waits an hour, a third of those of four fail."""
        made = []
        for i in range(n):
            eligible = int(NOW_S) - 20 * DAY_S + i * 3600
            start = eligible + (3600 if i % 2 else 0)
            made.append(
                ClusterJob(
                    "t", "lab", str(i + 1), "FAILED" if i % 6 == 1 else "COMPLETED", "h100",
                    4 if i % 2 else 1, partition="gpu_h100", submit_s=eligible,
                    eligible_s=eligible, start_s=start, end_s=start + 1800, elapsed_s=1800,
                    time_limit_s=7200,
                )
            )  # fmt: skip
        return made

    def test_rates_and_waits_are_those_of_the_history(self, tmp_path: Path) -> None:
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(self.jobs(), now_s=NOW_S)
        digest = refresh_digest(tmp_path, now_s=NOW_S, site=SITE)
        rates = {c.n_gpus: c.successes / c.attempts for c in digest.cluster}
        assert rates[1] == 1.0
        assert rates[4] == pytest.approx(2 / 3, abs=0.05)
        waits = {w.n_gpus: w.quantiles_s for w in digest.waits}
        assert waits == {1: (0.0, 0.0, 0.0), 4: (3600.0, 3600.0, 3600.0)}
        assert digest.wait_model is not None

    def test_a_start_that_was_read_while_it_served_and_afterwards_counts_once(
        self, tmp_path: Path
    ) -> None:
        ready = StartupRun(
            source="site", model="m", engine="vllm", gpu="h100-80", n_gpus=1, precision="bf16",
            status="ok", labels={"cold_start_s": 30.0}, stage="ready",
        )  # fmt: skip
        died = replace(ready, labels={"cold_start_s": 31.0})
        starts = [
            ready, replace(ready, stopped=True), died,
            replace(died, status="oom", failure="oom_serving", error_type="OutOfMemoryError",
                    labels=died.labels | {"allocation_gib": 1.5}),
        ]  # fmt: skip
        Store.open(tmp_path).append(starts, now_s=NOW_S)
        (own,) = refresh_digest(tmp_path, now_s=NOW_S, site=SITE).own
        assert (own.successes, own.attempts) == (1.0, 2.0)

    def test_it_is_kept_until_a_log_grows(self, tmp_path: Path) -> None:
        store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
        store.append(self.jobs(100), now_s=NOW_S)
        first, note = read_digest(tmp_path, now_s=NOW_S, site=SITE)
        assert note == ""
        assert read_digest(tmp_path, now_s=NOW_S + 9, site=SITE)[0] == first
        store.append(self.jobs(101)[-1:], now_s=NOW_S)
        assert read_digest(tmp_path, now_s=NOW_S + 9, site=SITE)[0] != first

    @pytest.mark.parametrize("grows", ["runs", "jobs"])
    def test_what_is_written_while_the_logs_are_read_is_not_missed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: str
    ) -> None:
        own, jobs = Store.open(tmp_path), Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
        own.append([started("h100")], now_s=NOW_S)
        jobs.append(self.jobs(100), now_s=NOW_S)
        rows, query = Store.rows, priors.query_history

        def read_runs(store: Store, tally: ReadTally | None = None) -> Iterator[StoredRow]:
            yield from rows(store, tally)
            monkeypatch.undo()
            own.append([started("l40s")], now_s=NOW_S)

        def read_jobs(*args: Any, **options: Any) -> priors.ClusterHistory:
            found = query(*args, **options)
            jobs.append(self.jobs(101)[-1:], now_s=NOW_S)
            return found

        if grows == "runs":
            monkeypatch.setattr(Store, "rows", read_runs)
        else:
            monkeypatch.setattr(priors, "query_history", read_jobs)
        refresh_digest(tmp_path, now_s=NOW_S, site=SITE)
        monkeypatch.undo()
        later = read_digest(tmp_path, now_s=NOW_S + 9, site=SITE)
        (tmp_path / DIGEST_NAME).unlink()
        assert later == read_digest(tmp_path, now_s=NOW_S + 9, site=SITE)

    def test_a_long_log_is_left_to_the_harvest_and_that_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(self.jobs(100), now_s=NOW_S)
        monkeypatch.setattr("omnipilot.advisor.digest.QUICK_BYTES", 1000)
        digest, note = read_digest(tmp_path, now_s=NOW_S, site=SITE)
        assert digest.cluster == ()
        assert "omnipilot collect" in note

    def test_launches_count_as_the_sites_settings_say(self, tmp_path: Path) -> None:
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(self.jobs(), now_s=NOW_S)
        usual, _ = read_digest(tmp_path, now_s=NOW_S, site=SITE)
        strict = replace(SITE, launch_min_runtime_s=3600.0)  # every job of these ran half as long
        assert {
            c.successes for c in read_digest(tmp_path, now_s=NOW_S, site=strict)[0].cluster
        } == {0.0}
        assert read_digest(tmp_path, now_s=NOW_S, site=SITE)[0] == usual
        assert all(c.successes > 0 for c in usual.cluster)

    def test_gpus_without_a_type_are_those_of_their_partition(self, tmp_path: Path) -> None:
        jobs = [replace(job, gpu="") for job in self.jobs()]
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(jobs, now_s=NOW_S)
        site = replace(SITE, gpu_kind_of_partition={"gpu_h100": "h100-80"})
        digest, _ = read_digest(tmp_path, now_s=NOW_S, site=site)
        assert {c.gpu for c in digest.cluster} | {w.gpu for w in digest.waits} == {"h100-80"}

    def test_changed_settings_over_a_long_log_are_left_to_the_harvest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(self.jobs(100), now_s=NOW_S)
        usual, _ = read_digest(tmp_path, now_s=NOW_S, site=SITE)
        monkeypatch.setattr("omnipilot.advisor.digest.QUICK_BYTES", 1000)
        strict = replace(SITE, launch_min_runtime_s=3600.0)
        digest, note = read_digest(tmp_path, now_s=NOW_S, site=strict)
        assert digest == usual
        assert "settings have changed" in note

    @pytest.mark.parametrize("compacted", [False, True])
    def test_damaged_lines_of_the_history_are_named(
        self, advisor: Advisor, *, compacted: bool
    ) -> None:
        store = Store.open(advisor.home, log_name=CLUSTER_LOG_NAME)
        store.append(self.jobs(), now_s=NOW_S)
        with store.path.open("ab") as log:
            log.write(b'scribble\n{"kind":"cluster_job","job_id":7}\n[]\n')
        if compacted:
            compact(store, write_parquet)
        report = advisor.advise(ask(advisor, advisor.home, STATE)).cluster
        assert report is not None
        assert [note for note in report.notes if "3 lines of the cluster's history" in note]
        around = Surroundings(NOW_S, 0.5)
        (check,) = [c for c in examine(advisor, around) if c.name == "history"]
        assert check.state == "warning"
        assert "3 lines are damaged" in check.found

    @pytest.mark.parametrize("data", [b"", b"{}x", b'{"version": 99}', b"\xff"])
    def test_a_damaged_one_is_made_anew(self, data: bytes, tmp_path: Path) -> None:
        Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append(self.jobs(100), now_s=NOW_S)
        (tmp_path / DIGEST_NAME).write_bytes(data)
        assert read_digest(tmp_path, now_s=NOW_S, site=SITE)[0].cluster

    def test_the_sites_own_failures_count_against_the_arm(
        self, advisor: Advisor, tmp_path: Path
    ) -> None:
        def start(status: str, i: int) -> StartupRun:
            return StartupRun(
                "site", "m", "vllm", "h100-80", 1, "fp8", status, {"cold_start_s": float(i)}
            )

        store = Store.open(advisor.home)
        rows = [start("error", i) for i in range(10)]
        rows += [start("unfinished", i) for i in range(10, 20)]
        store.append([*rows, GpuSnapshot("t", "h100", 8, {}, at_s=NOW_S)], now_s=NOW_S)
        advice = advisor.advise(ask(advisor, tmp_path, STATE))
        assert advice.cluster is not None
        chances = {
            (a.gpu_kind, a.tensor_parallel, a.precision): o.chance.probability
            for a, o in advice.cluster.arms.items()
        }
        assert chances["h100-80", 1, "fp8"] == pytest.approx(0.95 * 20 / 30, abs=0.01)
        assert chances["h100-80", 2, "fp8"] == pytest.approx(0.95, abs=0.01)

    def test_without_a_cluster_the_history_tells_the_wait(self, advisor: Advisor) -> None:
        store = Store.open(advisor.home, log_name=CLUSTER_LOG_NAME)
        store.append(self.jobs(), now_s=NOW_S)
        request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024)
        advice = advisor.advise(Question(request, gpus=("h100",), now_s=NOW_S))
        assert advice.cluster is not None
        waits = {a.tensor_parallel: o.wait for a, o in advice.cluster.arms.items()}
        assert waits[4].median_h == 1.0
        assert waits[1].median_h == 0.0
        assert "history" in waits[4].note


class TestDoctor:
    def results(
        self, advisor: Advisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> dict[str, CheckResult]:
        monkeypatch.setenv("PATH", str(tmp_path))
        return {r.name: r for r in examine(advisor, Surroundings(time.time(), 2.0))}

    def test_a_laptop_without_slurm_has_nothing_that_failed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.results(Advisor(tmp_path / "home"), monkeypatch, tmp_path)
        assert list(found) == [
            "settings", "slurm", "accounting", "jobstats", "prometheus", "stores", "history",
            "base model", "salt", "prices",
        ]  # fmt: skip
        assert {r.state for r in found.values()} == {"ok", "skipped", "warning"}
        assert found["base model"].state == "ok"
        assert "defaults" in found["prices"].found

    def test_one_check_that_fails_leaves_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / "settings.toml").write_text("nonsense = 1\n", encoding="utf-8")
        key = home / "secret.key"
        key.write_bytes(bytes(32))
        key.chmod(0o644)
        found = self.results(Advisor(home), monkeypatch, tmp_path)
        assert found["settings"].state == "failed"
        assert "nonsense" in found["settings"].found
        assert found["salt"].state == "failed"
        assert "chmod 600" in found["salt"].advice
        assert found["base model"].state == "ok"
        assert found["stores"].state == "ok"

    def test_prices_of_long_ago_are_said_to_be(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"
        home.mkdir()
        path = home / "settings.toml"
        path.write_text("pue = 1.2\n[price_usd_per_gpu_h]\nh100-80 = 2.0\n", encoding="utf-8")
        assert (
            "are the defaults" in self.results(Advisor(home), monkeypatch, tmp_path)["prices"].found
        )
        old_s = time.time() - 400 * DAY_S
        os.utime(path, (old_s, old_s))
        prices = self.results(Advisor(home), monkeypatch, tmp_path)["prices"]
        assert (prices.state, "400 days" in prices.found) == ("warning", True)

    @pytest.mark.parametrize(
        ("script", "state", "words"),
        [
            ("echo 'sacct: error: Connection refused' >&2; exit 1", "failed", "Connection refused"),
            ("exec sleep 30", "failed", "did not answer"),
            ("echo 1", "ok", "1 jobs"),
            ("true", "warning", "no job"),
        ],
    )
    def test_accounting_is_told_apart(
        self, script: str, state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        path = folder / "sacct"
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        found = {r.name: r for r in examine(Advisor(tmp_path / "home"), Surroundings(0.0, 0.5))}
        assert found["accounting"].state == state
        assert words in found["accounting"].found
