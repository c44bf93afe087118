"""A stand-in for the program ``vllm``: its command line, its log, its endpoints, no model.

``vllm serve`` prints the start-up lines of vLLM 0.11 and answers /health, /v1/models,
/v1/completions and /metrics; ``vllm bench serve`` sends requests and writes a result of the same
keys. Environment:

    STAND_IN_FAIL        class of failure to start (or die) with, see FAILURES
    STAND_IN_REPLAY      a captured log to print instead; what stands after the line that says the
                         server is ready is printed at the first request, and ends it
    STAND_IN_MUTE        start, and never answer
    STAND_IN_REQUEST_S   seconds that one request takes, 0.002

Runs on the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.11.2"
READY = "Application startup complete."
_TIME = re.compile(r"\b\d\d-\d\d \d\d:\d\d:\d\d\b")
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
    "capacity of 79.11 GiB of which 1.02 GiB is free."
)

# Class: how far the start gets, the function in whose traceback the error stands, the error, and
# what is printed past the logger. Stages: 0 arguments, 1 config, 2 loading, 3 loaded, 4 cache
# sized, 5 capturing, 6 at the first request.
FAILURES: dict[str, tuple[int, str, str, str]] = {
    "oom_weights": (2, "load_model", _OOM, ""),
    "oom_profiling": (3, "determine_available_memory", _OOM, ""),
    "oom_kv_cache": (4, "initialize_kv_cache", _OOM, ""),
    "oom_graph_capture": (5, "capture_model", _OOM, ""),
    "oom_serving": (6, "execute_model", _OOM, ""),
    "oom_host": (2, "", "", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0."),
    "kv_too_small": (
        3, "_check_enough_kv_cache_memory",
        ("ValueError: To serve at least one request with the models's max seq len (32768), (8.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (3.20 GiB). "
        "Based on the available memory, the estimated maximum model length is 13104."), "",
    ),
    "memory_not_free": (
        1, "init_device",
        ("ValueError: Free memory on device (7.34/79.11 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.20 GiB)."), "",
    ),
    "unsupported": (
        1, "verify_quantization",
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU.",
        "",
    ),
    "divisibility": (
        1, "verify_with_parallel_config",
        ("ValueError: Total number of attention heads (28) must be divisible by tensor parallel "
        "size (3)."), "",
    ),
    "max_model_len": (
        0, "_get_and_verify_max_len",
        ("ValueError: User-specified max_model_len (100000) is greater than the derived "
        "max_model_len (max_position_embeddings=4096 or model_max_length=None in model's "
        "config.json)."), "",
    ),
    "no_such_model": (
        0, "cached_files",
        ("OSError: org/nope is not a local folder and is not a valid model identifier listed on "
        "the hub"), "",
    ),
    "too_few_gpus": (
        1, "__init__",
        ("ValueError: Tensor parallel size (4) cannot be larger than the number of available GPUs "
        "(1)."), "",
    ),
    "port_in_use": (0, "bind", "OSError: [Errno 98] Address already in use", ""),
    "bad_arguments": (-1, "", "", "vllm serve: error: unrecognized arguments: --foo"),
    "device_error": (
        1, "init_process_group",
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled "
        "system error"), "",
    ),
    "engine_dead": (6, "execute_model", "RuntimeError: step failed", ""),
    "error": (2, "load_weights", "KeyError: 'model.layers.0.mlp'", ""),
    "terminated": (
        2, "", "",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T13:15:00 DUE TO TIME LIMIT ***",
    ),
    "cut_off": (2, "", "", ""),
}  # fmt: skip


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def logged(process: str, text: str, level: str = "INFO", where: str = "core.py:1") -> str:
    now = time.strftime("%m-%d %H:%M:%S")
    return f"({process} pid={os.getpid()}) {level} {now} [{where}] {text}"


def error_block(frame: str, exception: str) -> list[str]:
    text = [
        "Traceback (most recent call last):",
        f'  File "/opt/vllm/v1/engine/core.py", line 708, in {frame}',
        "    raise",
        exception,
    ]
    block = [logged("EngineCore_DP0", line, "ERROR", "core.py:708") for line in text]
    ends = "RuntimeError: Engine core initialization failed. See root cause above."
    return [*block, f"(APIServer pid={os.getpid()}) {ends}"]


def start_lines(arguments: argparse.Namespace) -> list[list[str]]:
    """The lines of a good start by stage, 0 to 5 and the end."""
    model, length = arguments.model, arguments.max_model_len
    dtype = f"torch.{arguments.dtype.replace('half', 'float16')}"
    given = {"model_tag": model, "host": arguments.host, "port": arguments.port, "model": model,
             "max_model_len": length, "api_server_count": 1}  # fmt: skip
    config = (
        f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{model}', "
        f"speculative_config=None, tokenizer='{model}', dtype={dtype}, max_seq_len={length}, "
        f"download_dir=None, load_format=auto, tensor_parallel_size={arguments.tensor_parallel}, "
        f"pipeline_parallel_size=1, data_parallel_size=1, quantization={arguments.quantization}, "
        f"enforce_eager=False, kv_cache_dtype={arguments.kv_cache_dtype}, served_model_name={model}"
    )
    return [
        [
            logged("APIServer", f"vLLM API server version {VERSION}", where="api_server.py:1977"),
            logged("APIServer", f"non-default args: {given}", where="utils.py:253"),
        ],
        [logged("EngineCore_DP0", config, where="core.py:93")],
        [logged("EngineCore_DP0", f"Starting to load model {model}...",
                where="gpu_model_runner.py:2602")],
        [logged("EngineCore_DP0", "Model loading took 14.2488 GiB and 3.251307 seconds",
                where="gpu_model_runner.py:2653")],
        [
            logged("EngineCore_DP0", "Available KV cache memory: 50.28 GiB",
                   where="gpu_worker.py:298"),
            logged("EngineCore_DP0", "GPU KV cache size: 941,456 tokens",
                   where="kv_cache_utils.py:1087"),
            logged("EngineCore_DP0", f"Maximum concurrency for {length:,} tokens per request: "
                   f"{941456 / length:.2f}x", where="kv_cache_utils.py:1091"),
        ],
        [
            logged("EngineCore_DP0", "Graph capturing finished in 5 secs, took 0.51 GiB",
                   where="gpu_model_runner.py:3480"),
            logged("EngineCore_DP0", "init engine (profile, create kv cache, warmup model) took "
                   "12.31 seconds", where="core.py:210"),
        ],
        [
            logged("APIServer", f"Starting vLLM API server 0 on http://{arguments.host}:"
                   f"{arguments.port}", where="api_server.py:2052"),
            f"(APIServer pid={os.getpid()}) INFO:     Started server process [{os.getpid()}]",
            f"(APIServer pid={os.getpid()}) INFO:     {READY}",
        ],
    ]  # fmt: skip


class Counters:
    """What /metrics tells."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.requests = self.prompt_tokens = self.output_tokens = 0
        self.started_s = time.time()

    def page(self, model: str) -> str:
        label = f'{{engine="0",model_name="{model}"}}'
        finished = f'{{engine="0",finished_reason="length",model_name="{model}"}}'
        with self.lock:
            return (
                f"process_start_time_seconds {self.started_s}\n"
                f"vllm:num_requests_running{label} {float(self.running)}\n"
                f"vllm:num_requests_waiting{label} 0.0\n"
                f"vllm:kv_cache_usage_perc{label} {min(self.running / 64, 1.0)}\n"
                f"vllm:prompt_tokens_total{label} {float(self.prompt_tokens)}\n"
                f"vllm:generation_tokens_total{label} {float(self.output_tokens)}\n"
                f"vllm:request_success_total{finished} {float(self.requests)}\n"
                f"vllm:num_preemptions_total{label} 0.0\n"
            )


