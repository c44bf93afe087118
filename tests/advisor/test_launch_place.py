"""Where a launch goes and for how long: kinds under one word, faulty nodes, partitions' limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.launching import LaunchOrder, prepare_launch
from omnipilot.domain import BadInputError, GpuHealth, ServingRequest
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.launching import PreparedLaunch

NOW_S = 1_790_000_000.0
GPU = (Partition("gpu", is_default=True),)
BOTH = (Partition("gpu", is_default=True), Partition("prio"))


def node(
    name: str, word: str = "h100", feature: str = "", partitions: tuple[str, ...] = ("gpu",)
) -> ClusterNode:
    features = (feature,) if feature else ()
    return ClusterNode(name, ("IDLE",), partitions, (GpuCount(word, 4),), features=features)


def prepared(
    tmp_path: Path,
    nodes: tuple[ClusterNode, ...],
    partitions: tuple[Partition, ...] = GPU,
    *,
    arm: str = "h100-80:1:bf16",
    hours: float = 1.0,
    **order: Any,
) -> PreparedLaunch:
    """The launch on a saved state of a cluster; without Slurm's programs."""
    path = tmp_path / "state.json"
    path.write_bytes(msgspec.json.encode(ClusterState(NOW_S, nodes, partitions)))
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024, hours)
    question = Question(request, state_file=path, now_s=NOW_S)
    advisor = Advisor(tmp_path / "home", model=StandInModel())
    return prepare_launch(advisor, LaunchOrder(question, arm=arm, **order), "r1")


def fault(tmp_path: Path, *hosts: str) -> None:
    found = [
        GpuHealth("t", host, "u", "h100", "xid", "hardware", code=79, last_s=NOW_S - 60)
        for host in hosts
    ]
    (tmp_path / "home").mkdir(mode=0o700)
    Store.open(tmp_path / "home").append(found, now_s=NOW_S)


@pytest.mark.parametrize(
    ("word", "right", "wrong", "arm"),
    [
        ("a100", "hbm80", "hbm40", "a100-80:1:bf16"),
        ("a100", "hbm40", "hbm80", "a100-40:1:bf16"),
        ("", "h100", "l40s", "h100-80:1:bf16"),
        ("", "h100", "nobody-knows", "h100-80:1:bf16"),
    ],
)
@pytest.mark.parametrize("said", ["", "same"])
def test_nodes_of_other_kinds_under_the_same_word_are_excluded(
    tmp_path: Path, word: str, right: str, wrong: str, arm: str, said: str
) -> None:
    nodes = (
        node("n3", word, wrong), node("n1", word, right), node("n2", word, wrong),
        node("n4", word, wrong, ("other",)),
    )  # fmt: skip
    gres = f"gpu:{word}:1" if word else "gpu:1"
    launch = prepared(tmp_path, nodes, arm=arm, gres=gres if said else "")
    assert launch.spec.job.gres == gres
    assert launch.spec.job.exclude == ("n2", "n3")
    assert "#SBATCH --exclude=n2,n3\n" in launch.script
    assert [n for n in launch.notes if "n3, n2" in n and arm.split(":", maxsplit=1)[0] in n]


def test_a_word_of_one_kind_excludes_nobody(tmp_path: Path) -> None:
    launch = prepared(tmp_path, (node("n1"), node("n2", "a100", "hbm40")))
    assert launch.spec.job.exclude == ()


def test_a_type_of_the_operators_that_nobody_knows_excludes_nobody(tmp_path: Path) -> None:
    launch = prepared(tmp_path, (node("n1"), node("n2", "abacus")), gres="gpu:abacus:1")
    assert launch.spec.job.exclude == ()


@pytest.mark.parametrize(
    ("gres", "told"),
    [
        ("gpu:a100:2", "is a100-40 or a100-80"), ("gpu:h200:4", "is h200-141 and"),
        ("gpu:h100:1", "asks for 1 GPU and"), ("gpu:1", "asks for 1 GPU and"),
        ("gpu:h100", "asks for 1 GPU and"),
    ],
)  # fmt: skip
def test_gpus_that_are_not_the_arms_are_refused(tmp_path: Path, gres: str, told: str) -> None:
    with pytest.raises(BadInputError, match=rf"--gres {gres} {told}.*2x h100-80 bf16 is launched"):
        prepared(tmp_path, (node("n1"),), arm="h100-80:2:bf16", gres=gres)


