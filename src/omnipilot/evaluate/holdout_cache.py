"""Out-of-fold answers kept on disk, so that a question asked twice is computed once.

A file is used only where the rows, the question and the code that answered are the same to the
byte; the file holds arrays (npz, no pickle) and the digest that it answers to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import omnipilot
from omnipilot.evaluate.holdout import HeldOut, Holdout, hold_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omnipilot.learn.dataset import Dataset

FOLDER: Final = Path("cache", "holdout")
_DIGEST: Final = "digest"
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


def question_digest(dataset: Dataset, question: Holdout) -> str:
    """SHA-256 of rows, question and code: equal digests mean equal answers."""
    asked = repr(sorted(asdict(question).items()))
    text = "\n".join((dataset_digest(dataset), asked, code_digest()))
    return hashlib.sha256(text.encode()).hexdigest()


def held_out(
    dataset: Dataset,
    question: Holdout,
    home: Path | None,
    progress: Callable[[str], None] = lambda _: None,
    answer: Callable[[Dataset, Holdout, Callable[[str], None]], HeldOut] = hold_out,
) -> HeldOut:
    """Answer as :func:`omnipilot.evaluate.holdout.hold_out`, from the cache where it is there.

    Args:
        dataset: the rows.
        question: what is tested and held out.
        home: the site's folder, whose ``cache/holdout`` keeps the answers; None keeps none.
        progress: told in words what is being done.
        answer: computes what is not kept.

    Raises:
        UsageError: as ``hold_out``.
    """
    if home is None:
        return answer(dataset, question, progress)
    digest = question_digest(dataset, question)
    path = _path(home, digest)
    kept = _read(path, digest)
    if kept is not None:
        progress(f"{question.target}, {question.split} held out: kept from an earlier run")
        return kept
    held = answer(dataset, question, progress)
    _write(path, held, digest)
    return held


def is_kept(dataset: Dataset, question: Holdout, home: Path | None) -> bool:
    """Tell whether the cache has an answer to a question."""
    if home is None:
        return False
    digest = question_digest(dataset, question)
    return _read(_path(home, digest), digest) is not None


def _path(home: Path, digest: str) -> Path:
    return home / FOLDER / f"{digest[:32]}.npz"


def _read(path: Path, digest: str) -> HeldOut | None:
    """Give a kept answer; None where there is none, or it is damaged or answers something else."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if str(file[_DIGEST]) != digest:
                return None
            values: dict[str, Any] = {
                f.name: file[f.name].item() if file[f.name].ndim == 0 else file[f.name]
                for f in fields(HeldOut)
            }
            return HeldOut(**values)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, held: HeldOut, digest: str) -> None:
    """Keep an answer; a folder that cannot be written keeps nothing."""
    values = {f.name: np.asarray(getattr(held, f.name)) for f in fields(HeldOut)}
    if any(value.dtype == object for value in values.values()):
        return
    partial = path.with_suffix(f".{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, **{_DIGEST: np.asarray(digest)}, **values)  # type: ignore[arg-type]
        partial.replace(path)
