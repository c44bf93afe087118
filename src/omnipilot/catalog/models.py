"""Models by name: the bundled table, a site's own configs, a given config.json, the hub.

The table ``data/models.csv`` holds structural facts only, in the terms of a Hugging Face config;
parameter counts are computed from them by the code that reads a config.json.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.catalog.hf_config import arch_from_config, read_config
from omnipilot.catalog.hf_fields import one_line
from omnipilot.catalog.model_names import (
    REUPLOADERS,
    key_of,
    split_owner,
    split_variant,
    strip_remark,
)
from omnipilot.domain.errors import BadInputError, UnknownNameError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.domain.model import ModelArch

TABLE_FILE: Final = Path(__file__).with_name("data") / "models.csv"

_COLUMN_KEYS: Final[dict[str, str]] = {
    "model_type": "model_type",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "window": "sliding_window",
    "experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "moe_ffn": "moe_intermediate_size",
}
"""Columns of the table and the config keys that they stand for."""

_MAX_NAME: Final = 300
_REPOSITORY: Final = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


@dataclass(frozen=True, slots=True)
class _Table:
    """The table's lines by id, and ids by every known spelling.

    ``bare`` maps names without their owner; an empty id marks one that several owners use.
    """

    lines: dict[str, dict[str, str]]
    ids: dict[str, str]
    bare: dict[str, str]


@functools.cache
def _table() -> _Table:
    with TABLE_FILE.open(encoding="utf-8", newline="") as stream:
        lines = {line["model_id"]: line for line in csv.DictReader(stream)}
    ids: dict[str, str] = {key_of(model_id): model_id for model_id in lines}
    for model_id, line in lines.items():
        for alias in filter(None, line["aliases"].split("|")):
            ids.setdefault(key_of(alias), model_id)
    bare: dict[str, str] = {}
    for key, model_id in ids.items():
        name = split_owner(key)[1]
        bare[name] = model_id if bare.get(name, model_id) == model_id else ""
    return _Table(lines, ids, bare)


def model_ids() -> tuple[str, ...]:
    """Ids of the bundled models."""
    return tuple(_table().lines)


def resolve_model(
    text: str, config: Path | None = None, home: Path | None = None, *, allow_fetch: bool = False
) -> ModelArch:
    """Find a model's architecture.

    A repository that holds a model in another weight format answers with the structure of its
    base: ``base_id`` names the base, ``native_precision`` the format.

    Args:
        text: a Hugging Face id or another spelling of it, or the path of a config.json.
        config: a config.json or the folder that holds it; it wins over every table.
        home: the site's folder, whose ``models/`` holds config.json files named by model.
        allow_fetch: ask the Hugging Face hub for a config.json that is found nowhere else.

    Raises:
        UnknownNameError: no entry and no config.
        BadInputError: a config that cannot be read.

    Example:
        >>> resolve_model("Mistral 7B").total_params
        7241732096
        >>> resolve_model("nvidia/Llama-3.1-8B-Instruct-FP8").base_id
        'meta-llama/Llama-3.1-8B-Instruct'
    """
    text = text.strip()
    if len(text) > _MAX_NAME:
        raise UnknownNameError(f"the model's name has {len(text)} characters: give an id or a path")
    if config is not None:
        return _from_file(config, text)
    if (path := config_path(text)) is not None:
        return _from_file(path, "")
    if not text:
        raise UnknownNameError("no model named: give an id such as Qwen/Qwen2.5-7B-Instruct")
    site = _site_configs(home)
    if (file := site.get(key_of(text))) is not None:
        return _from_file(file, text)
    found = _bundled(text)
    if found is None:
        variant = split_variant(strip_remark(text))
        file = site.get(key_of(variant.base)) if variant.precision else None
        found = _from_file(file, text) if file is not None else None
    if found is None and allow_fetch:
        found = _from_file(_fetch(text), text)
    if found is None:
        raise _unknown(text, allow_fetch=allow_fetch)
    return found


def config_path(text: str) -> Path | None:
    """The config.json, or its folder, that a model is named by; None where it is no path."""
    if not text:
        return None
    try:
        path = Path(text)
        return path if path.suffix.lower() == ".json" or (path / "config.json").is_file() else None
    except (OSError, ValueError):
        return None


def _from_file(path: Path, name: str) -> ModelArch:
    """Read a config; its model's name is ``name``, else the file's or folder's."""
    folder = path if path.is_dir() else path.parent
    stem = "" if path.is_dir() or path.name == "config.json" else path.stem
    name = name or (stem or folder.resolve().name).replace("--", "/")
    arch = arch_from_config(read_config(path), name)
    known = _find(name)
    variant = split_variant(strip_remark(name))
    base = _entry(known.base).base_id if known else (variant.base or name)
    precision = arch.native_precision
    if variant.precision and not arch.quant_method:
        precision = variant.precision
    return replace(
        arch, base_id=base, native_precision=precision, source=f"{arch.source} {one_line(path)}"
    )


