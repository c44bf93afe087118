"""Which layers of a decoder route tokens to experts, from the forms that configs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.catalog.hf_fields import MAX_LAYERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.catalog.hf_fields import ConfigFields

    Rule = Callable[[ConfigFields, int], tuple[bool, ...] | None]


def moe_layers(fields: ConfigFields, n_layers: int) -> tuple[bool, ...]:
    """One flag a layer of a mixture of experts: whether it has experts.

    The first form that the config uses decides; where it uses none, every layer has experts.

    Raises:
        BadInputError: a list or period that no decoder of this depth has.
    """
    for rule in _RULES:
        flags = rule(fields, n_layers)
        if flags is not None:
            return flags
    return (True,) * n_layers


def _by_flags(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """MiMo-V2: ``moe_layer_freq`` as a list of 0 and 1."""
    if not isinstance(fields.raw("moe_layer_freq")[1], list):
        return None
    return tuple(flag == 1 for flag in fields.listing("moe_layer_freq", length=n))


def _by_index(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """Llama 4: ``moe_layers`` lists the layers with experts."""
    chosen = set(fields.integers("moe_layers", 0, n - 1))
    return tuple(i in chosen for i in range(n)) if chosen else None


def _by_period(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """Jamba: ``expert_layer_period`` with an offset."""
    period = fields.integer("expert_layer_period", high=MAX_LAYERS)
    offset = fields.integer("expert_layer_offset", high=MAX_LAYERS)
    return tuple(i % period == offset for i in range(n)) if period else None


def _by_step(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """Llama 4: every ``interleave_moe_layer_step``-th layer."""
    step = fields.integer("interleave_moe_layer_step", high=MAX_LAYERS)
    return tuple((i + 1) % step == 0 for i in range(n)) if step else None


def _by_sparse_step(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """Qwen: every ``decoder_sparse_step``-th layer but those of ``mlp_only_layers``."""
    dense = set(fields.integers("mlp_only_layers", 0, n - 1))
    step = fields.integer("decoder_sparse_step", default=1, low=1, high=MAX_LAYERS)
    if step == 1 and not dense:
        return None
    return tuple((i + 1) % step == 0 and i not in dense for i in range(n))


def _by_first_dense(fields: ConfigFields, n: int) -> tuple[bool, ...] | None:
    """DeepSeek, ERNIE: dense up to a first layer, then each ``moe_layer_freq``-th has experts."""
    first = fields.integer(
        "first_k_dense_replace", "first_k_dense", "moe_layer_start_index", high=MAX_LAYERS
    )
    every = fields.integer("moe_layer_freq", default=1, low=1, high=MAX_LAYERS)
    return tuple(i >= first and i % every == 0 for i in range(n))


_RULES: Final[tuple[Rule, ...]] = (
    _by_flags,
    _by_index,
    _by_period,
    _by_step,
    _by_sparse_step,
    _by_first_dense,
)
