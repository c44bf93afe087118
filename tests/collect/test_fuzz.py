"""Damaged inputs over every parser.

A few thousand in every run; OMNIPILOT_FUZZ_INPUTS asks for more, OMNIPILOT_FUZZ_SEED for others,
``-s`` prints what became of them, and OMNIPILOT_FUZZ_KEEP names a folder for inputs with faults.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import gzip
import json
import os
import random
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from dcgm_stand_in import answer, page, series, slow_start
from fuzzing import (
    LIMIT_S,
    Base,
    Tally,
    bomb,
    damaged,
    fuzz_one,
    reader,
    rows_of,
    soundness,
)
from sacct_builders import text as sacct_text

from omnipilot.collect import COLLECTORS
from omnipilot.domain import BadInputError, ClusterJob, GpuWindow

INPUTS = int(os.environ.get("OMNIPILOT_FUZZ_INPUTS", "3000"))
SEED = int(os.environ.get("OMNIPILOT_FUZZ_SEED", "20260301"))
KEEP = os.environ.get("OMNIPILOT_FUZZ_KEEP", "")
ONE_BOMB_IN = 500
ONE_COMPRESSED_IN = 12
MOST_MIB = 1024
# Larger captures are tried as well, but seldom: time goes into many inputs rather than long ones.
LARGE_BYTES = 100_000

CSV = (
    "source,engine,model,gpu,n_gpus,precision,isl,osl,concurrency,status,out_tok_s,ttft_p50_ms\n"
    + "".join(
        f"site,vllm,Qwen/Qwen2.5-7B,H100,1,bf16,{512 * n},128,{2**n},ok,{900 + n},{40 + n}\n"
        for n in range(1, 9)
    )
)
ROWS = "\n".join(
    json.dumps({
        "kind": "hardware_probe", "source": "site", "probe": "flop_utilization", "status": "pass",
        "gpu": "h100-80", "n_gpus": 8, "host": f"h100n{n}",
        "labels": {"flops_per_s": 7.1e14 + n, "flop_utilization_frac": 0.7},
    })
    for n in range(6)
)  # fmt: skip
BENCH: dict[str, Any] = {
    "date": "20261129-131700", "backend": "vllm", "model_id": "org/model-7b", "num_prompts": 10,
    "request_rate": "inf", "max_concurrency": 4, "duration": 5.0, "completed": 10, "failed": 0,
    "total_input_tokens": 1000, "total_output_tokens": 500, "request_throughput": 2.0,
    "output_throughput": 100.0, "total_token_throughput": 300.0, "median_ttft_ms": 240.0,
    "mean_ttft_ms": 250.0, "median_tpot_ms": 20.0, "median_itl_ms": 16.0,
}  # fmt: skip
LOG = """\
INFO 11-29 13:00:00 [api_server.py:1] vLLM API server version 0.11.2
INFO 11-29 13:00:01 [core.py:77] Initializing a V1 LLM engine (v0.11.2) with config: \
model='org/model-7b', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2
INFO 11-29 13:00:09 [gpu_model_runner.py:2653] Model loading took 7.1 GiB and 6.5 seconds
INFO 11-29 13:00:12 [kv_cache_utils.py:1229] GPU KV cache size: 204,800 tokens
INFO 11-29 13:00:20 [api_server.py:1] Application startup complete.
"""


def built_in() -> list[Base]:
    readings = {"DCGM_FI_DEV_POWER_USAGE": [100.0, 300.0], "DCGM_FI_DEV_FB_USED": [1e3, 2e3]}
    jobs = [{"JobID": str(100 + n), "JobName": f"run{n}"} for n in range(12)]
    return [
        Base("csv", "csv", CSV.encode()),
        Base("rows", "rows", ROWS.encode()),
        Base("vllm_bench", "bench", "\n".join([json.dumps(BENCH)] * 3).encode()),
        Base("vllm_log", "log", LOG.encode()),
        Base("sacct", "sacct", sacct_text(*jobs).encode()),
        Base("dcgm", "range", answer(*slow_start(0), *slow_start(1), *slow_start(0, "13", "n2"),
                                     series("DCGM_FI_DEV_XID_ERRORS", [0, 79, 79])).encode()),
        Base("dcgm", "page", page(readings).encode()),
    ]  # fmt: skip


def captured(shared: Path) -> list[Base]:
    captures = shared / "captures"
    if not captures.is_dir():
        return []
    wanted = {
        "vllm_log": "vllm-*/*.log", "vllm_metrics": "vllm-*/*.prom", "vllm_bench": "vllm-*/*.json",
        "guidellm": "guidellm/*.json", "sacct": "slurm-*/sacct*", "jobstats": "jobstats/*.txt",
        "dcgm": "prometheus/*dcgm*",
    }  # fmt: skip
    found = [
        Base(name, str(path.relative_to(captures)), path.read_bytes())
        for name, pattern in wanted.items()
        for path in sorted(captures.glob(pattern))
    ]
    return [*found, *(base._replace(collector="vllm") for base in found if "vllm-" in base.name)]


@pytest.fixture(scope="module")
def bases(request: pytest.FixtureRequest) -> list[Base]:
    try:
        shared: Path = request.getfixturevalue("shared_dir")
    except pytest.skip.Exception:
        return built_in()
    return [*built_in(), *captured(shared)]


def test_no_damage_crashes_hangs_or_gives_a_wrong_row(bases: list[Base], tmp_path: Path) -> None:
    rng = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    path = tmp_path / "input"
    sound = {base: rows_of(base, path) for base in bases}
    by_name: dict[str, list[Base]] = {}
    for base in bases:
        by_name.setdefault(base.collector, []).append(base)
    names = sorted(by_name)
    tallies = {name: Tally() for name in names}
    before_mib = _peak_mib()
    for n in range(INPUTS):
        name = names[n % len(names)]
        weights = [0.02 if len(b.data) > LARGE_BYTES else 1.0 for b in by_name[name]]
        (base,) = rng.choices(by_name[name], weights)
        data, places, what = _input(rng, base)
        path.write_bytes(data)
        before = len(tallies[name].faults)
        faulthandler.dump_traceback_later(60, exit=True)
        note = f"input {n} ({base.name}: {what})"
        fuzz_one(name, path, tallies[name], sound=sound[base], places=places, what=note)
        if KEEP and len(tallies[name].faults) > before:
            (Path(KEEP) / f"{name}-{n}").write_bytes(data)
    faulthandler.cancel_dump_traceback_later()
    _print(tallies, _peak_mib() - before_mib)
    faults = [f"{name}: {fault}" for name, tally in tallies.items() for fault in tally.faults]
    assert faults[:20] == []
    assert _peak_mib() - before_mib < MOST_MIB
    for name, tally in tallies.items():
        assert tally.inputs >= INPUTS // len(names)
        assert tally.reasons, f"{name} refused nothing"


def _input(rng: random.Random, base: Base) -> tuple[bytes, int, str]:
    """Give one damaged input, in how many places its text is damaged (0: all of it), and how.

    Damage to the first line, which names the columns, may change every row.
    """
    if rng.randrange(ONE_BOMB_IN) == 0:
        return bomb(rng), 0, "bomb"
    data, places, what = damaged(rng, base.data)
    if data.partition(b"\n")[0] != base.data.partition(b"\n")[0]:
        places = 0
    if rng.randrange(ONE_COMPRESSED_IN) == 0:
        data, what = gzip.compress(data, 1), f"{what}, gzip"
        if rng.randrange(2):
            data, _, more = damaged(rng, data)
            return data, 0, f"{what}, {more}"
    return data, places, what


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _print(tallies: dict[str, Tally], grown_mib: float) -> None:
    print(f"\n{INPUTS} inputs, seed {SEED}, memory grew by {grown_mib:.0f} MiB")  # noqa: T201
    for name, tally in tallies.items():
        refused = sum(tally.reasons.values())
        print(  # noqa: T201
            f"{name}: {tally.inputs} inputs, {tally.rows} rows, {refused} refusals "
            f"({tally.refused_files} whole files), slowest {1000 * tally.slowest_s:.0f} ms, "
            f"{len(tally.faults)} faults"
        )
        print(f"   {dict(tally.reasons.most_common(12))}")  # noqa: T201


def test_a_gzip_bomb_is_refused_by_every_collector(bases: list[Base], tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(b"\n" * (100 * 2**20), 1))
    for name in sorted({base.collector for base in bases}):
        began_s = time.process_time()
        with pytest.raises(BadInputError):
            list(reader(name)(path))
        assert time.process_time() - began_s < LIMIT_S, name


def test_every_collector_has_a_base_here(bases: list[Base], shared_dir: Path) -> None:
    del shared_dir  # without the captures some have none
    assert {base.collector for base in bases} == {entry.name for entry in COLLECTORS}


# The checks themselves must be able to fail.

JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="1", state="COMPLETED", gpu="h100", n_gpus=2,
    start_s=1_795_957_803, end_s=1_795_957_903,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"end_s": 1_795_957_000}, "ends before it begins"),
        ({"end_s": 99}, "end_s is 99"),
        ({"n_gpus": -2}, "n_gpus is -2"),
        ({"gpu": "h1\x1b[31m"}, "gpu is not printable"),
        ({"job_class": "training"}, "job_class is 'training'"),
        ({"user_hash": "alice"}, "user_hash is no hash"),
        ({"gpu_utilization_frac": (1.5,)}, "GPU utilisation out of range"),
    ],
)
def test_an_unsound_row_is_told(changes: dict[str, Any], fault: str) -> None:
    assert soundness(JOB) == []
    assert fault in soundness(dataclasses.replace(JOB, **changes))


def test_unsound_averages_are_told() -> None:
    row = GpuWindow(
        source="dcgm", job_id="1", gpu="", n_gpus=1, labels={"sm_active_frac": 1.5},
        job_labels={"speed": 1.0},
    )  # fmt: skip
    assert soundness(row) == ["sm_active_frac is 1.5", "label speed is unknown"]


def test_rows_that_change_far_from_the_damage_are_told(tmp_path: Path) -> None:
    path = tmp_path / "input"
    base = Base("csv", "csv", CSV.encode())
    sound = rows_of(base, path)
    assert sum(sound.values()) == 8
    path.write_bytes(CSV.replace(",128,", ",256,").encode())
    tally = Tally()
    fuzz_one("csv", path, tally, sound=sound, places=1, what="test")
    assert tally.faults == ["test: 8 rows changed by damage in 1 places"]
