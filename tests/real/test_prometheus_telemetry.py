"""A real Prometheus scrapes an exporter of DCGM metrics and is asked by the collector."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from dcgm_stand_in import MODEL, page
from real_slurm import free_ports

from omnipilot.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRAPE_S = 0.5
JOB = "4711"
READY = {
    "DCGM_FI_DEV_POWER_USAGE": [189.0, 189.0],
    "DCGM_FI_PROF_SM_ACTIVE": [0.51, 0.51],
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": [0.17, 0.17],
    "DCGM_FI_PROF_DRAM_ACTIVE": [0.34, 0.34],
    "DCGM_FI_DEV_FB_USED": [71_680.0, 71_680.0],
    "DCGM_FI_DEV_XID_ERRORS": [0.0, 79.0],
}
STARTING = READY | {
    "DCGM_FI_DEV_POWER_USAGE": [92.0, 92.0],
    "DCGM_FI_PROF_SM_ACTIVE": [0.0, 0.0],
    "DCGM_FI_DEV_XID_ERRORS": [0.0, 0.0],
}


@dataclass(frozen=True)
class Recorded:
    """Where the server is and when the job started, got ready and ended."""

    url: str
    start_s: float
    ready_s: float
    end_s: float


class Exporter(http.server.ThreadingHTTPServer):
    """Serves the page that it holds."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.text = ""
        self.scraped = threading.Event()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Exporter)
        data = self.server.text.encode()
        self.server.scraped.set()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        del format, args


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on this machine")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_ports(1)[0]
    with Exporter() as exporter:
        thread = threading.Thread(target=exporter.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
            "scrape_configs:\n"
            "- job_name: dcgm\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{exporter.server_port}']}}]\n",
            encoding="utf-8",
        )
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [program, f"--config.file={folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            assert exporter.scraped.wait(30), (folder / "log").read_text(errors="replace")[-500:]
            start_s = time.time()
            exporter.text = page(STARTING, JOB)
            time.sleep(6)
            exporter.text = page(READY, JOB)
            time.sleep(1.5 * SCRAPE_S)
            ready_s = time.time()
            time.sleep(4)
            yield Recorded(url, start_s, ready_s, time.time())
        finally:
            server.terminate()
            server.wait(timeout=20)
            exporter.shutdown()
            thread.join()


def asked(recorded: Recorded, home: Path, *options: str) -> list[str]:
    return [
        "collect", "dcgm", "--home", str(home), "--prometheus", recorded.url, "--step", "0.5",
        "--since", f"{recorded.start_s - 5:.0f}", "--until", f"{recorded.end_s:.0f}", *options,
    ]  # fmt: skip


def test_the_serving_window_is_told_apart_from_the_whole_job(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = tmp_path / "served.csv"
    windows.write_text(
        f"job_id,serve_start_s,serve_end_s\n{JOB},{recorded.ready_s},{recorded.end_s - 0.5}\n",
        encoding="utf-8",
    )
    options = ("--windows", str(windows), "--format", "json")
    assert app.run(asked(recorded, tmp_path / "home", *options)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rejected"] == 0
    (job,) = told["jobs"]
    assert (job["job_id"], job["gpu"], job["n_gpus"]) == (JOB, MODEL, 2)
    assert job["labels"]["power_mean_w"] == pytest.approx(2 * 189)
    assert job["labels"]["sm_active_frac"] == pytest.approx(0.51)
    assert job["labels"]["fb_used_mean_gib"] == pytest.approx(70)
    # Six of some ten and a half seconds at 92 W and without activity.
    assert 2 * 115 < job["job_labels"]["power_mean_w"] < 2 * 155
    assert 0.12 < job["job_labels"]["sm_active_frac"] < 0.33
    assert job["coverage_frac"] > 0.8
    (fault,) = told["health"]
    assert (fault["event"], fault["code"], fault["severity"]) == ("xid", 79, "hardware")
    assert fault["job_id"] == JOB
    assert fault["first_s"] > recorded.start_s + 5


def test_asked_again_nothing_is_added(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for accepted in (2, 0):
        assert app.run(asked(recorded, tmp_path, "--job", JOB, "--format", "json")) == 0
        assert json.loads(capsys.readouterr().out)["accepted"] == accepted


def test_a_job_that_was_not_there_gives_nothing(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(asked(recorded, tmp_path, "--job", "99", "--format", "json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["accepted"], told["jobs"], told["health"]) == (0, [], [])


def test_a_query_that_the_server_refuses_is_told_in_one_line(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["collect", "dcgm", "--home", str(tmp_path), "--since", "1h",
                    "--prometheus", f"{recorded.url}/elsewhere"]) == 1  # fmt: skip
    err = capsys.readouterr().err
    assert "refused the query (404)" in err
    assert err.count("\n") == 1
