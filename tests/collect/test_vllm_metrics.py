"""Serving windows from a vLLM server's metrics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import mutated, survives

from omnipilot.collect.context import RunContext
from omnipilot.collect.vllm_metrics import collect_vllm_metrics
from omnipilot.domain import BadInputError, ServingWindow, StackFingerprint
from omnipilot.domain.labels import WINDOW_LABELS
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = RunContext(
    source="lab", model="Qwen/Qwen2.5-7B", gpu="H100", n_gpus=1, precision="bf16",
    stack=StackFingerprint(engine_version="0.11.2"),
)  # fmt: skip
LABELS = {label.name for label in WINDOW_LABELS}


def histogram(name: str, counts: dict[str, int], total: float, tags: str) -> str:
    lines = [f'{name}_bucket{{{tags},le="{le}"}} {n}' for le, n in counts.items()]
    count = list(counts.values())[-1]
    return "\n".join([*lines, f"{name}_count{{{tags}}} {count}", f"{name}_sum{{{tags}}} {total}"])


def page(
    n: int = 20,
    *,
    running: int = 4,
    kv: float = 0.5,
    model: str = "served",
    engine: str = "0",
    start: float = 1_795_958_000.0,
    kv_name: str = "vllm:kv_cache_usage_perc",
    itl_name: str = "vllm:inter_token_latency_seconds",
) -> str:
    """``n`` requests of 100 + 10 tokens, half of them with a TTFT up to 0.1 s, the rest to 0.3 s.

    Of each request's nine gaps six are up to 0.01 s and three up to 0.05 s.
    """
    tags = f'engine="{engine}",model_name="{model}"'
    return f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
process_start_time_seconds {start}
vllm:num_requests_running{{{tags}}} {running}
vllm:num_requests_waiting{{{tags}}} {running // 2}
{kv_name}{{{tags}}} {kv}
vllm:num_preemptions_total{{{tags}}} {n // 10}
vllm:num_preemptions_created{{{tags}}} 1.79e+09
vllm:prompt_tokens_total{{{tags}}} {100 * n}
vllm:generation_tokens_total{{{tags}}} {10 * n}
vllm:prefix_cache_queries_total{{{tags}}} {100 * n}
vllm:prefix_cache_hits_total{{{tags}}} {25 * n}
vllm:request_success_total{{{tags},finished_reason="stop"}} {n - 2}
vllm:request_success_total{{{tags},finished_reason="abort"}} 2
{
        histogram(
            "vllm:time_to_first_token_seconds", {"0.1": n // 2, "0.3": n, "+Inf": n}, 0.15 * n, tags
        )
    }
{histogram(itl_name, {"0.01": 6 * n, "0.05": 9 * n, "+Inf": 9 * n}, 0.12 * n, tags)}
vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="{engine}",\
gpu_memory_utilization="0.9",num_gpu_blocks="1000"}} 1.0
"""


def collect(
    folder: Path, *pages: str, context: RunContext = CONTEXT, start_s: float = 0, end_s: float = 0
) -> list[ServingWindow | Rejection]:
    paths = [folder / f"{n}.prom" for n in range(len(pages))]
    for path, text in zip(paths, pages, strict=True):
        path.write_text(text)
    return list(
        collect_vllm_metrics(
            paths[-1], earlier=paths[:-1], start_s=start_s, end_s=end_s, context=context
        )
    )


def window(folder: Path, *pages: str, start_s: float = 0, end_s: float = 0) -> ServingWindow:
    (item,) = collect(folder, *pages, start_s=start_s, end_s=end_s)
    assert isinstance(item, ServingWindow), item
    return item


