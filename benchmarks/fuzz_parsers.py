"""Fuzz every parser of foreign text, guided by coverage, for as long as one likes.

    python benchmarks/fuzz_parsers.py --seconds 60                  # each parser for a minute
    python benchmarks/fuzz_parsers.py config.json ledger.jsonl --seconds 3600 --corpus ~/corpus

With atheris (libFuzzer for Python; Python up to 3.13) installed it does the work: half of the
damage is libFuzzer's, half that of ``tests/stand_ins/fuzzing.py``. Without, the loop of
``tests/stand_ins/guided.py`` does. What a parser reaches is kept in the corpus folder, a folder
each, and taken up again; what is wrong lies in its ``faults``. The table of parsers, and what
counts as a fault, is ``tests/stand_ins/parsers.py``. Exit code 1 where a fault was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parsers import Parser

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "stand_ins"))
MOST_BYTES = 20_000


def note(folder: Path, fault: str, data: bytes) -> None:
    """Keep a fault once, with the input that showed it."""
    place = folder / "faults"
    place.mkdir(exist_ok=True)
    # Where it broke tells faults apart; what the message quotes of the input does not.
    name = hashlib.sha256(fault.partition(": ")[0].encode()).hexdigest()[:12]
    if not (place / name).exists():
        (place / name).write_bytes(data)
        (place / f"{name}.txt").write_text(fault + "\n", encoding="utf-8")
        print(f"  fault {name}: {fault}", file=sys.stderr, flush=True)


def with_atheris(name: str, folder: Path, seconds: int) -> None:
    """Let libFuzzer work on one parser; it ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["omnipilot"]):
        from fuzzing import damaged  # noqa: PLC0415 - instrumented
        from parsers import PARSER_BY_NAME, fault_of  # noqa: PLC0415 - same

        parser: Parser = PARSER_BY_NAME[name]
        place = Path(tempfile.mkdtemp(prefix="fuzz-"))
        for seed in parser.seeds:  # what is imported when called is instrumented too
            fault_of(parser, seed, place)

    def one(data: bytes) -> None:
        fault = fault_of(parser, data, place)
        if fault.startswith("took"):
            fault = fault_of(parser, data, place)
        if fault:
            note(folder, fault, data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            return bytes(atheris.Mutate(data, most))
        rng = random.Random(seed)  # noqa: S311 - as libFuzzer says
        return damaged(rng, data or rng.choice(parser.seeds))[0][:most]

    corpus, longest = folder / "corpus", max(MOST_BYTES, *map(len, parser.seeds))
    corpus.mkdir(exist_ok=True)
    for n, seed in enumerate(parser.seeds):
        (corpus / f"seed-{n}").write_bytes(seed)
    options = [
        sys.argv[0], str(corpus), f"-max_total_time={seconds}", f"-max_len={longest}",
        "-print_final_stats=1", "-timeout=60", "-rss_limit_mb=3000", f"-artifact_prefix={folder}/",
    ]  # fmt: skip
    atheris.Setup(options, one, custom_mutator=mutate)
    atheris.Fuzz()


def with_tracing(name: str, folder: Path, seconds: int) -> None:
    """Work on one parser with the interpreter's own tracing."""
    from guided import guided  # noqa: PLC0415 - after the choice
    from parsers import PARSER_BY_NAME  # noqa: PLC0415 - same

    seed, done = 0, 0
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() < until_s:
            rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
            found = guided(PARSER_BY_NAME[name], Path(place), 500, rng)
            seed, done = seed + 1, done + found.inputs
            for fault, data in found.faults.items():
                note(folder, fault, data)
    print(f"stat::number_of_executed_units: {done}", file=sys.stderr)


def main() -> int:
    """Work on each parser in a process of its own, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parsers; all if none")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    has_atheris = importlib.util.find_spec("atheris") is not None
    if args.one:
        (with_atheris if has_atheris else with_tracing)(args.one, args.corpus, args.seconds)
        return 0
    from parsers import PARSERS  # noqa: PLC0415 - of this process only for the names

    print("with atheris" if has_atheris else "atheris is not installed: with tracing")
    inputs = faults = 0
    for name in args.names or [p.name for p in PARSERS]:
        folder = args.corpus / re.sub(r"\W", "_", name)
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--seconds", str(args.seconds),
             "--corpus", str(folder)],
            stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        units = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        covered = re.findall(r"cov: (\d+)", done.stderr)
        told = sorted((folder / "faults").glob("*.txt")) if (folder / "faults").exists() else []
        inputs += int(units[1]) if units else 0
        faults += len(told)
        print(json.dumps({
            "parser": name, "inputs": int(units[1]) if units else None, "faults": len(told),
            "coverage": [int(covered[0]), int(covered[-1])] if covered else None,
            **({} if units else {"ended": done.stderr[-400:]}),
        }), flush=True)  # fmt: skip
        for path in told:
            print(f"    {path.stem}: {path.read_text(encoding='utf-8').strip()[:200]}", flush=True)
    print(f"{inputs:,} inputs, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
