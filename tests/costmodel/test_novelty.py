"""Novelty classes."""

from __future__ import annotations

import pytest
from costmodel_builders import dense_model, made, scenario

from omnipilot.costmodel.features import ONE_HOT
from omnipilot.costmodel.frame import CATEGORY_NAMES, build_frame
from omnipilot.costmodel.novelty import CLASS_NAMES, NOVELTY, SEEN, novelty_of, training_levels

LEVELS = training_levels(made().data.frame)
NEW_MODEL = "meta-llama/Llama-3.2-1B-Instruct"  # of a family with rows
NEW_FAMILY = "google/gemma-2-9b-it"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (scenario(), "seen"),
        (scenario(concurrency=3.0, n_gpus=8, engine_version="9.9"), "seen"),
        (scenario(NEW_MODEL), "model"),
        (scenario(NEW_FAMILY), "family"),
        (scenario(gpu="b200-180"), "gpu"),
        (scenario(source="gamma"), "source"),
        (scenario(source=""), "source"),
        (scenario(NEW_FAMILY, gpu="b200-180"), "gpu"),
        (scenario(NEW_FAMILY, gpu="b200-180", source="gamma"), "source"),
    ],
)
def test_a_row_is_in_the_worst_class_that_is_new(question: object, expected: str) -> None:
    frame = build_frame([question])  # type: ignore[list-item]
    assert CLASS_NAMES[novelty_of(frame, LEVELS)[0]] == expected


def test_classes_go_from_worst_to_seen() -> None:
    assert CLASS_NAMES == ("source", "gpu", "family", "model", SEEN)


def test_rows_are_judged_one_by_one() -> None:
    frame = build_frame([scenario(), scenario(source="gamma"), scenario(NEW_MODEL), scenario()])
    names = [CLASS_NAMES[i] for i in novelty_of(frame, LEVELS)]
    assert names == ["seen", "source", "model", "seen"]


def test_training_rows_themselves_are_seen() -> None:
    frame = made().data.frame
    assert {CLASS_NAMES[i] for i in novelty_of(frame, LEVELS)} == {SEEN}


def test_only_levels_with_rows_are_known() -> None:
    frame = made().data.frame
    part = training_levels(frame.take(frame.category("gpu_kind") != "h100-80"))
    assert part["gpu_kind"] == ("a100-80", "l40s-48")
    assert CLASS_NAMES[novelty_of(build_frame([scenario()]), part)[0]] == "gpu"


def test_a_model_by_its_base_is_the_same_model() -> None:
    levels = training_levels(build_frame([scenario(dense_model())]))
    quantised = scenario(dense_model(model_id="round/dense-AWQ"))
    assert CLASS_NAMES[novelty_of(build_frame([quantised]), levels)[0]] == SEEN


def test_every_class_withholds_known_one_hot_categories_its_own_among_them() -> None:
    for entry in NOVELTY:
        assert set(entry.withheld) <= set(ONE_HOT)
        if entry.category:
            assert entry.category in CATEGORY_NAMES
            assert entry.category in entry.withheld
