"""Results of vllm bench serve."""

from __future__ import annotations

import gzip
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import mutated, survives

from omnipilot.collect.context import RunContext
from omnipilot.collect.vllm_bench import collect_vllm_bench
from omnipilot.domain import BadInputError, InferenceRun, StackFingerprint
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

# 10 requests of 100 + 50 tokens in 5 s: 2 req/s, 100 output tok/s, 300 tok/s in total.
RESULT: dict[str, Any] = {
    "date": "20261129-131700", "backend": "vllm", "label": None, "model_id": "org/model-7b",
    "tokenizer_id": "org/model-7b", "num_prompts": 10, "request_rate": "inf", "burstiness": 1.0,
    "max_concurrency": 4, "duration": 5.0, "completed": 10, "failed": 0,
    "total_input_tokens": 1000, "total_output_tokens": 500, "request_throughput": 2.0,
    "request_goodput": None, "output_throughput": 100.0, "total_token_throughput": 300.0,
    "mean_ttft_ms": 250.0, "median_ttft_ms": 240.0, "std_ttft_ms": 20.0, "p50_ttft_ms": 240.0,
    "p99_ttft_ms": 300.0, "mean_tpot_ms": 21.0, "median_tpot_ms": 20.0, "std_tpot_ms": 2.0,
    "p50_tpot_ms": 20.0, "p99_tpot_ms": 30.0, "mean_itl_ms": 19.0, "median_itl_ms": 16.0,
    "std_itl_ms": 3.0, "p50_itl_ms": 16.0, "p99_itl_ms": 40.0,
}  # fmt: skip
# What benchmark_serving.py of 0.6 wrote: no "failed", no percentiles but the 99th.
OLD = {
    key: value for key, value in RESULT.items()
    if key not in {"failed", "label", "p50_ttft_ms", "p50_tpot_ms", "p50_itl_ms"}
} | {"best_of": 1, "input_lens": [100] * 10, "itls": [[0.018] * 49] * 10}  # fmt: skip
CONTEXT = RunContext(
    source="lab", gpu="H100", n_gpus=2, precision="fp8", workload="chat",
    stack=StackFingerprint(engine_version="0.11.2", cuda="12.8"),
)  # fmt: skip


def collect(
    folder: Path, data: bytes, context: RunContext = CONTEXT
) -> list[InferenceRun | Rejection]:
    path = folder / "result.json"
    path.write_bytes(data)
    return list(collect_vllm_bench(path, context=context))


def one(folder: Path, **changes: object) -> InferenceRun | Rejection:
    (item,) = collect(folder, json.dumps(RESULT | changes).encode())
    return item


def run(folder: Path, **changes: object) -> InferenceRun:
    item = one(folder, **changes)
    assert isinstance(item, InferenceRun), item
    return item


def refused(folder: Path, **changes: object) -> Rejection:
    item = one(folder, **changes)
    assert isinstance(item, Rejection), item
    return item


def test_a_result_becomes_a_run_in_the_targets_units(tmp_path: Path) -> None:
    assert run(tmp_path) == InferenceRun(
        source="lab", model="org/model-7b", engine="vllm", gpu="H100", n_gpus=2, precision="fp8",
        mode="online", status="ok", prompt_tokens=100.0, output_tokens=50.0, concurrency=4.0,
        workload="chat", stack=CONTEXT.stack,
        labels={
            "aggregate_tokens_per_s": 300.0, "output_tokens_per_s": 100.0, "request_per_s": 2.0,
            "ttft_p50_s": 0.24, "itl_p50_s": 0.016, "tpot_p50_s": 0.02,
        },
    )  # fmt: skip


def test_without_context_the_gpu_stays_unknown(tmp_path: Path) -> None:
    (item,) = collect(tmp_path, json.dumps(RESULT).encode(), RunContext())
    assert isinstance(item, InferenceRun)
    assert (item.gpu, item.n_gpus, item.precision, item.source) == ("", 0, "", "site")


def test_the_older_script_s_results_are_read(tmp_path: Path) -> None:
    (item,) = collect(tmp_path, json.dumps(OLD).encode())
    assert isinstance(item, InferenceRun)
    assert item.labels == run(tmp_path).labels


@pytest.mark.parametrize("missing", ["total_token_throughput", "output_throughput"])
def test_a_rate_that_an_old_version_does_not_tell_is_computed(tmp_path: Path, missing: str) -> None:
    item = run(tmp_path, **{missing: None})
    assert item.labels == pytest.approx(run(tmp_path).labels)


