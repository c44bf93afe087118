"""Made-up measured rows of round numbers and a cost model that is always right about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.catalog import Catalog
from omnipilot.costmodel.fit import TrainingSet
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.scenario import Scenario
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.evaluate.holdout import HeldOut, Holdout
from omnipilot.learn.dataset import Dataset, Excluded
from omnipilot.store import cell_key

if TYPE_CHECKING:
    from collections.abc import Callable

CATALOG = Catalog.load()
MODELS = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-32B-Instruct")
GPUS = ("a100-80", "h100-80", "gb200-186")
PROMPT, OUTPUT = 512.0, 128.0
OUT, AGG = "output_tokens_per_s", "aggregate_tokens_per_s"


def question(model: str, gpu: str, load: int) -> Scenario:
    return Scenario(
        CATALOG.model(model), CATALOG.gpu(gpu), CATALOG.precision("bf16"), 1, PROMPT, OUTPUT,
        float(load), source="alpha", engine_version="0.11",
    )  # fmt: skip


def made(labelled: tuple[str, ...] = (OUT, AGG), repeats: int = 1) -> Dataset:
    """2 models x 3 kinds x 5 loads: output rates of round numbers, more on newer kinds."""
    scenarios, rates = [], []
    for m, model in enumerate(MODELS):
        for g, gpu in enumerate(GPUS):
            for load in (1, 4, 16, 64, 256):
                for _ in range(repeats):
                    scenarios.append(question(model, gpu, load))
                    rates.append(100.0 * load * (g + 1) / (m + 1))
    frame = build_frame(scenarios)
    labels = {name: np.full(frame.n, np.nan) for name in TARGET_NAMES}
    output = np.log(np.asarray(rates))
    if OUT in labelled:
        labels[OUT] = output
    if AGG in labelled:
        labels[AGG] = output + np.log(5.0)  # (512 + 128) / 128
    cells = np.asarray(
        [
            cell_key(s.model.base_id, s.prompt_tokens, s.output_tokens, s.concurrency, s.mode)
            for s in scenarios
        ]
    )
    data = TrainingSet(frame, labels, cells, np.ones(frame.n))
    return Dataset(data, (), Excluded(0, 0, 0, 0, 0, 0, 0, 0), {})


def right_answers(dataset: Dataset, question: Holdout, _: Callable[[str], None]) -> HeldOut:
    """A cost model that is always right, with an interval of a tenth."""
    index = np.flatnonzero(question.mask(dataset.data))
    y = dataset.data.labels[question.target][index]
    steps = np.array([-0.1, 0.0, 0.1, -0.1, 0.1])
    return HeldOut(index, y, y[:, None] + steps, y, np.full(len(index), "high"), 5)
