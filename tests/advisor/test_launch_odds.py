"""The chance of a launch where the scheduler's GPU names could mean several kinds."""

from __future__ import annotations

import pytest

from omnipilot.advisor.cluster_now import ClusterNow
from omnipilot.advisor.digest import Digest, SiteLaunches
from omnipilot.advisor.outlook import ArmOutlook, Outlook
from omnipilot.catalog import Catalog
from omnipilot.decide.cluster_gpus import GpuNaming
from omnipilot.decide.priors import LaunchCounts, pooled_prior
from omnipilot.domain import Arm, FitVerdict, ServingRequest

FITS = FitVerdict("fits", "fits", "")
REQUEST = ServingRequest("org/model", 1, 100, 75, 25)


def chance(arm: Arm, *launches: SiteLaunches) -> float:
    naming = GpuNaming(Catalog.load())
    now = ClusterNow(None, Digest(cluster=launches), naming, (), 0.0, 5.0)
    outlook = Outlook(now, REQUEST, 0.95).of(arm, FITS, 80.0)
    assert isinstance(outlook, ArmOutlook)
    return outlook.chance.probability


def test_a_launch_counts_once_in_the_pooled_rate_whatever_kinds_its_name_could_mean() -> None:
    assert len(GpuNaming(Catalog.load()).kinds("a100", ())) > 1
    good, bad = SiteLaunches("a100", 1, 100.0, 100.0), SiteLaunches("l40s", 1, 0.0, 100.0)
    pooled = pooled_prior((LaunchCounts(100, 100), LaunchCounts(0, 100)), 0.95)
    # No launch of this arm is on record: the pooled rate answers.
    assert chance(Arm("h100-80", 1, "bf16"), good, bad) == pytest.approx(pooled.mean)
    for kind in ("a100-40", "a100-80"):
        assert chance(Arm(kind, 1, "bf16"), good, bad) == pytest.approx(
            pooled.posterior(LaunchCounts(100, 100)).mean
        )


def test_launches_of_a_name_that_means_no_kind_count_in_the_pooled_rate_alone() -> None:
    bad = SiteLaunches("", 1, 0.0, 100.0)
    pooled = pooled_prior([LaunchCounts(0, 100)], 0.95)
    assert chance(Arm("h100-80", 1, "bf16"), bad) == pytest.approx(pooled.mean)
