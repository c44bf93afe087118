"""Reported launches and measured start-up memory, as the benchmark compares them."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from omnipilot.catalog.catalog import Catalog

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fits_cases", ROOT / "benchmarks/fits_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fits_cases"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(benchmark: ModuleType, shared_dir: Path) -> list[Any]:
    found: list[Any] = benchmark.launch_cases(
        shared_dir / "cases" / "launch_cases.csv", Catalog.load()
    )
    return found


def test_nine_of_ten_decidable_launches_are_judged_right(
    benchmark: ModuleType, cases: list[Any]
) -> None:
    judged = benchmark.decided(cases)
    assert len(judged) >= 25
    assert sum(case.right for case in judged) >= 0.9 * len(judged)


def test_every_row_that_is_not_asked_says_why(cases: list[Any]) -> None:
    assert all(case.why_not for case in cases if case.verdict is None)


def test_cache_tokens_are_within_10_percent_of_the_printed_ones(
    benchmark: ModuleType, cases: list[Any], shared_dir: Path
) -> None:
    errors = [abs(case.token_error) for case in cases if case.token_error is not None]
    checks = benchmark.token_checks(shared_dir / "cases" / "launch_cases.csv", Catalog.load())
    errors += [abs(ours / printed - 1.0) for _, printed, ours in checks]
    assert len(errors) >= 8
    assert statistics.median(errors) <= 0.10


def test_measured_pools_are_met(benchmark: ModuleType, shared_dir: Path) -> None:
    rows = benchmark.failure_cases(
        shared_dir / "data" / "launch_failures" / "normalised.csv", Catalog.load()
    )
    judged = [case for case, _ in rows if case.verdict is not None]
    assert sum(case.right for case in judged) >= 0.9 * len(judged)
    gaps = [
        abs(case.verdict.kv_gib_per_gpu - measured)
        for case, measured in rows
        if measured is not None and measured > 0 and case.verdict is not None and case.right
    ]
    assert len(gaps) >= 6
    assert statistics.median(gaps) <= 0.1


def test_the_page_lists_every_rule_and_reason_code(benchmark: ModuleType) -> None:
    page = (ROOT / "docs" / "launch-cases.md").read_text(encoding="utf-8")
    assert all(f"| `{code}` |" in page for code in benchmark.REASON_CODES)
    assert all(f"| `{rule.id}` |" in page for rule in benchmark.launch_rules().rules)
