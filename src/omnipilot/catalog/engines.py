"""Serving engines: versions, their start-up defaults and what they cannot start.

The facts are in ``data/engines.toml`` (how each version sizes its memory) and
``data/launch_rules.toml`` (what does not start, with the mechanism), whose heads explain every
field.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import UnknownNameError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch

Version = tuple[int, int, int]

_DATA: Final = Path(__file__).with_name("data")
_WORD: Final = re.compile(r"[a-z][a-z-]*[a-z]|[a-z]")
_OTHER_ENGINE: Final = re.compile(r"([a-z][a-z-]*[a-z])\s+v?\d")
_NUMBER: Final = re.compile(r"(\d{1,4})\.(\d{1,3})(x)?(?:\.(\d{1,3}|x))?")
_LAST_PATCH: Final = 99  # "0.6" and "0.6.x": as its last release
_HEAD: Final = re.compile(r"For(CausalLM|ConditionalGeneration)$")
_GENERATION: Final = re.compile(r"\bv([01])\b(?!\.)")
# Words that stand before a version without naming an engine.
_NOT_ENGINES: Final = frozenset({"version", "ver", "release", "nightly", "main", "dev", "mid"})


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """A version text as it was understood.

    ``known_engine`` is False where the text names an engine without an entry; ``stated`` is False
    where it gives no number and ``version`` is the newest known one.
    """

    engine: str
    version: Version
    generation: str
    known_engine: bool
    stated: bool

    @property
    def text(self) -> str:
        """Engine and version, e.g. ``vllm 0.11.0``."""
        major, minor, patch = self.version
        return f"{self.engine} {major}.{minor}.{'x' if patch == _LAST_PATCH else patch}"


@dataclass(frozen=True, slots=True)
class Era:
    """How an engine sizes its memory at start-up from one version on; see ``engines.toml``."""

    since: Version
    generation: str
    memory_utilization_frac: float
    pool: str
    max_num_seqs: int
    max_num_seqs_large: int
    batched_tokens: int
    batched_tokens_large: int
    large_when: str
    chunked: str
    chunk_tokens: int
    sampler_bytes_per_logit: float
    sampler_when_chunked: bool
    hybrid_allocator: bool
    token_report: str
    non_torch_gib: float
    non_torch_nvlink_gib: float
    non_torch_pcie_gib: float
    retained_allreduce: bool
    graph_gib_per_layer: float
    graph_estimate_gib_per_layer: float
    refuses_long_context: bool
    source: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One serving engine; ``eras`` from the oldest to the newest, every field filled."""

    name: str
    names: tuple[str, ...]
    latest: Version
    default_before: Version
    before_capability: float
    eras: tuple[Era, ...]
    source: str

    def era(self, version: Version, capability: float, generation: str = "") -> Era:
        """The era that a version runs on a GPU.

        Args:
            version: engine version.
            capability: CUDA compute capability; 0 for other vendors.
            generation: engine core that the user chose, where the version has two.
        """
        older = 0 < capability < self.before_capability or generation == "v0"
        found = self.eras[0]
        for era in self.eras:
            if era.since > version:
                break
            if era.generation != found.generation and older and version < self.default_before:
                break
            found = era
        return found


@dataclass(frozen=True, slots=True)
class LaunchRule:
    """One mechanism for which an engine does not start; see ``launch_rules.toml``.

    An empty tuple, 0 or None asks nothing of that axis.
    """

    id: str
    engine: str
    reason_code: str
    why: str
    remedy: str
    mechanism: str
    source: str
    since: Version = (0, 0, 0)
    until: Version = (9999, 0, 0)
    precisions: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    capability_below: float = 0.0
    capability_from: float = 0.0
    vendors: tuple[str, ...] = ()
    gpu_architectures: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    moe: bool | None = None
    encoder_decoder: bool | None = None
    speculative: bool | None = None
    pipeline_from: int = 0

    def matches_stack(
        self, engine: str, version: Version, precision: str, kv_dtype: str, dtype: str, gpu: GpuSpec
    ) -> bool:
        """Whether the part without the model holds."""
        capability = gpu.compute_capability
        bounded = self.capability_below or self.capability_from
        return (
            self.engine in (engine, "any")
            and self.since <= version < self.until
            and (not self.precisions or precision in self.precisions)
            and (not self.kv_dtypes or kv_dtype in self.kv_dtypes)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.vendors or gpu.vendor.lower() in self.vendors)
            and (not self.gpu_architectures or gpu.architecture.lower() in self.gpu_architectures)
            and (not bounded or capability > 0)
            and (not self.capability_below or capability < self.capability_below)
            and (not self.capability_from or capability >= self.capability_from)
        )

    def matches_model(self, model: ModelArch, *, speculative: bool, pipeline_parallel: int) -> bool:
        """Whether the part about the model and the launch holds."""
        return (
            (self.moe is None or self.moe == model.is_moe)
            and (not self.families or model.family in self.families)
            and (not self.models or any(m in model.base_id.lower() for m in self.models))
            and (not self.architectures or model.architecture in self.architectures)
            and (
                self.encoder_decoder is None or self.encoder_decoder == (model.n_encoder_layers > 0)
            )
            and (self.speculative is None or self.speculative == speculative)
            and pipeline_parallel >= self.pipeline_from
        )


