"""What works on this site and what does not: one check after the other, none stops the next."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from typing import TYPE_CHECKING, Final, Literal

from omnipilot.collect.command import run_command
from omnipilot.collect.identity import KEY_NAME
from omnipilot.collect.live import read_cluster
from omnipilot.collect.programs import find_program
from omnipilot.decide.cluster_gpus import GpuNaming, name_gpus
from omnipilot.domain import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.settings import FILE_NAME, Settings
from omnipilot.store.log import CLUSTER_LOG_NAME, LOG_NAME, ReadTally, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor

__all__ = ["CHECKS", "CheckResult", "Surroundings", "examine"]

State = Literal["ok", "warning", "failed", "skipped"]

_DAY_S: Final = 86_400.0
PRICES_YEAR: Final = 2025  # of settings_defaults.toml
_STALE_PRICES_S: Final = 180 * _DAY_S
_STALE_HARVEST_S: Final = 14 * _DAY_S
_ANSWER_BYTES: Final = 64 * 2**20
_JOBSTATS: Final = b"JS1:"
_JOBSTATS_SPOILT: Final = b"js1:"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found; ``advice`` says what to do, "" where nothing is to be done."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks are told.

    Args:
        now_s: Unix seconds.
        timeout_s: longest wait for one program or server.
        prometheus: address of a Prometheus server, "" for none.
    """

    now_s: float
    timeout_s: float = 10.0
    prometheus: str = ""


def examine(advisor: Advisor, around: Surroundings) -> Iterator[CheckResult]:
    """Run every check; one that breaks is a finding, not the end."""
    for name, check in CHECKS:
        try:
            state, found, advice = check(advisor, around)
        except OmniPilotError as error:
            state, found, advice = "failed", str(error), ""
        except OSError as error:
            state, found, advice = "failed", f"{error.filename or name}: {error.strerror}", ""
        yield CheckResult(name, state, " ".join(found.split()), advice)


_Found = tuple[State, str, str]


def _settings(advisor: Advisor, _: Surroundings) -> _Found:
    site = advisor.settings
    own = f"{advisor.home / FILE_NAME}" if site.origin.name == FILE_NAME else "none: all defaults"
    return "ok", f"settings are read ({own})", ""


def _slurm(advisor: Advisor, around: Surroundings) -> _Found:
    if find_program("sinfo") is None:
        return "skipped", "sinfo is not on PATH", "run this on a login node, or load the module"
    before = time.monotonic()
    state = read_cluster(now_s=around.now_s, timeout_s=around.timeout_s)
    took_s = time.monotonic() - before
    known = {g.node for g in name_gpus(state, GpuNaming(advisor.catalog))}
    with_gpus = [n.name for n in state.nodes if any(g.total for g in n.gpus)]
    unnamed = [name for name in with_gpus if name not in known]
    found = (
        f"Slurm {state.version or 'of unknown version'} answered in {took_s:.1f} s: "
        f"{len(state.nodes)} nodes, {len(with_gpus)} with GPUs, "
        f"{sum(1 for n in state.nodes if n.closed)} closed, {state.pending_gpus} GPUs waited for"
    )
    if state.notes:
        return "warning", f"{found}. {' '.join(state.notes)}", "ask an administrator why"
    if took_s > advisor.settings.slurm_timeout_s:
        limit_s = advisor.settings.slurm_timeout_s
        return "warning", found, f"slower than slurm_timeout_s ({limit_s:g} s): raise it"
    if unnamed:
        return (
            "warning",
            f"{found}; GPUs of {', '.join(unnamed[:4])} have no kind of the catalogue",
            "give them a type in gres.conf, or add the kind to HOME/gpus",
        )
    return "ok", found, ""


def _accounting(_: Advisor, around: Surroundings) -> _Found:
    if find_program("sacct") is None:
        return "skipped", "sacct is not on PATH", "run this on a login node, or load the module"
    answer = run_command(
        ("sacct", "-a", "-X", "-n", "-P", "-S", "now-1days", "-o", "JobIDRaw"),
        timeout_s=around.timeout_s,
        output_bytes=_ANSWER_BYTES,
    )
    jobs = answer.stdout.count(b"\n")
    if not jobs:
        return "warning", "sacct answers and shows no job of the last day", "may you see all jobs?"
    return "ok", f"sacct shows {jobs:,} jobs of the last day", ""


def _jobstats(_: Advisor, around: Surroundings) -> _Found:
    if find_program("sacct") is None:
        return "skipped", "sacct is not on PATH", ""
    answer = run_command(
        ("sacct", "-a", "-X", "-n", "-P", "-S", "now-1days", "-s", "CD,F,TO", "-o", "AdminComment"),
        timeout_s=around.timeout_s,
        output_bytes=_ANSWER_BYTES,
    )
    comments = answer.stdout.splitlines()
    good = sum(_JOBSTATS in line for line in comments)
    spoilt = sum(_JOBSTATS_SPOILT in line for line in comments)
    if good:
        share = good / max(len(comments), 1)
        return "ok", f"{share:.0%} of the last day's {len(comments):,} ended jobs have jobstats", ""
    if spoilt:
        return (
            "failed",
            "jobstats are in lower case, which destroys them",
            "sacctmgr of Slurm 22.05 does that: store them with scontrol while the job runs",
        )
    return "skipped", "no ended job of the last day has jobstats", "nothing to do where unused"


