"""Starts of a vLLM server from its log."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from mutations import mutated, survives

from omnipilot.collect.context import RunContext
from omnipilot.collect.vllm_log import collect_vllm_log
from omnipilot.domain import BadInputError, StackFingerprint, StartupRun
from omnipilot.domain.labels import FAILURE_BY_NAME, STARTUP_LABELS
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = RunContext(
    source="lab", gpu="H100", n_gpus=2, stack=StackFingerprint(cuda="12.8", driver="570.1")
)
LABELS = {label.name for label in STARTUP_LABELS}
HOME = "/ho" + "me/alice"

CONFIG = (
    "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen2.5-32B-Instruct', "
    "speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, download_dir=None, "
    "tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, "
    "kv_cache_dtype=auto, device_config=cuda, served_model_name=qwen"
)


def engine(at: str, text: str, level: str = "INFO", process: str = "EngineCore_DP0 pid=20") -> str:
    return f"({process}) {level} 11-29 {at} [core.py:93] {text}"


def worker(rank: int, at: str, text: str) -> str:
    return engine(at, text, process=f"Worker_TP{rank} pid={31 + rank}")


# Two workers; the slower load took 12.5 s, the larger graphs 0.6 GiB, the smaller cache 30 GiB.
LOADED = [
    "INFO 11-29 13:14:01 [__init__.py:216] Automatically detected platform cuda.",
    "(APIServer pid=9) INFO 11-29 13:14:05 [api_server.py:1839] vLLM API server version 0.11.0",
    "(APIServer pid=9) INFO 11-29 13:14:05 [utils.py:233] non-default args: "
    "{'model': 'Qwen/Qwen2.5-32B-Instruct', 'api_key': ['sk-secret'], 'max_model_len': 32768, "
    "'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.92, 'download_dir': '" + HOME + "'}",
    engine("13:14:12", CONFIG),
    worker(0, "13:14:14", "Starting to load model Qwen/Qwen2.5-32B-Instruct..."),
    worker(0, "13:14:25", "Loading weights took 10.25 seconds"),
    worker(0, "13:14:26", "Model loading took 30.5900 GiB and 11.750000 seconds"),
    worker(1, "13:14:27", "Model loading took 30.5800 GiB and 12.500000 seconds"),
]
COMPILED = [
    worker(0, "13:14:50", "torch.compile takes 21.50 s in total"),
    worker(0, "13:14:52", "Available KV cache memory: 30.25 GiB"),
    worker(1, "13:14:52", "Available KV cache memory: 30.00 GiB"),
    engine("13:14:53", "GPU KV cache size: 245,760 tokens"),
    engine("13:14:53", "Maximum concurrency for 32,768 tokens per request: 7.50x"),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|  | 0/67 [00:00<?, ?it/s]\r"
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██| 67/67 [00:09<00:00]"
    ),
]
CAPTURED = [
    worker(0, "13:15:03", "Graph capturing finished in 9 secs, took 0.60 GiB"),
    worker(1, "13:15:03", "Graph capturing finished in 10 secs, took 0.55 GiB"),
    engine("13:15:04", "init engine (profile, create kv cache, warmup model) took 36.50 seconds"),
]
READY = [
    "(APIServer pid=9) INFO 11-29 13:15:07 [launcher.py:42] Route: /health, Methods: GET",
    "(APIServer pid=9) INFO:     Started server process [9]",
    "(APIServer pid=9) INFO:     Application startup complete.",
    '(APIServer pid=9) INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
]
STOPPED = [
    "(APIServer pid=9) INFO 11-29 13:21:39 [launcher.py:110] Shutting down FastAPI HTTP server.",
    "(APIServer pid=9) INFO:     Shutting down",
]
GOOD = [*LOADED, *COMPILED, *CAPTURED, *READY]


def traceback(exception: str, *functions: str, process: str = "Worker_TP1 pid=32") -> list[str]:
    frames = [f'  File "$VENV/vllm/v1/worker/x.py", line 7, in {name}' for name in functions]
    lines = [
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        *frames,
        exception,
    ]
    echo = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        "Exception: WorkerProc initialization failed due to an exception in a background process.",
    ]
    return [
        *(engine("13:15:00", line, "ERROR", process) for line in lines),
        *(engine("13:15:01", line, "ERROR") for line in echo),
        "(APIServer pid=9) Traceback (most recent call last):",
        '(APIServer pid=9)   File "vllm", line 8, in <module>',
        "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.",
    ]


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total "
    "capacity of 79.25 GiB of which 512.00 MiB is free. Process 7 has 78 GiB memory in use."
)


def collect(
    folder: Path, lines: list[str] | bytes, context: RunContext = CONTEXT
) -> list[StartupRun | Rejection]:
    path = folder / "serve.log"
    path.write_bytes(lines if isinstance(lines, bytes) else "\n".join(lines).encode())
    return list(collect_vllm_log(path, context=context))


def start(folder: Path, *parts: list[str], context: RunContext = CONTEXT) -> StartupRun:
    (item,) = collect(folder, [line for part in parts for line in part], context)
    assert isinstance(item, StartupRun), item
    return item


def test_a_good_start_tells_what_every_step_took(tmp_path: Path) -> None:
    assert start(tmp_path, GOOD) == StartupRun(
        source="lab",
        model="Qwen/Qwen2.5-32B-Instruct",
        engine="vllm",
        gpu="H100",
        n_gpus=2,
        precision="bf16",
        status="ok",
        stage="ready",
        tensor_parallel=2,
        pipeline_parallel=1,
        data_parallel=1,
        kv_dtype="auto",
        max_model_len=32768,
        memory_utilization_frac=0.92,
        stack=StackFingerprint("0.11.0", "12.8", "570.1"),
        labels={
            "cold_start_s": 66.0,
            "weights_gib": 30.59,
            "weights_load_s": 12.5,
            "weights_read_s": 10.25,
            "compile_s": 21.5,
            "kv_cache_gib": 30.0,
            "kv_cache_tokens": 245760.0,
            "max_concurrency": 7.5,
            "graph_capture_s": 10.0,
            "graph_capture_gib": 0.6,
            "engine_init_s": 36.5,
        },
    )


def test_nothing_of_the_text_of_a_log_gets_into_the_row(tmp_path: Path) -> None:
    secret = [
        f"(APIServer pid=9) OSError: {HOME}/models/m does not appear to have a file named x",
        "mail alice@example.org",
    ]
    text = "\n".join([*LOADED, *secret]).replace(
        "Qwen/Qwen2.5-32B-Instruct", f"{HOME}/models/Qwen32"
    )
    for item in collect(tmp_path, text.encode()):
        told = msgspec.json.encode(item).decode()
        assert "alice" not in told
        assert "sk-secret" not in told
        assert json.loads(told)["model"] == "Qwen32"


def test_without_context_the_gpu_is_the_one_of_the_tuned_kernels(tmp_path: Path) -> None:
    line = engine(
        "13:14:13",
        "Using default MoE config. Config file not found at E=8,N=1792,"
        "device_name=NVIDIA_H100_80GB_HBM3.json",
    )
    item = start(tmp_path, LOADED[:4], [line], GOOD[4:], context=RunContext())
    assert (item.gpu, item.n_gpus) == ("NVIDIA H100 80GB HBM3", 2)


OLD = """\
INFO 08-01 23:59:40 api_server.py:528] vLLM API server version 0.6.3
INFO 08-01 23:59:41 api_server.py:529] args: Namespace(host=None, port=8000, model='org/m', \
dtype='auto', kv_cache_dtype='auto', max_model_len=None, tensor_parallel_size=1, \
gpu_memory_utilization=0.9, quantization=None)
INFO 08-01 23:59:50 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: \
model='org/m', speculative_config=None, tokenizer='org/m', dtype=torch.float16, max_seq_len=8192, \
tensor_parallel_size=1, pipeline_parallel_size=1, quantization=awq_marlin, kv_cache_dtype=auto
INFO 08-01 23:59:55 model_runner.py:1056] Starting to load model org/m...
INFO 08-02 00:00:05 model_runner.py:1067] Loading model weights took 5.2035 GB
INFO 08-02 00:00:08 worker.py:232] the current vLLM instance can use total_gpu_memory (79.11GiB) \
x gpu_memory_utilization (0.90) = 71.20GiB; model weights take 5.20GiB; non_torch_memory takes \
0.09GiB; PyTorch activation peak memory takes 1.23GiB; the rest of the memory reserved for KV \
Cache is 64.68GiB.
INFO 08-02 00:00:09 gpu_executor.py:122] # GPU blocks: 33114, # CPU blocks: 2048
INFO 08-02 00:00:09 gpu_executor.py:126] Maximum concurrency for 8192 tokens per request: 64.68x
INFO 08-02 00:00:12 model_runner.py:1383] Capturing the model for CUDA graphs. This may lead to
INFO 08-02 00:00:30 model_runner.py:1512] Graph capturing finished in 18 secs.
INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)
"""


def test_a_log_of_the_older_engine_is_read_over_midnight(tmp_path: Path) -> None:
    item = start(tmp_path, OLD.splitlines(), context=RunContext())
    assert (item.model, item.precision, item.max_model_len) == ("org/m", "awq", 8192)
    assert item.stack.engine_version == "0.6.3"
    assert item.labels == {
        "cold_start_s": 50.0,
        "weights_gib": 5.2035,
        "non_torch_gib": 0.09,
        "activation_gib": 1.23,
        "kv_cache_gib": 64.68,
        "kv_cache_tokens": 33114 * 16.0,
        "max_concurrency": 64.68,
        "graph_capture_s": 18.0,
    }


def test_a_start_over_new_year_took_seconds_not_a_year(tmp_path: Path) -> None:
    text = OLD.replace("08-01", "12-31").replace("08-02", "01-01")
    assert start(tmp_path, text.splitlines()).labels["cold_start_s"] == 50.0


@pytest.mark.parametrize(
    "prefix", ["vllm-1  | ", "0: ", "2026-11-29T13:14:01.123Z stderr F ", "\x1b[1;36m"]
)
def test_what_others_write_before_a_line_is_passed_over(tmp_path: Path, prefix: str) -> None:
    assert start(tmp_path, [prefix + line for line in GOOD]) == start(tmp_path, GOOD)


@pytest.mark.parametrize(
    ("done", "exception", "functions", "failure"),
    [
        (LOADED[:6], OOM, ("load_model", "create_weights"), "oom_weights"),
        (LOADED, OOM, ("determine_available_memory", "profile_run", "_dummy_run"), "oom_profiling"),
        (LOADED, OOM, ("determine_available_memory", "capture_model"), "oom_profiling"),
        ([*LOADED, *COMPILED], OOM, ("initialize_kv_cache",), "oom_kv_cache"),
        (
            [*LOADED, *COMPILED],
            OOM,
            ("compile_or_warm_up_model", "capture_model"),
            "oom_graph_capture",
        ),
        (
            [*LOADED, *COMPILED],
            (
                "RuntimeError: CUDA out of memory occurred when warming up sampler "
                "with 1024 dummy requests."
            ),
            ("compile_or_warm_up_model", "_dummy_sampler_run"),
            "oom_graph_capture",
        ),
        (LOADED[:6], "RuntimeError: CUDA error: out of memory", (), "oom_weights"),
        (
            LOADED,
            (
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine."
            ),
            (),
            "kv_too_small",
        ),
        (
            LOADED,
            (
                "ValueError: The model's max seq len (131072) is larger than the maximum number of "
                "tokens that can be stored in KV cache (19632)."
            ),
            (),
            "kv_too_small",
        ),
        (
            LOADED[:4],
            (
                "ValueError: Free memory on device (7.34/15.49 GiB) on startup is less than "
                "desired GPU memory utilization (0.8, 12.39 GiB)."
            ),
            ("init_device",),
            "memory_not_free",
        ),
        (
            LOADED[:4],
            (
                "ValueError: The quantization method modelopt_fp4 is not supported for the "
                "current GPU. Minimum capability: 100. Current capability: 90."
            ),
            (),
            "unsupported",
        ),
        (
            LOADED[:4],
            (
                "ValueError: Bfloat16 is only supported on GPUs with compute capability of at "
                "least 8.0."
            ),
            (),
            "unsupported",
        ),
        (
            LOADED[:4],
            "ValueError: type fp8e4nv not supported in this architecture.",
            (),
            "unsupported",
        ),
        (
            LOADED[:6],
            (
                "ValueError: Weight output_size_per_partition = 4736 is not divisible by "
                "min_thread_n = 64. Consider reducing tensor_parallel_size."
            ),
            ("load_model",),
            "divisibility",
        ),
        (
            LOADED[:4],
            (
                "ValueError: Tensor parallel size (4) cannot be larger than the number of "
                "available GPUs (2)."
            ),
            (),
            "too_few_gpus",
        ),
        (
            LOADED[:3],
            (
                "OSError: org/nope is not a local folder and is not a valid model identifier "
                "listed on 'https://huggingface.co/models'"
            ),
            (),
            "no_such_model",
        ),
        (
            LOADED[:3],
            "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
            (),
            "no_such_model",
        ),
        (
            LOADED[:4],
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
            (),
            "device_error",
        ),
        (LOADED[:2], "OSError: [Errno 98] Address already in use", (), "port_in_use"),
        (
            LOADED,
            (
                "AssertionError: Error in memory profiling. Initial free memory 84460306432, "
                "current free memory 84470306432. This happens when the GPU memory was not "
                "properly cleaned up before initializing the vLLM instance."
            ),
            ("determine_available_memory",),
            "memory_not_free",
        ),
        (LOADED, "KeyboardInterrupt: terminated", ("load_model",), "terminated"),
        (LOADED, "KeyboardInterrupt", ("load_model",), "terminated"),
        (LOADED, "AssertionError", (), "error"),
        (LOADED, "KeyError: 'model.layers.0'", (), "error"),
    ],
)
def test_the_first_error_decides_the_class(
    tmp_path: Path, done: list[str], exception: str, functions: tuple[str, ...], failure: str
) -> None:
    item = start(tmp_path, done, traceback(exception, *functions))
    assert (item.failure, item.status) == (failure, FAILURE_BY_NAME[failure].status)
    assert item.error_type == exception.split(":", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1]
    assert "cold_start_s" not in item.labels


def test_a_failure_tells_its_figures(tmp_path: Path) -> None:
    labels = start(tmp_path, LOADED, traceback(OOM, "profile_run")).labels
    assert labels["allocation_gib"] == 1.5
    assert (labels["gpu_total_gib"], labels["gpu_free_gib"]) == (79.25, 0.5)
    assert labels["weights_gib"] == 30.59
    short = (
        "ValueError: To serve at least one request with the models's max seq len (32768), (8.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (6.50 GiB). "
        "Based on the available memory, the estimated maximum model length is 26624."
    )
    labels = start(tmp_path, LOADED, traceback(short)).labels
    assert (labels["kv_needed_gib"], labels["kv_available_gib"]) == (8.0, 6.5)
    assert labels["max_model_len_possible"] == 26624


def test_the_cause_below_a_known_exception_does_not_hide_it(tmp_path: Path) -> None:
    chained = [
        *traceback("ModuleNotFoundError: No module named 'x'")[:3],
        engine("13:15:00", "ValueError: AWQ is not supported", "ERROR", "Worker_TP1 pid=32"),
    ]
    item = start(tmp_path, LOADED, chained)
    assert (item.failure, item.error_type) == ("unsupported", "ValueError")


def test_errors_on_the_way_to_a_good_start_are_no_failure(tmp_path: Path) -> None:
    harmless = [
        "Exception in thread Thread-1:",
        "Traceback (most recent call last):",
        '  File "usage.py", line 1, in report',
        "requests.ConnectionError: no route",
    ]
    later = [
        "(APIServer pid=9) ERROR 11-29 13:16:00 [serving.py:1] Error in preprocessing",
        "(APIServer pid=9) ERROR 11-29 13:16:00 [serving.py:1] ValueError: too long",
    ]
    item = start(tmp_path, LOADED, harmless, COMPILED, CAPTURED, READY, later)
    assert (item.status, item.failure) == ("ok", "")


DEATH = [
    engine("13:16:00", "EngineCore encountered a fatal error.", "ERROR"),
    engine("13:16:00", "Traceback (most recent call last):", "ERROR"),
    engine("13:16:00", '  File "x.py", line 1, in execute_model', "ERROR"),
]


def test_a_server_that_dies_after_it_was_ready_is_told(tmp_path: Path) -> None:
    died = start(tmp_path, GOOD, [*DEATH, engine("13:16:00", "KeyError: 3", "ERROR")])
    assert (died.failure, died.status, died.stage) == ("engine_dead", "crash", "ready")
    assert died.labels["cold_start_s"] == 66.0
    full = start(tmp_path, GOOD, [*DEATH, engine("13:16:00", OOM, "ERROR")])
    assert (full.failure, full.status) == ("oom_serving", "oom")


def test_a_server_that_is_told_to_stop_did_not_fail(tmp_path: Path) -> None:
    item = start(
        tmp_path, GOOD, STOPPED, DEATH, [engine("13:22:00", "EngineDeadError: x", "ERROR")]
    )
    assert (item.status, item.failure, item.stopped) == ("ok", "", True)


@pytest.mark.parametrize(
    ("lines", "failure", "status"),
    [
        (
            [
                *LOADED,
                (
                    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29 DUE TO TIME "
                    "LIMIT ***"
                ),
            ],
            "terminated",
            "unfinished",
        ),
        ([*LOADED, *STOPPED], "terminated", "unfinished"),
        (LOADED, "cut_off", "unfinished"),
        (
            [*LOADED, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."],
            "oom_host",
            "oom",
        ),
        (
            [
                *LOADED,
                *traceback("RuntimeError: Worker died unexpectedly"),
                ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."),
            ],
            "oom_host",
            "oom",
        ),
        (
            [*LOADED[:2], "vllm serve: error: unrecognized arguments: --foo"],
            "bad_arguments",
            "error",
        ),
        (
            [
                *LOADED,
                *COMPILED,
                *CAPTURED,
                (
                    "ERROR:    [Errno 98] error while attempting to bind on address "
                    "('0.0.0.0', 8000): address already in use"
                ),
            ],
            "port_in_use",
            "error",
        ),
        ([*LOADED, "Fatal Python error: Segmentation fault"], "engine_dead", "crash"),
        ([*GOOD, "Killed"], "engine_dead", "crash"),
        (
            [*GOOD, "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-29 ***"],
            "",
            "ok",
        ),
        (GOOD, "", "ok"),
    ],
)
def test_the_end_of_a_log_is_judged(
    tmp_path: Path, lines: list[str], failure: str, status: str
) -> None:
    item = start(tmp_path, lines)
    assert (item.failure, item.status) == (failure, status)


def test_an_engine_without_a_server_is_ready_when_it_is_initialised(tmp_path: Path) -> None:
    item = start(tmp_path, [LOADED[0], *LOADED[3:]], COMPILED, CAPTURED)
    assert (item.status, item.stage) == ("ok", "initialised")
    assert "cold_start_s" not in item.labels


def test_every_start_of_a_log_is_a_row(tmp_path: Path) -> None:
    log = [*LOADED, *traceback(OOM, "profile_run"), *GOOD, *STOPPED, *GOOD]
    items = collect(tmp_path, log)
    assert [i.status for i in items if isinstance(i, StartupRun)] == ["oom", "ok", "ok"]
    assert len(items) == 3


def test_a_start_that_was_lost_without_a_word_is_a_row_of_its_own(tmp_path: Path) -> None:
    lost = [line.replace("30.5", "61.0").replace("13:14", "12:14") for line in LOADED]
    cut, good = collect(tmp_path, [*lost, *LOADED[1:], *GOOD[len(LOADED) :]])
    assert isinstance(cut, StartupRun)
    assert isinstance(good, StartupRun)
    assert (cut.failure, cut.labels["weights_gib"]) == ("cut_off", 61.09)
    assert (good.status, good.labels["weights_gib"]) == ("ok", 30.59)
    assert good.labels["cold_start_s"] == 62.0


@pytest.mark.parametrize("at", [3, len(LOADED)])
def test_several_api_servers_of_one_start_are_one_row(tmp_path: Path, at: int) -> None:
    twice = [LOADED[1].replace("APIServer", "ApiServer_1")]
    assert start(tmp_path, GOOD[:at], twice, GOOD[at:]) == start(tmp_path, GOOD)


def test_lines_that_are_no_text_are_refused_and_the_rest_is_read(tmp_path: Path) -> None:
    data = b"\n".join([b"a\0b", b"\xff\xfe\xff", b"x" * 2**21, *(line.encode() for line in GOOD)])
    *refused, item = collect(tmp_path, data)
    assert [r.code for r in refused if isinstance(r, Rejection)] == [
        "NUL byte",
        "not UTF-8",
        "line too long",
    ]
    assert item == start(tmp_path, GOOD)


def test_gzip_is_read(tmp_path: Path) -> None:
    (item,) = collect(tmp_path, gzip.compress("\n".join(GOOD).encode()))
    assert isinstance(item, StartupRun)


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "Traceback (most recent call last):\nX: 1"])
def test_what_is_no_log_of_a_vllm_server_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInputError, match="vLLM"):
        collect(tmp_path, text.encode())


def test_a_log_of_many_requests_is_read_fast(tmp_path: Path) -> None:
    request = '(APIServer pid=9) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'
    lines = [*GOOD, *([request] * 20_000)]
    began_s = time.process_time()
    assert start(tmp_path, lines).status == "ok"
    assert time.process_time() - began_s < 2.0


@pytest.mark.parametrize(
    "line",
    [
        "(" * 100_000,
        "(A pid=" * 20_000,
        "INFO 11-29 " * 20_000,
        "\x1b[" * 50_000,
        "LLM engine (v1) with config: " + "model='" * 50_000,
        "1,1" * 100_000 + " tokens",
        "non-default args: {" + "'model': " * 30_000,
        "\r" * 100_000,
        "a." * 50_000 + "Error: x",
    ],
)
def test_no_line_takes_long(tmp_path: Path, line: str) -> None:
    began_s = time.process_time()
    for level in ("INFO", "ERROR"):
        collect(tmp_path, [*LOADED, line, engine("13:15:00", line, level), *traceback(line)])
    assert time.process_time() - began_s < 1.0


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=mutated("\n".join([*GOOD, *STOPPED, *LOADED, *traceback(OOM, "load_model")]).encode()))
def test_no_damage_crashes_or_hangs_the_reader(tmp_path: Path, data: bytes) -> None:
    for row in survives(lambda: collect(tmp_path, data)):
        assert isinstance(row, StartupRun)
        assert set(row.labels) <= LABELS
        assert not row.failure or FAILURE_BY_NAME[row.failure].status == row.status


CAPTURED_STARTS = {
    "vllm-0.11.2/fail_ckpt_awq.log": "unsupported",
    "vllm-0.11.2/fail_ckpt_gptq.log": "unsupported",
    "vllm-0.11.2/fail_engine_dead_at_first_request.log": "engine_dead",
    "vllm-0.11.2/fail_kv_too_small.log": "kv_too_small",
    "vllm-0.11.2/fail_maxlen.log": "max_model_len",
    "vllm-0.11.2/fail_no_such_model.log": "no_such_model",
    "vllm-0.11.2/fail_quant_fp8.log": "unsupported",
    "vllm-0.11.2/fail_tp3.log": "divisibility",
    "vllm-0.11.2/serve.log": "",
    "vllm-0.11.2/serve_kvstarved.log": "",
    "vllm-0.32.0/fail_ckpt_fp8.log": "unsupported",
    "vllm-0.32.0/fail_kv_exceeds_memory.log": "oom_kv_cache",
    "vllm-0.32.0/fail_kv_too_small.log": "kv_too_small",
    "vllm-0.32.0/fail_maxlen.log": "max_model_len",
    "vllm-0.32.0/fail_no_such_model.log": "no_such_model",
    "vllm-0.32.0/fail_quant_awq.log": "unsupported",
    "vllm-0.32.0/fail_quant_fp8.log": "unsupported",
    "vllm-0.32.0/fail_quant_gptq.log": "unsupported",
    "vllm-0.32.0/fail_tp3.log": "divisibility",
    "vllm-0.32.0/serve.log": "",
    "vllm-0.32.0/start_ckpt_awq_ok_then_terminated.log": "",
}


@pytest.mark.parametrize(("name", "failure"), CAPTURED_STARTS.items())
def test_the_captured_starts_of_real_versions_are_classified(
    shared_dir: Path, name: str, failure: str
) -> None:
    (item,) = collect_vllm_log(shared_dir / "captures" / name)
    assert isinstance(item, StartupRun)
    assert item.failure == failure
    assert item.stack.engine_version == name[5 : name.index("/")]
    assert item.model.startswith("tiny/")
    assert ("cold_start_s" in item.labels) == (failure in {"", "engine_dead"})
    assert item.stopped == (not failure)


def test_every_captured_log_is_in_the_table(shared_dir: Path) -> None:
    captures = shared_dir / "captures"
    found = {str(path.relative_to(captures)) for path in captures.glob("vllm-*/*.log")}
    assert found == set(CAPTURED_STARTS)


@pytest.mark.parametrize(
    ("name", "cold_start_s", "kv_cache_tokens", "max_concurrency", "engine_init_s"),
    [
        ("vllm-0.11.2/serve.log", 32, 1_048_576, 512, 11.77),
        ("vllm-0.11.2/serve_kvstarved.log", 12, 1536, 1.5, 0.01),
        ("vllm-0.32.0/serve.log", 52, 1_048_576, 512, 29.16),
    ],
)
def test_the_captured_good_starts_tell_their_figures(
    shared_dir: Path,
    name: str,
    cold_start_s: float,
    kv_cache_tokens: float,
    max_concurrency: float,
    engine_init_s: float,
) -> None:
    (item,) = collect_vllm_log(shared_dir / "captures" / name)
    assert isinstance(item, StartupRun)
    labels = item.labels
    assert labels["cold_start_s"] == cold_start_s
    assert labels["kv_cache_tokens"] == kv_cache_tokens
    assert labels["max_concurrency"] == max_concurrency
    assert labels["engine_init_s"] == engine_init_s
    assert (item.precision, item.n_gpus) == ("bf16", 1)
