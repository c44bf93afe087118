"""Sound examples of every foreign text that the program reads, short ones."""

from __future__ import annotations

import base64
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos import healthy_slurm
from dcgm_stand_in import answer, page, series, slow_start
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.decisions import remember
from omnipilot.collect.live_cache import write_cache
from omnipilot.collect.live_jobs import SQUEUE_FORMAT
from omnipilot.collect.live_nodes import SINFO_FORMAT, read_nodes_json
from omnipilot.collect.sacct_text import COLUMNS
from omnipilot.costmodel import bundle
from omnipilot.domain import Arm, InferenceRun, ServingRequest
from omnipilot.domain.cluster import ClusterState
from omnipilot.domain.engine import EngineParameters
from omnipilot.launch.plan import Plan, PlannedRun, write_plan
from omnipilot.launch.spec import LaunchSpec, write_spec
from omnipilot.learn.kept_folds import KeptFolds
from omnipilot.learn.ledger import Ledger
from omnipilot.store import Store
from omnipilot.store.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Callable

NOW_S: Final = 1_795_957_803.0
RUN: Final = InferenceRun(
    source="site", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="H100", n_gpus=1,
    precision="fp8", mode="online", status="ok", labels={"ttft_p50_s": 0.2}, concurrency=8.0,
)  # fmt: skip
SPEC: Final = LaunchSpec(
    run_id="r1", model_id="m/7b", checkpoint="m/7b", arm=Arm("h100-80", 1, "bf16"),
    parameters=EngineParameters(4096, 0.9, 64), concurrency=8, context_tokens=4096,
    prompt_tokens=3072, output_tokens=1024,
)  # fmt: skip


