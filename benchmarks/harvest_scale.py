"""How long a harvest of Slurm's accounting and the priors take, by the number of jobs.

Writes accounting text like a university cluster's (seven of eight jobs with a jobstats record),
harvests it into a new site, asks for the priors over the log and over its compacted form, and
prints seconds and peak memory of each command.

    python benchmarks/harvest_scale.py --jobs 500000
    python benchmarks/harvest_scale.py --jobs 5000000 --folder /scratch/bench
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

COLUMNS: Final = (
    "JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "State", "ExitCode", "Submit",
    "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES",
    "ReqTRES", "AdminComment", "JobName",
)  # fmt: skip
END_S: Final = 1_790_000_000
DAY_S: Final = 86_400
# Partition, GPU kind, GPUs a node, GiB of one GPU, weight.
PARTITIONS: Final = (
    ("gpu_a100", "a100", 4, 80, 40), ("gpu_h100", "h100", 8, 80, 25),
    ("gpu_h200", "h200", 8, 141, 10), ("gpu_mig", "3g.40gb", 1, 40, 10), ("cpu", "", 0, 0, 15),
)  # fmt: skip
# State, exit code, who ended it, weight.
STATES: Final = (
    ("COMPLETED", "0:0", 70), ("FAILED", "1:0", 12), ("CANCELLED by {uid}", "0:0", 8),
    ("TIMEOUT", "0:0", 5), ("OUT_OF_MEMORY", "0:125", 3), ("NODE_FAIL", "1:0", 1),
    ("PREEMPTED", "0:0", 1),
)  # fmt: skip
NAMES: Final = ("train", "vllm-qwen", "sweep_{n}", "jupyter", "eval-mmlu", "md_run", "bash")
BLOBS_PER_KIND: Final = 4000


def blobs(rng: random.Random, n_gpus: int, memory_gib: int) -> list[str]:
    """Records as jobstats leaves them, with figures that differ."""
    made = []
    for _ in range(BLOBS_PER_KIND):
        gpus = [str(g) for g in range(n_gpus)]
        total = memory_gib * 2**30
        node = {
            "total_memory": 64 * 2**30,
            "used_memory": rng.randrange(2**30, 64 * 2**30),
            "total_time": round(rng.uniform(10, 1e6), 1),
            "cpus": 8 * max(n_gpus, 1),
            "gpu_total_memory": dict.fromkeys(gpus, total),
            "gpu_used_memory": {g: rng.randrange(total) for g in gpus},
            "gpu_utilization": {g: round(rng.uniform(0, 100), 1) for g in gpus},
        }
        if not n_gpus:
            node = {key: value for key, value in node.items() if not key.startswith("gpu")}
        summary = {"nodes": {f"node{rng.randrange(200)}": node}, "total_time": 3600}
        text = json.dumps(summary, separators=(",", ":")).encode()
        made.append("JS1:" + base64.b64encode(gzip.compress(text, mtime=0)).decode())
    return made


def write_accounting(path: Path, n_jobs: int, seed: int = 4) -> None:
    """Write one file as ``sacct -a -X -D -P`` prints it."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    users = [f"user{n:04d}" for n in range(3000)]
    records = {
        (kind, n): blobs(rng, n, memory)
        for _, kind, most, memory, _ in PARTITIONS
        for n in {0: (0,), 1: (1,), 4: (1, 2, 4), 8: (1, 2, 4, 8)}[most]
    }
    sizes = {kind: [n for k, n in records if k == kind] for kind in {k for k, _ in records}}
    weights = [p[-1] for p in PARTITIONS]
    states = [s[-1] for s in STATES]
    span_s = 300 * DAY_S
    with path.open("w", encoding="utf-8") as stream:
        stream.write("|".join(COLUMNS) + "\n")
        for first in range(0, n_jobs, 10_000):
            n = min(10_000, n_jobs - first)
            picked = zip(
                rng.choices(PARTITIONS, weights, k=n), rng.choices(STATES, states, k=n), strict=True
            )
            for number, ((partition, kind, _, _, _), (state, code, _)) in enumerate(picked, first):
                who = rng.randrange(len(users))
                n_gpus = rng.choice(sizes[kind])
                submit_s = END_S - span_s + span_s * number // n_jobs
                eligible_s = submit_s + (0 if rng.random() < 0.9 else 60)
                start_s = eligible_s + int(rng.expovariate(1 / (600 * (1 + n_gpus))))
                elapsed_s = 1 + int(rng.expovariate(1 / 7200))
                cpus = 8 * max(n_gpus, 1)
                gres = f"gres/gpu:{kind}={n_gpus},gres/gpu={n_gpus}," if n_gpus else ""
                tres = f"billing={cpus},cpu={cpus},{gres}mem={8 * max(n_gpus, 1)}G,node=1"
                draw = rng.random()
                blob = rng.choice(records[kind, n_gpus])
                comment = blob if draw < 0.875 else "JS1:Short" if draw < 0.95 else ""
                job = 1_000_000 + number
                name = NAMES[rng.randrange(len(NAMES))].format(n=number)
                stream.write(
                    f"{job}|{job}|della|{users[who]}|lab{who % 300}|{partition}|"
                    f"{state.format(uid=1000 + who)}|{code}|{submit_s}|{eligible_s}|{start_s}|"
                    f"{start_s + elapsed_s}|{elapsed_s}|1440|1|{cpus}|{tres}|{tres}|{comment}|"
                    f"{name}\n"
                )


def timed(what: str, *arguments: str) -> float:
    """Run one command in a child and print its time and peak memory."""
    begin_s = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "omnipilot", *arguments], dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, usage = os.wait4(pid, 0)
    elapsed_s = time.perf_counter() - begin_s
    if status:
        raise SystemExit(f"{what} failed: omnipilot {' '.join(arguments)}")
    cpu_s = usage.ru_utime + usage.ru_stime
    gib = usage.ru_maxrss / 2**20
    print(f"{what:<28} {elapsed_s:8.2f} s  {cpu_s:8.2f} s CPU  {gib:6.2f} GiB peak", flush=True)
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, nargs="+", default=[500_000])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder if left out")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for n_jobs in options.jobs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            text, home = Path(folder) / "sacct.txt", str(Path(folder) / "home")
            begin_s = time.perf_counter()
            write_accounting(text, n_jobs)
            wrote_s = time.perf_counter() - begin_s
            print(
                f"{n_jobs:,} jobs, {text.stat().st_size / 2**20:,.0f} MiB (made in {wrote_s:.0f} s)"
            )
            harvest = ("collect", "sacct", str(text), "--home", home)
            took_s = timed("harvest", *harvest)
            print(f"  {n_jobs / took_s:,.0f} jobs/s")
            log = Path(home) / "cluster_history.jsonl"
            print(f"  log {log.stat().st_size / 2**20:,.0f} MiB")
            timed("harvest again: all known", *harvest)
            timed("prior over JSONL", "prior", "--home", home, "--format", "json")
            timed("data compact", "data", "compact", "--home", home)
            timed("prior over Parquet", "prior", "--home", home, "--format", "json")


if __name__ == "__main__":
    main()
