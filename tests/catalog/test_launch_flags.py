"""Known launch breakers: data with sources, matched by version, GPU and format."""

from __future__ import annotations

import pytest

from omnipilot.catalog import Catalog
from omnipilot.catalog.launch_flags import LaunchFlag, launch_flags

FACTS = Catalog.load()
QWEN = FACTS.model("Qwen/Qwen2.5-7B-Instruct")


def matching(
    version: tuple[int, int, int], gpu: str, precision: str = "bf16", n: int = 1
) -> set[str]:
    spec = FACTS.gpu(gpu)
    return {
        flag.id for flag in launch_flags()
        if flag.matches("vllm", version, QWEN, spec, precision, n, graphs_too_large=False)
    }  # fmt: skip


@pytest.mark.parametrize("flag", launch_flags(), ids=lambda f: f.id)
def test_every_flag_has_a_reason_a_source_and_does_something(flag: LaunchFlag) -> None:
    assert flag.why
    assert flag.source
    assert flag.since < flag.until
    assert flag.arguments or flag.environment or flag.unset or flag.needs


def test_no_two_flags_have_one_name() -> None:
    names = [flag.id for flag in launch_flags()]
    assert len(set(names)) == len(names)


def test_boards_without_peer_access_talk_through_the_host_from_two_gpus_on() -> None:
    assert "p2p-geforce" in matching((0, 11, 0), "rtx4090-24", n=2)
    assert "p2p-geforce" not in matching((0, 11, 0), "rtx4090-24", n=1)
    assert "p2p-workstation-blackwell" in matching((0, 11, 0), "rtxpro6000-96", n=2)
    assert not {name for name in matching((0, 11, 0), "h100-80", n=8) if name.startswith("p2p")}


def test_volta_and_turing_run_the_older_engine_where_the_newer_does_not_know_them() -> None:
    for gpu in ("t4-16", "v100-32"):
        assert {"v0-before-ampere", "xformers-before-ampere"} <= matching((0, 9, 1), gpu, "fp16")
        assert "v0-before-ampere" not in matching((0, 11, 0), gpu, "fp16")
        assert "v0-before-ampere" not in matching((0, 7, 3), gpu, "fp16")
    assert "v0-before-ampere" not in matching((0, 9, 1), "a100-80")
    # Capability bounds say nothing of other vendors.
    assert "v0-before-ampere" not in matching((0, 9, 1), "mi300x-192")


def test_workers_are_spawned_by_hand_only_where_the_engine_does_not_do_it() -> None:
    assert "spawn-workers" in matching((0, 6, 6), "a100-80", n=2)
    assert "spawn-workers" not in matching((0, 6, 6), "a100-80", n=1)
    assert "spawn-workers" not in matching((0, 11, 0), "a100-80", n=2)


def test_a_format_that_the_engine_cannot_make_needs_a_checkpoint() -> None:
    assert "quantised-checkpoint" in matching((0, 11, 0), "h100-80", "awq")
    assert "quantised-checkpoint" not in matching((0, 11, 0), "h100-80", "fp8")
    assert "fp8-online" in matching((0, 11, 0), "h100-80", "fp8")


def test_a_mig_slice_is_device_0_and_amd_has_one_numbering() -> None:
    slices = [gpu.kind for gpu in FACTS.gpus() if gpu.is_mig]
    assert "one-mig-slice" in matching((0, 11, 0), slices[0])
    assert "rocr-visible-devices" in matching((0, 11, 0), "mi300x-192")
    assert "p2p-radeon-and-pcie-instinct" not in matching((0, 11, 0), "mi300x-192", n=8)
    assert "p2p-radeon-and-pcie-instinct" in matching((0, 11, 0), "mi210-64", n=2)
