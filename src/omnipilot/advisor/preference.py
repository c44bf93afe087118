"""The use case "evaluate preference": an operator's stated choices, read and put to the model."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.advisor.question import Question
from omnipilot.domain import BadInputError, ServingRequest
from omnipilot.domain.errors import AmbiguousNameError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.preference import Choice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice

_NEEDED: Final = ("model", "concurrency", "context", "gpu", "n_gpus")
_KNOWN: Final = (*_NEEDED, "precision", "prompt_tokens", "output_tokens")
_MOST: Final = 100_000_000
_VALUE: Final = 1e-7  # any value above 0: the lines do not depend on it


@dataclass(frozen=True, slots=True)
class Anchor:
    """One stated choice: the request, and the arm in the operator's words.

    ``kinds`` are all GPU kinds that the words may mean; ``precision`` is "" for any.
    """

    request: ServingRequest
    kinds: tuple[str, ...]
    n_gpus: int
    precision: str

    @property
    def label(self) -> str:
        """Short form for tables."""
        arm = f"{self.n_gpus}x {'/'.join(self.kinds)}"
        return f"{self.request.model_id} → {arm} {self.precision}".rstrip()


def read_anchors(advisor: Advisor, path: Path) -> list[Anchor]:
    """Read a CSV file of stated choices.

    Columns: model, concurrency, context, gpu, n_gpus; precision, prompt_tokens and output_tokens
    may be left out. A GPU that several kinds answer to (``A100``) means any of them.

    Raises:
        BadInputError: no such file or column, or a value that cannot be read; names the line.
        UnknownNameError: a GPU or precision without a catalogue entry.
    """
    try:
        reader = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"{path}: cannot be read: {error}") from error
    names = [name.strip() for name in reader.fieldnames or ()]
    for name in _NEEDED:
        if name not in names:
            raise BadInputError(f"{path}: no column '{name}': needed are {', '.join(_NEEDED)}")
    for name in names:
        if name not in _KNOWN:
            raise BadInputError(f"{path}: unknown column '{name}': known are {', '.join(_KNOWN)}")
    anchors = []
    for line, row in enumerate(rows, start=2):
        values = {(k or "").strip(): str(v or "").strip() for k, v in row.items()}
        if any(values.values()):
            anchors.append(_anchor(advisor, values, f"{path}, line {line}"))
    if not anchors:
        raise BadInputError(f"{path} states no choice")
    return anchors


def _anchor(advisor: Advisor, row: Mapping[str, str], where: str) -> Anchor:
    context = _count(row, "context", where)
    lengths = [
        _count(row, name, where) if row.get(name) else None
        for name in ("prompt_tokens", "output_tokens")
    ]
    prompt, output = ServingRequest.with_lengths(context, *lengths)
    try:
        kinds: tuple[str, ...] = (advisor.catalog.gpu(row["gpu"]).kind,)
    except AmbiguousNameError as error:
        kinds = error.candidates
    precision = row.get("precision", "")
    return Anchor(
        request=ServingRequest(
            model_id=row["model"], concurrency=_count(row, "concurrency", where),
            context_tokens=context, prompt_tokens=prompt, output_tokens=output,
        ),
        kinds=kinds,
        n_gpus=_count(row, "n_gpus", where),
        precision=advisor.catalog.precision(precision).name if precision else "",
    )  # fmt: skip


def _count(row: Mapping[str, str], name: str, where: str) -> int:
    try:
        value = int(row[name])
    except ValueError as error:
        raise BadInputError(f"{where}: {name} must be a whole number, got '{row[name]}'") from error
    if not 1 <= value <= _MOST:
        raise BadInputError(f"{where}: {name} must be from 1 to {_MOST:,}")
    return value


def choice_of(advisor: Advisor, anchor: Anchor, now_s: float) -> Choice:
    """Put one stated choice to the cost model, with the cluster left out of it.

    The arms are those of an advice that are inside what was measured, all of them where none is.

    Raises:
        UsageError: an unknown model.
        BundleError: no usable cost model.
    """
    advice = advisor.advise(
        Question(anchor.request, value_per_token_usd=_VALUE, now_s=now_s, ask_starts=False)
    )
    return _lines(advice, anchor)


def _lines(advice: Advice, anchor: Anchor) -> Choice:
    ranked = advice.recommendation.ranked
    arms = [a for a in ranked if a.support.supported] or list(ranked)
    if not arms:
        raise BadInputError(f"{anchor.label}: no arm of this site starts for that request")
    earned = np.array([a.utility.serving_value_usd - a.utility.kv_saturation_usd for a in arms])
    total = np.array([a.utility.total_usd for a in arms])
    hours = advice.economics.duration_h
    chosen = np.array(
        [
            a.arm.gpu_kind in anchor.kinds
            and a.arm.tensor_parallel == anchor.n_gpus
            and advice.model.named(anchor.precision) in ("", a.arm.precision)
            for a in arms
        ]
    )
    return Choice(
        label=anchor.label,
        arms=tuple(a.arm.label for a in arms),
        slope=earned / (_VALUE * hours),
        cost_usd_per_h=(earned - total) / hours,
        chosen=chosen,
    )
