"""Engines: versions as people write them, eras and launch rules."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog.catalog import Catalog
from omnipilot.catalog.engines import (
    Era,
    LaunchRule,
    architecture_key,
    candidate_rules,
    engine_name,
    engines,
    launch_rules,
    parse_engine_version,
)
from omnipilot.costmodel.feasibility import REASON_CODES
from omnipilot.domain.errors import UnknownNameError

CATALOG = Catalog.load()
RULES = launch_rules().rules


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("0.11.0", "vllm", (0, 11, 0)),
        ("v0.11.0", "vllm", (0, 11, 0)),
        ("vllm 0.25.1+cu129", "vllm", (0, 25, 1)),
        ("vllm 0.6.x V0", "vllm", (0, 6, 99)),
        ("vllm <=0.6", "vllm", (0, 6, 99)),
        ("vllm >=0.5.1", "vllm", (0, 5, 1)),
        ("vllm 0.25.1 and 0.26.0", "vllm", (0, 25, 1)),
        ("vllm 0.9.x/0.10", "vllm", (0, 9, 99)),
        ("vllm 0.2.7->0.3", "vllm", (0, 2, 7)),
        ("vllm 0.2x", "vllm", (0, 20, 99)),
        ("vllm 0.22.1rc1.dev197", "vllm", (0, 22, 1)),
        ("sglang 0.5.9", "sglang", (0, 5, 9)),
        ("tensorrtllm0.7.1", "trtllm", (0, 7, 1)),
        ("TensorRT-LLM 1.0.0rc3", "trtllm", (1, 0, 0)),
    ],
)
def test_versions_are_read_as_people_write_them(
    text: str, engine: str, version: tuple[int, int, int]
) -> None:
    read = parse_engine_version(text)
    assert (read.engine, read.version, read.known_engine, read.stated) == (
        engine, version, True, True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "vllm", "vllm (KAITO)", "nightly-5b8c30d62b75", "vllm mid-2024"]
)
def test_a_text_without_a_number_means_the_newest_known_version(text: str) -> None:
    read = parse_engine_version(text)
    assert (read.version, read.stated) == (engines()["vllm"].latest, False)


@pytest.mark.parametrize("text", ["unsloth 2025.10.1", "TGIS 2023", "dynamo-planner 1.1.1"])
def test_another_program_before_the_number_is_not_taken_for_vllm(text: str) -> None:
    assert not parse_engine_version(text).known_engine


def test_an_image_tag_keeps_the_engine_that_was_asked_for() -> None:
    assert parse_engine_version("glm5-hopper", "sglang").engine == "sglang"


def test_the_core_named_after_the_number_is_kept() -> None:
    assert parse_engine_version("vllm 0.9.2 V0").generation == "v0"
    assert parse_engine_version("v0.9.2").generation == ""


def test_the_last_patch_prints_as_written() -> None:
    assert parse_engine_version("vllm 0.6.x").text == "vllm 0.6.x"
    assert parse_engine_version("vllm 0.99.1").text == "vllm 0.99.1"


@given(st.text(max_size=60))
def test_no_version_text_raises(text: str) -> None:
    assert parse_engine_version(text).engine or not text.strip()


def test_an_unknown_engine_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match="vllm, sglang, trtllm"):
        engine_name("lmdeploy")
    assert engine_name("TensorRT-LLM") == "trtllm"


@pytest.mark.parametrize(
    ("version", "capability", "expected"),
    [((0, 7, 3), 9.0, "v0"), ((0, 8, 0), 9.0, "v1"), ((0, 8, 5), 7.5, "v0"),
     ((0, 11, 0), 7.5, "v1"), ((0, 9, 0), 0.0, "v1")],
)  # fmt: skip
def test_the_core_follows_version_and_capability(
    version: tuple[int, int, int], capability: float, expected: str
) -> None:
    assert engines()["vllm"].era(version, capability).generation == expected


def test_defaults_follow_the_version() -> None:
    vllm = engines()["vllm"]
    assert vllm.era((0, 20, 9), 9.0).memory_utilization_frac == 0.90
    assert vllm.era((0, 21, 0), 9.0).memory_utilization_frac == 0.92
    assert vllm.era((0, 8, 1), 8.6).max_num_seqs == 1024
    assert vllm.era((0, 8, 4), 8.6).max_num_seqs == 256


@pytest.mark.parametrize("engine", list(engines().values()), ids=list(engines()))
def test_eras_are_in_order_and_carry_a_source(engine: object) -> None:
    eras: tuple[Era, ...] = engine.eras  # type: ignore[attr-defined]
    assert [e.since for e in eras] == sorted({e.since for e in eras})
    assert all(e.source for e in eras)
    assert len({e.source for e in eras}) == len(eras)


@pytest.mark.parametrize("rule", RULES, ids=[r.id for r in RULES])
def test_every_rule_has_a_mechanism_a_remedy_and_a_source(rule: LaunchRule) -> None:
    assert rule.mechanism
    assert rule.remedy
    assert rule.source
    assert rule.why
    assert rule.reason_code in REASON_CODES
    assert rule.since < rule.until
    assert rule.engine in {*engines(), "any"}


@pytest.mark.parametrize("rule", RULES, ids=[r.id for r in RULES])
def test_every_rule_names_formats_that_the_catalogue_has(rule: LaunchRule) -> None:
    weights = {p.name for p in CATALOG.precisions()}
    caches = {k.name for k in CATALOG.kv_dtypes()}
    assert set(rule.precisions) <= weights
    assert set(rule.kv_dtypes) <= caches


def test_rule_ids_are_unique_and_no_rule_names_one_exact_launch() -> None:
    assert len({r.id for r in RULES}) == len(RULES)
    axes = {f.name for f in fields(LaunchRule)}
    assert not axes & {"gpu_kind", "tensor_parallel", "max_model_len", "memory_utilization_frac"}


def test_capability_bounds_do_not_bind_other_vendors() -> None:
    amd = CATALOG.gpu("MI300X")
    found = candidate_rules("vllm", (0, 4, 5), "fp8", "fp8", "auto", amd)
    assert not [r.id for r in found if r.capability_below or r.capability_from]


def test_a_class_and_its_model_type_are_one() -> None:
    for name, model_type in (
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("GptOssForCausalLM", "gpt_oss"),
        ("Gemma3TextForCausalLM", "gemma3_text"),
        ("Glm4MoeForCausalLM", "glm4_moe"),
    ):
        assert architecture_key(name) == architecture_key(model_type)
        assert architecture_key(name) in launch_rules().support
