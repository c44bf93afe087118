"""Every command of the documentation is run, or an entry here says why not.

The blocks of a page are one session: a folder of its own for the site, the files that the page
itself gives, and Slurm's accounting as a shell script. Commands run in this process.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import pytest

from omnipilot.cli import app
from omnipilot.collect.sacct_text import COLUMNS

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE: Final = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL: Final = frozenset({"bash", "console", "sh", "shell"})

# What cannot run in a test, by how it begins or by a word in it; the first entry that fits.
NOT_RUN: Final[tuple[tuple[str, str], ...]] = (
    (r"^(\./)?scripts/(test|gate)\b", "runs the tests, of which this is one"),
    (r"^(\./)?scripts/omnipilot ", "prepares an environment; .ci/run calls it first"),
    (r"^(uv|pip) ", "installs; .ci/run does from a bare clone"),
    (r"^(sudo|podman) ", "needs root or a container engine; tests/web/test_integrations.py"),
    (r"^curl ", "needs the service; tests/web/test_service_api.py sends its body"),
    (r"^OMNIPILOT_VLLM_VENV=", "needs the real engine; it is a test itself"),
    (r"^omnipilot (serve|mcp)\b", "runs until it is stopped; tests/web, tests/mcp"),
    (r"--submit|--run\b", "needs Slurm; tests/real/test_slurm_launch.py"),
    (r"^omnipilot bench run ", "needs Slurm or an engine; tests/launch/test_bench_run.py"),
    (r"^omnipilot demo\b", "takes minutes; tests/cli/test_demo_command.py runs a small one"),
    (r"--data ", "needs the measured rows and fits for minutes; tests/evaluate, tests/learn"),
    (r"^omnipilot evaluate preference ", "needs anchors; tests/evaluate/test_preference.py"),
    (r"^omnipilot backtest\b", "needs 40 runs; tests/cli/test_learning_commands.py has them"),
    (r"^omnipilot report ", "needs runs to report on; tests/evaluate/test_report.py"),
    (r"^omnipilot fit --dry-run --retire", "needs runs of two releases; tests/learn"),
    (r"^omnipilot explain --replay ID", "ID is a name that advise gave; tests/advisor"),
    (r"^omnipilot doctor --prometheus ", "needs the server; tests/collect"),
    (r"2025\.txt\.gz|--cluster della", "needs another cluster's accounting; tests/cli"),
    (r"h100\.runs", "needs folders of finished runs; tests/launch/test_bench_run.py"),
)  # fmt: skip
# Programs of the system that pages use; a shell runs these lines as they stand.
PLAIN: Final = frozenset({"chmod", "flock", "tar", "umask"})
# Exit codes beyond 0 that are an answer, by command.
ANSWERS: Final = {"advise": {3}, "explain": {3}, "doctor": {1}}

RECORD: Final = {
    "JobID": "100", "JobIDRaw": "100", "Cluster": "lab", "User": "u", "Account": "a",
    "Partition": "gpu_h100", "State": "COMPLETED", "ExitCode": "0:0", "Submit": "1795957800",
    "Eligible": "1795957810", "Start": "1795957870", "End": "1795961470", "ElapsedRaw": "3600",
    "TimelimitRaw": "1440", "NNodes": "1", "NCPUS": "4", "AllocTRES": "gres/gpu:h100=2",
    "ReqTRES": "gres/gpu:h100=2", "AdminComment": "", "JobName": "train",
}  # fmt: skip
RUN: Final = (
    "source,model,engine,gpu,n_gpus,precision,isl,osl,concurrency,agg_tok_s,status\n"
    "our_site,Qwen/Qwen2.5-7B-Instruct,vllm,H100,1,bf16,512,128,8,4200,ok\n"
)
BENCH: Final = {
    "date": "20260101-000000", "backend": "vllm", "model_id": "Qwen/Qwen2.5-7B-Instruct",
    "num_prompts": 32, "request_rate": "inf", "max_concurrency": 8, "duration": 10.0,
    "completed": 32, "failed": 0, "total_input_tokens": 16384, "total_output_tokens": 4096,
    "request_throughput": 3.2, "output_throughput": 409.6, "total_token_throughput": 2048.0,
    "mean_ttft_ms": 60.0, "median_ttft_ms": 58.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 9.0,
    "median_tpot_ms": 9.0, "p99_tpot_ms": 12.0, "mean_itl_ms": 9.0, "median_itl_ms": 8.9,
    "p99_itl_ms": 14.0,
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """One fenced block: its language and its text."""

    language: str
    text: str

    def commands(self) -> list[str]:
        """The lines that a shell would run, continued ones joined, comments left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        kept = [re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")) for line in lines]
        return [" ".join(line.split()) for line in kept if line.strip() and line[0] != "#"]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(page: Path) -> list[str]:
    return [c for b in blocks(page) if b.language in SHELL for c in b.commands()]


def reason(command: str) -> str:
    """Why a command is not run; "" where it is."""
    return next((why for pattern, why in NOT_RUN if re.search(pattern, command)), "")


def prepare(folder: Path) -> None:
    """The files that pages take for granted, and accounting to ask."""
    (folder / "bin").mkdir(parents=True)
    (folder / "results").mkdir()
    (folder / "results" / "one.json").write_text(json.dumps(BENCH), encoding="utf-8")
    for name in ("my_runs.csv.gz", "questions.csv.gz"):
        (folder / name).write_bytes(gzip.compress(RUN.encode()))
    (folder / "runs.csv").write_text(RUN, encoding="utf-8")
    (folder / "accounting").write_text(
        "\n".join("|".join(r) for r in (COLUMNS, [RECORD[c] for c in COLUMNS])) + "\n"
    )
    scripts = {
        "sacct": f'case "$*" in *helpformat*) echo {" ".join(COLUMNS)};; '
                 f"*) cat {folder}/accounting;; esac",
        "scontrol": "echo 'ClusterName             = lab'",
        "sacctmgr": "echo lab",
    }  # fmt: skip
    for name, script in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)


