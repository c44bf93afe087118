"""Scenarios as columns: defaults, flags, categories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costmodel_builders import CATALOG, LLAMA_8B, dense_model, scenario
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.costmodel.frame import (
    CATEGORY_NAMES,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MEMORY_UTILIZATION,
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_PROMPT_TOKENS,
    UNLIMITED_CONCURRENCY,
    WORKLOAD_PROMPT_TOKENS,
    build_frame,
    engine_era,
    engine_release,
    kernel_class,
    peak_flops,
)
from omnipilot.domain.scenario import ScenarioGroup


def test_a_missing_prompt_length_takes_the_default_of_its_workload_and_is_flagged() -> None:
    frame = build_frame(
        [
            scenario(prompt_tokens=0.0, workload="image-chat"),
            scenario(prompt_tokens=0.0, workload="never heard of"),
            scenario(prompt_tokens=77.0, workload="image-chat"),
        ]
    )
    assert frame["prompt_tokens"].tolist() == [
        WORKLOAD_PROMPT_TOKENS["image-chat"], DEFAULT_PROMPT_TOKENS, 77.0
    ]  # fmt: skip
    assert frame["prompt_known"].tolist() == [0.0, 0.0, 1.0]


def test_a_missing_concurrency_is_unlimited_and_flagged() -> None:
    frame = build_frame([scenario(concurrency=0.0), scenario(concurrency=3.0)])
    assert frame["concurrency"].tolist() == [UNLIMITED_CONCURRENCY, 3.0]
    assert frame["concurrency_known"].tolist() == [0.0, 1.0]


def test_an_output_that_is_not_told_is_assumed_and_marked() -> None:
    frame = build_frame([scenario(output_tokens=0.0), scenario(output_tokens=7.0)])
    assert frame["output_tokens"].tolist() == [DEFAULT_OUTPUT_TOKENS, 7.0]
    assert frame["output_known"].tolist() == [0.0, 1.0]


def test_engines_that_run_reference_code_and_encoders_are_told_apart() -> None:
    def of(model: str, engine: str) -> str:
        return str(build_frame([scenario(model, engine=engine)]).category("implementation")[0])

    assert of(LLAMA_8B, "vllm") == of(LLAMA_8B, "tgis") == "native"
    assert of("google/flan-t5-xl", "tgis") == "tgis encoder-decoder"
    assert of("Salesforce/codegen2-16B", "tgis") == "tgis reference"


def test_only_reference_code_of_tgis_pads_its_batches() -> None:
    def of(model: str, engine: str) -> float:
        return float(build_frame([scenario(model, engine=engine)])["padded"][0])

    assert of(LLAMA_8B, "tgis") == of("google/flan-t5-xl", "vllm") == 0.0
    assert of("google/gemma-2-9b-it", "tgi") == 0.0
    assert of("google/flan-t5-xl", "tgis") == of("Salesforce/codegen2-16B", "tgis") == 1.0


def test_dense_models_share_a_level_and_each_moe_model_has_its_own() -> None:
    names = (LLAMA_8B, "Qwen/Qwen3-30B-A3B", "google/gemma-2-9b-it", "openai/gpt-oss-20b")
    levels = build_frame([scenario(name) for name in names]).category("moe_model").tolist()
    assert levels == ["dense", "Qwen/Qwen3-30B-A3B", "dense", "openai/gpt-oss-20b"]


def test_old_host_code_costs_more_a_step() -> None:
    old, new = (build_frame([scenario(engine_version=v)]) for v in ("0.5.4", "0.8.5"))
    assert old["host_factor"].tolist() == [4.0]
    assert new["host_factor"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("engine", "version", "told", "wanted"),
    [
        ("vllm", "0.6.4", 0, 256.0),
        ("vllm", "v0.7.3.post1", 0, 256.0),
        ("vllm", "0.8.0", 0, DEFAULT_MAX_NUM_SEQS),
        ("vllm", "0.11.2", 0, DEFAULT_MAX_NUM_SEQS),
        ("vllm", "", 0, DEFAULT_MAX_NUM_SEQS),
        ("sglang", "0.5.9", 0, DEFAULT_MAX_NUM_SEQS),
        ("vllm", "0.6.4", 512, 512.0),
    ],
)
def test_vllm_before_0_8_runs_256_sequences_unless_told(
    engine: str, version: str, told: int, wanted: float
) -> None:
    frame = build_frame([scenario(engine=engine, engine_version=version, max_num_seqs=told)])
    assert frame["max_num_seqs"].tolist() == [wanted]


def test_engine_defaults_stand_in_for_zero() -> None:
    frame = build_frame([scenario(), scenario(memory_utilization_frac=0.5, max_num_seqs=32)])
    assert frame["utilization"].tolist() == [DEFAULT_MEMORY_UTILIZATION, 0.5]
    assert frame["max_num_seqs"].tolist() == [DEFAULT_MAX_NUM_SEQS, 32.0]


def test_a_saturated_source_gives_the_batch_limit_as_its_concurrency() -> None:
    frame = build_frame(
        [
            scenario(mode="saturated", concurrency=48.0),
            scenario(mode="saturated", concurrency=0.0),
            scenario(mode="online", concurrency=48.0),
        ]
    )
    assert frame["max_num_seqs"].tolist() == [48.0, DEFAULT_MAX_NUM_SEQS, DEFAULT_MAX_NUM_SEQS]


@pytest.mark.parametrize(
    ("mode", "static"),
    [("static", 1.0), ("lowlat", 1.0), ("online", 0.0), ("saturated", 0.0), ("poisson", 0.0)],
)
def test_one_batch_at_a_time_is_static(mode: str, static: float) -> None:
    assert build_frame([scenario(mode=mode)])["static"].tolist() == [static]


@pytest.mark.parametrize(
    ("kv_dtype", "size"), [("auto", 2.0), ("fp8", 1.0), ("fp8_e4m3", 1.0), ("bfloat16", 2.0)]
)
def test_a_cache_element_has_the_bytes_of_its_format(kv_dtype: str, size: float) -> None:
    assert build_frame([scenario(kv_dtype=kv_dtype)])["kv_bytes"].tolist() == [size]


def test_every_category_has_sorted_levels_and_codes_into_them() -> None:
    frame = build_frame([scenario(gpu="l40s-48"), scenario(gpu="a100-80"), scenario(gpu="l40s-48")])
    assert frame.n == 3
    assert set(frame.levels) == set(frame.codes) == set(CATEGORY_NAMES)
    assert frame.levels["gpu_kind"] == ("a100-80", "l40s-48")
    assert frame.category("gpu_kind").tolist() == ["l40s-48", "a100-80", "l40s-48"]


def test_rows_taken_keep_their_values_and_the_levels() -> None:
    frame = build_frame(
        [scenario(gpu=g, concurrency=c) for g, c in (("a100-80", 1.0), ("h100-80", 2.0))]
    )
    part = frame.take(np.array([1]))
    assert part.n == 1
    assert part["concurrency"].tolist() == [2.0]
    assert part.category("gpu_kind").tolist() == ["h100-80"]
    assert part.levels == frame.levels
    assert frame.take(np.array([False, False])).n == 0


def test_a_row_means_the_same_alone_and_among_others() -> None:
    questions = [
        scenario(), scenario("Qwen/Qwen3-30B-A3B", "a100-80", "fp8"), scenario("gpt-oss-20b",
        precision="mxfp4"), scenario(gpu="mi300x-192", n_gpus=8),
    ]  # fmt: skip
    together = build_frame(questions)
    for i, question in enumerate(questions):
        alone = build_frame([question])
        for name, column in alone.columns.items():
            assert column[0] == together.columns[name][i], name
        for name in CATEGORY_NAMES:
            assert alone.category(name)[0] == together.category(name)[i]


@pytest.mark.parametrize(
    ("version", "era", "release"),
    [
        ("0.6.4.post1", "vllm 0.0+", "vllm 0.6"),
        ("v0.8.5", "vllm 0.8+", "vllm 0.8"),
        ("0.13.0", "vllm 0.8+", "vllm 0.13"),
        ("0.14.1", "vllm 0.14+", "vllm 0.14"),
        ("0.18.0", "vllm 0.18+", "vllm 0.18"),
        ("1.2.3", "vllm 1", "vllm 1.2"),
        ("1", "vllm 1", "vllm 1"),
    ],
)
def test_vllm_versions_are_grouped_by_era_and_named_by_release(
    version: str, era: str, release: str
) -> None:
    assert engine_era("vllm", version, "alpha") == era
    assert engine_release("vllm", version, "alpha") == release


def test_minor_releases_of_another_engine_below_1_are_eras_of_their_own() -> None:
    assert engine_era("sglang", "0.4.6", "alpha") != engine_era("sglang", "0.5.1", "alpha")
    assert engine_era("trtllm", "1.0.0", "alpha") == engine_era("trtllm", "1.2.0", "alpha")


def test_the_source_stands_in_for_a_version_that_nobody_recorded() -> None:
    eras = {engine_era("vllm", v, s) for v in ("", "nightly") for s in ("alpha", "beta")}
    assert eras == {"vllm (alpha)", "vllm (beta)"}
    assert engine_era("vllm", "", "") == "vllm (unstated)"


@given(version=st.text(max_size=12))
def test_any_version_text_has_an_era(version: str) -> None:
    assert engine_era("vllm", version, "alpha").startswith("vllm ")
    assert engine_release("vllm", version, "alpha").startswith("vllm ")


@pytest.mark.parametrize(
    ("precision", "gpu", "kernel"),
    [
        ("fp8", "h100-80", "fp8"),
        ("fp8", "a100-80", "fp8 weight-only"),
        ("nvfp4", "h100-80", "nvfp4 weight-only"),
        ("nvfp4", "b200-180", "nvfp4"),
        ("awq", "a100-80", "awq"),
        ("int8", "a100-80", "int8"),
        ("bf16", "a100-80", "bf16"),
    ],
)
def test_a_format_without_its_unit_runs_weight_only(precision: str, gpu: str, kernel: str) -> None:
    assert kernel_class(CATALOG.precision(precision), CATALOG.gpu(gpu)) == kernel


def test_weight_only_formats_multiply_at_the_16_bit_peak() -> None:
    h100, a100 = CATALOG.gpu("h100-80"), CATALOG.gpu("a100-80")
    assert peak_flops(CATALOG.precision("fp8"), h100) == h100.fp8_flops > h100.bf16_flops
    assert peak_flops(CATALOG.precision("fp8"), a100) == a100.bf16_flops
    assert peak_flops(CATALOG.precision("awq"), h100) == h100.fp16_flops


def test_a_part_without_bf16_multiplies_at_its_fp16_peak() -> None:
    v100 = CATALOG.gpu("v100-32")
    assert v100.bf16_flops == 0
    assert peak_flops(CATALOG.precision("bf16"), v100) == v100.fp16_flops > 0


def test_where_only_the_experts_are_compressed_the_rest_stays_16_bit() -> None:
    mxfp4, nvfp4 = CATALOG.precision("mxfp4"), CATALOG.precision("nvfp4")
    assert mxfp4.experts_only
    assert not nvfp4.experts_only
    frame = build_frame([scenario(precision="mxfp4"), scenario(precision="nvfp4")])
    assert frame["weight_bytes"].tolist() == [mxfp4.bytes_per_param, nvfp4.bytes_per_param]
    assert frame["dense_bytes"].tolist() == [2.0, nvfp4.bytes_per_param]


def test_an_untied_head_is_half_of_the_embedding_parameters() -> None:
    tied = dense_model(embedding_params=100_000, tied_embeddings=True)
    frame = build_frame([scenario(tied), scenario(replace(tied, tied_embeddings=False))])
    assert frame["head"].tolist() == [100_000.0, 50_000.0]


def test_a_frame_under_another_load_is_the_frame_of_that_load() -> None:
    modes = ("online", "saturated", "static", "poisson")
    asked = [scenario(mode=mode, gpu=gpu) for mode in modes for gpu in ("h100-80", "l40s-48")]
    moved = build_frame(asked).under(700.0, 90.0, 33.0)
    anew = build_frame(
        [replace(s, prompt_tokens=700.0, output_tokens=90.0, concurrency=33.0) for s in asked]
    )
    assert moved.columns.keys() == anew.columns.keys()
    for name, column in anew.columns.items():
        assert moved[name].tobytes() == column.tobytes(), name
    assert moved.levels == anew.levels


def test_what_the_arms_settle_is_made_once_for_all_loads_and_owners_apart() -> None:
    made: list[str] = []

    def make(what: str) -> str:
        made.append(what)
        return what

    frame = replace(build_frame([scenario()]), kept={})
    one, two = object(), object()
    for concurrency in (1.0, 2.0):
        moved = frame.under(100.0, 10.0, concurrency)
        assert moved.fixed(one, lambda: make("one")) == "one"
        assert moved.fixed(two, lambda: make("two")) == "two"
        assert moved.fixed(two, lambda: make("more"), "more") == "more"
    assert made == ["one", "two", "more"]
    assert [build_frame([scenario()]).fixed(one, lambda: make("x")) for _ in range(2)] == ["x", "x"]
    assert made[3:] == ["x", "x"]


def test_the_scenarios_of_a_group_are_those_under_its_load() -> None:
    group = ScenarioGroup((scenario(), scenario(gpu="l40s-48")))
    shared = group.under(5.0, 6.0, 7.0, max_model_len=11)
    wanted = [
        replace(s, prompt_tokens=5.0, output_tokens=6.0, concurrency=7.0, max_model_len=11)
        for s in group.scenarios
    ]
    assert (list(shared), shared[-1], shared[:1]) == (wanted, wanted[1], wanted[:1])
    assert len(shared) == 2
    assert shared.is_told
    assert not group.under(0.0, 6.0, 7.0).is_told
