"""The memory of a process that answers for weeks."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from omnipilot.web.memory import settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collector() -> Iterator[None]:
    before, switch_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    sys.setswitchinterval(switch_s)


@pytest.mark.usefixtures("collector")
def test_what_is_loaded_is_left_out_of_garbage_collection() -> None:
    loaded = gc.get_freeze_count()
    settle_memory()
    assert gc.get_freeze_count() > loaded + 10_000
    assert gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    settle_memory()