@dataclass(frozen=True, slots=True)
class Support:
    """First version of each engine that loads a class; None where no version does."""

    first: Mapping[str, Version | None]
    source: str


@dataclass(frozen=True, slots=True)
class LaunchRules:
    """All rules: mechanisms in order, and support by :func:`architecture_key`."""

    rules: tuple[LaunchRule, ...]
    support: Mapping[str, Support]


@lru_cache(maxsize=512)
def architecture_key(name: str) -> str:
    """One spelling of a model class and of its model type.

    Examples:
        >>> architecture_key("Qwen3MoeForCausalLM") == architecture_key("qwen3_moe")
        True
    """
    return _HEAD.sub("", name).replace("_", "").lower()


def version_of(text: str) -> Version:
    """Read plain numbers, ``0.8.4`` or ``0.8``.

    Raises:
        ValueError: not of that form.
    """
    parts = [int(part) for part in text.split(".")]
    major, minor, patch = (*parts, 0, 0)[:3]
    return major, minor, patch


@lru_cache(maxsize=1)
def engines() -> Mapping[str, Engine]:
    """The bundled engines by name."""
    tables = tomllib.loads((_DATA / "engines.toml").read_text(encoding="utf-8"))
    return {name: _engine(name, table) for name, table in tables.items()}


def _engine(name: str, table: dict[str, Any]) -> Engine:
    rows = [{**row, "since": version_of(row["since"])} for row in table["era"]]
    eras = [Era(**rows[0])]
    for row in rows[1:]:
        eras.append(replace(eras[-1], **row))
    return Engine(
        name=name,
        names=tuple(table["names"]),
        latest=version_of(table["latest"]),
        default_before=version_of(table.get("default_before", "0.0.0")),
        before_capability=table.get("before_capability", 0.0),
        eras=tuple(eras),
        source=table["source"],
    )


@lru_cache(maxsize=1)
def launch_rules() -> LaunchRules:
    """The bundled rules."""
    data = tomllib.loads((_DATA / "launch_rules.toml").read_text(encoding="utf-8"))
    known = {f.name for f in fields(LaunchRule)}
    rules = []
    for table in data["rule"]:
        row: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        for bound in ("since", "until"):
            if bound in row:
                row[bound] = version_of(row[bound])
        unknown = set(row) - known
        if unknown:
            raise ValueError(f"launch rule {row.get('id')}: unknown field {min(unknown)}")
        rules.append(LaunchRule(**row))
    return LaunchRules(tuple(rules), _support(data["support"]))


def _support(tables: list[dict[str, Any]]) -> dict[str, Support]:
    found = {}
    for table in tables:
        first = {
            name: None if table[name] == "none" else version_of(table[name])
            for name in engines()
            if name in table
        }
        found.update(
            dict.fromkeys(
                map(architecture_key, table["architectures"]), Support(first, table["source"])
            )
        )
    return found


@lru_cache(maxsize=1024)
def parse_engine_version(text: str, engine: str = "vllm") -> EngineVersion:
    """Understand a version as people write it.

    The first word may name the engine; of a range or a list the first number counts; ``0.6`` and
    ``0.6.x`` are the last 0.6 and ``0.2x`` the last 0.20; no number means the newest known version.

    Args:
        text: e.g. "0.11.0", "vllm 0.25.1+cu129", "vllm 0.6.x V0", "vllm <=0.6", "".
        engine: engine where the text names none.

    Examples:
        >>> parse_engine_version("vllm 0.25.1+cu129").version
        (0, 25, 1)
        >>> parse_engine_version("unsloth 2025.10.1").known_engine
        False
    """
    lowered = text.strip().lower()
    word, other = _WORD.match(lowered), _OTHER_ENGINE.match(lowered)
    name = _alias(word[0]) if word else ""
    if not name:
        foreign = other is not None and other[1] not in _NOT_ENGINES
        name = other[1] if foreign and other else engine.strip().lower()
        name = _alias(name) or name
    known = name in engines()
    generation = _GENERATION.search(lowered)
    number = _NUMBER.search(lowered)
    stated = number is not None and int(number[1]) < 100
    version: Version
    if number is not None and stated:
        minor = int(number[2]) * (10 if number[3] else 1)
        patch = int(number[4]) if number[4] and number[4] != "x" else _LAST_PATCH
        version = (int(number[1]), minor, patch)
    else:
        version = engines()[name].latest if known else (0, 0, 0)
    return EngineVersion(name, version, f"v{generation[1]}" if generation else "", known, stated)


def engine_name(text: str) -> str:
    """Find the engine that a spelling means.

    Raises:
        UnknownNameError: no engine answers to it.
    """
    found = _alias(text.strip().lower())
    if not found:
        raise UnknownNameError(f"no engine '{text[:80]}': valid are {', '.join(engines())}")
    return found


def _alias(word: str) -> str:
    for engine in engines().values():
        if word in engine.names:
            return engine.name
    return ""


@lru_cache(maxsize=4096)
def candidate_rules(
    engine: str, version: Version, precision: str, kv_dtype: str, dtype: str, gpu: GpuSpec
) -> tuple[LaunchRule, ...]:
    """Rules whose part without the model holds, in order."""
    return tuple(
        rule
        for rule in launch_rules().rules
        if rule.matches_stack(engine, version, precision, kv_dtype, dtype, gpu)
    )
