"""Training, recovery and probe rows out of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from mutations import mutated, survives

from omnipilot.collect.typed_rows import collect_rows
from omnipilot.domain import BadInputError, HardwareProbe, RecoveryRun, TrainingRun
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

TRAINING: dict[str, Any] = {
    "kind": "training_run", "source": "site", "model": "llama-8b", "framework": "torchtitan",
    "gpu": "h100-80", "n_gpus": 8, "precision": "bf16", "status": "ok",
    "labels": {"flop_utilization_frac": 0.42, "tokens_per_s": 90000},
}  # fmt: skip
RECOVERY: dict[str, Any] = {
    "kind": "recovery_run", "source": "site", "cause": "node_fail", "status": "recovered",
    "gpu": "h100-80", "n_gpus": 8, "labels": {"downtime_s": 240.5}, "job_id": "12",
}  # fmt: skip
PROBE: dict[str, Any] = {
    "kind": "hardware_probe", "source": "site", "probe": "checkpoint_throughput", "status": "pass",
    "gpu": "h100-80", "n_gpus": 8, "labels": {"write_bytes_per_s": 5e9}, "host": "h100n1",
}  # fmt: skip


def read(tmp_path: Path, *rows: object) -> list[object]:
    path = tmp_path / "rows.json"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return list(collect_rows(path))


def test_each_kind_becomes_its_own_type(tmp_path: Path) -> None:
    training, recovery, probe = read(tmp_path, TRAINING, RECOVERY, PROBE)
    assert isinstance(training, TrainingRun)
    assert training.labels == {"flop_utilization_frac": 0.42, "tokens_per_s": 90000.0}
    assert isinstance(recovery, RecoveryRun)
    assert (recovery.cause, recovery.job_id) == ("node_fail", "12")
    assert isinstance(probe, HardwareProbe)
    assert probe.probe == "checkpoint_throughput"


def test_an_array_holds_rows_too(tmp_path: Path) -> None:
    assert len(read(tmp_path, [TRAINING, PROBE])) == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": "inference_run"}, "unknown kind"),
        ({"kind": ["x"]}, "unknown kind"),
        ({"schema_version": 2}, "other schema"),
        ({"colour": "red"}, "unknown field"),
        ({"n_gpus": "8"}, "wrong shape"),
        ({"n_gpus": 0}, "n_gpus out of range"),
        ({"n_gpus": 10**30}, "n_gpus out of range"),
        ({"status": "fine"}, "unknown status"),
        ({"labels": {"flop_utilization_frac": 1.2}}, "label out of range"),
        ({"labels": {"tokens_per_s": -1}}, "label out of range"),
        ({"labels": {"speed": 1}}, "unknown label"),
        ({"start_s": 1e12}, "time out of range"),
        ({"model": "/data/alice/llama"}, "odd text"),
        ({"framework": "alice@example.org"}, "odd text"),
        ({"model": "x" * 300}, "odd text"),
        ({"source": ""}, "no source or GPU"),
    ],
)
def test_what_is_wrong_is_refused_with_its_reason(
    tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    refused, kept = read(tmp_path, TRAINING | change, PROBE)
    assert isinstance(refused, Rejection)
    assert refused.code == code
    assert isinstance(kept, HardwareProbe)


def test_a_file_without_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("kind,source\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="no JSON"):
        list(collect_rows(path))


BASE = "\n".join(json.dumps(row) for row in (TRAINING, RECOVERY, PROBE)).encode()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=mutated(BASE))
def test_damage_is_refused_or_leaves_sound_rows(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(data)
    for row in survives(lambda: collect_rows(path)):
        assert isinstance(row, TrainingRun | RecoveryRun | HardwareProbe)
        assert row.n_gpus >= 1
