"""Out-of-fold answers kept on disk, so that a question asked twice is computed once.

A file is used only where the rows, the question and the code that answered are the same to the
byte; the file holds arrays (npz, no pickle) and the digest that it answers to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.evaluate.digests import code_digest, dataset_digest
from omnipilot.evaluate.holdout import FOLDS_FOLDER, HeldOut, Holdout, hold_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.learn.dataset import Dataset

FOLDER: Final = Path("cache", "holdout")
_DIGEST: Final = "digest"


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
    answer: Callable[[Dataset, Holdout, Callable[[str], None]], HeldOut] | None = None,
) -> HeldOut:
    """Answer as :func:`omnipilot.evaluate.holdout.hold_out`, from the cache where it is there.

    Args:
        dataset: the rows.
        question: what is tested and held out.
        home: the site's folder, whose ``cache/holdout`` keeps the answers; None keeps none.
        progress: told in words what is being done.
        answer: computes what is not kept; :func:`hold_out` with kept folds where None.

    Raises:
        UsageError: as ``hold_out``.
    """
    if answer is None:
        folds = None if home is None else home / FOLDS_FOLDER
        answer = partial(hold_out, cache=folds)
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
    # zipfile, zlib and numpy raise a dozen unrelated kinds on a file that was cut or damaged.
    except Exception:  # noqa: BLE001
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
