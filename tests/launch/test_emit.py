"""The rows of a launch, from what its script left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from launch_builders import MODEL, launch_of

from omnipilot.domain import BadInputError, InferenceRun, ServingWindow, StartupRun
from omnipilot.domain.rejection import Rejection
from omnipilot.launch.emit import read_marks, run_rows
from omnipilot.launch.ingest import find_runs, ingest_run
from omnipilot.launch.settings import check_arguments, settings_text
from omnipilot.launch.spec import Software, write_spec
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

LOG = f"""\
(APIServer pid=9) INFO 11-29 13:14:31 [api_server.py:1977] vLLM API server version 0.11.2
(APIServer pid=9) INFO 11-29 13:14:31 [utils.py:253] non-default args: {{'model': '{MODEL}'}}
(EngineCore_DP0 pid=9) INFO 11-29 13:14:40 [gpu_model_runner.py:2602] Starting to load model {MODEL}
(APIServer pid=9) INFO 11-29 13:15:01 [launcher.py:38] Available routes are:
(APIServer pid=9) INFO:     Application startup complete.
"""
OOM = """\
(EngineCore_DP0 pid=9) ERROR 11-29 13:14:50 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=9) ERROR 11-29 13:14:50 [core.py:708]   File "x.py", line 1, in load_model
(EngineCore_DP0 pid=9) ERROR 11-29 13:14:50 [core.py:708] torch.OutOfMemoryError: out of memory
"""
# 32 requests in 2 s: 64 + 16 tokens each are 1280 tokens a second.
BENCH = {
    "backend": "vllm", "model_id": MODEL, "num_prompts": 32, "request_rate": "inf",
    "max_concurrency": 8, "duration": 2.0, "completed": 32, "failed": 0,
    "total_input_tokens": 32 * 64, "total_output_tokens": 32 * 16, "request_throughput": 16.0,
    "output_throughput": 256.0, "total_token_throughput": 1280.0, "median_ttft_ms": 50.0,
}  # fmt: skip
MARKS = "script_start 100\nserver_start 101.5\nserve_start 131.5\nbench_start 132\nbench_end 134\n"


def page(running: int, kv: float, requests: int) -> str:
    label = f'{{engine="0",model_name="{MODEL}"}}'
    return (
        f"vllm:num_requests_running{label} {running}\nvllm:num_requests_waiting{label} 0\n"
        f"vllm:kv_cache_usage_perc{label} {kv}\nvllm:prompt_tokens_total{label} {64 * requests}\n"
        f"vllm:generation_tokens_total{label} {16 * requests}\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a good benchmark."""
    folder = tmp_path / "run-1"
    write_spec(folder, launch_of())
    (folder / "marks").write_text(MARKS)
    (folder / "server.log").write_text(LOG)
    (folder / "bench.json").write_text(json.dumps(BENCH))
    (folder / "done").write_text("benchmarked\n")
    return folder


def rows(folder: Path) -> tuple[list[InferenceRun], list[StartupRun], list[ServingWindow]]:
    found = list(run_rows(folder))
    assert not [item for item in found if isinstance(item, Rejection)]
    return (
        [r for r in found if isinstance(r, InferenceRun)],
        [r for r in found if isinstance(r, StartupRun)],
        [r for r in found if isinstance(r, ServingWindow)],
    )


def test_a_benchmark_is_joined_with_the_launch_the_log_and_the_marks(run: Path) -> None:
    ((measured,), (start,), windows) = rows(run)
    assert (measured.model, measured.gpu, measured.n_gpus) == (MODEL, "h100-80", 1)
    assert (measured.precision, measured.mode, measured.status) == ("bf16", "online", "ok")
    assert (measured.prompt_tokens, measured.output_tokens) == (64.0, 16.0)
    assert measured.labels["aggregate_tokens_per_s"] == 1280.0
    assert measured.labels["cold_start_s"] == 30.0  # 131.5 - 101.5
    assert measured.max_model_len == 4096
    assert measured.stack.engine_version == start.stack.engine_version == "0.11.2"
    assert (start.status, start.failure, start.labels["cold_start_s"]) == ("ok", "", 30.0)
    assert windows == []


