"""Older schemas."""

from __future__ import annotations

from typing import Any

import pytest

from omnipilot.store.migrate import UnknownSchemaError, upgrade


def test_steps_lead_from_an_old_schema_to_the_present_one() -> None:
    def rename(fields: dict[str, Any]) -> dict[str, Any]:
        fields["gpu"] = fields.pop("device")
        return fields

    def add(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"nodes": 1}

    steps = {("run", 1): rename, ("run", 2): add}
    old = {"device": "H100", "schema_version": 1}
    assert upgrade(old, "run", 1, steps=steps, current=3) == {
        "gpu": "H100", "nodes": 1, "schema_version": 3,
    }  # fmt: skip


def test_a_newer_schema_is_told() -> None:
    with pytest.raises(UnknownSchemaError, match="run schema 4 is newer than 3"):
        upgrade({}, "run", 4, steps={}, current=3)


def test_a_gap_in_the_steps_is_told() -> None:
    with pytest.raises(UnknownSchemaError, match="no migration leads on from run schema 1"):
        upgrade({}, "run", 1, steps={}, current=2)