def _site_configs(home: Path | None) -> dict[str, Path]:
    """Configs in the site's folder: ``NAME.json``, ``OWNER--NAME.json`` or such folders."""
    if home is None or not (home / "models").is_dir():
        return {}
    found: dict[str, Path] = {}
    root = home / "models"
    for file in sorted((*root.glob("*.json"), *root.glob("*/config.json"))):
        stem = file.parent.name if file.name == "config.json" and file.parent != root else file.stem
        found[key_of(stem.replace("--", "/"))] = file
    for file in sorted(root.glob("*/*/config.json")):
        found[key_of(f"{file.parent.parent.name}/{file.parent.name}")] = file
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    """A table entry that a name means: its id, and the name's own weight format."""

    base: str
    model_id: str
    precision: str = ""
    group_size: int = 0


def _find(text: str) -> _Found | None:
    """The table entry for a name, its weight format taken off where it has one."""
    text = strip_remark(text)
    exact = _look_up(text, any_owner=False)
    if exact:
        return _Found(exact, exact)
    variant = split_variant(text)
    if not variant.precision:
        return None
    base = _look_up(variant.base, any_owner=True)
    if not base:
        return None
    owner, name = split_owner(text)
    model_id = text if owner else f"{split_owner(base)[0]}/{name}"
    if not owner:
        variant = split_variant(model_id)
    return _Found(base, model_id, variant.precision, variant.group_size)


def _look_up(text: str, *, any_owner: bool) -> str:
    """The id of a spelling, or "". ``any_owner``: a known name under any owner is that model."""
    table = _table()
    key = key_of(text)
    if found := table.ids.get(key):
        return found
    owner, name = split_owner(key)
    if not owner or any_owner or owner in REUPLOADERS:
        return table.bare.get(name, "")
    return ""


def _bundled(text: str) -> ModelArch | None:
    found = _find(text)
    if found is None:
        return None
    arch = _entry(found.base)
    if not found.precision:
        return arch
    return replace(
        arch,
        model_id=found.model_id,
        native_precision=found.precision,
        quant_method=found.precision,
        quant_group_size=found.group_size,
    )


@functools.cache
def _entry(model_id: str) -> ModelArch:
    """One line of the table as an architecture.

    ``like`` names the line whose cells fill the empty ones. The published size is taken over only
    where nothing of the structure is changed by ``extra``.
    """
    config, line, published = _config_of(model_id, depth=0)
    arch = arch_from_config(config, model_id)
    variant = split_variant(model_id)
    precision = line["precision"] or "bf16"
    quantised = precision not in {"bf16", "fp16", "fp32"}
    return replace(
        arch,
        base_id=_look_up(variant.base, any_owner=False) or model_id,
        native_precision=precision,
        quant_method=precision if quantised else "",
        quant_group_size=variant.group_size
        or {"fp8-block": 128, "mxfp4": 32, "gptq": 32}.get(precision, 0),
        torch_dtype="float16" if precision == "fp16" else "bfloat16",
        published_params=float(published or 0),
        source=line["source"],
    )


def _config_of(model_id: str, depth: int) -> tuple[dict[str, object], dict[str, str], str]:
    """(config, merged line, published size) of a line and those it is like."""
    line = _table().lines[model_id]
    config: dict[str, object] = {}
    merged, published = line, line["published_params"]
    if line["like"]:
        if depth > 4:
            raise BadInputError(f"{TABLE_FILE.name}: 'like' of {model_id} runs in a circle")
        config, parent, inherited = _config_of(line["like"], depth + 1)
        merged = {**parent, **{k: v for k, v in line.items() if v}}
        published = published or ("" if line["extra"] else inherited)
    for column, key in _COLUMN_KEYS.items():
        if cell := line[column]:
            config[key] = cell if column == "model_type" else int(cell)
    if line["extra"]:
        config.update(json.loads(line["extra"]))
    return config, merged, published


def _fetch(text: str) -> Path:
    """Download one config.json from the Hugging Face hub.

    Raises:
        UnknownNameError: not installed, offline, or no such repository.
    """
    if not _REPOSITORY.match(text):
        raise _unknown(text, allow_fetch=True)
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 - optional and slow to import
    except ImportError:
        raise UnknownNameError(
            f"no model '{text}' in the table, and fetching needs the extra 'hub': install "
            "omnipilot[hub], or give its config.json with --model-config"
        ) from None
    try:
        return Path(hf_hub_download(repo_id=text, filename="config.json"))
    except Exception as error:  # noqa: BLE001 - the hub's errors are many; all mean "not fetched"
        reason = one_line((str(error).strip() or type(error).__name__).splitlines()[0], 160)
        raise UnknownNameError(
            f"could not fetch the config.json of '{text}' ({reason}): give it with --model-config"
        ) from None


def _unknown(text: str, *, allow_fetch: bool) -> UnknownNameError:
    import difflib  # noqa: PLC0415 - only a refusal needs it

    table = _table()
    key = key_of(text)
    names = {**table.bare, **table.ids}
    close = difflib.get_close_matches(key, names, n=6, cutoff=0.6)
    near = list(dict.fromkeys(names[c] for c in close if names[c]))[:3]
    did_you_mean = f"; close: {', '.join(near)}" if near else ""
    fetch = "" if allow_fetch else ", or fetch it from the hub with --fetch"
    return UnknownNameError(
        f"no model '{one_line(text, 80)}' in the table: give its config.json with "
        f"--model-config{fetch}{did_you_mean}",
        near,
    )
