"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from real_slurm import slurm as slurm  # noqa: PLC0414 - a fixture for every folder
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# Small matrices on a shared machine: threads that wait for one another cost more than they give.
# Read when numpy is first imported, which is after this file.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A worker is told the width of the terminal that it writes to; what is tested is told none.
os.environ.pop("COLUMNS", None)

# Folders whose tests wait most; begun first, so that no worker is left alone with one at the end.
LONG_FOLDERS = ("real", "advisor", "web", "simulate")
# Files that start the real Slurm: in one worker, one after the other.
ONE_SLURM = ("tests/real/test_slurm_", "tests/real/test_live_advice.py")
# Tests of what trains nothing and asks nothing that does, among the long ones.
WITHOUT_TRAINING = (
    "advisor/test_chaos", "advisor/test_harvest", "advisor/test_live_", "advisor/test_metamorphic",
    "catalog/", "cli/test_collect_", "cli/test_hostile_", "collect/", "decide/", "launch/",
    "learn/test_model_crashes", "real/", "simulate/", "store/", "test_hostile_files", "web/",
)  # fmt: skip

# How long a test takes says more of the machine than of the program; what must be quick is timed
# by its test, in processor time.
settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("steady")


class Workers(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Keeps a file in one worker, and all that start the real Slurm in the same."""

    def _split_scope(self, nodeid: str) -> str:
        return "slurm" if nodeid.startswith(ONE_SLURM) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Workers:
    """Say which worker gets which test where there are several (``-n 2``)."""
    config.option.loadscopereorder = False  # the order of pytest_collection_modifyitems
    return Workers(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for a machine without the shared rows and without what training needs."""
    parser.addoption(
        "--bare",
        action="store_true",
        help="collect all, run what the shared rows or the extra 'fit' can change",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long folders first; with ``--bare`` leave out what ends as it does everywhere."""
    here = Path(__file__).parent

    def name(item: pytest.Item) -> str:
        return item.path.relative_to(here).as_posix()

    def place(item: pytest.Item) -> int:
        folder = name(item).partition("/")[0]
        return LONG_FOLDERS.index(folder) if folder in LONG_FOLDERS else len(LONG_FOLDERS)

    def is_same_everywhere(item: pytest.Item) -> bool:
        uses_rows = "shared_dir" in getattr(item, "fixturenames", ())
        return name(item).startswith(WITHOUT_TRAINING) and not uses_rows

    items.sort(key=place)
    if config.getoption("--bare"):
        config.hook.pytest_deselected(items=[i for i in items if is_same_everywhere(i)])
        items[:] = [i for i in items if not is_same_everywhere(i)]


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
