"""The grounds of the advice: how much the site's own evidence counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.cli.freshness_table import emit_freshness
from omnipilot.cli.output import plain
from omnipilot.domain import GpuWindow, ServingRequest
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_795_960_000.0
QUESTION = Question(
    ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024), gpus=("h100-80",),
    now_s=NOW_S,
)  # fmt: skip


@pytest.fixture
def advisor(tmp_path: Path) -> Advisor:
    window = GpuWindow(
        source="dcgm", job_id="12", gpu="NVIDIA H100 80GB HBM3", n_gpus=2,
        labels={"power_mean_w": 378.0, "sm_active_frac": 0.51}, job_labels={},
        serve_start_s=NOW_S - 9000, serve_end_s=NOW_S - 3600,
    )  # fmt: skip
    other = replace(window, gpu="NVIDIA A100-SXM4-40GB", labels={"power_mean_w": 100.0})
    Store.open(tmp_path).append([window, other], now_s=NOW_S)
    return Advisor(tmp_path, model=StandInModel())


def test_telemetry_of_the_best_arm_s_kind_counts_by_its_age(advisor: Advisor) -> None:
    told = {m.metric: m for m in advisor.explain(QUESTION).freshness}
    assert set(told) == {"power", "activity"}
    assert told["power"].value == pytest.approx(189)
    assert (told["power"].rows, told["power"].weight) == (1, 0.5)


def test_without_the_time_nothing_is_weighed(advisor: Advisor) -> None:
    assert advisor.explain(replace(QUESTION, now_s=0.0)).freshness == ()


def test_the_weights_are_shown(advisor: Advisor, capsys: pytest.CaptureFixture[str]) -> None:
    freshness = advisor.explain(QUESTION).freshness
    emit_freshness(freshness)
    line = next(li for li in capsys.readouterr().out.splitlines() if li.startswith("power"))
    assert line.split() == [
        "power", "189", "W", "a", "GPU", "while", "serving", "1", "1", "h", "1", "h", "0.50", "0.5",
    ]  # fmt: skip
    assert json.loads(json.dumps(plain(freshness)))[0]["weight"] == 0.5
    emit_freshness(())
    assert capsys.readouterr().out == ""