def serve_http(arguments: argparse.Namespace, last_words: list[str] | None) -> None:
    """Answer until told to stop; with ``last_words``, die with them at the first completion."""
    counters = Counters()
    request_s = float(os.environ.get("STAND_IN_REQUEST_S", "0.002"))
    model = arguments.served_model_name or arguments.model

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, form: str, *values: object) -> None:
            text = form % values
            say(f"INFO:     127.0.0.1:{self.client_address[1]} - {text.replace(' -', ' OK')}")

        def answer(self, body: str, kind: str = "application/json") -> None:
            data = body.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            pages = {
                "/health": "",
                "/version": json.dumps({"version": VERSION}),
                "/v1/models": json.dumps({"object": "list", "data": [{"id": model}]}),
                "/metrics": counters.page(model),
            }
            if self.path in pages:
                self.answer(pages[self.path])
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if last_words is not None:
                for line in last_words:
                    say(line)
                os._exit(1)
            with counters.lock:
                counters.running += 1
            time.sleep(request_s)
            tokens = {"prompt_tokens": len(asked["prompt"].split()),
                      "completion_tokens": int(asked["max_tokens"])}  # fmt: skip
            with counters.lock:
                counters.running -= 1
                counters.requests += 1
                counters.prompt_tokens += tokens["prompt_tokens"]
                counters.output_tokens += tokens["completion_tokens"]
            text = "w " * tokens["completion_tokens"]
            self.answer(json.dumps({"model": model, "choices": [{"text": text}], "usage": tokens}))

    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)

    def stop(*_: object) -> None:
        say(f"(APIServer pid={os.getpid()}) INFO:     Shutting down")
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    server.serve_forever(poll_interval=0.05)
    say(f"(APIServer pid={os.getpid()}) INFO:     Application shutdown complete.")