def _prometheus(_: Advisor, around: Surroundings) -> _Found:
    if not around.prometheus:
        return "skipped", "no server is named", "name one with --prometheus URL"
    from omnipilot.collect.prometheus_json import Series  # noqa: PLC0415 - ssl takes a while
    from omnipilot.collect.prometheus_server import PrometheusServer, query_range  # noqa: PLC0415

    server = PrometheusServer(around.prometheus, timeout_s=around.timeout_s)
    begin_s = around.now_s - 600.0
    answers = query_range(
        server, "DCGM_FI_DEV_GPU_UTIL", start_s=begin_s, end_s=around.now_s, step_s=60.0
    )
    series = sum(isinstance(item, Series) for item in answers)
    if not series:
        return (
            "warning",
            "the server answers and holds no DCGM_FI_DEV_GPU_UTIL of the last 10 minutes",
            "is it the server that scrapes dcgm-exporter?",
        )
    return "ok", f"the server has {series:,} GPUs of the last 10 minutes", ""


def _stores(advisor: Advisor, _: Surroundings) -> _Found:
    home = advisor.home
    where = home if home.exists() else next(p for p in home.parents if p.exists())
    if home.exists() and not home.is_dir():
        return "failed", f"{home} is no folder", "move it away, or name another with --home"
    try:
        with tempfile.TemporaryFile(dir=where) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return "failed", f"{where} cannot be written: {error.strerror}", "name another with --home"
    counts = []
    skipped = 0
    for name in (LOG_NAME, CLUSTER_LOG_NAME):
        tally = ReadTally()
        store = Store(home, log_name=name)
        lines = sum(1 for _ in store.lines()) if name == CLUSTER_LOG_NAME else _read(store, tally)
        skipped += tally.skipped.total()
        counts.append(f"{name} {lines:,} rows")
    if skipped:
        return "warning", f"{skipped} lines of {LOG_NAME} are damaged and passed over", ""
    return "ok", f"{where} can be written; {', '.join(counts)}", ""


def _read(store: Store, tally: ReadTally) -> int:
    return sum(1 for _ in store.rows(tally))


def _model(advisor: Advisor, _: Surroundings) -> _Found:
    from omnipilot.costmodel.bundle import base_model_path  # noqa: PLC0415 - NumPy takes 0.1 s
    from omnipilot.costmodel.predict import CostModel  # noqa: PLC0415 - same

    base = CostModel.load(base_model_path())
    answering = advisor.model
    if answering.version == base.version:
        return "ok", f"the base model {base.version} is whole and answers", ""
    return (
        "ok",
        f"the base model {base.version} is whole; the site's {answering.version} answers",
        "",
    )


def _salt(advisor: Advisor, _: Surroundings) -> _Found:
    path = advisor.home / KEY_NAME
    if not path.exists():
        return "skipped", "there is no secret yet; the first harvest makes it", ""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        return (
            "failed",
            f"others can read {path} (mode {mode:04o}): hashes of people can be turned back",
            f"chmod 600 {path}",
        )
    if status.st_uid != os.getuid():
        return "warning", f"{path} belongs to another user", "harvest as the owner of the folder"
    return "ok", f"only its owner can read the secret (mode {mode:04o})", ""


def _prices(advisor: Advisor, around: Surroundings) -> _Found:
    site = advisor.settings
    defaults = Settings.load().price_usd_by_kind
    kinds = site.site_gpu_kinds(advisor.catalog.site_gpu_kinds())
    unset = [
        kind for kind in kinds
        if kind in defaults and site.price_usd_by_kind.get(kind) == defaults[kind]
    ]  # fmt: skip
    if site.origin.name != FILE_NAME:
        return (
            "warning",
            f"prices are the defaults of {PRICES_YEAR}",
            f"set price_usd_per_gpu_h in {advisor.home / FILE_NAME}",
        )
    age_s = around.now_s - site.origin.stat().st_mtime
    if age_s > _STALE_PRICES_S:
        days = age_s / _DAY_S
        return "warning", f"{site.origin} was last changed {days:.0f} days ago", "are prices right?"
    if unset:
        return (
            "warning",
            f"prices of {', '.join(unset[:4])} are the defaults of {PRICES_YEAR}",
            f"set price_usd_per_gpu_h in {site.origin}",
        )
    return "ok", f"the site's own prices, changed {max(age_s, 0.0) / _DAY_S:.0f} days ago", ""


def _history(advisor: Advisor, around: Surroundings) -> _Found:
    path: Path = advisor.home / CLUSTER_LOG_NAME
    if not path.exists():
        return "skipped", "no harvest of the cluster's jobs yet", "omnipilot collect sacct"
    digest = advisor.digest(around.now_s)
    age_s = around.now_s - path.stat().st_mtime
    model = digest.wait_model
    waits = f"{model.samples:,} jobs" if model else "too few jobs to learn from"
    found = (
        f"{len(digest.cluster)} configurations with launches, waits of {waits}, "
        f"last harvest {age_s / _DAY_S:.0f} days ago"
    )
    if digest.damaged_jobs:
        lost = f"{digest.damaged_jobs:,} lines are damaged or of a later version and left out"
        return "warning", f"{found}; {lost}", "restore the log, or harvest anew into another home"
    if age_s > _STALE_HARVEST_S:
        return "warning", found, "omnipilot collect sacct"
    return "ok", found, ""


CHECKS: Final[tuple[tuple[str, Callable[[Advisor, Surroundings], _Found]], ...]] = (
    ("settings", _settings),
    ("slurm", _slurm),
    ("accounting", _accounting),
    ("jobstats", _jobstats),
    ("prometheus", _prometheus),
    ("stores", _stores),
    ("history", _history),
    ("base model", _model),
    ("salt", _salt),
    ("prices", _prices),
)
