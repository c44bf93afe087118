"""Every parser of foreign text takes whatever comes: it reads it, or refuses it in words.

``OMNIPILOT_FUZZ_EXAMPLES`` asks for more than the few inputs of a usual run (6), and
``benchmarks/fuzz_parsers.py`` fuzzes for as long as one likes, with atheris where it is installed.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from fuzzing import reader
from guided import Trace, guided
from parsers import PARSER_BY_NAME, PARSERS, Parser, fault_of

from omnipilot.collect import COLLECTORS
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE: Final = Path(__file__).resolve().parents[1] / "src" / "omnipilot"
EXAMPLES: Final = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6")) * 10
DEEP: Final = b"[" * 100_000

# What makes a module one that reads text, and the modules whose texts are the package's own.
READS: Final = re.compile(
    r"json\.loads\(|json\.decode\(|json\.Decoder\(|tomllib\.loads\(|csv\.(?:reader|DictReader)\("
    r"|np\.load\(|ZipFile\(|decompressobj\(|urlsplit\(|fromisoformat\(|a2b_base64\(|b64decode\("
    r"|open_lines\(|decode_json\("
)
OWN: Final = {
    "catalog/engines.py": "the package's own table",
    "catalog/launch_flags.py": "the package's own table",
    "catalog/models.py": "the package's own table",
    "catalog/precisions.py": "the package's own table",
    "costmodel/quantiles.py": "what CatBoost wrote a moment ago into a folder of this process",
    "evaluate/aiconfigurator.py": "answers of our own worker; tests/evaluate has them",
    "evaluate/pilot.py": "published scores, read for one table of the report",
    "web/metrics.py": "counts of the service's other workers in a folder of its own",
}

# Inputs that once came out as a traceback, or lost a row.
FOUND: Final[tuple[tuple[str, bytes], ...]] = (
    ("run folder", b"serve_start 179595\xb0.5\n"),
    ("launch.json", DEEP),
    ("plan.json", DEEP),
    ("tokens.json", DEEP),
    ("rows of a version", DEEP),
    ("kept folds", b""),
    ("kept folds", PARSER_BY_NAME["kept folds"].seeds[0].replace(b"PK\1\2\x14", b"PK\1\2\xff")),
    ("kept answers", b""),
    ("answer of a service", DEEP),
    ("host list", b"r[1-2]" * 3000),
    ("host list", b"r" * 20_000 + b"[1-99999]"),
    ("scontrol", b"ReservationName=a " + b"x" * 100_000),
    ("scontrol", b"ReservationName=a EndTime=1795984296 Nodes=n[1-99999]\n" * 400),
    ("decisions.jsonl", b'{"id":"0123456789ab","question":' + DEEP),
    ("decisions.jsonl", b'{"facts":"","code":"","question":{"request":{"slo":{}}},"settings":""}'),
    ("decisions.jsonl", b'{"model_version":"v"}'),
    (
        "history.jsonl",
        PARSER_BY_NAME["history.jsonl"].seeds[0].replace(b'"n_gpus":1', b'"n_gpus":3'),
    ),
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda p: p.name)
def test_no_damage_that_coverage_leads_to_makes_a_fault(parser: Parser, tmp_path: Path) -> None:
    for seed in parser.seeds:
        parser.read(seed, tmp_path)  # sound: not even refused
    inputs = max(3, int(EXAMPLES * parser.share))
    found = guided(parser, tmp_path, inputs, random.Random(parser.name))  # noqa: S311 - repeatable
    assert found.faults == {}
    assert found.inputs == inputs


@pytest.mark.parametrize(
    ("name", "data"), FOUND, ids=[f"{n}-{i}" for i, (n, _) in enumerate(FOUND)]
)
def test_what_was_found_before_stays_mended(name: str, data: bytes, tmp_path: Path) -> None:
    assert fault_of(PARSER_BY_NAME[name], data, tmp_path) == ""


@pytest.mark.parametrize("entry", COLLECTORS, ids=lambda e: e.name)
def test_every_collector_is_here_with_texts_that_give_rows(entry: object, tmp_path: Path) -> None:
    name = entry.name  # type: ignore[attr-defined]
    for seed in PARSER_BY_NAME[name].seeds:
        (tmp_path / "input").write_bytes(seed)
        items = list(reader(name)(tmp_path / "input"))
        assert [item for item in items if not isinstance(item, Rejection)], seed[:60]


def test_every_module_that_reads_text_is_reached_or_says_whose_text_it_is(tmp_path: Path) -> None:
    trace = Trace()
    for parser in PARSERS:
        for seed in parser.seeds:
            with trace:
                parser.read(seed, tmp_path)
    reached = {str(Path(name).relative_to(SOURCE)) for name in trace.files}
    reads = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if READS.search(path.read_text(encoding="utf-8"))
    }
    assert reads - reached - set(OWN) == set()
    assert set(OWN) <= reads


# The check itself must be able to fail.

DEEP_FAULT = """
def read(data, _):
    if data[:1] == b"c":
        if data[1:2] == b"q":
            if data[2:3] == b"i":
                raise KeyError("deep inside")
"""


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[str], Parser]:
    """A parser with a fault, in a file that the trace watches."""

    def make(text: str) -> Parser:
        place: dict[str, Callable[[bytes, Path], object]] = {}
        exec(compile(text, str(tmp_path / "planted" / "it.py"), "exec"), place)  # noqa: S102 - ours
        return Parser("planted", (b"aaaa",), place["read"])

    return make


def test_a_fault_behind_conditions_is_found_by_what_was_reached(
    planted: Callable[[str], Parser], tmp_path: Path
) -> None:
    def search(*, learns: bool) -> dict[str, bytes]:
        rng = random.Random(1)  # noqa: S311 - repeatable
        return guided(
            planted(DEEP_FAULT), tmp_path, 20_000, rng, package="/planted/", learns=learns
        ).faults

    (fault,) = search(learns=True)
    assert fault == "KeyError at it.py:6: \"'deep inside'\""
    assert search(learns=False) == {}


def test_a_parser_that_hangs_or_refuses_without_words_is_a_fault(tmp_path: Path) -> None:
    from omnipilot.domain import BadInputError  # noqa: PLC0415 - only here

    def silent(_: bytes, __: Path) -> None:
        raise BadInputError(" ")

    assert fault_of(Parser("", (), silent), b"", tmp_path) == "a refusal without words"
    slow = Parser("", (), lambda *_: sum(range(200_000)))
    assert fault_of(slow, b"", tmp_path, limit_s=1e-4).startswith("took")