def serve(arguments: argparse.Namespace) -> int:
    replay = os.environ.get("STAND_IN_REPLAY", "")
    if replay:
        return replay_log(Path(replay), arguments)
    kind = os.environ.get("STAND_IN_FAIL", "")
    stage, frame, exception, past = FAILURES[kind] if kind else (99, "", "", "")
    if os.environ.get("STAND_IN_MUTE"):
        time.sleep(600)
    # What the server was given, for tests of what gives it.
    for name in ("CUDA_VISIBLE_DEVICES", "GONE"):
        if name in os.environ:
            say(f"{name}={os.environ[name]}")
    now = time.strftime("%m-%d %H:%M:%S")
    say(f"INFO {now} [__init__.py:216] Automatically detected platform cuda.")
    if stage >= 0:
        for lines in start_lines(arguments)[: stage + 1]:
            for line in lines:
                say(line)
    words = error_block(frame, exception) if exception else []
    if stage == 6:
        fatal = logged("EngineCore_DP0", "EngineCore encountered a fatal error.", "ERROR")
        serve_http(arguments, [fatal, *words])
        return 0
    if kind:
        for line in [*words, *([past] if past else [])]:
            say(line)
        return 0 if kind == "cut_off" else 2 if kind == "bad_arguments" else 1
    serve_http(arguments, None)
    return 0


def replay_log(path: Path, arguments: argparse.Namespace) -> int:
    text = _TIME.sub(lambda _: time.strftime("%m-%d %H:%M:%S"), path.read_text(errors="replace"))
    lines = text.splitlines()
    code = 1
    if lines and lines[-1].startswith("exit="):
        code = int(lines.pop().removeprefix("exit="))
    ready = next((i for i, line in enumerate(lines) if READY in line), None)
    for line in lines if ready is None else lines[: ready + 1]:
        say(line)
    if ready is not None:
        serve_http(arguments, lines[ready + 1 :])
    return code