def test_one_page_tells_the_life_of_the_server(tmp_path: Path) -> None:
    item = window(tmp_path, page(20))
    assert (item.model, item.gpu, item.n_snapshots, item.start_s) == (
        "Qwen/Qwen2.5-7B", "H100", 1, 1_795_958_000.0,
    )  # fmt: skip
    assert (item.kv_dtype, item.memory_utilization_frac) == ("auto", 0.9)
    assert item.labels == pytest.approx({
        "running_peak": 4, "waiting_peak": 2, "kv_cache_peak_frac": 0.5, "preemptions": 2,
        "prompt_tokens": 2000, "output_tokens": 200, "requests": 20, "requests_failed": 2,
        "prefix_cache_hit_frac": 0.25, "kv_cache_tokens": 16000,
        # Ranks 10, 18, 19.8 of 20; ITL ranks 90, 162, 178.2 of 180 (120 up to 0.01 s).
        "ttft_p50_s": 0.1, "ttft_p90_s": 0.1 + 0.2 * 8 / 10, "ttft_p99_s": 0.1 + 0.2 * 9.8 / 10,
        "ttft_mean_s": 0.15,
        "itl_p50_s": 0.01 * 90 / 120, "itl_p90_s": 0.01 + 0.04 * 42 / 60,
        "itl_p99_s": 0.01 + 0.04 * 58.2 / 60, "itl_mean_s": 0.12 / 9,
    })  # fmt: skip


def test_between_two_pages_the_counters_are_differences(tmp_path: Path) -> None:
    item = window(tmp_path, page(20), page(120, running=9, kv=0.8), start_s=2000, end_s=2050)
    assert (item.n_snapshots, item.start_s, item.end_s) == (2, 2000.0, 2050.0)
    labels = item.labels
    assert (labels["requests"], labels["requests_failed"], labels["preemptions"]) == (100, 0, 10)
    assert (labels["prompt_tokens"], labels["output_tokens"]) == (10_000, 1000)
    assert labels["aggregate_tokens_per_s"] == 220.0
    assert labels["output_tokens_per_s"] == 20.0
    assert labels["request_per_s"] == 2.0
    assert labels["ttft_p50_s"] == pytest.approx(0.1)
    assert (labels["running_peak"], labels["kv_cache_peak_frac"]) == (9, 0.8)


def test_pages_between_the_ends_count_for_the_peaks(tmp_path: Path) -> None:
    middle = page(60, running=64, kv=0.97)
    item = window(tmp_path, page(20), middle, page(120, running=0, kv=0.0))
    assert (item.labels["running_peak"], item.labels["kv_cache_peak_frac"]) == (64, 0.97)
    assert item.labels["requests"] == 100


def test_an_idle_server_does_not_tell_how_full_its_cache_was(tmp_path: Path) -> None:
    labels = window(tmp_path, page(20, running=0, kv=0.0)).labels
    assert "kv_cache_peak_frac" not in labels
    assert labels["running_peak"] == 0


def test_old_metric_names_tell_the_same(tmp_path: Path) -> None:
    old = page(
        kv_name="vllm:gpu_cache_usage_perc", itl_name="vllm:time_per_output_token_seconds"
    ).replace("vllm:prefix_cache_", "vllm:gpu_prefix_cache_")
    assert window(tmp_path, old).labels == window(tmp_path, page()).labels


def test_where_a_page_has_both_names_the_new_one_counts_once(tmp_path: Path) -> None:
    counts = {"0.01": 0, "0.05": 90, "+Inf": 90}
    tags = 'engine="0",model_name="served"'
    both = page() + histogram("vllm:time_per_output_token_seconds", counts, 4.0, tags) + "\n"
    both += 'vllm:gpu_cache_usage_perc{engine="0",model_name="served"} 0.9\n'
    assert window(tmp_path, both).labels == window(tmp_path, page()).labels


def test_engines_of_one_model_add_up(tmp_path: Path) -> None:
    both = page(20, kv=0.2) + page(20, engine="1", running=6, kv=0.7).split("8000.0\n", 1)[1]
    item = window(tmp_path, both)
    assert item.n_engines == 2
    assert (item.labels["running_peak"], item.labels["kv_cache_peak_frac"]) == (10, 0.7)
    assert item.labels["requests"] == 40
    assert item.labels["ttft_p50_s"] == pytest.approx(0.1)