def test_flags_that_change_the_speed_reach_the_row_and_no_other_word_does(run: Path) -> None:
    given = ("--max-num-seqs=64", "--api-key", "secret", "--enable_expert_parallel",
             "--chat-template", "/scratch/alice/template.jinja")  # fmt: skip
    write_spec(run, launch_of(software=Software(arguments=given)))
    for status in ("ok", "error"):
        ((measured,), _, _) = rows(run)
        assert measured.status == status
        assert measured.engine_settings == "max-num-seqs=64"
        assert measured.expert_parallel
        assert not [w for w in ("secret", "alice") if w in str(measured)]
        (run / "bench.json").unlink(missing_ok=True)  # the benchmark failed
        (run / "done").write_text("bench_failed\n")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), ""),
        (("--dtype", "bfloat16", "--port=8000"), ""),
        (("--max_num_seqs", "8"), "max-num-seqs=8"),
        (("--max-num-seqs 8 --enforce-eager",), "enforce-eager max-num-seqs=8"),
        (("--enforce-eager", "--max-num-seqs=8"), "enforce-eager max-num-seqs=8"),
        (("--speculative-config", '{"model": "/data/alice/draft"}'), "speculative-config"),
        (("--compilation-config={}",), "compilation-config"),
        (("--block-size", "--enforce-eager"), "block-size enforce-eager"),
        (("--attention-backend=/scratch/alice",), "attention-backend"),
        (("max-num-seqs",), ""),
    ],
)
def test_settings_are_the_flags_that_change_the_speed_in_one_spelling(
    arguments: tuple[str, ...], wanted: str
) -> None:
    assert settings_text(arguments) == wanted


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("--tensor-parallel-size=4",), "--arm"),
        (("--enforce-eager", "--tensor_parallel_size", "4"), "--arm"),
        (("--tensor-par 4",), "--arm"),
        (("-tp", "4"), "--arm"),
        (("--dtype=half",), "--arm"),
        (("-q", "fp8"), "--arm"),
        (("--pipeline-parallel-size=2",), "one stage"),
        (("--max-model-len=1024",), "--context"),
        (("--kv-cache-dtype", "fp8"), "kv_dtype"),
        (("--served-model-name=x",), "--model"),
        (("--port=8000",), "leave it out"),
    ],
)
def test_an_argument_that_contradicts_the_arm_is_refused(
    arguments: tuple[str, ...], instead: str
) -> None:
    with pytest.raises(BadInputError, match=instead):
        check_arguments(arguments)


def test_arguments_that_the_rows_tell_of_are_taken() -> None:
    check_arguments(
        ("--max-num-seqs=64", "--model-impl", "-1", "--chat-template", "--dtype.jinja", "--", "")
    )


def test_the_peak_of_the_kv_cache_is_the_largest_page_s(run: Path) -> None:
    for name, text in (("0000", page(0, 0.0, 0)), ("0001", page(8, 0.5, 10)),
                       ("0002", page(6, 0.25, 20)), ("9999", page(0, 0.0, 32))):  # fmt: skip
        (run / f"metrics-{name}.prom").write_text(text)
    ((measured,), _, (window,)) = rows(run)
    assert measured.labels["kv_cache_peak_frac"] == window.labels["kv_cache_peak_frac"] == 0.5
    assert (window.start_s, window.end_s, window.labels["prompt_tokens"]) == (132.0, 134.0, 2048.0)


def test_lengths_near_those_asked_for_are_those_asked_for(run: Path) -> None:
    near = BENCH | {"total_input_tokens": 32 * 65, "total_token_throughput": 1296.0}
    (run / "bench.json").write_text(json.dumps(near))
    assert rows(run)[0][0].prompt_tokens == 64.0
    far = BENCH | {"total_input_tokens": 32 * 128, "total_token_throughput": 2304.0}
    (run / "bench.json").write_text(json.dumps(far))
    assert rows(run)[0][0].prompt_tokens == 128.0