def bench(arguments: argparse.Namespace) -> int:
    prompt = "w " * arguments.random_input_len
    url = f"{arguments.base_url}{arguments.endpoint}"
    body = json.dumps(
        {"model": arguments.model, "prompt": prompt, "max_tokens": arguments.random_output_len}
    ).encode()

    def one(_: int) -> float | None:
        began_s = time.perf_counter()
        request = urllib.request.Request(  # noqa: S310 - a server of this machine
            url, body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - same
                answer.read()
        except OSError:
            return None
        return time.perf_counter() - began_s

    began_s = time.perf_counter()
    with ThreadPoolExecutor(min(arguments.max_concurrency, 8)) as pool:
        took = list(pool.map(one, range(arguments.num_prompts)))
    duration_s = time.perf_counter() - began_s
    good = [seconds for seconds in took if seconds is not None]
    if not good:
        say("ValueError: Initial test run failed - Please make sure benchmark arguments are right")
        return 1
    n_in, n_out = arguments.random_input_len, arguments.random_output_len
    total_in, total_out = n_in * len(good), n_out * len(good)
    result: dict[str, Any] = {
        "backend": "vllm", "model_id": arguments.model, "tokenizer_id": arguments.tokenizer,
        "num_prompts": arguments.num_prompts, "request_rate": "inf",
        "max_concurrency": arguments.max_concurrency, "duration": duration_s,
        "completed": len(good), "failed": len(took) - len(good),
        "total_input_tokens": total_in, "total_output_tokens": total_out,
        "request_throughput": len(good) / duration_s, "output_throughput": total_out / duration_s,
        "total_token_throughput": (total_in + total_out) / duration_s,
    }  # fmt: skip
    shares = {"ttft": 0.5, "tpot": 0.5 / max(n_out - 1, 1), "itl": 0.5 / max(n_out - 1, 1)}
    for name, share in shares.items():
        values_ms = sorted(1e3 * share * seconds for seconds in good)
        result |= {
            f"mean_{name}_ms": statistics.fmean(values_ms),
            f"median_{name}_ms": statistics.median(values_ms),
            f"std_{name}_ms": statistics.pstdev(values_ms),
            f"p50_{name}_ms": statistics.median(values_ms),
            f"p99_{name}_ms": values_ms[-1],
        }
    (Path(arguments.result_dir) / arguments.result_filename).write_text(json.dumps(result))
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="vllm")
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("serve")
    one.add_argument("model")
    one.add_argument("--host", default="127.0.0.1")
    one.add_argument("--port", type=int, default=8000)
    one.add_argument("--served-model-name", default="")
    one.add_argument("--tensor-parallel-size", dest="tensor_parallel", type=int, default=1)
    one.add_argument("--max-model-len", type=int, default=4096)
    one.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    one.add_argument("--max-num-seqs", type=int, default=256)
    one.add_argument("--kv-cache-dtype", default="auto")
    one.add_argument("--dtype", default="bfloat16")
    one.add_argument("--quantization", default="None")
    one.add_argument("--distributed-executor-backend", default="mp")
    one.add_argument("--enforce-eager", action="store_true")
    one.add_argument("--disable-custom-all-reduce", action="store_true")
    two = commands.add_parser("bench")
    two.add_argument("what", choices=["serve"])
    texts = "backend base-url endpoint model tokenizer dataset-name result-dir result-filename"
    for name in (*texts.split(), "percentile-metrics", "metric-percentiles"):
        two.add_argument(f"--{name}", default="")
    for name in ("random-input-len", "random-output-len", "num-prompts", "max-concurrency", "seed"):
        two.add_argument(f"--{name}", type=int, default=1)
    two.add_argument("--save-result", action="store_true")
    two.add_argument("--ignore-eos", action="store_true")
    return top


def main() -> int:
    arguments = parser().parse_args()
    return serve(arguments) if arguments.command == "serve" else bench(arguments)


def install(folder: Path) -> Path:
    """Make ``folder`` a virtual environment whose ``bin/vllm`` is this program."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).resolve()} "$@"\n')
    program.chmod(0o755)
    return folder


if __name__ == "__main__":
    sys.exit(main())