def test_every_model_of_a_page_has_its_own_window(tmp_path: Path) -> None:
    both = page(20, model="org/a") + page(40, model="org/b").split("8000.0\n", 1)[1]
    items = collect(tmp_path, both)
    assert [(i.model, i.labels["requests"]) for i in items if isinstance(i, ServingWindow)] == [
        ("org/a", 20), ("org/b", 40),
    ]  # fmt: skip


def test_a_size_of_the_cache_that_is_told_is_taken(tmp_path: Path) -> None:
    told = page().replace(
        'num_gpu_blocks="1000"', 'num_gpu_blocks="1000",kv_cache_size_tokens="99"'
    )
    assert window(tmp_path, told).labels["kv_cache_tokens"] == 99
    none = page().replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"')
    assert "kv_cache_tokens" not in window(tmp_path, none).labels


@pytest.mark.parametrize(
    "pages",
    [
        (page(120), page(20)),
        (page(20), page(120, start=1_795_959_000.0)),
        # Without start times, as where several API servers share their metrics.
        tuple(page(n).split("8000.0\n", 1)[1] for n in (60, 10, 120)),
    ],
    ids=["counters fell", "another start time", "counters fell between"],
)
def test_a_restart_within_the_window_is_refused(tmp_path: Path, pages: tuple[str, ...]) -> None:
    (item,) = collect(tmp_path, *pages)
    assert isinstance(item, Rejection)
    assert item.code == "counter reset"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('le="0.1"} 10', 'le="0.1"} 30'),
        ('first_token_seconds_count{engine="0",model_name="served"} 20',
         'first_token_seconds_count{engine="0",model_name="served"} 21'),
        ('served"} 3.0', 'served"} 300.0'),
        ('le="+Inf"} 20', 'le="8"} 20'),
    ],
    ids=["falling counts", "other count", "impossible sum", "no last bucket"],
)  # fmt: skip
def test_a_histogram_that_contradicts_itself_is_left_out(
    tmp_path: Path, old: str, new: str
) -> None:
    assert old in page()
    refused, item = collect(tmp_path, page().replace(old, new))
    assert isinstance(refused, Rejection)
    assert refused.code == "inconsistent histogram"
    assert isinstance(item, ServingWindow)
    assert "ttft_p50_s" not in item.labels
    assert "itl_p50_s" in item.labels


def test_a_damaged_line_costs_only_its_own_number(tmp_path: Path) -> None:
    text = page().replace("vllm:num_preemptions_total{", "vllm:num_preemptions_total{{")
    refused, item = collect(tmp_path, text)
    assert isinstance(refused, Rejection)
    assert isinstance(item, ServingWindow)
    assert "preemptions" not in item.labels


def test_a_series_said_twice_is_refused(tmp_path: Path) -> None:
    items = collect(
        tmp_path, page() + 'vllm:prompt_tokens_total{engine="0",model_name="served"} 7\n'
    )
    assert [i.code for i in items if isinstance(i, Rejection)] == ["repeated series"]


def test_a_model_of_a_few_stray_lines_is_no_window(tmp_path: Path) -> None:
    items = collect(
        tmp_path, page() + 'vllm:prompt_tokens_total{engine="0",model_name="serwed"} 7\n'
    )
    assert [i.code for i in items if isinstance(i, Rejection)] == ["model incomplete"]
    assert len(items) == 2


@pytest.mark.parametrize("text", ["", "up 1\n", "# nothing\n", "<html></html>", "vllm:x 1\n"])
def test_a_page_without_vllm_metrics_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInputError, match="vLLM"):
        collect(tmp_path, text)


@pytest.mark.parametrize("start", [0.5, 5_795_958_000.0])
def test_a_start_before_2000_or_after_2100_is_refused(tmp_path: Path, start: float) -> None:
    refused, item = collect(tmp_path, page(start=start))
    assert isinstance(refused, Rejection)
    assert refused.code == "time out of range"
    assert isinstance(item, ServingWindow)
    assert item.start_s == 0