class Session:
    """A shell that knows no more than the pages use."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        prepare(folder)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("OMNIPILOT_HOME", str(folder / "site"))
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("BACKUP", str(folder / "backup.tar"))
        monkeypatch.setenv("RESTORED", str(folder / "restored"))

    @property
    def home(self) -> Path:
        return Path(os.environ["OMNIPILOT_HOME"])

    def give(self, block: Block) -> None:
        """Write a file that a page shows: its first line names it, or its form tells."""
        named = re.match(r"# HOME/(\S+?):?(\s|$)", block.text)
        path = None
        if block.language == "toml" and named:
            path = self.home / named[1]
        elif block.text.startswith("source,model,"):
            path = self.folder / "runs.csv"
        elif block.language == "json" and block.text.startswith('{"architectures"'):
            path = self.folder / "config.json"
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")

    def run(self, command: str) -> int:
        """Run one line.

        Raises:
            ValueError: it is nothing that a page should tell a reader to type untested.
        """
        if command.split(maxsplit=1)[0] in PLAIN:
            done = subprocess.run(["bash", "-c", command], check=False, capture_output=True)
            return done.returncode
        line, _, out = command.partition(" > ")
        words = [
            found
            for word in shlex.split(os.path.expandvars(line))
            for found in (sorted(map(str, self.folder.glob(word))) if "*" in word else [word])
        ]
        words = [str(Path(word).expanduser()) if word[0] == "~" else word for word in words]
        match words:
            case ["export", setting]:
                name, _, value = setting.partition("=")
                self._monkeypatch.setenv(name, str(Path(value).expanduser()))
                return 0
            case ["mkdir", "-p", folder]:
                Path(folder).mkdir(parents=True, exist_ok=True)
                return 0
            case ["omnipilot", *arguments]:
                if not out:
                    return app.run(arguments)
                with Path(out).open("w") as stream, contextlib.redirect_stdout(stream):
                    return app.run(arguments)
            case _:
                raise ValueError(f"neither run nor in NOT_RUN: {command}")


def check_options(command: str) -> None:
    """Let click parse a command that is not run: its options exist and take such values."""
    words = shlex.split(command.partition(" > ")[0])
    found: click.Command = app.cli
    context = click.Context(app.cli, info_name="omnipilot")
    arguments = words[1:]
    while isinstance(found, click.Group) and arguments and not arguments[0].startswith("-"):
        child = found.get_command(context, arguments.pop(0))
        assert child is not None, command
        found = child
    names = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    for word in arguments:
        if word.startswith("--"):
            assert word.partition("=")[0] in names, f"{word} in: {command}"


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_every_command_of_a_page_runs_or_says_why_not(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Session(tmp_path / "session", monkeypatch)
    for block in blocks(page):
        session.give(block)
        for command in block.commands() if block.language in SHELL else ():
            if reason(command):
                if command.startswith("omnipilot "):
                    check_options(command)
                continue
            code = session.run(command)
            name = [*command.split(), ""][1]
            said = capsys.readouterr()
            assert code in {0} | ANSWERS.get(name, set()), f"{command}: {code}: {said.err}"


def test_every_reason_keeps_some_command_from_running() -> None:
    every = [command for page in PAGES for command in commands(page)]
    unused = [pattern for pattern, _ in NOT_RUN if not any(re.search(pattern, c) for c in every)]
    assert unused == []


def test_a_command_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(tmp_path / "session", monkeypatch)
    with pytest.raises(ValueError, match="neither run nor in NOT_RUN"):
        session.run("make me a sandwich")
    assert session.run("omnipilot advise --no-such-option") == 2
    with pytest.raises(AssertionError, match="--no-such-option"):
        check_options("omnipilot serve --no-such-option")


@pytest.mark.parametrize("page", ["EVALUATION.md", "CHANGELOG.md"])
def test_commands_named_in_the_text_have_the_options_that_they_say(page: str) -> None:
    path = ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page
    named = re.findall(r"`(omnipilot [a-z][^`]*)`", path.read_text(encoding="utf-8"))
    assert named
    for command in dict.fromkeys(named):
        check_options(command)
