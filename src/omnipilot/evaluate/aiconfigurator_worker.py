"""Runs under a Python that has NVIDIA's AIConfigurator: questions on stdin, answers on stdout.

A program of its own, not imported: :mod:`omnipilot.evaluate.aiconfigurator` starts it, under
another Python than this package's where AIConfigurator is installed in that one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

_REASON_CHARACTERS = 160
_FOLDER = Path(__file__).resolve().parent


class _Estimator:
    """Its ``cli_estimate``, aggregated serving, with the newest tables of each system."""

    def __init__(self, folder: Path) -> None:
        self._estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
        database = importlib.import_module("aiconfigurator.sdk.perf_database")
        self._newest = database.get_latest_database_version
        self._folder = folder
        self._versions: dict[tuple[str, str], str | None] = {}

    def _version(self, system: str, backend: str) -> str | None:
        key = (system, backend)
        if key not in self._versions:  # it reads hundreds of files to find out
            self._versions[key] = self._newest(system=system, backend=backend)
        return self._versions[key]

    def _model(self, question: dict[str, Any]) -> str:
        """Its own name of the model, or a folder with the config that we give."""
        if not question["config"]:
            return str(question["model"])
        folder = self._folder / question["model"].replace("/", "--")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(question["config"]), encoding="utf-8")
        return str(folder)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Requests per second, TTFT and TPOT in seconds; or why there is no answer."""
        version = self._version(question["system"], question["backend"])
        if version is None:
            return {"refused": f"no tables of {question['system']} for {question['backend']}"}
        given = {
            "backend_name": question["backend"], "backend_version": version,
            "isl": question["prompt_tokens"], "osl": question["output_tokens"],
            "batch_size": question["concurrency"], "tp_size": question["tensor_parallel"],
            "gemm_quant_mode": question["gemm"] or None, "moe_quant_mode": question["moe"] or None,
        }  # fmt: skip
        if question["is_moe"]:
            given["moe_tp_size"] = question["tensor_parallel"]
        try:
            found = self._estimate(self._model(question), question["system"], **given)
            return {
                "request_per_s": float(found.raw["request_rate"]),
                "ttft_s": float(found.ttft) / 1e3,
                "tpot_s": float(found.tpot) / 1e3,
            }
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            said = str(error).splitlines() or [""]
            return {"refused": f"{type(error).__name__}: {said[0]}"[:_REASON_CHARACTERS]}


def main() -> None:
    """Answer a list of questions with a list of answers, in order."""
    # The folder of this file comes first there, and has a module of that name too.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _FOLDER]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.disable(logging.CRITICAL)
    questions = json.load(sys.stdin)
    # What it prints on the way is none of the answer.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        estimator = _Estimator(Path(folder))
        answers = [estimator.answer(question) for question in questions]
    version = importlib.import_module("importlib.metadata").version("aiconfigurator")
    json.dump({"version": version, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
