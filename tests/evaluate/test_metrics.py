import numpy as np
import pytest

from omnipilot.evaluate.metrics import errors


def test_errors_of_round_numbers() -> None:
    y = np.log(np.array([100.0, 200.0, 400.0]))
    predicted = np.array([110.0, 180.0, 400.0])  # off by 10 %, 10 % and 0 %
    log = np.log(np.stack([predicted * f for f in (0.95, 1.0, 1.05, 0.92, 1.08)], axis=1))
    e = errors(y, log)
    assert e.n == 3
    assert e.mape == pytest.approx(0.2 / 3)
    assert e.median_ape == pytest.approx(0.1)
    # 110·0.92 = 101.2 > 100 and 180·1.08 = 194.4 < 200: only the third lies inside.
    assert e.coverage == pytest.approx(1 / 3)
    assert e.mean_log_width == pytest.approx(np.log(1.08 / 0.92))


def test_a_perfect_answer_explains_everything() -> None:
    y = np.log(np.array([1.0, 10.0, 100.0]))
    e = errors(y, np.repeat(y[:, None], 5, axis=1))
    assert (e.mape, e.r2_log, e.coverage) == (0.0, 1.0, 1.0)


def test_the_mean_as_answer_explains_nothing() -> None:
    y = np.log(np.array([1.0, 10.0, 100.0]))
    log = np.full((3, 5), y.mean())
    assert errors(y, log).r2_log == pytest.approx(0.0)