@pytest.mark.parametrize(
    "text",
    [
        lambda results: "\n".join(json.dumps(r) for r in results),
        lambda results: "".join(json.dumps(r) for r in results),
        json.dumps,
        lambda results: json.dumps(results, indent=0),
        lambda results: "\n".join(json.dumps(r, indent=1) for r in results),
        lambda results: "\ufeff" + ",\n".join(json.dumps(r, indent=4) for r in results) + "\n\n",
    ],
    ids=["lines", "one after another", "array", "array indent 0", "pretty", "bom and commas"],
)
def test_several_results_in_a_file_are_several_runs(tmp_path: Path, text: Any) -> None:
    results = [RESULT | {"max_concurrency": n} for n in (1, 2, 3)]
    items = collect(tmp_path, text(results).encode())
    assert [item.concurrency for item in items if isinstance(item, InferenceRun)] == [1, 2, 3]
    assert len(items) == 3


def test_gzip_is_read(tmp_path: Path) -> None:
    assert len(collect(tmp_path, gzip.compress(json.dumps(RESULT).encode()))) == 1


def test_a_result_cut_short_is_refused_and_the_next_ones_are_read(tmp_path: Path) -> None:
    good = json.dumps(RESULT)
    for cut in (5, 100, len(good) - 1, len(good) // 2):
        items = collect(tmp_path, f"{good}\n{good[:cut]}\n{good}\n{good}".encode())
        assert [isinstance(item, Rejection) for item in items] == [False, True, False, False]
        assert isinstance(items[1], Rejection)
        assert (items[1].line, items[1].code) == (2, "not JSON")


@pytest.mark.parametrize(
    ("changes", "mode", "concurrency"),
    [
        ({}, "online", 4.0),
        ({"request_rate": 2.5}, "poisson", 4.0),
        ({"request_rate": 2.5, "max_concurrency": None}, "poisson", 10.0),
        ({"request_rate": 2.5, "max_concurrency": None, "num_prompts": None}, "poisson", 40.0),
        ({"max_concurrency": None}, "static", 10.0),
        ({"max_concurrency": "8"}, "online", 8.0),
        ({"max_concurrency": 10}, "static", 10.0),
        ({"max_concurrency": 1000}, "static", 10.0),
        ({"max_concurrency": 1000, "num_prompts": None}, "online", 1000.0),
    ],
)
def test_the_mode_follows_from_how_the_load_was_driven(
    tmp_path: Path, changes: dict[str, Any], mode: str, concurrency: float
) -> None:
    item = run(tmp_path, **changes)
    assert (item.mode, item.concurrency) == (mode, concurrency)
    assert ("2.5 requests/s offered" in item.notes) == (mode == "poisson")


def test_a_run_in_which_requests_failed_is_told_and_many_failures_make_it_no_measurement(
    tmp_path: Path,
) -> None:
    rates = {"request_throughput": 200.0, "output_throughput": 100.0}
    few = run(tmp_path, failed=10, completed=1000, num_prompts=1010, **rates)
    assert (few.status, few.notes) == ("ok", "10 of 1010 requests failed")
    many = run(tmp_path, failed=11, completed=1000, num_prompts=1011, **rates)
    assert many.status == "error"
    old = run(tmp_path, failed=None, completed=10, num_prompts=20)
    assert (old.status, old.notes) == ("error", "10 of 20 requests failed")


def test_a_run_in_which_all_requests_failed_has_no_labels(tmp_path: Path) -> None:
    zero = dict.fromkeys(
        ("completed", "total_input_tokens", "total_output_tokens", "request_throughput",
         "output_throughput", "total_token_throughput"), 0,
    )  # fmt: skip
    item = run(tmp_path, **zero, failed=10)
    assert (item.status, item.labels) == ("error", {})
    assert refused(tmp_path, **zero, num_prompts=0).code == "no requests"


def test_metadata_pairs_are_read_where_the_caller_does_not_know_better(tmp_path: Path) -> None:
    pairs = {"version": "0.9.1", "tp": "4", "gpu": "A100-80", "precision": "awq"}
    (item,) = collect(tmp_path, json.dumps(RESULT | pairs).encode(), RunContext())
    assert isinstance(item, InferenceRun)
    assert (item.stack.engine_version, item.n_gpus, item.gpu) == ("0.9.1", 4, "A100-80")
    assert item.precision == "awq"
    known = run(tmp_path, **pairs)
    assert (known.stack.engine_version, known.n_gpus, known.gpu) == ("0.11.2", 2, "H100")


def test_a_model_given_as_a_path_loses_the_path(tmp_path: Path) -> None:
    item = run(tmp_path, model_id="/data/alice/models/Qwen2.5-7B-Instruct")
    assert item.model == "Qwen2.5-7B-Instruct"


def test_the_engine_is_the_one_that_the_backend_names(tmp_path: Path) -> None:
    assert run(tmp_path, backend="sglang").engine == "sglang"
    assert run(tmp_path, backend="openai-chat").engine == "vllm"


def test_speculative_decoding_is_noted(tmp_path: Path) -> None:
    assert run(tmp_path, spec_decode_acceptance_rate=0.6).notes == "speculative decoding"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"request_throughput": 2.2}, "contradiction"),
        ({"output_throughput": 0.0}, "contradiction"),
        ({"total_token_throughput": 3000.0}, "contradiction"),
        ({"duration": 6.0}, "contradiction"),
        ({"completed": 11}, "contradiction"),
        ({"total_output_tokens": 600}, "contradiction"),
        ({"median_ttft_ms": 301.0}, "contradiction"),
        ({"median_ttft_ms": 24.0}, "contradiction"),
        ({"median_itl_ms": 19.0}, "contradiction"),
        ({"p50_tpot_ms": None, "median_tpot_ms": 10.0}, "contradiction"),
        ({"duration": 0}, "out of range"),
        ({"duration": -5.0}, "out of range"),
        ({"duration": None}, "out of range"),
        ({"completed": -1}, "out of range"),
        ({"completed": 10.5}, "out of range"),
        ({"completed": 1e300}, "out of range"),
        ({"max_concurrency": 1e9}, "out of range"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 10},
            "unknown mode",
        ),
        ({"request_rate": "fast"}, "out of range"),
        ({"request_rate": 0}, "out of range"),
        ({"completed": True}, "completed missing"),
        ({"total_input_tokens": None}, "total_input_tokens missing"),
        ({"total_output_tokens": 0, "output_throughput": 0}, "no output tokens"),
        ({"median_ttft_ms": "slow"}, "not a number"),
        ({"median_ttft_ms": [240.0]}, "not a number"),
        ({"model_id": None}, "model missing"),
        ({"model_id": "a" * 5000}, "model missing"),
        ({"completed": None, "duration": None}, "not a result"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    assert refused(tmp_path, **changes).code == code


@pytest.mark.parametrize(
    "text", ["[1, 2]", "{}", '[{"completed": 3}]', '{"completed": NaN}', "[[]]"]
)
def test_json_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    assert all(isinstance(item, Rejection) for item in collect(tmp_path, text.encode()))


@pytest.mark.parametrize("data", [b"", b"no JSON here", b"PK\x03\x04rest", b"\0\0\0"])
def test_a_file_that_is_no_json_is_told(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadInputError):
        collect(tmp_path, data)


def test_a_gpu_without_a_count_is_told() -> None:
    with pytest.raises(BadInputError, match="how many GPUs"):
        RunContext(gpu="H100")


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated("\n".join(json.dumps(r) for r in (RESULT, OLD, RESULT)).encode()))
def test_no_damage_crashes_or_hangs_the_reader(tmp_path: Path, data: bytes) -> None:
    def items() -> list[InferenceRun | Rejection]:
        return collect(tmp_path, data)

    for row in survives(items):
        assert isinstance(row, InferenceRun)
        tokens = row.prompt_tokens + row.output_tokens
        if "request_per_s" in row.labels:
            rates = row.labels
            assert rates["aggregate_tokens_per_s"] == pytest.approx(
                rates["request_per_s"] * tokens, rel=0.03
            )


