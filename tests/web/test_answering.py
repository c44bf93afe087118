"""Questions are answered in turn, the brief ones by the event loop itself."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from omnipilot.advisor import Question
from omnipilot.domain import ServingRequest
from omnipilot.web.answering import Service, _json_key
from omnipilot.web.journal import Journal
from omnipilot.web.limits import Limits
from omnipilot.web.metrics import Metrics
from omnipilot.web.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.web.access import Access
    from omnipilot.web.snapshot import Keeper, Snapshot

SNAPSHOT = cast("Snapshot", SimpleNamespace(loaded_s=1.0, serial=0))


def question(concurrency: int, model: str = "some/model") -> Question:
    return Question(ServingRequest(model, concurrency, 4096, 3072, 1024))


def service(work: Callable[[Question], None], answer_s: float = 30.0) -> Service:
    """A service whose advice is the load, after some work."""

    class Worked(Service):
        def advice_json(self, _: Snapshot, asked: Question, __: int | None = None) -> bytes:
            work(asked)
            return b"%d" % asked.request.concurrency

    return made(Worked, answer_s)


def made(kind: type[Service], answer_s: float = 30.0) -> Service:
    return kind(
        cast("Keeper", None), cast("Access", None), Limits(answer_s=answer_s), Metrics(),
        Journal(None), time.time,
    )  # fmt: skip


def test_who_asked_first_is_answered_first_and_one_at_a_time() -> None:
    order: list[int] = []
    busy: list[bool] = []

    def work(asked: Question) -> None:
        busy.append(True)
        assert len(busy) == 1
        # The later ones would be quicker.
        time.sleep(0.02 / asked.request.concurrency)
        order.append(asked.request.concurrency)
        busy.pop()

    async def test() -> list[bytes]:
        asked = service(work)
        return await asyncio.gather(
            *(asked.advised(SNAPSHOT, question(i), None) for i in range(1, 21))
        )

    assert asyncio.run(test()) == [b"%d" % i for i in range(1, 21)]
    assert order == list(range(1, 21))


def test_an_answer_is_sent_before_the_next_is_worked_out() -> None:
    sent: list[int] = []
    known: list[list[int]] = []

    async def test() -> None:
        asked = service(lambda _: known.append(list(sent)))
        loop = asyncio.get_running_loop()

        async def ask(i: int) -> None:
            await asked.advised(SNAPSHOT, question(i), None)
            # As a transport does that sends what one step writes in one go.
            loop.call_soon(sent.append, i)

        await asyncio.gather(*(ask(i) for i in range(1, 9)))

    asyncio.run(test())
    assert known == [list(range(1, i)) for i in range(1, 9)]


def test_only_what_took_long_the_last_time_is_worked_out_in_a_thread() -> None:
    long_ones = {2, 3}
    by_loop: list[bool] = []

    def work(asked: Question) -> None:
        by_loop.append(threading.current_thread() is threading.main_thread())
        if asked.request.concurrency in long_ones:
            time.sleep(0.08)

    async def test() -> None:
        asked = service(work)
        for i in range(1, 7):
            await asked.advised(SNAPSHOT, question(i), None)
        # Nothing is known yet of another model, nor of an answer of another length.
        await asked.advised(SNAPSHOT, question(1, "another/model"), None)
        await asked.advised(SNAPSHOT, question(1), 10)

    asyncio.run(test())
    assert by_loop == [False, True, False, False, True, True, False, False]


def test_an_answer_from_before_does_not_tell_how_long_one_takes() -> None:
    by_loop: list[bool] = []

    class Keeping(Service):
        """A service that keeps its answers under what was asked."""

        def advice_json(self, kept_by: Snapshot, asked: Question, top: int | None = None) -> bytes:
            by_loop.append(threading.current_thread() is threading.main_thread())
            time.sleep(0.08)
            self.kept.put(_json_key(kept_by, asked, top), b"1")
            return b"1"

    async def test() -> None:
        asked = made(Keeping)
        await asyncio.gather(*(asked.advised(SNAPSHOT, question(1), None) for _ in range(3)))
        await asked.advised(SNAPSHOT, question(2), None)

    asyncio.run(test())
    assert by_loop == [False, False]


def test_the_loop_goes_on_while_a_long_answer_is_worked_out() -> None:
    async def test() -> int:
        asked = service(lambda _: time.sleep(0.2))
        ticks = 0
        task = asyncio.create_task(asked.advised(SNAPSHOT, question(1), None))
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(test()) > 5


def test_a_question_whose_turn_does_not_come_in_time_is_refused_and_the_rest_goes_on() -> None:
    async def test() -> list[bytes | BaseException]:
        asked = service(lambda q: time.sleep(0.5 if q.request.concurrency == 1 else 0), 0.2)
        first = await asyncio.gather(
            *(asked.advised(SNAPSHOT, question(i), None) for i in (1, 2)), return_exceptions=True
        )
        await asyncio.sleep(0.4)
        return [*first, await asked.advised(SNAPSHOT, question(3), None)]

    slow, behind, later = asyncio.run(test())
    assert isinstance(slow, ProblemError)
    assert isinstance(behind, ProblemError)
    assert slow.problem.slug == behind.problem.slug == "too-slow"
    assert later == b"3"


def test_a_refusal_lets_the_next_one_have_its_turn() -> None:
    def work(asked: Question) -> None:
        if asked.request.concurrency == 1:
            raise ValueError("no")

    async def test() -> bytes:
        asked = service(work)
        with pytest.raises(ValueError, match="no"):
            await asked.advised(SNAPSHOT, question(1), None)
        return await asyncio.wait_for(asked.advised(SNAPSHOT, question(2), None), 5)

    assert asyncio.run(test()) == b"2"
