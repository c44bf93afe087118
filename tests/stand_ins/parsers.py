"""Every parser of text that somebody else wrote, as one table.

``tests/test_every_parser.py`` feeds each damaged examples in every run,
``benchmarks/fuzz_parsers.py`` for as long as one likes. A refusal is an error of
``domain/errors.py``; anything else that comes out is a fault. Whole requests to the service, whole
commands and configs of other kinds of models have tests of their own (tests/web,
tests/cli/test_hostile_arguments.py, tests/catalog).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock
from urllib.error import HTTPError
from urllib.parse import parse_qsl

import parser_examples as examples
from fuzzing import reader, soundness
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.advisor.decisions import DECISIONS_NAME, replay
from omnipilot.advisor.digest import DIGEST_NAME, read_digest
from omnipilot.advisor.preference import read_anchors
from omnipilot.advisor.telemetry import read_windows
from omnipilot.catalog import Catalog
from omnipilot.catalog.hf_config import arch_from_config, read_config
from omnipilot.collect.hostlist import expand_hosts
from omnipilot.collect.identity import KEY_NAME, open_site_key
from omnipilot.collect.live_cache import CACHE_NAME, load_state, read_cache
from omnipilot.collect.live_control import read_partitions, read_reservations
from omnipilot.collect.live_jobs import read_jobs_json, read_jobs_text
from omnipilot.collect.live_nodes import read_nodes_json, read_nodes_text
from omnipilot.collect.prometheus_server import PrometheusServer
from omnipilot.costmodel import bundle
from omnipilot.costmodel.array_file import read_arrays
from omnipilot.decide.probes import MENU_FILE, load_menu
from omnipilot.domain import OmniPilotError
from omnipilot.domain.rejection import Rejection
from omnipilot.evaluate import holdout_cache
from omnipilot.launch.axes import AXES, axis_value
from omnipilot.launch.emit import run_rows
from omnipilot.launch.plan import read_plan
from omnipilot.launch.spec import SPEC_NAME, read_spec, write_spec
from omnipilot.learn.kept_folds import KeptFolds
from omnipilot.learn.ledger import LEDGER_NAME, Ledger
from omnipilot.learn.registry import ROWS_FILE, Registry
from omnipilot.settings import FILE_NAME, Settings
from omnipilot.store import CLUSTER_LOG_NAME, Store
from omnipilot.store.compacted import folder_of, open_source
from omnipilot.store.log import LOG_NAME
from omnipilot.store.marks import MARKS_NAME, Marks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PARSERS", "PARSER_BY_NAME", "Parser", "fault_of"]

LIMIT_S: Final = 2.0


@dataclass(frozen=True)
class Parser:
    """One parser.

    Args:
        name: for reports and for picking it.
        seeds: sound texts; each is read without a refusal.
        read: reads a text, with a folder to write it to; a refusal is raised.
        share: of the usual number of damaged texts that a test gives it.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]
    share: float = 1.0


def fault_of(parser: Parser, data: bytes, folder: Path, *, limit_s: float = LIMIT_S) -> str:
    """Read one text; "" where it was read, or refused as it should be, else what is wrong."""
    began_s = time.process_time()
    try:
        parser.read(data, folder)
    except OmniPilotError as error:
        words = str(error)
        if not words.strip():
            return "a refusal without words"
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = "" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        return f"{type(error).__name__} at {place}: {str(error)[:200]!r}"
    took_s = time.process_time() - began_s
    return f"took {took_s:.1f} s" if took_s > limit_s else ""


