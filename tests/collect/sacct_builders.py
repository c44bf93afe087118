"""Accounting records for tests: text of sacct -P, one dictionary a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.collect.identity import SiteKey
from omnipilot.collect.sacct import collect_sacct
from omnipilot.domain import ClusterJob
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo
    from pathlib import Path

KEY = SiteKey(b"k" * 32)
TRES = "billing=4,cpu=4,gres/gpu:h100=2,gres/gpu=2,mem=8G,node=1"
SUBMIT_S = 1_795_957_800

# The order of the captures: free texts (JobName, Comment, AdminComment) at the front and the end.
RECORD: dict[str, str] = {
    "JobID": "100", "JobIDRaw": "100", "Cluster": "lab", "User": "alice", "Account": "acct_alice",
    "JobName": "train", "Partition": "gpu_h100", "State": "COMPLETED", "ExitCode": "0:0",
    "Submit": str(SUBMIT_S), "Eligible": str(SUBMIT_S + 10), "Start": str(SUBMIT_S + 70),
    "End": str(SUBMIT_S + 3670), "ElapsedRaw": "3600", "Timelimit": "1-00:00:00", "NNodes": "1",
    "NCPUS": "4", "AllocTRES": TRES, "ReqTRES": TRES, "Comment": "", "AdminComment": "",
}  # fmt: skip


def text(
    *records: dict[str, str], columns: Sequence[str] = tuple(RECORD), delimiter: str = "|"
) -> str:
    lines = [delimiter.join(columns)]
    for record in records:
        whole = {**RECORD, **record}
        if whole["JobID"].isdigit() and "JobIDRaw" not in record:
            whole["JobIDRaw"] = whole["JobID"]
        lines.append(delimiter.join(whole[column] for column in columns))
    return "\n".join(lines) + "\n"


def collect(
    path: Path, content: str | bytes, *, key: SiteKey | None = KEY, zone: tzinfo | None = None
) -> list[ClusterJob | Rejection]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if zone is None:
        return list(collect_sacct(path, key=key))
    return list(collect_sacct(path, key=key, zone=zone))


def rows(items: list[ClusterJob | Rejection]) -> list[ClusterJob]:
    return [item for item in items if isinstance(item, ClusterJob)]


def codes(items: list[ClusterJob | Rejection]) -> list[str]:
    return [item.code for item in items if isinstance(item, Rejection)]


def one(path: Path, **change: str) -> ClusterJob:
    (item,) = collect(path, text(change))
    assert isinstance(item, ClusterJob), item
    return item


def fault(path: Path, **change: str) -> str:
    (item,) = collect(path, text(change))
    assert isinstance(item, Rejection), item
    assert item.line == 2
    return item.code
