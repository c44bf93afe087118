"""One thread for linear algebra, so that a fit gives the same bits on any number of cores."""

from __future__ import annotations

import os

_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def single_threaded_algebra() -> None:
    """Ask the BLAS for one thread; call it before NumPy is imported.

    Sums split among threads round differently, and a fit's digest must not depend on the number of
    cores.
    """
    for name in _VARIABLES:
        os.environ[name] = "1"