@pytest.mark.parametrize("version", ["0.11.2", "0.32.0"])
def test_the_captured_results_of_real_versions_are_read(shared_dir: Path, version: str) -> None:
    folder = shared_dir / "captures" / f"vllm-{version}"
    paths = sorted(folder.glob("bench_serve_*.json"))
    assert len(paths) >= 3
    for path in paths:
        (item,) = collect_vllm_bench(path, context=CONTEXT)
        assert isinstance(item, InferenceRun)
        told = json.loads(path.read_text())
        assert (item.status, item.mode, item.model) == ("ok", "online", "tiny")
        assert item.concurrency == told["max_concurrency"]
        assert item.prompt_tokens * told["completed"] == pytest.approx(told["total_input_tokens"])
        assert item.output_tokens in {64.0, 200.0}
        assert item.labels == pytest.approx({
            "aggregate_tokens_per_s": told["total_token_throughput"],
            "output_tokens_per_s": told["output_throughput"],
            "request_per_s": told["request_throughput"],
            "ttft_p50_s": told["median_ttft_ms"] / 1e3,
            "itl_p50_s": told["median_itl_ms"] / 1e3,
            "tpot_p50_s": told["median_tpot_ms"] / 1e3,
        })  # fmt: skip
        assert all(math.isfinite(value) for value in item.labels.values())