def written(make: Callable[[Path], object], *names: str) -> tuple[bytes, ...]:
    """Files as the program itself writes them."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make(home)
        return tuple((home / name).read_bytes() for name in names)


def _of(value: object) -> bytes:
    return json.dumps(value).encode()


_DENSE: Final[dict[str, Any]] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
    "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_hidden_layers": 28, "vocab_size": 152064, "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "sliding_window": 131072,
    "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
CONFIGS: Final = (
    _of(_DENSE),
    _of({
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
        "max_position_embeddings": 163840, "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
        },
    }),
    _of({
        "model_type": "qwen2_5_vl", "text_config": {**_DENSE, "layer_types":
            ["full_attention", "sliding_attention"] * 14},
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
        },
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    }),
)  # fmt: skip

CSV: Final = (
    "source,engine,model,gpu,n_gpus,precision,isl,osl,concurrency,status,out_tok_s,ttft_p50_ms\n"
    + "".join(
        f"site,vllm,Qwen/Qwen2.5-7B,H100,1,bf16,{512 * n},128,{2**n},ok,{900 + n},{40 + n}\n"
        for n in range(1, 5)
    )
).encode()
TYPED_ROWS: Final = "\n".join(
    json.dumps({
        "kind": "hardware_probe", "source": "site", "probe": "flop_utilization", "status": "pass",
        "gpu": "h100-80", "n_gpus": 8, "host": f"h100n{n}",
        "labels": {"flops_per_s": 7.1e14 + n, "flop_utilization_frac": 0.7},
    })
    for n in range(3)
).encode()  # fmt: skip
BENCH: Final = _of({
    "date": "20261129-131700", "backend": "vllm", "model_id": "org/model-7b", "num_prompts": 10,
    "request_rate": "inf", "max_concurrency": 4, "duration": 5.0, "completed": 10, "failed": 0,
    "total_input_tokens": 1000, "total_output_tokens": 500, "request_throughput": 2.0,
    "output_throughput": 100.0, "total_token_throughput": 300.0, "median_ttft_ms": 240.0,
    "mean_ttft_ms": 250.0, "median_tpot_ms": 20.0, "median_itl_ms": 16.0,
})  # fmt: skip
LOG: Final = b"""\
INFO 11-29 13:00:00 [api_server.py:1] vLLM API server version 0.11.2
INFO 11-29 13:00:01 [core.py:77] Initializing a V1 LLM engine (v0.11.2) with config: \
model='org/model-7b', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2
INFO 11-29 13:00:09 [gpu_model_runner.py:2653] Model loading took 7.1 GiB and 6.5 seconds
INFO 11-29 13:00:12 [kv_cache_utils.py:1229] GPU KV cache size: 204,800 tokens
ERROR 11-29 13:00:13 [core.py:800] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate
INFO 11-29 13:00:20 [api_server.py:1] Application startup complete.
"""
METRICS: Final = b"""\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",gpu_memory_utilization="0.9",num_gpu_blocks="9000"} 1.0
vllm:num_requests_running{engine="0",model_name="org/model-7b"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/model-7b"} 0.4
vllm:prompt_tokens_total{engine="0",model_name="org/model-7b"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="org/model-7b"} 500.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="org/model-7b"} 10.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="org/model-7b"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="org/model-7b"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="org/model-7b"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="org/model-7b"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="org/model-7b"} 2.5
"""


def _statistics(median: float, mean: float, p99: float) -> dict[str, Any]:
    found = {"mean": mean, "median": median, "std_dev": 10.0, "count": 20,
             "percentiles": {"p50": median, "p99": p99}}  # fmt: skip
    return {"successful": found, "errored": {"mean": 0.0, "median": 0.0}, "total": found}


GUIDELLM: Final = _of({
    "metadata": {"version": 2, "guidellm_version": "0.8.1"},
    "config": {"spec": {"backend": {"kind": "openai_http", "model": "org/model-7b"}}},
    "benchmarks": [{
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "concurrent", "max_concurrency": 4, "streams": 4}},
        "metrics": {
            "request_totals": {"successful": 20, "errored": 0, "incomplete": 0},
            "requests_per_second": _statistics(2.0, 2.0, 3.0),
            "prompt_token_count": _statistics(80.0, 80.0, 90.0),
            "output_token_count": _statistics(40.0, 40.0, 40.0),
            "time_to_first_token_ms": _statistics(90.0, 95.0, 200.0),
            "time_per_output_token_ms": _statistics(11.0, 11.0, 12.0),
            "output_tokens_per_second": _statistics(80.0, 80.0, 90.0),
            "tokens_per_second": _statistics(240.0, 240.0, 250.0),
        },
    }],
})  # fmt: skip

_RECORD: Final = {
    "JobID": "100", "JobIDRaw": "100", "Cluster": "lab", "User": "alice", "Account": "acct",
    "JobName": "vllm", "Partition": "gpu_h100", "State": "COMPLETED", "ExitCode": "0:0",
    "Submit": "1795957800", "Eligible": "2026-11-29T13:10:10", "Start": "1795957870",
    "End": "1795961470", "ElapsedRaw": "3600", "Timelimit": "1-00:00:00", "NNodes": "1",
    "NCPUS": "4", "AllocTRES": "billing=4,gres/gpu:h100=2,gres/gpu=2,mem=8G,node=1",
    "ReqTRES": "billing=4,gres/gpu=2,node=1",
}  # fmt: skip
SACCT: Final = "\n".join(
    "|".join(cells)
    for cells in (
        COLUMNS,
        [_RECORD.get(name, "") for name in COLUMNS],
        [{**_RECORD, "JobID": "7_[1-9%2]", "State": "CANCELLED by 1000"}.get(name, "")
         for name in COLUMNS],
    )
).encode() + b"\n"  # fmt: skip
SACCT_JSON: Final = _of({
    "meta": {"slurm": {"release": "24.11.0"}}, "jobs": [{
        "job_id": 100, "cluster": "lab", "user": "alice", "account": "acct", "name": "vllm",
        "partition": "gpu_h100", "state": {"current": ["COMPLETED"], "reason": "None"},
        "exit_code": {"return_code": {"set": True, "number": 0}, "signal": {"id": {"number": 0}}},
        "time": {"submission": 1795957800, "eligible": 1795957810, "start": 1795957870,
                 "end": 1795961470, "elapsed": 3600, "limit": {"set": True, "number": 1440}},
        "tres": {"allocated": [{"type": "gres", "name": "gpu:h100", "count": 2}],
                 "requested": [{"type": "gres", "name": "gpu", "count": 2}]},
        "array": {"job_id": 0, "task_id": {"set": False}}, "het": {"job_id": 0},
        "comment": {"administrator": "", "job": ""}, "allocation_nodes": 1,
    }],
})  # fmt: skip
_USE: Final = {
    "nodes": {"h100n1": {
        "total_memory": 8 * 2**30, "used_memory": 2**30, "total_time": 3600.0, "cpus": 4,
        "gpu_total_memory": {"0": 80 * 2**30}, "gpu_used_memory": {"0": 40 * 2**30},
        "gpu_utilization": {"0": 45.5},
    }},
    "total_time": 3600, "gpus": 1,
}  # fmt: skip
JOBSTATS: Final = b"100|JS1:" + base64.b64encode(gzip.compress(_of(_USE), mtime=0)) + b"\n"
DCGM_RANGE: Final = answer(
    *slow_start(0), *slow_start(1), series("DCGM_FI_DEV_XID_ERRORS", [0, 79, 79])
).encode()
DCGM_PAGE: Final = page({
    "DCGM_FI_DEV_POWER_USAGE": [100.0, 300.0], "DCGM_FI_DEV_FB_USED": [1e3, 2e3],
}).encode()  # fmt: skip

SLURM: Final = healthy_slurm(NOW_S, random.Random(1))  # noqa: S311 - an example
NEW_SINFO: Final = _of({
    "meta": {"slurm": {"release": "24.11.0"}},
    "sinfo": [{
        "node": {"state": ["MIXED", "DRAIN"]}, "nodes": {"nodes": ["h100n1", "h100n2"]},
        "gres": {"total": "gpu:h100:4(S:0-1)", "used": "gpu:h100:1(IDX:0)"},
        "features": {"total": "h100,hbm80"}, "reason": {"description": "xid"},
        "partition": {"name": "gpu_h100", "priority": {"tier": 10},
                      "maximums": {"time": {"set": True, "number": 1440}}},
    }],
})  # fmt: skip


def _columns(form: str, *cells: str) -> bytes:
    widths = [int(column.partition(":")[2]) for column in form.split(",")]
    return "".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)).encode() + b"\n"


SINFO_TEXT: Final = _columns(
    SINFO_FORMAT, "h100n1", "gpu_h100", "up", "1-00:00:00", "mixed*", "gpu:h100:4(S:0-1)",
    "gpu:h100:1(IDX:0)", "h100,hbm80", "none",
)  # fmt: skip
SQUEUE_TEXT: Final = _columns(
    SQUEUE_FORMAT, "gpu_h100", "PENDING", "Priority", "1", "1795957870", "1795961470",
    "1795957800", "1-00:00:00", "100", "7_[1-9%2]", "gres/gpu:h100=2,gres/gpu=2",
)  # fmt: skip
SCONTROL: Final = b"""\
scontrol: show partition -o
PartitionName=gpu_h100 State=UP Default=YES MaxTime=3-00:00:00 PriorityTier=10 PreemptMode=OFF
scontrol: show reservation -o
ReservationName=maint StartTime=1795984296 EndTime=2026-11-29T21:31:36 Nodes=h100n[1-2] Users=root
"""

SETTINGS: Final = b"""\
pue = 1.3
gpu_kinds = ["h100-80", "a100-80"]
[price_usd_per_gpu_h]
"h100-80" = 2.5
[gpus_per_node]
"h100-80" = 4
[gpu_kind_of_partition]
gpu = "h100-80"
"""
GPUS: Final = b"""\
[acme-64]
like = "h100-80"
name = "ACME Forge 64GB"
memory_gib = 63.2
bandwidth_bytes_per_s = 1200e9
aliases = ["forge", "acme 64"]
source = "a datasheet"
"""
ANCHORS: Final = b"""\
model,concurrency,context,gpu,n_gpus,precision
Qwen/Qwen2.5-7B-Instruct,64,4096,a100-80,1,bf16
Qwen/Qwen2.5-32B-Instruct,64,4096,A100,2,
"""
WINDOWS: Final = b"job_id,serve_start_s,serve_end_s\n12,1795957500,1795957800\n13,1.5e9,1.6e9\n"
MARKS: Final = b"submit 1795957000.5\nserve_start 1795957500\nserve_end 1795957800\n"
QUERY: Final = (
    b"model=Qwen%2FQwen2.5-7B-Instruct&concurrency=200&context_tokens=4096&gpus=h100-80,+a100-80"
    b"&slo_ttft_ms=800&precisions=bf16&prompt_tokens=3,072&hours=2"
)
BODY: Final = _of({
    "model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": 200, "context_tokens": 4096,
    "weights": {"slo": 2.0}, "gpus": ["h100-80"], "profile": "balanced", "slo_ttft_ms": 800,
})  # fmt: skip
FITS_BODY: Final = _of({
    "model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "h100-80", "tensor_parallel": 2,
    "max_model_len": 4096, "engine_version": "0.11.2",
})  # fmt: skip
PREDICT_BODY: Final = _of({"rows": [{
    "model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100", "n_gpus": 1, "precision": "bf16",
    "prompt_tokens": 512, "output_tokens": 128, "concurrency": 8,
}]})  # fmt: skip
PROBLEM: Final = _of({
    "type": "urn:omnipilot:problem:unknown-name", "title": "no such name", "status": 422,
    "detail": "no model of that name", "request_id": "1a2b",
})  # fmt: skip
COMMAND_LINES: Final = (
    b"advise\n--concurrency\n200\n--context\n4096\n--weight\nslo=2\n--slo-ttft-ms\n800",
    b"advise\n--model\nQwen/Qwen2.5-7B-Instruct\n--gpus\nh100-80,a100-80\n--format\njson",
    b"collect\nsacct\n--since\n30d\n--until\n2026-11-29T21:31:36\n--overlap-h\n24",
    b"bench\nplan\n--model\nQwen/Qwen2.5-7B-Instruct\n--gpus\nh100-80\n--concurrency\n1,8,64",
    b"serve\n--port\n8080\n--auth\ntoken\n--proxy-peer\n127.0.0.1",
    b"models\npromote\ncurrent",
    b"evaluate\ndecision\n--value-per-token\n2e-7\n--slo\n--split\ncell",
)


def _ledger(home: Path) -> None:
    ledger = Ledger(home)
    with ledger.locked():
        ledger.append("promote", "0123456789ab", {"why": "better", "gain": 0.1}, at_s=NOW_S)


def _log(home: Path) -> None:
    Store.open(home).append([RUN], now_s=NOW_S)


def _digest(home: Path) -> None:
    _log(home)
    Advisor(home, model=StandInModel()).digest(NOW_S)


def _marks(home: Path) -> None:
    (home / "history.jsonl").write_bytes(b"\n")
    Marks(home, home / "history.jsonl").set("sacct", "lab", 0, 10)


def _decision(home: Path) -> None:
    advisor = Advisor(home, model=StandInModel())
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024)
    question = Question(request, gpus=("h100-80",), now_s=NOW_S)
    assert remember(advisor, question, advisor.advise(question))


def _tokens(home: Path) -> None:
    from omnipilot.web.tokens import TokenFile  # noqa: PLC0415 - as the service

    TokenFile(home).add("reader", ("read",), NOW_S)


def _folds(home: Path) -> None:
    import numpy as np  # noqa: PLC0415 - examples only

    KeptFolds(home).save("f", {"a": np.arange(3.0), "b": np.eye(2)})
    from omnipilot.costmodel.array_file import write_arrays  # noqa: PLC0415 - same

    write_arrays(home / "arrays.npz", {"a": np.arange(3.0), "b/c": np.eye(2)})


LEDGER: Final = written(_ledger, "ledger.jsonl")
HISTORY: Final = written(_log, "history.jsonl")
HARVEST: Final = written(_marks, "harvest.json")
DECISIONS: Final = written(_decision, "decisions.jsonl")
DIGEST: Final = written(_digest, "digest.json")
STATE: Final = written(
    lambda home: write_cache(home, ClusterState(NOW_S, read_nodes_json(SLURM["sinfo"]).nodes)),
    "cluster_state.json",
)
TOKENS: Final = written(_tokens, "tokens.json")
LAUNCH: Final = written(lambda home: write_spec(home, SPEC), "launch.json")
PLAN: Final = written(
    lambda home: write_plan(
        home / "plan.json", Plan({"tp": ("1",)}, 1.0, 8, "", (PlannedRun(SPEC, 1.0, 1.0, 0.1),), ())
    ),
    "plan.json",
)
FOLDS, ARRAYS = written(_folds, "f.npz", "arrays.npz")
MANIFEST: Final = _of({
    "schema_version": 1, "until_byte": 0, "last_hash": "", "parts": [],
})  # fmt: skip
ROW_WEIGHTS: Final = _of({"ab" * 16: 1.0, "cd" * 16: 0.25})
BUNDLE: Final = (bundle.base_model_path() / bundle.DOCUMENT).read_bytes()
