"""Carries out a plan as a process of its own, for tests that kill it: PLAN HOME."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from launch_builders import quick_script

from omnipilot.launch.bench import run_plan
from omnipilot.launch.ingest import ingest_run
from omnipilot.launch.runners import LocalRunner

if __name__ == "__main__":
    plan, home = map(Path, sys.argv[1:])
    run_plan(
        plan,
        LocalRunner(quick_script),
        lambda folder: ingest_run(home, folder, now_s=time.time()),
        sleep=time.sleep,
        poll_s=0.005,
    )
