"""Where an arm can run, what keeps it out, and which nodes are kept away from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.decide.launch_chance import LaunchOdds, fit_confidence
from omnipilot.decide.placement import ClusterView, NodeGpus, NoPlace, Place, places_for
from omnipilot.decide.priors import LaunchCounts, LaunchPrior, pooled_prior
from omnipilot.decide.queue_plan import plan_start
from omnipilot.decide.shield import LEVELS, Shield, build_shield
from omnipilot.domain import Arm, FitVerdict, GpuHealth
from omnipilot.domain.cluster import ClusterState, Partition, QueuedJob, Reservation

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW_S = 1_000_000.0
H = 3600.0
KIND = "h100-80"


def node(name: str, free: int = 4, **changes: object) -> NodeGpus:
    fields = {"total": 4, "free": free, "partitions": ("gpu",), **changes}
    return NodeGpus(name, "h100", (KIND,), **fields)  # type: ignore[arg-type]


def event(host: str, age_h: float = 1.0, **changes: object) -> GpuHealth:
    fields = {"event": "xid", "severity": "hardware", "code": 79, **changes}
    return GpuHealth("t", host, "u", "h100", last_s=NOW_S - age_h * H, **fields)  # type: ignore[arg-type]


def shield(*events: GpuHealth, seen_s: float | None = NOW_S) -> Shield:
    return build_shield(events, now_s=NOW_S, seen_s=seen_s)


def view(
    nodes: Sequence[NodeGpus],
    *,
    partitions: Sequence[Partition] = (Partition("gpu", is_default=True),),
    jobs: Sequence[QueuedJob] = (),
    reservations: Sequence[Reservation] = (),
    health: Shield | None = None,
) -> ClusterView:
    state = ClusterState(NOW_S, (), tuple(partitions), tuple(reservations), tuple(jobs))
    return ClusterView(state, tuple(nodes), health or shield(), NOW_S)


def place(found: tuple[Place, ...] | NoPlace) -> Place:
    assert not isinstance(found, NoPlace), found.reason
    return found[0]


def refusal(found: tuple[Place, ...] | NoPlace) -> NoPlace:
    assert isinstance(found, NoPlace)
    return found


class TestPlaces:
    def test_free_gpus_on_one_node_are_free_now(self) -> None:
        there = place(places_for(view([node("n1", 1), node("n2", 3)]), KIND, 2, H))
        assert (there.partition, there.gpu, there.free_now) == ("gpu", "h100", True)
        assert (there.pool.total, there.pool.free) == (8, 4)

    def test_free_gpus_scattered_over_nodes_are_not(self) -> None:
        there = place(places_for(view([node("n1", 1), node("n2", 3)]), KIND, 4, H))
        assert there.free_now is False

    @pytest.mark.parametrize(
        ("nodes", "n", "code", "words"),
        [
            ([], 1, "not_on_cluster", "--no-live"),
            ([node("n1")], 8, "too_few_gpus_in_node", "at most 4"),
            ([node("n1", closed="drained", reason="fan")], 1, "no_usable_node",
             "the only node with h100-80: drained (fan)"),
            ([node("n1", closed="drained"), node("n2", closed="down")], 1, "no_usable_node",
             "all 2 nodes with h100-80: 1 drained, 1 down"),
            ([node("bad")], 1, "unhealthy_nodes", "bad: XID 79, 60 min ago"),
            ([node("n1", partitions=("dead",))], 1, "no_partition", "dead"),
        ],
    )  # fmt: skip
    def test_what_stands_in_the_way_is_named(
        self, nodes: list[NodeGpus], n: int, code: str, words: str
    ) -> None:
        partitions = (Partition("gpu"), Partition("dead", is_up=False))
        cluster = view(nodes, partitions=partitions, health=shield(event("bad")))
        found = refusal(places_for(cluster, KIND, n, H))
        assert found.reason_code == code
        assert words in found.reason

    def test_a_partition_too_short_for_the_hours_is_no_place(self) -> None:
        cluster = view([node("n1")], partitions=(Partition("gpu", max_time_s=3600),))
        assert place(places_for(cluster, KIND, 1, 3600.0))
        assert refusal(places_for(cluster, KIND, 1, 3601.0)).reason_code == "no_partition"

    def test_a_node_with_a_fault_is_kept_away_from_while_another_serves(self) -> None:
        cluster = view([node("n1"), node("n2")], health=shield(event("n1.site.org:9400")))
        there = place(places_for(cluster, KIND, 1, H))
        assert there.nodes == ("n2",)
        assert there.avoid == {"n1": "XID 79, 60 min ago"}
        assert (there.pool.total, there.success_factor) == (4, 1.0)

    def test_a_penalised_node_serves_where_no_other_will(self) -> None:
        watch = event("n1", event="rows_remapped_uncorrectable", severity="watch", code=0)
        there = place(places_for(view([node("n1")], health=shield(watch)), KIND, 1, H))
        assert there.nodes == ("n1",)
        assert there.success_factor == 0.8
        assert "rows replaced" in there.health

    def test_a_partition_that_others_preempt_comes_last(self) -> None:
        nodes = [node("n1", partitions=("scavenge", "gpu"))]
        partitions = (
            Partition("scavenge", priority_tier=1, preempts=True),
            Partition("gpu", priority_tier=10, preempts=True),
        )
        found = places_for(view(nodes, partitions=partitions), KIND, 1, H)
        assert not isinstance(found, NoPlace)
        assert [(p.partition, p.preemptible) for p in found] == [("gpu", False), ("scavenge", True)]

    def test_a_reservation_that_the_job_would_run_into_takes_the_node_away(self) -> None:
        reserved = Reservation("works", int(NOW_S + 2 * H), int(NOW_S + 9 * H), ("n1",))
        cluster = view([node("n1")], reservations=[reserved])
        assert place(places_for(cluster, KIND, 1, H)).free_now is True
        assert place(places_for(cluster, KIND, 1, 3 * H)).free_now is False

    def test_only_jobs_that_want_the_same_gpus_are_in_the_queue(self) -> None:
        def job(**changes: object) -> QueuedJob:
            fields = {"partitions": ("gpu",), "gpu": "h100", "n_gpus": 2, "running": False,
                      "time_limit_s": 3600, **changes}  # fmt: skip
            return QueuedJob(**fields)  # type: ignore[arg-type]

        jobs = [
            job(priority=1, n_gpus=1),
            job(priority=9, n_gpus=3),
            job(gpu="a100"),
            job(partitions=("other",)),
            job(competes=False),
            job(running=True, end_s=int(NOW_S + 60)),
        ]
        pool = place(places_for(view([node("n1", 2)], jobs=jobs), KIND, 1, H)).pool
        assert pool.waiting == [(3, 3600.0), (1, 3600.0)]
        assert pool.running == [(60.0, 2)]

    @pytest.mark.parametrize(("tier", "waits"), [(1, 1), (9, 1), (0, 0)])
    def test_who_waits_in_a_partition_of_the_same_nodes_is_in_line_unless_of_a_lower_tier(
        self, tier: int, waits: int
    ) -> None:
        job = QueuedJob(("other",), "h100", 4, running=False, time_limit_s=3600)
        cluster = view(
            [node("n1", partitions=("gpu", "other"))],
            partitions=(Partition("gpu", is_default=True), Partition("other", priority_tier=tier)),
            jobs=[job],
        )
        found = places_for(cluster, KIND, 1, H)
        assert not isinstance(found, NoPlace)
        pool = next(p for p in found if p.partition == "gpu").pool
        assert len(pool.waiting) == waits

    def test_a_job_that_no_node_can_take_before_another_ends_leaves_the_scattered_gpus(
        self,
    ) -> None:
        jobs = [
            QueuedJob(("gpu",), "h100", 2, running=True, end_s=int(NOW_S + 10 * H)),
            QueuedJob(("gpu",), "h100", 2, running=True, end_s=int(NOW_S + 12 * H)),
            QueuedJob(("gpu",), "h100", 4, running=False, time_limit_s=24 * 3600),
        ]
        pool = place(places_for(view([node("n1", 2), node("n2", 2)], jobs=jobs), KIND, 2, H)).pool
        assert pool.scattered == {0}
        assert plan_start(pool, 2, 2 * H).behind_all_s == 0.0

    def test_who_would_run_into_a_reservation_keeps_nobody_out_who_ends_before(self) -> None:
        reserved = Reservation("works", int(NOW_S + 2 * H), int(NOW_S + 9 * H), ("n1",))
        jobs = [
            QueuedJob(("gpu",), "h100", 4, running=False, time_limit_s=24 * 3600),
            QueuedJob(("gpu",), "h100", 1, running=False, time_limit_s=3600),
        ]
        cluster = view([node("n1")], reservations=[reserved], jobs=jobs)
        assert place(places_for(cluster, KIND, 1, H)).pool.waiting == [(1, H)]


class TestShield:
    @pytest.mark.parametrize(
        ("severity", "age_h", "level"),
        [
            ("hardware", 1.0, "excluded"),
            ("hardware", 30.0, "penalised"),
            ("hardware", 100.0, "ok"),
            ("watch", 1.0, "penalised"),
            ("watch", 30.0, "ok"),
            ("application", 0.1, "ok"),
        ],
    )
    def test_a_fault_counts_by_severity_and_age(
        self, severity: str, age_h: float, level: str
    ) -> None:
        assert shield(event("n1", age_h, severity=severity)).of("n1").level == level

    def test_the_worst_fault_of_a_node_decides(self) -> None:
        found = shield(event("n1", severity="watch"), event("n1"), event("n1", 40.0)).of("N1")
        assert found.level == "excluded"

    def test_stale_telemetry_is_no_clean_bill_of_health(self) -> None:
        assert shield(seen_s=NOW_S).of("n1").level == "ok"
        stale = shield(seen_s=NOW_S - 3 * H)
        assert stale.stale
        assert stale.of("n1").level == "unknown"
        assert stale.of("n1").success_factor < 1.0

    def test_no_telemetry_at_all_is_held_against_nobody(self) -> None:
        never = shield(seen_s=None).of("n1")
        assert (never.level, never.success_factor) == ("unknown", 1.0)

    @given(
        st.lists(
            st.builds(
                event,
                st.sampled_from(("n1", "n2")),
                st.floats(0.0, 200.0),
                severity=st.sampled_from(("hardware", "watch", "application")),
            ),
            max_size=5,
        )
    )
    def test_one_more_fault_never_clears_a_node(self, events: list[GpuHealth]) -> None:
        levels = [LEVELS.index(shield(*events[:k]).of("n1").level) for k in range(len(events) + 1)]
        assert levels == sorted(levels)


def fit(kv_gib_per_gpu: float, max_concurrency: float) -> FitVerdict:
    return FitVerdict(
        "fits", "fits", "", kv_gib_per_gpu=kv_gib_per_gpu, max_concurrency=max_concurrency
    )


class TestChance:
    ARM = Arm(KIND, 2, "fp8")

    def chance(self, odds: LaunchOdds, node_factor: float = 1.0) -> float:
        roomy = fit(kv_gib_per_gpu=40.0, max_concurrency=50.0)
        return odds.chance(self.ARM, roomy, 80.0, node_factor=node_factor).probability

    def test_without_launches_the_default_holds(self) -> None:
        assert self.chance(LaunchOdds(LaunchPrior(0.95), {}, {})) == pytest.approx(0.95)

    def test_the_clusters_failures_and_the_sites_own_lower_it(self) -> None:
        cluster = {(KIND, 2): LaunchCounts(40, 100), (KIND, 1): LaunchCounts(75, 100)}
        prior = pooled_prior(cluster.values(), 0.95)
        shared = self.chance(LaunchOdds(prior, cluster, {}))
        assert 0.35 < shared < 0.65
        own = {(KIND, 2, "fp8"): LaunchCounts(0, 10)}
        assert self.chance(LaunchOdds(prior, cluster, own)) == pytest.approx(shared * 20 / 30)
        other = {(KIND, 2, "bf16"): LaunchCounts(0, 10)}
        assert self.chance(LaunchOdds(prior, cluster, other)) == pytest.approx(shared)

    def test_the_nodes_health_multiplies_it(self) -> None:
        assert self.chance(LaunchOdds(LaunchPrior(0.95), {}, {}), 0.8) == pytest.approx(0.76)

    def test_a_tight_fit_is_less_sure_than_a_roomy_one(self) -> None:
        tight = fit_confidence(fit(kv_gib_per_gpu=1.0, max_concurrency=1.01), 80.0)
        roomy = fit_confidence(fit(kv_gib_per_gpu=40.0, max_concurrency=50.0), 80.0)
        assert 0.5 <= tight < 0.55
        assert roomy > 0.999

    def test_the_note_names_what_counted(self) -> None:
        own = {(KIND, 2, "fp8"): LaunchCounts(3, 4)}
        tight = fit(kv_gib_per_gpu=1.0, max_concurrency=1.2)
        odds = LaunchOdds(LaunchPrior(0.95), {}, own)
        note = odds.chance(self.ARM, tight, 80.0, node_factor=0.8).note
        for words in ("no launches recorded", "3 of 4 of this arm", "fit is", "health leaves 80%"):
            assert words in note