def _collector(name: str, *seeds: bytes) -> Parser:
    def read(data: bytes, folder: Path) -> None:
        path = folder / "input"
        path.write_bytes(data)
        for item in reader(name)(path):
            if isinstance(item, Rejection):
                if not (0 < len(item.reason) < 400 and 0 < len(item.code) <= 40):
                    raise AssertionError(f"odd rejection {item!r}")
            elif faults := soundness(item):
                raise AssertionError(f"{faults} in {item!r}")

    return Parser(name, seeds, read)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A reader of a folder that holds the text under that name."""

    def of_bytes(data: bytes, folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        return read(folder)

    return of_bytes


def _text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda data, _: read(data.decode("utf-8", "surrogateescape"))


def _bytes(*reads: Callable[[bytes], object]) -> Callable[[bytes, Path], object]:
    return lambda data, _: [read(data) for read in reads]


@cache
def _advisor() -> Advisor:
    return Advisor(Path("/nonexistent"), model=StandInModel())


def _names(text: str) -> None:
    """What people and engines call GPUs, models, precisions and versions."""
    from omnipilot.catalog.engines import parse_engine_version  # noqa: PLC0415 - beside the others
    from omnipilot.collect.context import model_name, precision_name  # noqa: PLC0415 - same

    catalog = _advisor().catalog
    for ask in (
        catalog.gpu, catalog.precision, catalog.model, parse_engine_version, model_name,
        lambda said: precision_name(said, said),
    ):  # fmt: skip
        with contextlib.suppress(OmniPilotError):
            ask(text)


def _config(folder: Path) -> None:
    arch = arch_from_config(read_config(folder / "config.json"), "m")
    assert 0 < arch.active_params <= arch.total_params <= 10**15


def _bound(data: bytes, key: str, line: Callable[[str, str], str]) -> bytes:
    """Bytes as they are, or, of a JSON table, as the line that vouches for it.

    Args:
        key: where the line has its digest.
        line: puts the text of the rest and its digest together.
    """
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict):
            body.pop(key, None)
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
            return f"{line(text, hashlib.sha256(text.encode()).hexdigest())}\n".encode()
    return data


def _ledger(data: bytes, folder: Path) -> None:
    data = _bound(data, "digest", lambda text, digest: f'{text[:-1]},"digest":"{digest}"}}')
    (folder / LEDGER_NAME).write_bytes(data)
    for entry in Ledger(folder).entries():
        assert isinstance(entry.facts, dict)
        assert "/" not in entry.version


def _history(folder: Path) -> None:
    """A log of any bytes is read, mended, and takes a row, which is there once."""
    (folder / LOG_NAME).chmod(0o600)
    store = Store.open(folder)
    before = [stored.row for stored in store.rows()]
    store.append([examples.RUN], now_s=0.0)
    after = [stored.row for stored in store.rows()]
    assert after[: len(before)] == before
    assert examples.RUN in after
    for torn in store.torn_files():
        torn.unlink()


def _compacted(folder: Path) -> None:
    with open_source(Store.open(folder, log_name=CLUSTER_LOG_NAME)):
        pass


def _state(folder: Path) -> None:
    read_cache(folder, now_s=examples.NOW_S, most_age_s=1e9)
    load_state(folder / CACHE_NAME)


def _decisions(data: bytes, folder: Path) -> None:
    data = _bound(data, "id", lambda text, digest: f'{{"id":"{digest[:12]}",{text[1:]}')
    (folder / DECISIONS_NAME).write_bytes(data)
    advisor = Advisor(folder, model=StandInModel())
    with mock.patch("omnipilot.advisor.decisions._model", return_value=advisor.model):
        replay(advisor, data[7:15].decode("utf-8", "replace"))


def _digest(folder: Path) -> None:
    read_digest(folder, now_s=examples.NOW_S, site=Settings.load(folder))


def _run_folder(folder: Path) -> None:
    """What a run left: the same text as its marks, its log and its benchmark."""
    write_spec(folder, examples.SPEC)
    data = (folder / "marks").read_bytes()
    for name in ("server.log", "done", "bench.json"):
        (folder / name).write_bytes(data)
    for item in run_rows(folder):
        assert isinstance(item, Rejection) or soundness(item) == []


def _menu(folder: Path) -> None:
    load_menu.cache_clear()
    load_menu(folder / "probes.toml")


def _tokens(folder: Path) -> None:
    from omnipilot.web.tokens import TokenFile  # noqa: PLC0415 - as the service

    TokenFile(folder).find("something")


def _query(data: bytes, _: Path) -> None:
    from omnipilot.web.page_request import read_query  # noqa: PLC0415 - as the service

    asked = read_query(dict(parse_qsl(data.decode("utf-8", "replace"))))
    if asked.body is not None:
        _ask(asked.body)


def _ask(body: Any) -> None:
    from omnipilot.web.asking import question_of  # noqa: PLC0415 - as the service

    question_of(body, mock.Mock(live=False, now_s=examples.NOW_S))


def _body(data: bytes, _: Path) -> None:
    from pydantic import ValidationError  # noqa: PLC0415 - as the service

    from omnipilot.web import asking  # noqa: PLC0415 - same
    from omnipilot.web.handlers import read_body  # noqa: PLC0415 - same
    from omnipilot.web.problems import ProblemError  # noqa: PLC0415 - same

    with contextlib.suppress(ProblemError):
        read_body(asking.AdviseBody, data)
    for kind in (asking.AdviseBody, asking.ProbeBody, asking.FitsBody, asking.PredictBody):
        with contextlib.suppress(ValidationError):
            body = kind.model_validate_json(data)
            if isinstance(body, asking.AskBody):
                _ask(body)
            elif isinstance(body, asking.FitsBody):
                asking.launch_of(body)


def _authorization(data: bytes, folder: Path) -> None:
    from omnipilot.web.access import Access  # noqa: PLC0415 - as the service
    from omnipilot.web.problems import ProblemError  # noqa: PLC0415 - same
    from omnipilot.web.tokens import TokenFile  # noqa: PLC0415 - same

    said = data.decode("latin-1")
    access = Access("proxy", TokenFile(folder), proxy_peers=("p",))
    with contextlib.suppress(ProblemError):
        found = access.principal({"authorization": said}, "p")
        assert found is None or not said
    named = access.principal({"x-remote-user": said}, "p")
    assert named is None or named.name.isprintable()


def _service_answer(data: bytes, _: Path) -> None:
    from omnipilot.client import Client  # noqa: PLC0415 - as a program

    client = Client("http://127.0.0.1:1")
    refused = HTTPError("http://x", 422, "", {}, io.BytesIO(data))  # type: ignore[arg-type]
    for opened in ({"return_value": io.BytesIO(data)}, {"side_effect": refused}):
        with mock.patch("urllib.request.urlopen", **opened), contextlib.suppress(OmniPilotError):
            client.ready()


def _arguments(data: bytes, _: Path) -> None:
    """A command line as click reads it, a word a line (NUL ends one too); nothing is run."""
    import click  # noqa: PLC0415 - as the command

    from omnipilot.cli import app  # noqa: PLC0415 - same

    command: click.Command = app.cli
    context = click.Context(app.cli, info_name="omnipilot")
    words = data.decode("utf-8", "surrogateescape").replace("\0", "\n").split("\n")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            return
        command, words = found, words[1:]
    with (
        contextlib.suppress(click.ClickException, click.exceptions.Exit),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        command.make_context("x", words, parent=context)


@cache
def _base_arrays() -> dict[str, Any]:
    return read_arrays(bundle.base_model_path() / bundle.ARRAYS, bundle.MAX_ARRAY_BYTES)


def _bundle(data: bytes, folder: Path) -> None:
    """Bytes as they are, or, of a JSON table, with the digest that it should have."""
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        document = json.loads(data)
        document["digest"] = bundle._digest(document, _base_arrays())
        data = json.dumps(document).encode()
    (folder / bundle.DOCUMENT).write_bytes(data)
    if not (folder / bundle.ARRAYS).exists():
        shutil.copyfile(bundle.base_model_path() / bundle.ARRAYS, folder / bundle.ARRAYS)
    bundle.load_bundle(folder)


_MANIFEST: Final = str(folder_of(Store(Path(), log_name=CLUSTER_LOG_NAME)) / "manifest.json")
PARSERS: Final[tuple[Parser, ...]] = (
    _collector("csv", examples.CSV),
    _collector("rows", examples.TYPED_ROWS),
    _collector("vllm", examples.BENCH, examples.LOG, examples.METRICS),
    _collector("vllm_bench", examples.BENCH),
    _collector("vllm_log", examples.LOG),
    _collector("vllm_metrics", examples.METRICS),
    _collector("guidellm", examples.GUIDELLM),
    _collector("sacct", examples.SACCT, examples.SACCT_JSON),
    _collector("jobstats", examples.JOBSTATS),
    _collector("dcgm", examples.DCGM_RANGE, examples.DCGM_PAGE),
    Parser("sinfo", (examples.SLURM["sinfo"], examples.NEW_SINFO), _bytes(read_nodes_json)),
    Parser("sinfo text", (examples.SINFO_TEXT,), _bytes(read_nodes_text)),
    Parser("squeue", (examples.SLURM["squeue"],), _bytes(read_jobs_json)),
    Parser("squeue text", (examples.SQUEUE_TEXT,), _bytes(read_jobs_text)),
    Parser("scontrol", (examples.SCONTROL,), _bytes(read_partitions, read_reservations)),
    Parser("host list", (b"a[1-3,07],b", b"r[1-2]n[1-2]"), _text(expand_hosts)),
    Parser("address", (b"https://prometheus.lab:9090/api", b"http://[::1]:1"),
           _text(PrometheusServer)),
    Parser("names", (b"NVIDIA H100 80GB HBM3", b"Qwen/Qwen2.5-7B-Instruct-AWQ", b"torch.bfloat16",
                     b"0.11.2.dev3+g1a2b", b"/models/org--model/snapshots/1a2b"), _text(_names)),
    Parser("config.json", examples.CONFIGS, _file("config.json", _config)),
    Parser("settings.toml", (examples.SETTINGS,), _file(FILE_NAME, Settings.load)),
    Parser("gpus", (examples.GPUS,), _file("gpus/a.toml", Catalog.load), share=0.5),
    Parser("probe menu", (MENU_FILE.read_bytes(),), _file("probes.toml", _menu)),
    Parser("anchors", (examples.ANCHORS,),
           _file("anchors.csv", lambda folder: read_anchors(_advisor(), folder / "anchors.csv"))),
    Parser("windows", (examples.WINDOWS,),
           _file("windows.csv", lambda folder: read_windows(folder / "windows.csv"))),
    Parser("history.jsonl", examples.HISTORY, _file(LOG_NAME, _history)),
    Parser("harvest.json", examples.HARVEST,
           _file(MARKS_NAME, lambda folder: Marks(folder, folder / LOG_NAME).covered("a", "b"))),
    Parser("parquet manifest", (examples.MANIFEST,), _file(_MANIFEST, _compacted)),
    Parser("cluster_state.json", examples.STATE, _file(CACHE_NAME, _state)),
    Parser("decisions.jsonl", examples.DECISIONS, _decisions, share=0.3),
    Parser("digest.json", examples.DIGEST, _file(DIGEST_NAME, _digest)),
    Parser("secret.key", (b"a1" * 32,), _file(KEY_NAME, open_site_key)),
    Parser("tokens.json", examples.TOKENS, _file("tokens.json", _tokens)),
    Parser("ledger.jsonl", examples.LEDGER, _ledger),
    Parser("rows of a version", (examples.ROW_WEIGHTS,),
           _file(f"bundles/v/{ROWS_FILE}", lambda folder: Registry(folder).rows("v"))),
    Parser("bundle.json", (examples.BUNDLE,), _bundle, share=0.1),
    Parser("arrays.npz", (examples.ARRAYS,),
           _file("a.npz", lambda folder: read_arrays(folder / "a.npz", 2**20))),
    Parser("kept folds", (examples.FOLDS,),
           _file("f.npz", lambda folder: KeptFolds(folder).load("f"))),
    Parser("kept answers", (examples.FOLDS,),
           _file("f.npz", lambda folder: holdout_cache._read(folder / "f.npz", "a"))),
    Parser("launch.json", examples.LAUNCH, _file(SPEC_NAME, read_spec)),
    Parser("plan.json", examples.PLAN,
           _file("plan.json", lambda folder: read_plan(folder / "plan.json"))),
    Parser("run folder", (examples.MARKS, examples.LOG, examples.BENCH),
           _file("marks", _run_folder), share=0.5),
    Parser("grid axis", (b"0.9", b"fp8", b"16", b"true"),
           _text(lambda text: [_quiet(axis_value, name, text) for name in AXES])),
    Parser("query", (examples.QUERY,), _query),
    Parser("body", (examples.BODY, examples.FITS_BODY, examples.PREDICT_BODY), _body),
    Parser("authorization", (b"Bearer abc", b"Basic dXNlcjpwYXNz"), _authorization),
    Parser("answer of a service", (examples.PROBLEM,), _service_answer),
    Parser("command line", examples.COMMAND_LINES, _arguments),
)  # fmt: skip


def _quiet(ask: Callable[..., object], *given: object) -> object:
    with contextlib.suppress(OmniPilotError):
        return ask(*given)
    return None


PARSER_BY_NAME: Final = {parser.name: parser for parser in PARSERS}
