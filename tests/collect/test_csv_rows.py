"""Rows of the normalised columns."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect import (
    COLLECTOR_BY_NAME,
    QUESTIONS,
    collect_csv,
    find_tables,
    unread_columns,
)
from omnipilot.collect.columns import (
    MODE_OF_SCENARIO,
    MODE_OF_SOURCE,
    MODE_OF_TEXT,
    NUMBER_COLUMNS,
)
from omnipilot.domain import TARGETS, BadInputError, InferenceRun
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.scenario import MODES

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {
    "source": "site", "model": "Qwen/Qwen2.5-7B", "engine": "vllm", "engine_version": "0.11.1",
    "gpu": "H100", "gpu_mem_gb": "80", "n_gpus": "2", "precision": "fp8", "kv_dtype": "",
    "max_model_len": "8192", "isl": "1024", "osl": "128", "concurrency": "64", "status": "ok",
    "agg_tok_s": "9000", "out_tok_s": "1000", "req_s": "8", "ttft_p50_ms": "250",
    "tpot_p50_ms": "20", "kv_usage_peak": "0.4", "power_avg_w": "900", "mode": "online_closed",
    "workload": "", "notes": "",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str], columns: list[str] | None = None) -> Path:
    columns = columns or list(GOOD)
    lines = [",".join(columns), *(",".join(row.get(c, "") for c in columns) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def one(tmp_path: Path, **changes: str) -> InferenceRun | Rejection:
    row = GOOD | changes
    (item,) = collect_csv(write(tmp_path / "rows.csv", row, columns=list(row)))
    return item


def test_labels_come_in_the_targets_units(tmp_path: Path) -> None:
    run = one(tmp_path)
    assert isinstance(run, InferenceRun)
    assert run.labels == {
        "aggregate_tokens_per_s": 9000.0,
        "output_tokens_per_s": 1000.0,
        "request_per_s": 8.0,
        "ttft_p50_s": 0.25,
        "tpot_p50_s": 0.02,
        "kv_cache_peak_frac": 0.4,
        "power_mean_w": 900.0,
    }
    assert (run.n_gpus, run.prompt_tokens, run.mode, run.max_model_len) == (2, 1024, "online", 8192)
    assert run.stack.engine_version == "0.11.1"


def test_a_label_may_stand_under_its_target_s_name_and_in_its_unit(tmp_path: Path) -> None:
    row = {k: v for k, v in GOOD.items() if k not in {"out_tok_s", "ttft_p50_ms", "power_avg_w"}}
    row |= {"output_tokens_per_s": "1000", "ttft_p50_s": "0.25", "power_mean_w": "900"}
    path = write(tmp_path / "rows.csv", row, columns=list(row))
    assert list(collect_csv(path)) == [one(tmp_path)]
    row["ttft_p50_s"] = "2e6"
    (item,) = collect_csv(write(tmp_path / "rows.csv", row, columns=list(row)))
    assert isinstance(item, Rejection)
    assert item.reason == "ttft_p50_s 2e6 is outside 0 to 1e+06"


def test_a_label_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="ttft_p50_ms and ttft_p50_s, which are the same label"):
        one(tmp_path, ttft_p50_s="0.25")


def test_every_target_has_a_bounded_column_and_every_mode_word_a_mode() -> None:
    assert {target.column for target in TARGETS} <= NUMBER_COLUMNS.keys()
    words = [*MODE_OF_TEXT.values(), *MODE_OF_SOURCE.values(), *MODE_OF_SCENARIO.values()]
    assert set(words) == set(MODES)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"n_gpus": "nan"}, "not finite"),
        ({"ttft_p50_ms": "inf"}, "not finite"),
        ({"agg_tok_s": "-1"}, "out of range"),
        ({"concurrency": "-64"}, "out of range"),
        ({"isl": "1e300"}, "out of range"),
        ({"n_gpus": "0"}, "out of range"),
        ({"n_gpus": "1.5"}, "not whole"),
        ({"n_gpus": ""}, "n_gpus blank"),
        ({"kv_usage_peak": "85"}, "out of range"),
        ({"out_tok_s": "0"}, "out of range"),
        ({"osl": "many"}, "not a number"),
        ({"osl": "1_000"}, "not a number"),
        ({"osl": "١٢"}, "not a number"),
        ({"model": ""}, "model blank"),
        ({"gpu": "  "}, "gpu blank"),
        ({"source": ""}, "source blank"),
        ({"status": ""}, "status blank"),
        ({"status": "fine"}, "unknown status"),
        ({"mode": "turbo"}, "unknown mode"),
        ({"model": "m" * 600}, "text too long"),
        ({"model": "a\x1b[31mb"}, "control characters"),
        ({"notes": "x,y"}, "too many fields"),
        (dict.fromkeys(GOOD, ""), "blank row"),
        ({name: name for name in GOOD}, "repeated header"),
    ],
)
def test_a_bad_value_is_rejected_with_line_and_reason(
    tmp_path: Path, changes: dict[str, str], code: str
) -> None:
    item = one(tmp_path, **changes)
    assert isinstance(item, Rejection)
    assert (item.line, item.code) == (2, code)
    assert item.reason.isprintable()


def test_a_reason_names_the_column_and_the_value(tmp_path: Path) -> None:
    item = one(tmp_path, ttft_p50_ms="soon")
    assert isinstance(item, Rejection)
    assert item.reason == "ttft_p50_ms 'soon' is not a number"


def test_a_row_cut_short_is_rejected_and_the_rows_before_it_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", GOOD, GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    first, second = collect_csv(path)
    assert isinstance(first, InferenceRun)
    assert isinstance(second, Rejection)
    assert second.code == "too few fields"


def test_failed_runs_are_kept_as_failure_labels(tmp_path: Path) -> None:
    run = one(tmp_path, status="OOM", out_tok_s="0", req_s="0")
    assert isinstance(run, InferenceRun)
    assert run.status == "oom"
    assert "output_tokens_per_s" not in run.labels


def test_columns_of_other_names_are_ignored_and_task_stands_for_workload(tmp_path: Path) -> None:
    run = one(tmp_path, task="gpqa", perplexity="nan", tp="x")
    assert isinstance(run, InferenceRun)
    assert run.workload == "gpqa"
    assert unread_columns(tmp_path / "rows.csv") == ("perplexity", "tp")


@pytest.mark.parametrize("word", sorted(MODE_OF_TEXT))
def test_a_mode_word_is_read_as_its_mode(tmp_path: Path, word: str) -> None:
    run = one(tmp_path, mode=word)
    assert isinstance(run, InferenceRun)
    assert run.mode == MODE_OF_TEXT[word]


@pytest.mark.parametrize(
    ("source", "scenario", "mode"),
    [
        ("llm_inference_bench", "", "static"),
        ("mlenergy_v3", "", "saturated"),
        ("mlperf_inference", "Server", "poisson"),
        ("mlperf_inference", "Offline", "saturated"),
        ("a site of its own", "", "online"),
    ],
)
def test_a_missing_mode_follows_from_scenario_or_source(
    tmp_path: Path, source: str, scenario: str, mode: str
) -> None:
    row = {k: v for k, v in GOOD.items() if k != "mode"} | {"source": source, "scenario": scenario}
    (run,) = collect_csv(write(tmp_path / "r.csv", row, columns=list(row)))
    assert isinstance(run, InferenceRun)
    assert run.mode == mode


@pytest.mark.parametrize(
    ("mode", "concurrency", "rate", "prompts", "in_flight"),
    [
        ("poisson", "", "2", "", 32.0),
        ("poisson", "", "1000", "500", 500.0),
        ("poisson", "8", "2", "500", 8.0),
        ("poisson", "", "", "500", 0.0),
        ("online", "8", "2", "4", 8.0),
    ],
)
def test_open_arrivals_keep_in_flight_what_their_rate_offers(
    tmp_path: Path, mode: str, concurrency: str, rate: str, prompts: str, in_flight: float
) -> None:
    row = GOOD | {
        "mode": mode, "concurrency": concurrency, "request_rate": rate, "num_prompts": prompts,
    }  # fmt: skip
    (run,) = collect_csv(write(tmp_path / "r.csv", row, columns=list(row)))
    assert isinstance(run, InferenceRun)
    assert run.concurrency == in_flight


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    columns = [c for c in GOOD if c not in {"gpu", "status"}]
    with pytest.raises(BadInputError, match=r"lacks the columns gpu, status$"):
        list(collect_csv(write(tmp_path / "r.csv", GOOD, columns=columns)))


def test_other_separators_are_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(";".join(GOOD) + "\n")
    with pytest.raises(BadInputError, match="with commas"):
        list(collect_csv(tmp_path / "r.csv"))


def test_a_column_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="isl more than once"):
        list(collect_csv(write(tmp_path / "r.csv", GOOD, columns=[*GOOD, "isl"])))


@pytest.mark.parametrize("data", [b"\0\1\2\n", b"\x89PNG\r\n\x1a\n", b"\n\n", b"x" * 2_000_000])
def test_a_binary_or_headerless_file_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.csv").write_bytes(data)
    with pytest.raises(BadInputError) as error:
        list(collect_csv(tmp_path / "r.csv"))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_questions_need_no_labels_and_no_status(tmp_path: Path) -> None:
    columns = ["model", "gpu", "n_gpus", "precision", "isl", "osl", "concurrency", "agg_tok_s"]
    path = write(tmp_path / "q.csv", GOOD | {"agg_tok_s": "nan"}, columns=columns)
    (run,) = collect_csv(path, use=QUESTIONS)
    assert isinstance(run, InferenceRun)
    assert (run.labels, run.status, run.source) == ({}, "ok", "")


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({}, (False, False, 1, "")),
        ({"attn_dp": "1", "ep": "1", "moe_ep": "0", "pp": "1"}, (False, False, 1, "")),
        ({"attn_dp": "8", "moe_ep": "8"}, (True, True, 1, "")),
        ({"ep": "4", "pp": "2"}, (False, True, 2, "")),
        ({"parallelism": "tep"}, (False, True, 1, "")),
        ({"parallelism": "dep"}, (True, True, 1, "")),
        ({"parallelism": "tp"}, (False, False, 1, "")),
        ({"notes": "MoE layers with DP for attention"}, (True, False, 1, "")),
        ({"config": " mns=512  mnbt=1024"}, (False, False, 1, "mns=512 mnbt=1024")),
        ({"engine_settings": "a", "config": "b"}, (False, False, 1, "a")),
    ],
)
def test_how_the_gpus_share_a_layer_and_what_the_engine_was_told(
    tmp_path: Path, columns: dict[str, str], wanted: tuple[bool, bool, int, str]
) -> None:
    run = one(tmp_path, **columns)
    assert isinstance(run, InferenceRun)
    told = (run.attention_dp, run.expert_parallel, run.pipeline_parallel, run.engine_settings)
    assert told == wanted


def test_the_prompt_band_of_a_payload_is_a_workload(tmp_path: Path) -> None:
    run = one(tmp_path, payload="1-500")
    assert isinstance(run, InferenceRun)
    assert run.workload == "1-500"


def test_the_csv_collector_is_in_the_table() -> None:
    assert COLLECTOR_BY_NAME["csv"].collect is collect_csv


def test_a_folder_means_its_stacked_table_or_else_its_normalised_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "normalised.csv").touch()
    assert find_tables(tmp_path) == [tmp_path / "a/normalised.csv", tmp_path / "b/normalised.csv"]
    (tmp_path / "combined").mkdir()
    (tmp_path / "combined/serving_rows.csv.gz").touch()
    assert find_tables(tmp_path) == [tmp_path / "combined/serving_rows.csv.gz"]
    assert find_tables(tmp_path / "a/normalised.csv") == [tmp_path / "a/normalised.csv"]
    for nothing in (tmp_path / "none", tmp_path / "a"):
        if nothing.name == "a":
            (nothing / "normalised.csv").unlink()
        with pytest.raises(BadInputError):
            find_tables(nothing)


@given(
    cells=st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(
                st.text(st.characters(codec="utf-8", exclude_characters=',"\r\n\0'), max_size=8),
                st.floats().map(str),
            )
            for name in GOOD
        },
    )
)
def test_whatever_the_cells_hold_a_row_has_only_possible_numbers(
    tmp_path_factory: pytest.TempPathFactory, cells: dict[str, str]
) -> None:
    item = one(tmp_path_factory.mktemp("fuzz"), **cells)
    if isinstance(item, InferenceRun):
        numbers = [*item.labels.values(), item.prompt_tokens, item.concurrency, item.n_gpus]
        assert all(math.isfinite(v) and v >= 0 for v in numbers)
        assert item.n_gpus >= 1
        assert item.mode in MODES


def test_the_combined_public_table_is_read_whole(shared_dir: Path) -> None:
    items = list(collect_csv(shared_dir / "data/combined/serving_rows.csv.gz"))
    runs = [item for item in items if isinstance(item, InferenceRun)]
    assert len(runs) == len(items) == 11_569
    assert Counter(run.mode for run in runs) == {
        "static": 5190, "online": 4697, "saturated": 1522, "lowlat": 106, "poisson": 54,
    }  # fmt: skip


def test_each_public_table_agrees_with_the_combined_one(shared_dir: Path) -> None:
    combined = Counter(
        (run.source, run.mode, run.status)
        for run in collect_csv(shared_dir / "data/combined/serving_rows.csv.gz")
        if isinstance(run, InferenceRun)
    )
    folders = sorted((shared_dir / "data").glob("*/normalised.csv"))
    assert folders
    for path in folders:
        items = list(collect_csv(path))
        runs = [item for item in items if isinstance(item, InferenceRun)]
        assert len(runs) == len(items), path
        alone = Counter((run.source, run.mode, run.status) for run in runs)
        if runs[0].source in {source for source, _, _ in combined}:
            assert alone.items() <= combined.items(), path
