"""How fast a warm advisor answers in process: every question another load, then another length too.

    python benchmarks/advise_speed.py [--questions N]

The gauge is the time of a loop of pure Python: about 0.3 s on a calm core of a present server.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.answer_data import advice_data
from omnipilot.domain import ServingRequest
from omnipilot.web.memory import settle_memory
from service_load import GPUS, MODEL, PRECISIONS, gauge_s

if TYPE_CHECKING:
    from collections.abc import Iterable


def question(concurrency: int, context_tokens: int) -> Question:
    prompt, output = ServingRequest.with_lengths(context_tokens, None, None)
    request = ServingRequest(MODEL, concurrency, context_tokens, prompt, output)
    return Question(request, gpus=GPUS, precisions=PRECISIONS, ask_starts=False)


def ask(advisor: Advisor, questions: Iterable[Question], top: int | None) -> list[float]:
    """Milliseconds of each answer, its JSON included; sorted."""
    times = []
    for asked in questions:
        began = time.perf_counter()
        msgspec.json.encode(advice_data(advisor.advise(asked, top=top)))
        times.append((time.perf_counter() - began) * 1e3)
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--questions", type=int, default=200)
    n = parser.parse_args().questions
    with tempfile.TemporaryDirectory() as folder:
        advisor = Advisor(Path(folder))
        arms = len(advisor.advise(question(8, 4096)).recommendation.ranked)
        settle_memory()
        ask(advisor, [question(8 + i, 4096) for i in range(20)], None)
        loads = [question(1 + i, 4096) for i in range(n)]
        lengths = [question(1 + i, 2048 + 3 * i) for i in range(n)]
        print(f"{arms} arms start; {n} questions each")
        for what, questions, top in (
            ("another load, ten arms told", loads, 10),
            ("another load, all arms told", loads, None),
            ("another load and length, ten arms told", lengths, 10),
        ):
            gauge = gauge_s()
            times = ask(advisor, questions, top)
            p50, p99 = times[n // 2], times[min(int(0.99 * n), n - 1)]
            print(f"{what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms (gauge {gauge:.2f} s)")


if __name__ == "__main__":
    main()