def test_every_label_is_declared(tmp_path: Path) -> None:
    item = window(tmp_path, page(20), page(120), start_s=1.0, end_s=2.0)
    assert set(item.labels) <= LABELS


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated(page().encode()), as_first=mutated(page(10).encode()))
def test_no_damage_crashes_or_hangs_the_reader(
    tmp_path: Path, data: bytes, as_first: bytes
) -> None:
    last, first = tmp_path / "last.prom", tmp_path / "first.prom"
    last.write_bytes(data)
    first.write_bytes(as_first)
    for earlier in ([], [first]):
        for row in survives(lambda e=earlier: collect_vllm_metrics(last, earlier=e)):  # type: ignore[misc]
            assert isinstance(row, ServingWindow)
            assert set(row.labels) <= LABELS
            assert row.labels.get("kv_cache_peak_frac", 0) <= 1


@pytest.mark.parametrize(
    ("version", "requests", "ttft_p50_s"), [("0.11.2", 149, 0.0305814), ("0.32.0", 133, 0.0641176)]
)
def test_the_captured_pages_of_real_versions_are_read(
    shared_dir: Path, version: str, requests: int, ttft_p50_s: float
) -> None:
    folder = shared_dir / "captures" / f"vllm-{version}"
    (item,) = collect_vllm_metrics(folder / "metrics_after_bench.prom")
    assert isinstance(item, ServingWindow)
    assert item.model == "tiny"
    assert item.labels["requests"] == requests
    assert item.labels["kv_cache_tokens"] == 1_048_576
    assert item.labels["ttft_p50_s"] == pytest.approx(ttft_p50_s, rel=1e-4)
    assert {"itl_p50_s", "tpot_p50_s", "e2e_p99_s", "queue_mean_s"} <= set(item.labels)
    assert set(item.labels) <= LABELS


def test_the_median_is_the_one_that_prometheus_computes(shared_dir: Path) -> None:
    captures = shared_dir / "captures"
    answer = json.loads((captures / "prometheus" / "query_vllm_ttft_p50.json").read_text())
    told = float(answer["data"]["result"][0]["value"][1])
    (item,) = collect_vllm_metrics(captures / "vllm-0.32.0" / "metrics_after_bench.prom")
    assert isinstance(item, ServingWindow)
    assert item.labels["ttft_p50_s"] == pytest.approx(told, rel=1e-12)


def test_a_starved_cache_shows_its_peak_and_preemptions(shared_dir: Path) -> None:
    path = shared_dir / "captures" / "vllm-0.11.2" / "metrics_kvstarved.prom"
    (item,) = collect_vllm_metrics(path)
    assert isinstance(item, ServingWindow)
    assert item.labels["kv_cache_peak_frac"] == pytest.approx(10 / 11)
    assert (item.labels["preemptions"], item.labels["kv_cache_tokens"]) == (27, 1536)


def test_captured_pages_of_one_server_make_a_window(shared_dir: Path) -> None:
    folder = shared_dir / "captures" / "vllm-0.11.2"
    pages = [folder / f"metrics_{n}.prom" for n in ("idle", "load_c1", "load_c4", "load_c16")]
    (item,) = collect_vllm_metrics(folder / "metrics_after_bench.prom", earlier=pages)
    assert isinstance(item, ServingWindow)
    assert (item.n_snapshots, item.labels["requests"]) == (5, 148)
    assert item.labels["running_peak"] == 16
    backwards = collect_vllm_metrics(pages[0], earlier=[folder / "metrics_after_bench.prom"])
    assert [i.code for i in backwards if isinstance(i, Rejection)] == ["counter reset"]


def test_a_page_of_gpu_metrics_alone_is_no_vllm_page(shared_dir: Path) -> None:
    with pytest.raises(BadInputError, match="no vLLM metrics"):
        list(
            collect_vllm_metrics(shared_dir / "captures" / "prometheus" / "exporter_synthetic.prom")
        )
