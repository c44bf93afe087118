"""The bundled table and the names that lead into it."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import time
from typing import TYPE_CHECKING

import pytest
from cache_elements import cache_elements
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog import models
from omnipilot.catalog.models import model_ids, resolve_model
from omnipilot.domain.errors import BadInputError, UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


def test_the_table_holds_at_least_120_models_with_a_published_size() -> None:
    assert sum(1 for i in model_ids() if resolve_model(i).published_params) >= 120


@pytest.mark.parametrize("model_id", model_ids())
def test_the_counted_size_is_within_one_percent_of_the_published_size(model_id: str) -> None:
    arch = resolve_model(model_id)
    if arch.published_params:
        assert arch.total_params == pytest.approx(arch.published_params, rel=0.01)


@pytest.mark.parametrize("model_id", model_ids())
def test_every_bundled_model_is_consistent(model_id: str) -> None:
    arch = resolve_model(model_id)
    assert arch.model_id == model_id
    assert arch.source
    assert arch.family
    assert 0 < arch.active_params <= arch.total_params
    assert (
        arch.embedding_params + arch.routed_expert_params + arch.vision_params < arch.total_params
    )
    assert arch.n_full_attention_layers + arch.n_sliding_layers + arch.n_recurrent_layers > 0
    assert (arch.sliding_window > 0) == (arch.n_sliding_layers > 0)
    assert (arch.recurrent_state_elements > 0) == (arch.n_recurrent_layers > 0)
    assert arch.is_moe == (arch.n_moe_layers > 0) == (arch.routed_expert_params > 0)
    assert resolve_model(arch.base_id).base_id == arch.base_id


@pytest.mark.parametrize(
    ("model_id", "active_billions"),
    [
        ("Qwen/Qwen3-235B-A22B", 22.0),
        ("Qwen/Qwen3-30B-A3B", 3.3),
        ("mistralai/Mixtral-8x7B-v0.1", 12.9),
        ("deepseek-ai/DeepSeek-V2", 21.0),
        ("deepseek-ai/DeepSeek-V3", 37.0),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 17.0),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 17.0),
        ("Qwen/Qwen3.5-397B-A17B", 17.0),
        ("XiaomiMiMo/MiMo-V2-Flash", 15.0),
        ("databricks/dbrx-instruct", 36.0),
    ],
)
def test_active_parameters_agree_with_the_vendors_rounded_number(
    model_id: str, active_billions: float
) -> None:
    assert resolve_model(model_id).active_params / 1e9 == pytest.approx(active_billions, rel=0.035)


@pytest.mark.parametrize(
    ("model_id", "elements"),
    [
        ("meta-llama/Llama-2-7b-hf", 32 * 2 * 32 * 128),
        ("meta-llama/Llama-3.1-8B", 32 * 2 * 8 * 128),
        ("Qwen/Qwen2.5-7B", 28 * 2 * 4 * 128),
        ("deepseek-ai/DeepSeek-V3", 61 * (512 + 64)),
        ("bigcode/starcoder", 40 * 2 * 1 * 128),
        ("Deci/DeciLM-7B", 32 * 2 * 4 * 128),
    ],
)
def test_cache_elements_of_one_token_follow_the_attention_form(
    model_id: str, elements: int
) -> None:
    assert cache_elements(resolve_model(model_id), 1) == elements


@pytest.mark.parametrize(
    ("model_id", "full", "sliding", "window"),
    [
        ("mistralai/Mistral-7B-v0.1", 0, 32, 4096),
        ("mistralai/Mistral-7B-Instruct-v0.2", 32, 0, 0),
        ("google/gemma-2-27b-it", 23, 23, 4096),
        ("google/gemma-3-27b-it", 10, 52, 1024),
        ("openai/gpt-oss-120b", 18, 18, 128),
        ("Qwen/Qwen2.5-7B-Instruct", 28, 0, 0),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 12, 36, 8192),
        ("google/gemma-4-31B-it", 10, 50, 1024),
        ("microsoft/Phi-4-mini-instruct", 32, 0, 0),
        ("XiaomiMiMo/MiMo-V2-Flash", 9, 39, 128),
    ],
)
def test_sliding_windows_are_laid_out_as_the_model_defines_them(
    model_id: str, full: int, sliding: int, window: int
) -> None:
    arch = resolve_model(model_id)
    assert (arch.n_full_attention_layers, arch.n_sliding_layers) == (full, sliding)
    assert arch.sliding_window == window


def test_full_layers_of_gemma_4_have_their_own_heads() -> None:
    arch = resolve_model("google/gemma-4-31B-it")
    assert arch.kv_elements_per_token_per_full_layer() == 2 * 4 * 512
    assert arch.kv_elements_per_token_per_sliding_layer() == 2 * 16 * 256


def test_hybrid_models_keep_a_constant_state_beside_few_attention_layers() -> None:
    arch = resolve_model("nvidia/NVIDIA-Nemotron-Nano-9B-v2")
    assert (arch.n_full_attention_layers, arch.n_recurrent_layers) == (4, 27)
    # 128 heads of 80 by 128, and 3 past inputs of 10240 + 2*8*128 channels, a layer
    assert arch.recurrent_state_elements == 27 * (128 * 80 * 128 + 3 * 12288)


@pytest.mark.parametrize(
    ("text", "model_id"),
    [
        ("qwen/qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("  Mistral 7B ", "mistralai/Mistral-7B-v0.1"),
        ("LLaMA 70B", "meta-llama/Llama-2-70b-hf"),
        ("LLaMA 7B", "huggyllama/llama-7b"),
        ("Llama-3.1-405B", "meta-llama/Llama-3.1-405B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Falcon 180B", "tiiuae/falcon-180B"),
        ("GPT-J 6B", "EleutherAI/gpt-j-6b"),
        ("llama-13b", "huggyllama/llama-13b"),
        ("zhipuai/GLM-5", "zai-org/GLM-5"),
        ("Qwen2.5-7B (4-bit)", "Qwen/Qwen2.5-7B"),
        ("unsloth/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    ],
)
def test_common_spellings_lead_to_one_id(text: str, model_id: str) -> None:
    assert resolve_model(text).model_id == model_id


@pytest.mark.parametrize(
    ("text", "base_id", "precision"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct", "fp8"),
        (
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "meta-llama/Llama-3.3-70B-Instruct",
            "fp8",
        ),
        ("neuralmagic/Meta-Llama-3-8B-Instruct-FP8", "meta-llama/Meta-Llama-3-8B-Instruct", "fp8"),
        ("Qwen2.5-32B-Instruct-AWQ", "Qwen/Qwen2.5-32B-Instruct", "awq"),
        ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-32B-Instruct", "gptq"),
        ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-32B-Instruct", "gptq-int8"),
        ("TheBloke/Mistral-7B-Instruct-v0.2-AWQ", "mistralai/Mistral-7B-Instruct-v0.2", "awq"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B", "fp8-block"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "Qwen/Qwen3-32B", "fp8"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-ai/DeepSeek-R1", "nvfp4"),
        ("zai-org/GLM-5-FP8", "zai-org/GLM-5", "fp8-block"),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
            "meta-llama/Llama-3.1-8B-Instruct",
            "int8",
        ),
        ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3", "fp8-block"),
        ("openai/gpt-oss-20b", "openai/gpt-oss-20b", "mxfp4"),
    ],
)
def test_a_quantised_repository_stays_in_the_cell_of_its_base(
    text: str, base_id: str, precision: str
) -> None:
    arch = resolve_model(text)
    assert arch.base_id == base_id
    assert arch.native_precision == precision
    assert arch.total_params == resolve_model(base_id).total_params


@pytest.mark.parametrize("base", ["Qwen/Qwen2-72B-Instruct", "Qwen/Qwen2.5-72B-Instruct"])
@pytest.mark.parametrize("suffix", ["AWQ", "GPTQ-Int4", "GPTQ-Int8"])
def test_a_quantised_repository_of_another_width_has_its_own(
    base: str, suffix: str, tmp_path: Path
) -> None:
    arch = resolve_model(f"{base}-{suffix}")
    assert (arch.intermediate_size, arch.quant_group_size) == (29696, 128)
    assert arch.base_id == base
    assert resolve_model(base).intermediate_size == 29568
    config = _write(tmp_path / "config.json")
    assert resolve_model(f"{base}-{suffix}", config).base_id == base


def test_a_quantised_name_keeps_the_owner_of_its_base_where_none_is_given() -> None:
    assert resolve_model("Qwen3-8B-FP8").model_id == "Qwen/Qwen3-8B-FP8"
    assert resolve_model("Qwen3-8B-FP8").native_precision == "fp8-block"


def test_another_finetune_is_another_base() -> None:
    base = resolve_model("Qwen/Qwen2.5-7B").base_id
    assert resolve_model("Qwen/Qwen2.5-7B-Instruct").base_id != base


def test_another_owners_model_of_the_same_name_is_not_taken_for_a_bundled_one() -> None:
    with pytest.raises(UnknownNameError):
        resolve_model("someone-else/Qwen2.5-7B-Instruct")


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-8B-Instruct", "llama-3.1-8b-instrct"])
def test_an_unknown_model_names_the_way_out_and_close_matches(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"--model-config.*close: \S+/\S+"):
        resolve_model(text)


@pytest.mark.parametrize("text", ["", "   ", "x" * 5000, "\0", "any FP8 checkpoint", "/", "a/b/c"])
def test_a_name_that_means_nothing_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UnknownNameError) as refusal:
        resolve_model(text)
    assert "\n" not in str(refusal.value)


@given(st.text(max_size=60))
def test_any_text_resolves_or_is_refused(text: str) -> None:
    try:
        assert resolve_model(text).total_params > 0
    except (UnknownNameError, BadInputError) as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017 - the refusal is one of two right outcomes


def _write(path: Path, config: object = SMALL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return path


def test_a_config_file_or_folder_wins_over_the_table(tmp_path: Path) -> None:
    file = _write(tmp_path / "config.json")
    for config in (file, tmp_path):
        arch = resolve_model("Qwen/Qwen2.5-7B-Instruct", config)
        assert arch.model_id == arch.base_id == "Qwen/Qwen2.5-7B-Instruct"
        assert arch.n_layers == 2


def test_a_path_as_the_model_is_named_after_its_folder_or_file(tmp_path: Path) -> None:
    folder = tmp_path / "acme--tiny"
    _write(folder / "config.json")
    assert resolve_model(str(folder)).model_id == "acme/tiny"
    named = _write(tmp_path / "acme--other.json")
    assert resolve_model(str(named)).model_id == "acme/other"


def test_a_config_of_a_quantised_model_keeps_the_base_id(tmp_path: Path) -> None:
    quantised = {**SMALL, "quantization_config": {"quant_method": "awq", "bits": 4}}
    arch = resolve_model("acme/tiny-AWQ", _write(tmp_path / "config.json", quantised))
    assert (arch.base_id, arch.native_precision) == ("acme/tiny", "awq")


@pytest.mark.parametrize(
    "place", ["acme--tiny.json", "acme--tiny/config.json", "acme/tiny/config.json"]
)
def test_the_sites_folder_adds_models(tmp_path: Path, place: str) -> None:
    _write(tmp_path / "models" / place)
    assert resolve_model("acme/Tiny", home=tmp_path).n_layers == 2
    assert resolve_model("acme/Tiny-FP8", home=tmp_path).native_precision == "fp8"
    with pytest.raises(UnknownNameError):
        resolve_model("acme/tiny")


def test_the_sites_config_wins_over_the_table(tmp_path: Path) -> None:
    _write(tmp_path / "models" / "Qwen--Qwen2.5-7B-Instruct.json")
    assert resolve_model("Qwen/Qwen2.5-7B-Instruct", home=tmp_path).n_layers == 2


def test_fetching_without_the_hub_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnknownNameError, match=r"omnipilot\[hub\].*--model-config"):
        resolve_model("acme/unheard-of", allow_fetch=True)


def _hub(monkeypatch: pytest.MonkeyPatch, download: object) -> None:
    hub: ModuleType = type(sys)("huggingface_hub")
    hub.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_a_failed_fetch_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(**_: str) -> str:
        raise RuntimeError("no route to host\nmore lines")

    _hub(monkeypatch, download)
    with pytest.raises(UnknownNameError, match="no route to host") as refusal:
        resolve_model("acme/unheard-of", allow_fetch=True)
    assert "\n" not in str(refusal.value)


def test_a_fetched_config_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = _write(tmp_path / "config.json")
    asked: list[dict[str, str]] = []

    def download(**call: str) -> str:
        asked.append(call)
        return str(file)

    _hub(monkeypatch, download)
    assert resolve_model("acme/unheard-of", allow_fetch=True).model_id == "acme/unheard-of"
    assert asked == [{"repo_id": "acme/unheard-of", "filename": "config.json"}]
    assert resolve_model("Qwen/Qwen3-8B", allow_fetch=True).n_layers == 36
    assert len(asked) == 1


def test_reading_the_table_and_one_model_takes_below_25_ms() -> None:
    times = []
    for _ in range(5):
        models._table.cache_clear()
        models._entry.cache_clear()
        start = time.process_time()
        resolve_model("Qwen/Qwen2.5-7B-Instruct")
        times.append(time.process_time() - start)
    assert min(times) < 0.025


def test_every_model_of_the_measured_rows_resolves(shared_dir: Path) -> None:
    path = shared_dir / "data" / "combined" / "serving_rows.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        names = {row["model"] for row in csv.DictReader(stream)}
    assert len(names) > 100
    for name in names:
        assert resolve_model(name).total_params > 0
