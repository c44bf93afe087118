"""Answers of the present snapshot, one after the other and kept while it holds.

What takes long is worked out in a thread, so that the event loop goes on reading and sending.
Advice that takes milliseconds is worked out by the loop itself, between reading and sending: a
thread beside it would take the interpreter from it several times an answer, and it from the thread.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from omnipilot.advisor.answer_data import advice_data
from omnipilot.advisor.kept import Kept
from omnipilot.web.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from omnipilot.advisor import Advice, Question
    from omnipilot.web.access import Access
    from omnipilot.web.journal import Journal
    from omnipilot.web.limits import Limits
    from omnipilot.web.metrics import Metrics
    from omnipilot.web.snapshot import Keeper, Snapshot

__all__ = ["Service", "outcome_of"]

Result = TypeVar("Result")
# Advice answers in milliseconds, the rest may take seconds: a slow one must not hold up the quick.
_WORKERS: Final = {"quick": 1, "slow": 1}
_KEPT_ANSWERS: Final = 128
# The event loop gives advice itself where advice of the same kind took no longer than this: so long
# may everything else have to wait for its turn.
_BRIEF_S: Final = 0.05
_KEPT_TIMES: Final = 256


@dataclass
class Service:
    """What every handler works with.

    Args:
        keeper: of the site.
        access: who may do what.
        limits: what a request may cost.
        metrics: counted in.
        journal: the log.
        clock: Unix seconds.
    """

    keeper: Keeper
    access: Access
    limits: Limits
    metrics: Metrics
    journal: Journal
    clock: Callable[[], float]
    kept: Kept[object] = field(default_factory=lambda: Kept(_KEPT_ANSWERS))
    _pools: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    # A lock is one event loop's; clients of tests bring their own.
    _turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = field(
        default_factory=WeakKeyDictionary
    )
    _took_s: Kept[float] = field(default_factory=lambda: Kept(_KEPT_TIMES))

    async def run(self, work: Callable[..., Result], *args: object, slow: bool = False) -> Result:
        """Do blocking work in a thread.

        Raises:
            ProblemError: it took longer than an answer may.
        """
        pool = self._pool("slow" if slow else "quick")
        future = asyncio.get_running_loop().run_in_executor(pool, work, *args)
        try:
            return await asyncio.wait_for(future, self.limits.answer_s)
        except TimeoutError as error:
            raise self._too_slow() from error

    async def advised(self, snapshot: Snapshot, question: Question, top: int | None) -> bytes:
        """Advice as JSON, in the order of the questions; ``top`` arms of it, all where None.

        Raises:
            ProblemError: it took longer than an answer may.
            OmniPilotError: the question cannot be answered.
        """
        key = _json_key(snapshot, question, top)
        found = self._kept_json(key)
        if found is not None:
            return found
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        kind = (snapshot.loaded_s, top, *_kind(question))
        try:
            async with asyncio.timeout(self.limits.answer_s), turn:
                # The same may have been asked before: a look-up says nothing of what work takes.
                found = self._kept_json(key)
                if found is not None:
                    return found
                took_s = self._took_s.get(kind)
                if took_s is None or took_s > _BRIEF_S:
                    return await self.run(self._timed, kind, snapshot, question, top)
                # What was answered before goes out first, and what was asked meanwhile is read.
                await asyncio.sleep(0)
                return self._timed(kind, snapshot, question, top)
        except TimeoutError as error:
            raise self._too_slow() from error

    def _timed(
        self, kind: Hashable, snapshot: Snapshot, question: Question, top: int | None
    ) -> bytes:
        began_s = time.perf_counter()
        answer = self.advice_json(snapshot, question, top)
        self._took_s.put(kind, time.perf_counter() - began_s)
        return answer

    def _too_slow(self) -> ProblemError:
        return ProblemError(
            "too-slow", f"no answer within {self.limits.answer_s:g} s: ask for less"
        )

    def close(self) -> None:
        """Let the threads go; what they work on is given up."""
        while self._pools:
            self._pools.popitem()[1].shutdown(wait=False, cancel_futures=True)

    def _pool(self, name: str) -> ThreadPoolExecutor:
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(_WORKERS[name], f"omnipilot-{name}")
        return self._pools[name]

    def advice(self, snapshot: Snapshot, question: Question) -> Advice:
        """Advice, kept for the snapshot's life."""
        key = ("advice", snapshot.serial, *_key(question))
        found = self.kept.get(key)
        if found is None:
            found = snapshot.advisor.advise(question)
            self._count(found)
            self.kept.put(key, found)
        else:
            self.metrics.add("omnipilot_answers_cached_total")
        return found  # type: ignore[return-value]

    def advice_json(self, snapshot: Snapshot, question: Question, top: int | None = None) -> bytes:
        """Advice as JSON, kept as such; ``top`` arms of it, all where None."""
        key = _json_key(snapshot, question, top)
        found = self._kept_json(key)
        if found is None:
            advice = snapshot.advisor.advise(question, top=top)
            self._count(advice)
            found = msgspec.json.encode(advice_data(advice))
            self.kept.put(key, found)
        return found

    def _kept_json(self, key: Hashable) -> bytes | None:
        found = self.kept.get(key)
        if found is not None:
            self.metrics.add("omnipilot_answers_cached_total")
        return found  # type: ignore[return-value]

    def _count(self, advice: Advice) -> None:
        outcome, kind = outcome_of(advice)
        self.metrics.add("omnipilot_advice_total", outcome, kind)
        abstention = advice.recommendation.abstention
        for violation in abstention.violations if abstention else ():
            # The axis leads the sentence; the value after it has no bound on its variety.
            axis = next((a for a in _AXES if violation.startswith(a)), "other")
            self.metrics.add("omnipilot_abstention_axes_total", axis)


_AXES: Final = (
    "family", "parameters", "GPU kind", "tensor parallel", "precision", "concurrency", "context",
)  # fmt: skip


def outcome_of(advice: Advice) -> tuple[str, str]:
    """(outcome, GPU kind) of an advice: "recommended", "abstained" or "nothing_fits"."""
    recommendation = advice.recommendation
    abstention = recommendation.abstention
    if abstention is None:
        return "recommended", recommendation.ranked[0].arm.gpu_kind
    if abstention.fallback is None:
        return "nothing_fits", ""
    return "abstained", abstention.fallback.gpu_kind


def _json_key(snapshot: Snapshot, question: Question, top: int | None) -> tuple[Hashable, ...]:
    return ("json", snapshot.serial, top, *_key(question))


def _kind(question: Question) -> tuple[Hashable, ...]:
    """What of a question tells how long its answer takes: all but the load."""
    request = question.request
    return (
        request.model_id, request.engine, request.engine_version, question.gpus,
        question.precisions,
    )  # fmt: skip


def _key(question: Question) -> tuple[Hashable, ...]:
    return (
        question.request, question.gpus, question.precisions, question.profile,
        tuple(sorted(question.weights.items())), question.value_per_token_usd,
        question.electricity_usd_per_kwh, question.wait_cost_usd_per_h,
        question.slo_penalty_usd_per_h,
    )  # fmt: skip
