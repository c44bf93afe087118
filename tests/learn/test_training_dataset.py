"""Measured rows as a training set: what is kept and what is left out, counted."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.catalog.catalog import Catalog
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import InferenceRun
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.learn.dataset import Excluded, build_dataset, read_runs
from omnipilot.store import cell_of

if TYPE_CHECKING:
    from pathlib import Path

CATALOG = Catalog.load()
OK = InferenceRun(
    source="alpha", model="meta-llama/Llama-3.1-8B-Instruct", engine="vllm", gpu="H100",
    gpu_memory_gb=80.0, n_gpus=1, precision="bf16", mode="online", status="ok",
    labels={"output_tokens_per_s": 1000.0, "ttft_p50_s": 0.1},
    prompt_tokens=512.0, output_tokens=128.0, concurrency=16.0,
)  # fmt: skip
IMPOSSIBLE = replace(OK, source="beta", labels={"output_tokens_per_s": 1e9})


def test_every_reason_for_leaving_a_row_out_is_counted() -> None:
    dataset = build_dataset(
        [
            OK,
            replace(OK, concurrency=32.0),
            OK,  # an exact repeat
            OK,
            replace(OK, status="oom"),
            replace(OK, model="nobody/nothing-7b"),
            replace(OK, gpu="A100", gpu_memory_gb=0.0),  # 40 or 80 GB
            replace(OK, labels={}),
            Rejection(7, "not a number", "number"),
            IMPOSSIBLE,
            replace(OK, labels={"ttft_p50_s": 0.1}),  # told already, with more labels
            replace(OK, concurrency=32.0, labels={"output_tokens_per_s": 990.0}),  # measured again
            replace(OK, notes="prefill/decode disaggregated workers"),
            replace(OK, concurrency=64.0, labels={"ttft_p50_s": 1e-4}),  # s told in ms
        ],
        CATALOG,
    )
    assert dataset.excluded == Excluded(
        not_ok=1, duplicate=3, unresolved=2, rejected=1, physically_impossible=1, no_label=1,
        several_engines=1, contradictory=1,
    )  # fmt: skip
    assert dataset.excluded.total == 11
    assert dataset.excluded.total + len(dataset.runs) == 14
    assert [run.concurrency for run in dataset.runs] == [16.0, 32.0, 32.0]


def test_one_measurement_under_two_names_of_an_architecture_counts_once() -> None:
    r1 = replace(OK, model="deepseek-ai/DeepSeek-R1", gpu="B200", gpu_memory_gb=0.0, n_gpus=8)
    v3 = replace(r1, model="deepseek-ai/DeepSeek-V3")
    again = replace(v3, labels={"output_tokens_per_s": 990.0})
    dataset = build_dataset([r1, v3, again], CATALOG)
    assert [run.model for run in dataset.runs] == [r1.model, v3.model]
    assert dataset.excluded.duplicate == 1


@pytest.mark.parametrize(
    ("source", "gpu", "told", "meant"),
    [
        ("inferencex_silicon", "B200", 64, 8),
        ("inferencex_silicon", "H100", 16, 4),
        ("inferencex_silicon", "B200", 8, 8),
        ("inferencex_silicon", "GB200", 64, 64),  # a rack of 72
        ("site", "B200", 64, 64),
    ],
)
def test_counts_that_a_source_writes_squared_are_the_gpus_themselves(
    source: str, gpu: str, told: int, meant: int
) -> None:
    run = replace(OK, source=source, gpu=gpu, gpu_memory_gb=0.0, n_gpus=told)
    dataset = build_dataset([run], CATALOG)
    assert [r.n_gpus for r in dataset.runs] == [meant]
    assert dataset.data.frame["n_gpus"].tolist() == [meant]


def test_the_total_counts_every_reason() -> None:
    n = len(fields(Excluded))
    assert Excluded(*range(1, n + 1)).total == n * (n + 1) // 2


def test_impossible_rows_are_told_by_source() -> None:
    dataset = build_dataset([OK, IMPOSSIBLE, replace(IMPOSSIBLE, concurrency=2.0)], CATALOG)
    assert dataset.screened_by_source == {"beta": 2}
    assert {run.source for run in dataset.runs} == {"alpha"}


def test_rows_stay_beside_the_runs_they_come_from() -> None:
    runs = [
        replace(OK, concurrency=float(c), labels={"output_tokens_per_s": 100.0 + c})
        for c in (1, 2, 4, 8)
    ]
    dataset = build_dataset([runs[0], IMPOSSIBLE, *runs[1:]], CATALOG)
    data = dataset.data
    assert data.frame.n == len(dataset.runs) == 4
    assert data.frame["concurrency"].tolist() == [1.0, 2.0, 4.0, 8.0]
    assert np.exp(data.labels["output_tokens_per_s"]) == pytest.approx([101, 102, 104, 108])
    assert data.cells.tolist() == [
        cell_of(run, "meta-llama/Llama-3.1-8B-Instruct") for run in dataset.runs
    ]
    assert data.weight.tolist() == [1.0] * 4


def test_labels_are_logs_of_every_target_and_missing_ones_are_nan() -> None:
    labels = build_dataset([OK], CATALOG).data.labels
    assert set(labels) == set(TARGET_NAMES)
    assert labels["output_tokens_per_s"][0] == pytest.approx(np.log(1000.0))
    assert labels["ttft_p50_s"][0] == pytest.approx(np.log(0.1))
    assert np.isnan(labels["power_mean_w"][0])


def test_a_label_of_zero_is_no_label() -> None:
    dataset = build_dataset(
        [replace(OK, labels={"output_tokens_per_s": 0.0, "ttft_p50_s": 0.1})], CATALOG
    )
    assert np.isnan(dataset.data.labels["output_tokens_per_s"][0])
    assert np.isfinite(dataset.data.labels["ttft_p50_s"][0])


def test_a_run_that_lost_requests_to_memory_still_counts() -> None:
    dataset = build_dataset([replace(OK, status="ok_some_oom")], CATALOG)
    assert len(dataset.runs) == 1


def test_repeats_that_differ_in_a_label_are_both_kept() -> None:
    dataset = build_dataset([OK, replace(OK, labels={"output_tokens_per_s": 1001.0})], CATALOG)
    assert dataset.excluded.duplicate == 0
    assert dataset.data.frame.n == 2
    assert len(set(dataset.data.cells.tolist())) == 1


@pytest.mark.parametrize("items", [[], [replace(OK, status="oom")], [Rejection(1, "bad", "bad")]])
def test_nothing_usable_is_one_clear_line(items: list[InferenceRun | Rejection]) -> None:
    with pytest.raises(BadInputError, match="no usable measured row"):
        build_dataset(items, CATALOG)


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=tmp_path.name):
        read_runs(tmp_path)


SHARED_COLUMNS = "source,model,engine,gpu,gpu_mem_gb,n_gpus,precision,isl,osl,concurrency,status"


def table(path: Path, source: str, *, config: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    row = f"{source},{OK.model},vllm,H100,80,1,bf16,512,128,16,ok"
    header = f"{SHARED_COLUMNS},out_tok_s" + (",config" if config else "")
    path.write_text(f"{header}\n{row},900" + (f",{config}" if config else "") + "\n")


def sources_of(folder: Path) -> list[tuple[str, str]]:
    rows = [row for row in read_runs(folder) if isinstance(row, InferenceRun)]
    return [(row.source, row.engine_settings) for row in rows]


def test_rows_of_a_source_with_a_table_of_its_own_are_read_from_there(tmp_path: Path) -> None:
    combined = tmp_path / "combined/serving_rows.csv"
    table(combined, "alpha")
    lines = combined.read_text().splitlines()
    beta = lines[1].replace("alpha", "beta")
    combined.write_text("\n".join([*lines, beta, lines[1], beta]) + "\n")
    assert sources_of(tmp_path) == [("alpha", ""), ("beta", ""), ("alpha", ""), ("beta", "")]
    # The stack of all sources has only the columns that they share.
    table(tmp_path / "beta/normalised.csv", "beta", config="mns=512")
    table(tmp_path / "gamma/normalised.csv", "gamma")  # not in the stack: not wanted
    assert sources_of(tmp_path) == [("alpha", ""), ("beta", "mns=512"), ("alpha", "")]
    # Without a stack every table is read once, as it is.
    combined.unlink()
    table(tmp_path / "alpha/normalised.csv", "beta")
    assert sources_of(tmp_path) == [("beta", ""), ("beta", "mns=512"), ("gamma", "")]
    (one,) = read_runs(tmp_path / "beta")
    assert isinstance(one, InferenceRun)
    assert one.engine_settings == "mns=512"


def test_one_measurement_under_two_spellings_of_its_settings_counts_once() -> None:
    again = replace(OK, engine_settings="8xH100")
    other = replace(again, labels={"output_tokens_per_s": 990.0})
    dataset = build_dataset([OK, again, other], CATALOG)
    assert dataset.excluded.duplicate == 1
    assert dataset.data.frame.category("settings").tolist() == ["", "8xH100"]


def test_the_public_rows_say_how_their_gpus_share_a_layer(shared_dir: Path) -> None:
    frame = build_dataset(read_runs(shared_dir / "data"), CATALOG).data.frame
    source, ways = frame.category("source"), frame.category("parallelism")
    assert set(ways[source == "inferencex_silicon"]) == {
        "tp", "tp+ep", "attention-dp", "attention-dp+ep",
    }  # fmt: skip
    assert set(ways[source == "llm_inference_bench"]) == {"tp"}
    assert len(set(frame.category("settings")[source == "dstack_benchmarks"])) > 10
    arrivals = (frame.category("mode") == "poisson") & (source == "dstack_benchmarks")
    assert set(frame["concurrency"][arrivals]) == {256.0, 512.0, 1000.0}


def test_the_public_rows_resolve_and_few_are_impossible(shared_dir: Path) -> None:
    dataset = build_dataset(read_runs(shared_dir / "data"), CATALOG)
    assert dataset.data.frame.n > 8000
    assert dataset.excluded.unresolved == 0
    assert dataset.excluded.physically_impossible < 0.01 * dataset.data.frame.n
    assert dataset.excluded.contradictory == 0
