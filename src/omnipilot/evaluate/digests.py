"""Digests of rows and code: equal digests mean equal fits."""

from __future__ import annotations

import contextlib
import hashlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import omnipilot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnipilot.learn.dataset import Dataset

# What a fit depends on besides the rows: the cost model's sources, the folds and the libraries.
_SOURCES: Final = ("costmodel/*.py", "evaluate/holdout.py", "domain/targets.py")
_LIBRARIES: Final = ("numpy", "scipy", "catboost")


def dataset_digest(dataset: Dataset) -> str:
    """SHA-256 of everything of a dataset that a fit reads."""
    digest = hashlib.sha256()
    for name, array in _arrays_of(dataset):
        digest.update(name.encode())
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _arrays_of(dataset: Dataset) -> Iterator[tuple[str, Any]]:
    data = dataset.data
    for name, column in sorted(data.frame.columns.items()):
        yield f"column {name}", column
    for name, codes in sorted(data.frame.codes.items()):
        yield f"codes {name}", codes
        yield f"levels {name}", np.asarray(data.frame.levels[name], dtype=np.str_)
    for name, label in sorted(data.labels.items()):
        yield f"label {name}", label
    yield "cells", data.cells
    yield "weight", data.weight


def code_digest() -> str:
    """SHA-256 of the sources and library versions that an answer depends on."""
    digest = hashlib.sha256()
    root = Path(omnipilot.__file__).parent
    for pattern in _SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            digest.update(f"{library} {metadata.version(library)}".encode())
    return digest.hexdigest()
