"""Reports of GuideLLM."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import mutated, survives

from omnipilot.collect.context import RunContext
from omnipilot.collect.guidellm import collect_guidellm
from omnipilot.domain import BadInputError, InferenceRun
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = RunContext(source="lab", gpu="L4", n_gpus=1, precision="bf16")


def statistics(mean: float, median: float, std: float = 0.0, p99: float = 1e6) -> dict[str, Any]:
    """A summary as the tool writes it, with the requests that failed beside it."""
    told = {
        "mean": mean, "median": median, "std_dev": std, "count": 20,
        "percentiles": {"p50": median, "p99": p99},
    }  # fmt: skip
    return {"successful": told, "errored": {"mean": 0.0, "median": 0.0}, "total": told}


# 20 requests of 80 + 40 tokens in 10 s: 2 req/s, 80 output tok/s, 240 tok/s in total.
METRICS: dict[str, Any] = {
    "request_totals": {"successful": 20, "errored": 0, "incomplete": 1, "total": 21},
    "requests_per_second": statistics(2.0, 1.5, 1.0),
    "prompt_token_count": statistics(80.0, 80.0),
    "output_token_count": statistics(40.0, 40.0),
    "time_to_first_token_ms": statistics(100.0, 90.0, 20.0),
    "time_per_output_token_ms": statistics(14.0, 13.0, 2.0),
    "inter_token_latency_ms": statistics(12.0, 11.0, 2.0),
    "output_tokens_per_second": statistics(80.0, 40.0, 50.0),
    "tokens_per_second": statistics(240.0, 100.0, 150.0),
}
REPORT: dict[str, Any] = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1"},
    "config": {"spec": {"backend": {"kind": "openai_http", "model": "org/model-7b"}}},
    "benchmarks": [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": {"type_": "concurrent", "max_concurrency": 4, "streams": 4}},
            "metrics": METRICS,
            "requests": {"successful": [{"output": "…"}], "errored": []},
        }
    ],
}


def collect(folder: Path, report: object) -> list[InferenceRun | Rejection]:
    path = folder / "benchmarks.json"
    path.write_bytes(report if isinstance(report, bytes) else json.dumps(report).encode())
    return list(collect_guidellm(path, context=CONTEXT))


def with_strategy(**strategy: object) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    report["benchmarks"][0]["config"]["strategy"] = strategy
    return report


def with_metrics(**metrics: object) -> dict[str, Any]:
    report = copy.deepcopy(REPORT)
    report["benchmarks"][0]["metrics"] |= metrics
    return report


def run(folder: Path, report: object) -> InferenceRun:
    (item,) = collect(folder, report)
    assert isinstance(item, InferenceRun), item
    return item


def test_a_benchmark_becomes_a_run_in_the_targets_units(tmp_path: Path) -> None:
    assert run(tmp_path, REPORT) == InferenceRun(
        source="lab", model="org/model-7b", engine="vllm", gpu="L4", n_gpus=1, precision="bf16",
        mode="online", status="ok", prompt_tokens=80.0, output_tokens=40.0, concurrency=4.0,
        labels={
            "aggregate_tokens_per_s": 240.0, "output_tokens_per_s": 80.0, "request_per_s": 2.0,
            "ttft_p50_s": 0.09, "tpot_p50_s": 0.011,
        },
    )  # fmt: skip


def test_single_gaps_are_not_in_a_report_so_there_is_no_itl(tmp_path: Path) -> None:
    assert "itl_p50_s" not in run(tmp_path, REPORT).labels


def test_older_reports_with_args_are_read(tmp_path: Path) -> None:
    report = copy.deepcopy(REPORT)
    report["args"] = {"model": "org/model-7b"}
    del report["config"]
    benchmark = report["benchmarks"][0]
    benchmark["args"] = benchmark.pop("config")
    assert run(tmp_path, report) == run(tmp_path, REPORT)


def test_the_oldest_reports_name_the_model_in_the_worker(tmp_path: Path) -> None:
    benchmark = copy.deepcopy(REPORT["benchmarks"][0])
    benchmark["args"] = benchmark.pop("config")
    benchmark["worker"] = {"backend_type": "openai_http", "backend_model": "org/model-7b"}
    assert run(tmp_path, {"benchmarks": [benchmark]}) == run(tmp_path, REPORT)


@pytest.mark.parametrize(
    ("strategy", "mode", "concurrency"),
    [
        ({"type_": "synchronous"}, "online", 1.0),
        ({"type_": "concurrent", "streams": 16}, "online", 16.0),
        ({"type_": "throughput"}, "saturated", 0.0),
        ({"type_": "throughput", "max_concurrency": 512}, "saturated", 512.0),
        ({"type_": "constant", "rate": 2.5}, "poisson", 40.0),
        ({"type_": "poisson", "rate": 2.5, "max_concurrency": 24}, "poisson", 24.0),
    ],
)
def test_every_strategy_has_its_load_mode(
    tmp_path: Path, strategy: dict[str, Any], mode: str, concurrency: float
) -> None:
    item = run(tmp_path, with_strategy(**strategy))
    assert (item.mode, item.concurrency) == (mode, concurrency)
    assert item.notes == ("2.5 requests/s offered" if mode == "poisson" else "")


def test_one_bad_benchmark_leaves_the_others(tmp_path: Path) -> None:
    report = copy.deepcopy(REPORT)
    report["benchmarks"] = [REPORT["benchmarks"][0], {"metrics": 3}, REPORT["benchmarks"][0]]
    items = collect(tmp_path, report)
    assert [isinstance(item, Rejection) for item in items] == [False, True, False]
    assert isinstance(items[1], Rejection)
    assert items[1].reason.startswith("benchmark 2: ")


def test_failed_requests_are_told(tmp_path: Path) -> None:
    totals = {"successful": 20, "errored": 5}
    item = run(tmp_path, with_metrics(request_totals=totals))
    assert (item.status, item.notes) == ("error", "5 of 25 requests failed")
    none = run(tmp_path, with_metrics(request_totals={"successful": 0, "errored": 5}))
    assert (none.status, none.labels) == ("error", {})


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (with_metrics(tokens_per_second=statistics(2400.0, 100.0)), "contradiction"),
        (with_metrics(output_token_count=statistics(400.0, 400.0)), "contradiction"),
        (with_metrics(time_to_first_token_ms=statistics(100.0, 9.0, 20.0)), "contradiction"),
        (with_metrics(time_to_first_token_ms=statistics(9.0, 9.0, 1.0, 8.0)), "contradiction"),
        (with_metrics(output_token_count=statistics(0.0, 0.0)), "no output tokens"),
        (with_metrics(request_totals={"successful": 0}), "no requests"),
        (with_metrics(request_totals=None), "successful requests missing"),
        (with_metrics(inter_token_latency_ms=statistics(1e300, 1e300, 1.0, 1e301)), "out of range"),
        (with_strategy(type_="sweep"), "unknown mode"),
        (with_strategy(type_=["concurrent"]), "unknown mode"),
        (with_strategy(type_="concurrent"), "streams missing"),
        (REPORT | {"config": None}, "model missing"),
        (REPORT | {"benchmarks": []}, "no requests"),
        (REPORT | {"benchmarks": {}}, "wrong shape"),
        ({"metadata": {}}, "wrong shape"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, report: dict[str, Any], code: str
) -> None:
    (item,) = collect(tmp_path, report)
    assert isinstance(item, Rejection)
    assert item.code == code


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="GuideLLM"):
        collect(tmp_path, b"benchmarks:\n- metrics")


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated(json.dumps(REPORT, indent=1).encode()))
def test_no_damage_crashes_or_hangs_the_reader(tmp_path: Path, data: bytes) -> None:
    survives(lambda: collect(tmp_path, data))


def test_the_captured_report_is_read(shared_dir: Path) -> None:
    path = shared_dir / "captures" / "guidellm" / "benchmarks.json"
    items = list(collect_guidellm(path, context=CONTEXT))
    told = json.loads(path.read_text())["benchmarks"]
    assert [item.concurrency for item in items if isinstance(item, InferenceRun)] == [1, 4, 16]
    for item, benchmark in zip(items, told, strict=True):
        assert isinstance(item, InferenceRun)
        assert (item.model, item.prompt_tokens, item.output_tokens) == ("tiny", 80.0, 32.0)
        rate = 32 / benchmark["duration"]
        assert item.labels["request_per_s"] == pytest.approx(rate, rel=1e-6)
        assert item.labels["aggregate_tokens_per_s"] == pytest.approx(rate * 112, rel=1e-6)
        metrics = benchmark["metrics"]
        ttft_ms = metrics["time_to_first_token_ms"]["successful"]["median"]
        assert item.labels["ttft_p50_s"] == pytest.approx(ttft_ms / 1e3)
        # The tool's own definition, from a request that the report keeps: TPOT without the first.
        for request in benchmark["requests"]["successful"]:
            per_token_ms = request["inter_token_latency_ms"] * (request["output_tokens"] - 1)
            total_ms = per_token_ms + request["time_to_first_token_ms"]
            whole_ms = request["time_per_output_token_ms"] * request["output_tokens"]
            assert total_ms == pytest.approx(whole_ms, rel=1e-6)