def test_the_same_folder_gives_the_same_rows_and_the_store_keeps_each_once(
    run: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    first = ingest_run(home, run, now_s=1.0)
    again = ingest_run(home, run, now_s=2.0)
    assert (first.accepted, again.accepted, again.duplicate) == (2, 0, 2)
    assert len(list(Store(home).rows())) == 2
    assert (run / "taken").exists()


def test_a_server_that_serves_on_after_its_benchmark_gives_its_rows_once(
    run: Path, tmp_path: Path
) -> None:
    (run / "done").unlink()
    after_bench = ingest_run(tmp_path / "home", run, now_s=1.0)
    (run / "server.log").write_text(LOG + "(APIServer pid=9) INFO:     Shutting down\n")
    (run / "marks").write_text(MARKS + "serve_end 9000\n")
    (run / "done").write_text("benchmarked\n")
    at_the_end = ingest_run(tmp_path / "home", run, now_s=2.0)
    assert (after_bench.accepted, at_the_end.accepted, at_the_end.duplicate) == (2, 0, 2)


def test_a_failed_start_is_a_run_without_labels_and_with_its_class(run: Path) -> None:
    (run / "server.log").write_text("\n".join(LOG.splitlines()[:3]) + "\n" + OOM)
    (run / "bench.json").unlink()
    (run / "marks").write_text("script_start 100\nserver_start 101\n")
    (run / "done").write_text("failed\n")
    ((failed,), (start,), _) = rows(run)
    assert (failed.status, failed.notes, failed.labels) == ("oom", "failed: oom_weights", {})
    assert (failed.concurrency, failed.prompt_tokens) == (8.0, 64.0)
    assert start.failure == "oom_weights"


def test_a_launch_without_a_line_of_the_engine_is_an_error(run: Path) -> None:
    for name in ("server.log", "bench.json"):
        (run / name).unlink()
    (run / "marks").write_text("script_start 100\nserver_start 101\n")
    (run / "done").write_text("failed\n")
    ((failed,), (start,), _) = rows(run)
    assert (failed.status, start.stage, start.failure) == ("error", "config", "error")


@pytest.mark.parametrize(
    ("marks", "outcome"),
    [
        ("script_start 100\nserver_start 101\n", "not_started"),
        ("script_start 100\n", "failed"),  # as scripts told it that had no word of its own for it
        ("script_start 100\n", "stopped"),
    ],
)
def test_an_engine_that_never_ran_says_nothing_of_its_arm(
    run: Path, marks: str, outcome: str
) -> None:
    (run / "bench.json").unlink()
    (run / "server.log").write_text("setsid: failed to execute vllm: No such file or directory\n")
    (run / "marks").write_text(marks)
    (run / "done").write_text(f"{outcome}\n")
    assert rows(run) == ([], [], [])


def test_a_run_that_has_not_ended_says_nothing_yet(run: Path) -> None:
    for name in ("server.log", "bench.json", "done"):
        (run / name).unlink()
    assert rows(run) == ([], [], [])


def test_a_server_stopped_before_it_was_ready_says_nothing_of_its_arm(run: Path) -> None:
    (run / "server.log").write_text("\n".join(LOG.splitlines()[:3]) + "\n")
    (run / "bench.json").unlink()
    (run / "marks").write_text("script_start 100\nserver_start 101\n")
    (run / "done").write_text("stopped\n")
    (runs, (start,), _) = rows(run)
    assert runs == []
    assert start.status == "unfinished"


def test_a_server_that_only_served_tells_its_cold_start(run: Path) -> None:
    (run / "bench.json").unlink()
    (run / "done").write_text("served\n")
    ((served,), _, _) = rows(run)
    assert (served.status, served.labels) == ("ok", {"cold_start_s": 30.0})


def test_a_benchmark_that_failed_on_a_good_server_is_an_error(run: Path) -> None:
    (run / "bench.json").unlink()
    (run / "done").write_text("bench_failed\n")
    ((failed,), _, _) = rows(run)
    assert (failed.status, failed.labels) == ("error", {})
    assert "benchmark failed" in failed.notes


def test_a_result_that_contradicts_itself_is_refused_and_not_taken_for_a_run(run: Path) -> None:
    (run / "bench.json").write_text(json.dumps(BENCH | {"output_throughput": 9999.0}))
    found = list(run_rows(run))
    assert [type(item) for item in found] == [StartupRun, Rejection]


def test_damaged_marks_are_passed_over(run: Path) -> None:
    (run / "marks").write_bytes(b"serve_start x\n\xff\xfe\nserver_start 5\n\n")
    assert read_marks(run) == {"server_start": 5.0}
    assert read_marks(run / "nowhere") == {}


def test_what_an_earlier_run_left_in_the_folder_is_not_this_run_s(run: Path) -> None:
    # As scripts left it that did not start clean.
    (run / "marks").write_text(MARKS + "script_start 9000\nserver_start 9001\n")
    (run / "server.log").write_text("\n".join(LOG.splitlines()[:3]) + "\n" + OOM)
    (run / "done").write_text("failed\n")
    ((failed,), _, _) = rows(run)
    assert (failed.status, failed.labels) == ("oom", {})


def test_runs_are_found_in_folders_that_hold_them(run: Path, tmp_path: Path) -> None:
    assert list(find_runs([run])) == list(find_runs([tmp_path])) == [run]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="no run"):
        list(find_runs([tmp_path / "empty"]))


def test_a_folder_that_is_no_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no folder of a launch"):
        list(run_rows(tmp_path))