@pytest.mark.parametrize("said", [{"partition": "old"}, {"partition": "old", "gres": "gpu:2"}])
def test_a_partition_of_other_kinds_only_is_refused(tmp_path: Path, said: dict[str, Any]) -> None:
    nodes = (node("n1"), node("n2", "a100", "hbm40", ("old",)))
    partitions = (Partition("gpu"), Partition("old", is_default=True))
    arm = "h100-80:2:bf16"
    for asked in (said, {**said, "partition": ""} if "gres" in said else said):
        with pytest.raises(BadInputError, match="partition old has no h100-80 but a100-40, and 2x"):
            prepared(tmp_path, nodes, partitions, arm=arm, **asked)
    # One whose type nobody knows may be the kind.
    unknown = (*nodes, node("n3", "abacus", partitions=("old",)))
    assert prepared(tmp_path, unknown, partitions, arm=arm, **said).spec.job.partition == "old"


def test_a_named_partition_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    nodes = (node("n1"), node("n2", partitions=("off",)))
    partitions = (*GPU, Partition("off", is_up=False))
    launch = prepared(tmp_path, nodes, partitions, partition="off")
    assert "no partition with h100-80 is up (off)" in launch.notes


@pytest.mark.parametrize("gres", ["gpu:h100:2", "gpu:h100:4", "gpu:2", "gpu:ours:2", "shard:9"])
def test_gpus_that_may_be_the_arms_are_asked_for_as_they_are(tmp_path: Path, gres: str) -> None:
    launch = prepared(tmp_path, (node("n1"),), arm="h100-80:2:bf16", gres=gres)
    assert launch.spec.job.gres == gres


@pytest.mark.parametrize(
    "said", [{}, {"partition": "prio"}, {"gres": "gpu:h100:1"},
             {"partition": "prio", "gres": "gpu:h100:1"}],
)  # fmt: skip
def test_faulty_nodes_are_kept_away_from_whatever_the_operator_names(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    fault(tmp_path, "n1")
    nodes = tuple(node(name, partitions=("gpu", "prio")) for name in ("n1", "n2"))
    launch = prepared(tmp_path, nodes, BOTH, **said)
    assert launch.spec.job.exclude == ("n1",)
    assert launch.spec.job.partition == said.get("partition", "" if "gres" in said else "gpu")
    assert "keeping away from n1: XID 79, 1 min ago" in launch.notes


def test_a_named_partition_of_faulty_nodes_only_is_refused(tmp_path: Path) -> None:
    fault(tmp_path, "n1")
    nodes = (node("n1", partitions=("prio",)), node("n2"))
    with pytest.raises(BadInputError, match=r"h100-80 in partition prio .* n1: XID 79.*--no-live"):
        prepared(tmp_path, nodes, BOTH, partition="prio")


@pytest.mark.parametrize("said", [{}, {"partition": "gpu"}, {"gres": "gpu:h100:1"}])
def test_a_time_limit_is_at_most_the_partitions(tmp_path: Path, said: dict[str, Any]) -> None:
    free = prepared(tmp_path, (node("n1"),), hours=23.7, bench=True, num_prompts=4000, **said)
    upper_min = free.spec.job.time_limit_min
    most_min = upper_min - 5
    limited = (Partition("gpu", is_default=True, max_time_s=60 * most_min),)
    launch = prepared(
        tmp_path, (node("n1"),), limited, hours=23.7, bench=True, num_prompts=4000, **said
    )
    assert launch.spec.job.time_limit_min == most_min
    (note,) = [n for n in launch.notes if "time limit" in n]
    assert f"{most_min} min, all that" in note
    assert f"{upper_min} min" in note


def test_what_a_partition_would_end_before_its_time_goes_elsewhere_or_is_refused(
    tmp_path: Path,
) -> None:
    short = Partition("gpu", is_default=True, max_time_s=75 * 60)
    nodes = (node("n1", partitions=("gpu", "prio")),)
    partitions = (short, Partition("prio"))
    asked: dict[str, Any] = {"bench": True, "num_prompts": 1_000_000}
    assert prepared(tmp_path, nodes, partitions, **asked).spec.job.partition == "prio"
    with pytest.raises(BadInputError, match=r"gpu allows 75 min and .* --partition"):
        prepared(tmp_path, nodes, partitions, partition="gpu", **asked)
    with pytest.raises(BadInputError, match=r"gpu allows 75 min and .* --partition"):
        prepared(tmp_path, (node("n1"),), (short,), **asked)


def test_the_operators_own_limit_is_kept_and_said_to_be_too_long(tmp_path: Path) -> None:
    two_hours = (Partition("gpu", is_default=True, max_time_s=7200),)
    launch = prepared(tmp_path, (node("n1"),), two_hours, time_limit_min=240)
    assert launch.spec.job.time_limit_min == 240
    assert [n for n in launch.notes if "gpu allows 120 min" in n and "240 min" in n]
    assert prepared(tmp_path, (node("n1"),), two_hours, time_limit_min=120).notes == ()
