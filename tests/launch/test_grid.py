"""A grid becomes a plan: what is left out, in which order, and which axes are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.advisor.benching import plan_grid
from omnipilot.catalog import Catalog
from omnipilot.domain import BadInputError, InferenceRun, StackFingerprint
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition
from omnipilot.launch.grid import Grid
from omnipilot.launch.information import order_by_information
from omnipilot.launch.known import KnownRuns
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.launch.plan import Plan

MODEL = "Qwen/Qwen2.5-7B-Instruct"
FACTS = Catalog.load()


def planned(home: Path, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "models": (MODEL,), "gpus": ("h100-80",), "concurrency": (8, 64),
        "context_tokens": (2048,), "precisions": ("bf16",),
    } | changes  # fmt: skip
    return plan_grid(Advisor(home, model=StandInModel()), Grid(**values))


def test_a_node_hour_is_one_of_the_cluster_s_own_nodes(tmp_path: Path) -> None:
    def node_h(total: int) -> float:
        node = ClusterNode("n1", ("IDLE",), ("gpu",), (GpuCount("h100", total),))
        path = tmp_path / f"{total}.json"
        path.write_bytes(msgspec.json.encode(ClusterState(1e9, (node,), (Partition("gpu"),))))
        grid = Grid((MODEL,), ("h100-80",), (8,), (2048,), precisions=("bf16",))
        site = Advisor(tmp_path / "home", model=StandInModel())
        (run,) = plan_grid(site, grid, state_file=path, now_s=1e9).runs
        assert run.node_share == 1 / total
        return run.node_h

    assert node_h(4) == pytest.approx(2 * node_h(8))


def why(plan: Plan) -> list[str]:
    return sorted(s.why for s in plan.skipped)


def measured(**changes: Any) -> InferenceRun:
    values: dict[str, Any] = {
        "source": "site", "model": MODEL, "engine": "vllm", "gpu": "H100 80GB", "n_gpus": 1,
        "precision": "bfloat16", "mode": "online", "status": "ok",
        "labels": {"aggregate_tokens_per_s": 1000.0}, "prompt_tokens": 1536.0,
        "output_tokens": 512.0, "concurrency": 8.0, "max_model_len": 2048,
        "stack": StackFingerprint(engine_version="0.11.2"),
    } | changes  # fmt: skip
    return InferenceRun(**values)


def test_a_grid_is_the_product_of_its_axes(tmp_path: Path) -> None:
    plan = planned(tmp_path, gpus=("h100-80", "a100-80"), tensor_parallel=(1, 2),
                   precisions=("bf16", "fp8"), context_tokens=(2048, 8192))  # fmt: skip
    assert len(plan.runs) == 2 * 2 * 2 * 2 * 2
    assert plan.skipped == ()
    assert len({run.run_id for run in plan.runs}) == 32
    assert all(run.spec.bench and run.spec.stop_after_bench for run in plan.runs)


def test_the_same_grid_gives_the_same_plan_and_a_point_keeps_its_name(tmp_path: Path) -> None:
    one, two = planned(tmp_path), planned(tmp_path, concurrency=(64, 128))
    assert one == planned(tmp_path)
    names = {run.spec.concurrency: run.run_id for run in one.runs}
    assert names[64] in {run.run_id for run in two.runs}
    assert names[8] not in {run.run_id for run in two.runs}


def test_what_cannot_start_is_left_out_with_the_verdict_s_reason(tmp_path: Path) -> None:
    plan = planned(tmp_path, models=("meta-llama/Llama-3.1-70B-Instruct",))
    assert plan.runs == ()
    assert why(plan) == ["cannot_start"] * 2
    assert "weights" in plan.skipped[0].reason


def test_what_the_store_has_is_left_out(tmp_path: Path) -> None:
    Store(tmp_path).append([measured()], 1.0)
    plan = planned(tmp_path)
    assert [run.spec.concurrency for run in plan.runs] == [64]
    assert why(plan) == ["known"]
    # Of another release it is a new measurement, where the grid states one.
    assert len(planned(tmp_path, engine_version="0.11.0").runs) == 1
    assert len(planned(tmp_path, engine_version="0.18.0").runs) == 2


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"status": "oom", "labels": {}}, 0),  # meets every load of this launch again
        ({"status": "oom", "labels": {}, "max_model_len": 4096}, 2),  # a shorter one may fit
        ({"status": "error", "labels": {}}, 2),  # a lost link may be back
        ({"gpu": "A100-SXM4-80GB"}, 2),
        ({"precision": "fp8"}, 2),
        ({"kv_dtype": "fp8"}, 2),
        ({"prompt_tokens": 200.0}, 2),
        ({"prompt_tokens": 1540.0}, 1),  # a mean of the same length
        ({"model": "no/such-model"}, 2),
    ],
)
def test_only_the_same_point_is_known(changes: dict[str, Any], left: int, tmp_path: Path) -> None:
    Store(tmp_path).append([measured(**changes)], 1.0)
    assert len(planned(tmp_path).runs) == left


@pytest.mark.parametrize("told", ["fp8", "fp8-block"])
def test_block_scaled_fp8_is_one_format_under_either_name(told: str, tmp_path: Path) -> None:
    model = "Qwen/Qwen3-8B-FP8"
    Store(tmp_path).append([measured(model=model, precision=told)], 1.0)
    plan = planned(tmp_path, models=(model,), precisions=("fp8-block", "fp8"))
    assert plan.axes["precision"] == ("fp8",)
    assert why(plan) == ["known"]
    assert [run.spec.concurrency for run in plan.runs] == [64]


def test_known_runs_of_nothing_answer_nothing(tmp_path: Path) -> None:
    known = KnownRuns.of_store(tmp_path, FACTS)
    assert known._loads == {}


def test_a_format_without_a_checkpoint_is_left_out(tmp_path: Path) -> None:
    assert why(planned(tmp_path, precisions=("awq",))) == ["needs", "needs"]
    plan = planned(tmp_path, precisions=("awq",), checkpoints={(MODEL, "awq"): "org/x-awq"})
    assert {run.spec.checkpoint for run in plan.runs} == {"org/x-awq"}
    assert {run.spec.model_id for run in plan.runs} == {MODEL}


def test_the_budget_cuts_the_least_telling_runs(tmp_path: Path) -> None:
    whole = planned(tmp_path, concurrency=(1, 2, 4, 8, 16), budget_node_h=100)
    total = sum(run.node_h for run in whole.runs)
    half = planned(tmp_path, concurrency=(1, 2, 4, 8, 16), budget_node_h=total / 2)
    assert 0 < sum(run.node_h for run in half.runs) <= total / 2
    assert set(why(half)) == {"budget"}
    assert half.runs == tuple(run for run in whole.runs if run in half.runs)


def test_runs_wider_than_the_limit_of_gpus_are_not_planned(tmp_path: Path) -> None:
    plan = planned(tmp_path, tensor_parallel=(1, 4), max_gpus=2)
    assert {run.spec.arm.tensor_parallel for run in plan.runs} == {1}
    with pytest.raises(BadInputError, match="no point"):
        planned(tmp_path, tensor_parallel=(4,), max_gpus=2)


def test_a_grid_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="name fewer"):
        planned(tmp_path, concurrency=tuple(range(1, 50)), max_points=20)


@pytest.mark.parametrize(
    "further",
    [
        {"kv_dtype": ("auto", "fp8")},
        {"kv_dtype": ("fp8",)},
        {"engine_version": ("0.11.0", "0.18.0")},
    ],
)
def test_an_axis_with_a_feature_is_planned(
    further: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    plan = planned(tmp_path, further=further)
    ((name, values),) = further.items()
    assert len(plan.runs) == 2 * len(values)
    assert plan.axes[name] == values


@pytest.mark.parametrize(
    ("further", "reason"),
    [
        ({"enforce_eager": ("true", "false")}, "do not tell True from False"),
        ({"enforce_eager": ("true",)}, "feature before data"),
        ({"engine_version": ("0.11.0", "0.11.2")}, "do not tell 0.11.0 from 0.11.2"),
        ({"max_num_batched_tokens": ("2048", "8192")}, "feature before data"),
        ({"prefix_caching": ("on", "off")}, "not represented"),
        ({"max_num_seqs": ("8", "16")}, "does not keep it"),
        ({"enforce_eager": ("maybe",)}, "cannot be read"),
    ],
)
def test_an_axis_without_a_feature_is_refused(
    further: dict[str, tuple[str, ...]], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=reason):
        planned(tmp_path, further=further)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6).map(lambda x: round(x, 6)), st.integers(0, 3)), max_size=40
    )
)
def test_the_order_is_a_permutation_and_within_a_group_by_information(
    items: list[tuple[float, int]],
) -> None:
    values, groups = [v for v, _ in items], [g for _, g in items]
    order = order_by_information(values, groups)
    assert sorted(order) == list(range(len(items)))
    for group in set(groups):
        mine = [values[i] for i in order if groups[i] == group]
        assert mine == sorted(mine, reverse=True)
