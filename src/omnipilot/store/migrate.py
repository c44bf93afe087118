"""Rows of older schemas brought to the present one, a step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.rows import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Step = Callable[[dict[str, Any]], dict[str, Any]]

__all__ = ["MIGRATIONS", "UnknownSchemaError", "upgrade"]

# (kind, version) → the fields of version + 1. Schema 1 is the first, so there is no step yet.
MIGRATIONS: Final[Mapping[tuple[str, int], Step]] = {}


class UnknownSchemaError(Exception):
    """No step leads from the schema of a row to the present one: it stays in the log, unread."""


def upgrade(
    fields: dict[str, Any],
    kind: str,
    version: int,
    *,
    steps: Mapping[tuple[str, int], Step] = MIGRATIONS,
    current: int = SCHEMA_VERSION,
) -> dict[str, Any]:
    """Bring the fields of one stored row to the ``current`` schema.

    Args:
        fields: members of the JSON object, changed in place by the steps.
        kind: kind of the row.
        version: schema that the row was written in.
        steps: one function for each step.
        current: schema wanted.

    Raises:
        UnknownSchemaError: the row is of a newer schema, or no step leads on from an older one.
    """
    if version > current:
        raise UnknownSchemaError(f"{kind} schema {version} is newer than {current}")
    for step_version in range(version, current):
        step = steps.get((kind, step_version))
        if step is None:
            raise UnknownSchemaError(f"no migration leads on from {kind} schema {step_version}")
        fields = step(fields)
        fields["schema_version"] = step_version + 1
    return fields
