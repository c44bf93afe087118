"""The wrapper and the plugins in front of a real sbatch: advice is shown, and no job is held up."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from served_site import make_site

from omnipilot.web.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from real_slurm import SlurmCluster

    Wrapped = Callable[..., subprocess.CompletedProcess[str]]

HOOKS = Path(__file__).resolve().parents[2] / "integrations" / "slurm"
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:h100:4
#SBATCH --partition=gpu_h100
#SBATCH --output=/dev/null
#OMNIPILOT concurrency=8 context=4096
echo vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2
"""
WRAPPED = "vllm serve Qwen/Qwen2.5-7B-Instruct -tp 2; true"
WASTE = "omnipilot: the job asks for 4 GPUs and vLLM will use 2"
# Start-up of the processes and a loaded machine; the service itself has 0.2 s.
MOST_EXTRA_S = 3.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = make_site(tmp_path_factory.mktemp("hooks"))
    config = uvicorn.Config(
        make_app(site.service), port=0, log_level="critical", lifespan="off"
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        time.sleep(0.02)
    found = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    for text in (SCRIPT, SCRIPT, WRAPPED):  # the first answers pay for imports
        subprocess.run(
            ["curl", "-s", "-H", "Content-Type: text/plain", "--data-binary", text,
             f"{found}/v1/review?gres=&partition="],
            check=True, capture_output=True,
        )  # fmt: skip
    yield found
    server.should_exit = True
    thread.join()


@pytest.fixture
def silent() -> Iterator[str]:
    """A service that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def script(slurm: SlurmCluster) -> Path:
    path = slurm.folder / "jobs" / "serve.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def wrapped(slurm: SlurmCluster) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        sbatch = shutil.which("sbatch", path=slurm.environment["PATH"])
        return subprocess.run(
            [str(HOOKS / "omnipilot-sbatch"), *arguments], capture_output=True, text=True,
            timeout=60, check=False, cwd=slurm.folder / "jobs",
            env={**slurm.environment, "OMNIPILOT_URL": address, "OMNIPILOT_SBATCH": str(sbatch)},
        )  # fmt: skip

    return run


def submitted(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and done.stdout.startswith("Submitted batch job")


def test_the_wrapper_shows_advice_and_submits(url: str, script: Path, wrapped: Wrapped) -> None:
    done = wrapped(url, str(script))
    assert submitted(done), done.stderr
    assert WASTE in done.stderr
    assert "omnipilot: at 8 requests at once" in done.stderr


def test_the_wrapper_reads_wrapped_commands(url: str, wrapped: Wrapped) -> None:
    done = wrapped(
        url, "-p", "gpu_h100", "--gres", "gpu:h100:4", "--output=/dev/null",
        "--wrap", WRAPPED,
    )  # fmt: skip
    assert submitted(done), done.stderr
    assert WASTE in done.stderr


def test_other_jobs_are_submitted_without_a_word(url: str, wrapped: Wrapped) -> None:
    done = wrapped(url, "--output=/dev/null", "--wrap=sleep 0")
    assert submitted(done)
    assert done.stderr == ""


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:9", "nonsense"])
def test_without_a_service_the_wrapper_submits_silently(
    address: str, script: Path, wrapped: Wrapped,
) -> None:  # fmt: skip
    done = wrapped(address, str(script))
    assert submitted(done)
    assert done.stderr == ""


def test_a_service_that_hangs_costs_two_tenths_of_a_second(
    silent: str, script: Path, wrapped: Wrapped, slurm: SlurmCluster
) -> None:  # fmt: skip
    began = time.monotonic()
    slurm.run("sbatch", str(script))
    plain_s = time.monotonic() - began
    began = time.monotonic()
    done = wrapped(silent, str(script))
    assert submitted(done)
    assert done.stderr == ""
    assert time.monotonic() - began < plain_s + 0.2 + MOST_EXTRA_S


def test_sbatch_s_own_refusal_passes_through(url: str, script: Path, wrapped: Wrapped) -> None:
    done = wrapped(url, "--partition=nowhere", str(script))
    assert done.returncode != 0
    assert "invalid partition" in done.stderr.lower()


@pytest.fixture
def filtered(slurm: SlurmCluster, tmp_path: Path) -> dict[str, str]:
    """The environment of a client whose slurm.conf has the filter."""
    etc = tmp_path / "etc"
    shutil.copytree(slurm.folder / "etc", etc, ignore=shutil.ignore_patterns("munge.key"))
    with (etc / "slurm.conf").open("a", encoding="utf-8") as conf:
        conf.write("CliFilterPlugins=cli_filter/lua\n")
    shutil.copy(HOOKS / "cli_filter.lua", etc / "cli_filter.lua")
    return {**slurm.environment, "SLURM_CONF": str(etc / "slurm.conf")}


def sbatch(
    environment: dict[str, str], cwd: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sbatch", *arguments], env=environment, cwd=cwd, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_the_client_s_filter_shows_advice_and_lets_every_job_pass(
    url: str, silent: str, script: Path, filtered: dict[str, str], slurm: SlurmCluster
) -> None:
    jobs = slurm.folder / "jobs"
    done = sbatch(filtered | {"OMNIPILOT_URL": url}, jobs, str(script))
    assert submitted(done), done.stderr
    assert WASTE in done.stderr
    for address in (silent, "http://127.0.0.1:9"):
        done = sbatch(filtered | {"OMNIPILOT_URL": address}, jobs, str(script))
        assert submitted(done), done.stderr
        assert "omnipilot" not in done.stderr
    done = sbatch(filtered | {"OMNIPILOT_URL": url}, jobs, "--output=/dev/null", "--wrap=sleep 0")
    assert submitted(done)
    assert "omnipilot" not in done.stderr


def test_the_controller_s_plugin_shows_advice_and_lets_every_job_pass(
    url: str, silent: str, script: Path, slurm: SlurmCluster
) -> None:
    etc = slurm.folder / "etc"
    conf = etc / "slurm.conf"
    before = conf.read_text(encoding="utf-8")
    plugin = (HOOKS / "job_submit.lua").read_text(encoding="utf-8")
    try:
        conf.write_text(before + "JobSubmitPlugins=lua\n", encoding="utf-8")
        for address, advised in ((url, True), (silent, False), ("http://127.0.0.1:9", False)):
            (etc / "job_submit.lua").write_text(
                plugin.replace("http://127.0.0.1:8088", address), encoding="utf-8"
            )
            slurm.run("scontrol", "reconfigure")
            time.sleep(1)
            done = sbatch(slurm.environment, slurm.folder / "jobs", str(script))
            assert submitted(done), done.stderr
            assert (WASTE in done.stderr) is advised, done.stderr
    finally:
        conf.write_text(before, encoding="utf-8")
        (etc / "job_submit.lua").unlink(missing_ok=True)
        slurm.run("scontrol", "reconfigure")
        subprocess.run(
            ["scancel", "-u", "root"], env=slurm.environment, check=False, timeout=30
        )  # fmt: skip
