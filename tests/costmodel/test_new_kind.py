"""The parameters of a GPU kind that the model had not seen, from a few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import LLAMA_8B, fitted, made, planted, scenario

from omnipilot.costmodel import new_kind
from omnipilot.costmodel.bundle import load_bundle, save_bundle
from omnipilot.costmodel.deviation import Deviation, class_terms
from omnipilot.costmodel.frame import Frame, build_frame
from omnipilot.costmodel.heads import lead_labels
from omnipilot.costmodel.informed import NewKinds
from omnipilot.costmodel.new_kind import KindErrors, fit_kind, known_kinds, with_kind
from omnipilot.costmodel.physics import PARAMETER_NAMES
from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.physics import Physics

NEW = "b200-180"
TARGET = "output_tokens_per_s"
COMPUTE = PARAMETER_NAMES.index("decode_compute_eff")
NOISE_SD = 0.05


def rows(loads: tuple[float, ...], gpu: str = NEW) -> Frame:
    lengths = ((512.0, 128.0), (128.0, 1024.0))
    return build_frame(
        [
            scenario(LLAMA_8B, gpu, prompt_tokens=i, output_tokens=o, concurrency=c)
            for c in loads
            for i, o in lengths
        ]
    )


def slow_products() -> NDArray[np.float64]:
    """A kind whose small products run at a tenth of the speed that others suggest."""
    offset = np.zeros(len(PARAMETER_NAMES))
    offset[COMPUTE] = np.log(0.1)
    return offset


def off_by(frame: Frame) -> NDArray[np.float64]:
    """Log errors of the prior that knows nothing of that."""
    true = with_kind(planted(), NEW, slow_products())
    return np.asarray(true.evaluate(frame).log[TARGET] - planted().evaluate(frame).log[TARGET])


def left_by(offset: NDArray[np.float64], frame: Frame) -> float:
    """Mean error that an offset leaves."""
    after = with_kind(planted(), NEW, offset).evaluate(frame).log[TARGET]
    moved = after - planted().evaluate(frame).log[TARGET]
    return float(np.abs(off_by(frame) - moved).mean())


def told(frame: Frame, error: NDArray[np.float64]) -> KindErrors:
    deviation = Deviation(
        "gpu_kind", np.asarray([0.5 * t.sd for t in class_terms("gpu_kind")]), (2.0, 2.0), NOISE_SD
    )
    covariance = deviation.joint(frame, planted().evaluate(frame))
    return KindErrors(frame, TARGET, error, covariance, np.full(frame.n, NOISE_SD))


def test_a_speed_that_is_far_off_is_found_and_tells_of_loads_not_seen() -> None:
    seen, asked = rows((1.0, 16.0, 64.0)), rows((32.0, 128.0, 256.0))
    found = fit_kind(planted(), [told(seen, off_by(seen))])
    assert found[COMPUTE] < -0.3
    assert np.abs(off_by(asked)).max() > 1.0
    assert left_by(found, asked) < 0.25 * np.abs(off_by(asked)).mean()


def test_errors_that_are_none_move_nothing() -> None:
    seen = rows((1.0, 16.0, 256.0))
    assert fit_kind(planted(), [told(seen, np.zeros(seen.n))]) == pytest.approx(
        np.zeros(len(PARAMETER_NAMES)), abs=1e-9
    )


def test_software_is_left_alone() -> None:
    seen = rows((1.0, 16.0, 256.0))
    found = fit_kind(planted(), [told(seen, np.full(seen.n, -0.6))])
    assert found[PARAMETER_NAMES.index("step_overhead_s")] == 0.0
    assert np.abs(found).max() > 0.05


def test_of_many_rows_some_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rows((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0))
    asked = rows((96.0, 256.0))
    leads = lead_labels(seen, labels_of(seen))
    sizes: list[int] = []
    joint = Deviation.joint

    def counted(self: Deviation, frame: Frame, physics: Physics) -> NDArray[np.float64]:
        sizes.append(frame.n)
        return joint(self, frame, physics)

    monkeypatch.setattr(Deviation, "joint", counted)
    monkeypatch.setattr(new_kind, "MOST_ROWS", 10)
    some = new_kind.adapted(fitted(), seen, leads, np.ones(seen.n))
    assert sizes == [10]
    assert (
        left_by(some.physics.offsets["gpu_kind"][NEW], asked) < 0.5 * np.abs(off_by(asked)).mean()
    )


def test_kinds_not_known_are_forgotten() -> None:
    parameters = with_kind(planted(), NEW, slow_products())
    assert NEW not in known_kinds(parameters, ["l40s-48"]).offsets["gpu_kind"]
    assert known_kinds(parameters, ["l40s-48", NEW]) is parameters


def test_a_simulated_site_knows_nothing_of_its_kind_beforehand() -> None:
    frame = rows((1.0, 4.0, 16.0, 64.0, 256.0), "l40s-48")
    physics = planted()
    error = off_by(rows((1.0, 4.0, 16.0, 64.0, 256.0)))
    deviation = Deviation(
        "gpu_kind", np.asarray([0.5 * t.sd for t in class_terms("gpu_kind")]), (2.0, 2.0), NOISE_SD
    )
    at = physics.evaluate(frame)
    moved = NewKinds(physics, TARGET).moved(deviation, frame, at, error, 6)
    forgotten = NewKinds(known_kinds(physics, []), TARGET)
    assert moved == pytest.approx(forgotten.moved(deviation, frame, at, error, 6))
    assert np.abs(error - moved)[6:].mean() < np.abs(error)[6:].mean()


def labels_of(frame: Frame) -> dict[str, NDArray[np.float64]]:
    """What a site that is alpha in all but its GPU kind measures."""
    true = with_kind(planted(), NEW, slow_products())
    labels = dict.fromkeys(TARGET_NAMES, np.full(frame.n, np.nan))
    return labels | {TARGET: true.evaluate(frame).log[TARGET]}


def error_of(model: FittedModel, frame: Frame) -> float:
    log = np.log(model.predict(frame).values[TARGET][:, 1])
    return float(np.abs(log - labels_of(frame)[TARGET]).mean())


def test_conditioning_fits_the_parameters_of_new_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked = rows((1.0, 16.0, 64.0)), rows((32.0, 128.0, 256.0))
    model = fitted().condition(seen, labels_of(seen))
    assert model.physics.offsets["gpu_kind"][NEW][COMPUTE] < -0.3
    assert fitted().physics.offsets["gpu_kind"].get(NEW) is None
    monkeypatch.setattr(new_kind, "fit_kind", lambda *_: np.zeros(len(PARAMETER_NAMES)))
    closed_form = fitted().condition(seen, labels_of(seen))
    assert error_of(model, asked) < 0.5 * error_of(closed_form, asked)


def test_rows_given_again_replace_what_was_told_before(tmp_path: Path) -> None:
    first, second = rows((1.0, 256.0)), rows((1.0, 16.0, 64.0))
    once = fitted().condition(second, labels_of(second))
    twice = fitted().condition(first, labels_of(first)).condition(second, labels_of(second))
    asked = rows((32.0, 128.0))
    assert twice.predict(asked).table == pytest.approx(once.predict(asked).table)
    save_bundle(once, tmp_path, {})
    again = load_bundle(tmp_path)[0]
    assert again.predict(asked).table == pytest.approx(once.predict(asked).table, rel=1e-4)


def test_rows_of_known_kinds_leave_the_parameters_alone() -> None:
    model = fitted()
    frame = made().data.frame.take(np.arange(12))
    leads = lead_labels(frame, {t: y[:12] for t, y in made().data.labels.items()})
    assert new_kind.adapted(model, frame, leads, np.ones(12)) is model


def test_a_doubted_row_moves_less() -> None:
    seen = rows((1.0, 16.0, 64.0))
    leads = lead_labels(seen, labels_of(seen))
    sure, doubted = (
        new_kind.adapted(replace(fitted(), local={}), seen, leads, np.full(seen.n, w))
        for w in (1.0, 0.01)
    )
    assert (
        sure.physics.offsets["gpu_kind"][NEW][COMPUTE]
        < doubted.physics.offsets["gpu_kind"][NEW][COMPUTE]
    )
