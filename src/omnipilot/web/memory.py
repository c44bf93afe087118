"""Memory of a process that answers for weeks: it keeps what it needs again at every answer."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

__all__ = ["settle_memory"]

# glibc, malloc.h: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD. By default an array of some 100 KiB is
# given back to the kernel when it is freed, and faulted in page by page at the next answer.
_KEPT_BYTES: Final = ((-1, 64 * 2**20), (-3, 32 * 2**20))
# Objects between two looks for cycles. An answer makes some thousands, and no cycle.
_OBJECTS: Final = 20_000
# How long the thread that answers may keep the one that reads and sends waiting; Python's own 5 ms
# are most of an answer, and a request passes several such waits.
_SWITCH_S: Final = 0.001


def settle_memory() -> None:
    """Keep freed memory at hand, and leave what is loaded by now out of every garbage collection.

    Call it once everything is loaded, before workers are forked: what is left alone stays shared.
    Another C library than glibc is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _KEPT_BYTES:
            mallopt(parameter, value)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 10, 10)
    sys.setswitchinterval(_SWITCH_S)
