"""Slurm's client programs for tests: they answer from a file of accounting text."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from omnipilot.collect.sacct_text import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM: Final = """#!{python}
import os, sys, time
from datetime import datetime, timezone
from pathlib import Path

name = Path(sys.argv[0]).name
folder = Path(sys.argv[0]).resolve().parent
options = dict(a.lstrip("-").partition("=")[::2] for a in sys.argv[1:])
with (folder / "calls").open("a") as calls:
    calls.write(" ".join([name, *sys.argv[1:]]) + chr(10))
if name == "scontrol":
    print("Configuration data as of now" + chr(10) + "ClusterName             = lab")
elif name == "sacctmgr":
    print("lab" + chr(10) + "big")
elif "helpformat" in options:
    print((folder / "columns").read_text())
else:
    fault = folder / "fault"
    if fault.exists():
        sys.exit(fault.read_text())

    def seconds(text):
        assert os.environ["TZ"] == "UTC" and os.environ["SLURM_TIME_FORMAT"] == "%s"
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()

    first, last = seconds(options["starttime"]), seconds(options["endtime"])
    header, *records = (folder / "accounting").read_text().splitlines()
    names = header.split("|")
    wanted = options["format"].split(",")
    print("|".join(wanted))
    for record in records:
        fields = dict(zip(names, record.split("|")))
        cluster = options.get("clusters", "lab")
        if fields["Cluster"] == cluster and first <= int(fields["End"]) <= last:
            print("|".join(fields[n] for n in wanted))
        if (folder / "slow").exists():
            sys.stdout.flush()
            time.sleep(0.001)
"""


class StandInSlurm:
    """A folder with ``sacct``, ``scontrol`` and ``sacctmgr`` to put in front of PATH.

    Args:
        folder: made where absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("sacct", "scontrol", "sacctmgr"):
            program = folder / name
            program.write_text(_PROGRAM.format(python=sys.executable))
            program.chmod(0o755)
        self.knows(*COLUMNS, "Restarts")

    def knows(self, *columns: str) -> None:
        """Set the columns that ``sacct --helpformat`` lists."""
        (self.folder / "columns").write_text(" ".join(columns))

    def holds(self, text: str) -> None:
        """Set the accounting."""
        (self.folder / "accounting").write_text(text)

    def fails(self, reason: str) -> None:
        """Let sacct fail from now on; "" lets it work again."""
        fault = self.folder / "fault"
        if reason:
            fault.write_text(reason)
        else:
            fault.unlink()

    def is_slow(self) -> None:
        """Let sacct print a record a millisecond."""
        (self.folder / "slow").touch()

    def calls(self) -> list[str]:
        """Give the commands that were run."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def path(self) -> str:
        """PATH with the programs first."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
