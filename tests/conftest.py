"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from real_slurm import slurm as slurm  # noqa: PLC0414 - a fixture for every folder

# Small matrices on a shared machine: threads that wait for one another cost more than they give.
# Read when numpy is first imported, which is after this file.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of the real measured rows; tests that need it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("OMNIPILOT_SHARED", default))
    if not (path / "data").is_dir():
        pytest.skip("no shared data: set OMNIPILOT_SHARED to the folder that holds data/")
    return path


@pytest.fixture(autouse=True)
def no_site_of_the_developer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep a folder that the developer uses out of every test."""
    monkeypatch.setenv("OMNIPILOT_HOME", str(tmp_path_factory.getbasetemp() / "no-site"))
    # Slurm's programs may be on PATH without a cluster; tests of live advice say so.
    monkeypatch.setenv("OMNIPILOT_LIVE", "0")
