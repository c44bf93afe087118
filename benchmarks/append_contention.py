"""Many processes append to one log: every row once, none torn, and how long an append takes.

    python benchmarks/append_contention.py                        # 8 processes x 10,000 appends
    python benchmarks/append_contention.py --appends 500 --folder /scratch/bench

Each append is one row, synced to disk before it is told. Half of the rows of each process are also
written by the next one. Exit code 1 where a row is missing, doubled or torn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from omnipilot.domain import InferenceRun
from omnipilot.store import ReadTally, Store


def run(n: int) -> InferenceRun:
    """The n-th row."""
    return InferenceRun(
        source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
        mode="online", status="ok", labels={}, concurrency=float(n),
    )  # fmt: skip


def write(home: Path, first: int, last: int) -> None:
    """Append rows one by one and tell how long each took, in seconds."""
    store = Store.open(home, lock_timeout_s=600.0)
    took_s = []
    for n in range(first, last):
        began_s = time.perf_counter()
        store.append([run(n)], now_s=0.0)
        took_s.append(time.perf_counter() - began_s)
    json.dump(took_s, sys.stdout)


def main() -> int:
    """Run the writers, then count what they left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="a folder on the file system to measure")
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        write(Path(args.write[0]), int(args.write[1]), int(args.write[2]))
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        home, step = Path(folder) / "home", args.appends // 2
        began_s = time.perf_counter()
        writers = [
            subprocess.Popen(
                [sys.executable, __file__, "--write", str(home), str(i * step),
                 str(i * step + args.appends)],
                stdout=subprocess.PIPE,
            )
            for i in range(args.processes)
        ]  # fmt: skip
        took_s = sorted(s for writer in writers for s in json.loads(writer.communicate()[0]))
        wall_s = time.perf_counter() - began_s
        tally = ReadTally()
        found = Counter(
            stored.row.concurrency
            for stored in Store.open(home).rows(tally)
            if isinstance(stored.row, InferenceRun)
        )
    wanted = range((args.processes - 1) * step + args.appends)
    missing = sum(float(n) not in found for n in wanted)
    doubled = sum(n - 1 for n in found.values())
    torn = tally.skipped.total()
    appends = len(took_s)
    print(f"{args.processes} processes x {args.appends:,} appends on {os.cpu_count()} cores")
    print(f"{wall_s:.1f} s, {appends / wall_s:,.0f} appends/s")
    for share in (0.5, 0.99):
        print(f"p{share * 100:.0f} of an append {took_s[int(share * (appends - 1))] * 1e3:.1f} ms")
    print(
        f"{len(found):,} rows of {len(wanted):,}: {missing} missing, {doubled} doubled, {torn} torn"
    )
    return int(bool(missing or doubled or torn or len(found) != len(wanted)))


if __name__ == "__main__":
    sys.exit(main())
