from __future__ import annotations

import shlex
from typing import Any

from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.evaluate.page import CURVES, QUESTIONS, SHOWN_PROBES, write_page
from omnipilot.evaluate.pilot import PUBLISHED


def errors(**more: Any) -> dict[str, Any]:
    return {"n": 1234, "mape": 0.051, "median_ape": 0.022, "r2_log": 0.99, "coverage": 0.8,
            "mean_log_width": 0.3, **more}  # fmt: skip


def figures() -> dict[str, Any]:
    one = errors(
        groups=9, coverage_group_p25=0.7, constant_log_width=0.4,
        prior_alone={"mape": 0.1}, per_source={"alpha": errors()}, per_band={"3-9B": errors()},
        confidence={"high": errors(), "low": errors(mape=0.4)}, all_rows=errors(n=2047),
    )  # fmt: skip
    curve = {
        "groups": {"alpha": 30},
        "by_probes": [
            errors(probes=k, mean_of_group_median_ape=0.3, mean_of_group_mape=0.4)
            for k in range(max(SHOWN_PROBES) + 1)
        ],
    }
    return {
        "questions": {q.title: one for q in QUESTIONS},
        "curves": {title: {"random": curve, "variance": curve} for title, *_ in CURVES},
        "offsets": [
            {"sized_on": "cells", "tested_on": "models", "coverage": 0.41, "mean_log_width": 0.2}
        ],
    }


def test_every_figure_has_its_goal_and_the_command_that_prints_it() -> None:
    pilot = {"probes": 0, "success_rate": 0.8, "overspend": 0.2, "so_score": 0.8,
             "published_so_score": PUBLISHED}  # fmt: skip
    page = write_page(figures(), [pilot], "## What falls short\n\nNothing was tried.")
    for question in QUESTIONS:
        assert f"| {question.title} | 1,234 | 9 | 5.1% |" in page
        assert question.command in page
    assert "| — every row of the filter | 2,047 |" in page
    assert "| cells | models | 41.0% | 0.20 |" in page
    assert "| 0 | 0.80 | 0.200 | 0.80 |" in page
    assert page.index("Nothing was tried") < page.index("## Commands")


def test_the_commands_ask_what_the_page_was_made_of() -> None:
    for question in QUESTIONS:
        words = shlex.split(question.command)
        said = dict(zip(words[2::2], words[3::2], strict=True))
        assert said["--target"] == question.holdout.target
        assert said["--target"] in TARGET_NAMES
        assert said["--split"] == question.holdout.split
        assert said.get("--source", "all") == ",".join(question.holdout.sources)
        assert said.get("--engine", "") == question.holdout.engine
        assert said.get("--vendor", "") == question.holdout.vendor
