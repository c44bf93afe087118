"""Files of a site that somebody else wrote, or may write to: read, or refused in one line."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.advisor import Advisor
from omnipilot.catalog import Catalog
from omnipilot.collect.identity import KEY_NAME, open_site_key
from omnipilot.collect.live_cache import CACHE_NAME, load_state, read_cache
from omnipilot.domain import InferenceRun
from omnipilot.domain.errors import OmniPilotError, StateError, UsageError
from omnipilot.learn.ledger import LEDGER_NAME, Ledger
from omnipilot.learn.registry import Registry
from omnipilot.settings import FILE_NAME, Settings
from omnipilot.store import Store
from omnipilot.store.files import make_private, replace_file
from omnipilot.store.lock import exclusive
from omnipilot.store.marks import MARKS_NAME, Marks
from omnipilot.web.tokens import TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).resolve().parents[1] / "src" / "omnipilot"
EXAMPLES = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6")) * 10
RUN = InferenceRun(
    source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8", mode="online",
    status="ok", labels={},
)  # fmt: skip

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from([2**63, -(2**63) - 1, 10**400, 1e308, -1e308, "../../etc", "\ud800", "nan"])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=4),
    max_leaves=12,
)
fuzz = settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def read_or_refused(read: Callable[[], object]) -> None:
    try:
        read()
    except OmniPilotError as error:
        words = str(error).strip()
        assert words  # the command line makes one line of them


def toml(value: object) -> str:
    """Any value as TOML, sound or not."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return (
        "nan"
        if value is None
        else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
    )


SETTINGS_KEYS = (
    "gpu_kinds", "pue", "price_usd_per_gpu_h", "price_anchors", "gpus_per_node", "freshness_s",
    "retirement", "launch_user_cancel", "spark_master", "launch_outcomes", "gpu_kind_of_partition",
    "decisions_kept",
)  # fmt: skip
GPU_KEYS = (
    "like", "name", "vendor", "architecture", "compute_capability", "memory_gib", "bf16_flops",
    "bandwidth_bytes_per_s", "tdp_w", "source", "aliases", "form",
)  # fmt: skip
DEEP = (
    "pue = " + "9" * 5000,
    "[" * 100_000,
    "a = " + "[" * 5000,
    "a = " + "{b = " * 3000,
    "[a" + ".a" * 5000 + "]",
)


@fuzz
@given(
    table=st.dictionaries(st.sampled_from(SETTINGS_KEYS) | st.text(max_size=8), values, max_size=5)
)
def test_any_settings_are_read_or_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in table.items()]
    (tmp_path / FILE_NAME).write_text("\n".join(lines), encoding="utf-8", errors="replace")
    read_or_refused(lambda: Settings.load(tmp_path))


@fuzz
@given(table=st.dictionaries(st.sampled_from(GPU_KEYS), values, max_size=12))
def test_any_gpu_kind_is_read_or_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    (tmp_path / "gpus").mkdir(exist_ok=True)
    lines = ["[acme-1]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    (tmp_path / "gpus" / "a.toml").write_text("\n".join(lines), encoding="utf-8", errors="replace")
    read_or_refused(lambda: Catalog.load(tmp_path))


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_a_file_nested_too_deeply_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "gpus").mkdir()
    for file in (tmp_path / FILE_NAME, tmp_path / "gpus" / "a.toml"):
        file.write_text(text, encoding="ascii")
    for read in (Settings.load, Catalog.load):
        with pytest.raises(UsageError) as told:
            read(tmp_path)
        assert "\n" not in str(told.value)


@fuzz
@given(
    entry=st.fixed_dictionaries({}, optional={
        "n": values | st.just(1), "event": values, "at_s": values, "version": values,
        "facts": values, "previous": values | st.just("0" * 64),
    }),
    head=st.binary(max_size=20) | st.sampled_from([b"-1 x", b"0 x", b"1 " + b"0" * 64, b"9" * 9]),
)  # fmt: skip
def test_any_ledger_line_with_a_digest_of_its_own_is_read_or_refused(
    tmp_path: Path, entry: dict[str, Any], head: bytes
) -> None:
    body = {
        "n": 1,
        "event": "promote",
        "at_s": 0.0,
        "version": "v",
        "facts": {},
        "previous": "0" * 64,
    }
    body |= entry
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / LEDGER_NAME).write_text(f'{text[:-1]},"digest":"{digest}"}}\n', encoding="utf-8")
    (tmp_path / "ledger.head").write_bytes(head)
    ledger = Ledger(tmp_path)
    read_or_refused(ledger.entries)
    (tmp_path / "ledger.head").unlink()
    try:
        entries = ledger.entries()
    except StateError:
        return
    assert all(
        isinstance(e.facts, dict) and isinstance(e.version, str) and "/" not in e.version
        and not e.version.startswith(".") for e in entries
    )  # fmt: skip


@pytest.mark.parametrize("version", ["../elsewhere", "/etc", "..", ".", "a/b", "\n", ".hidden"])
def test_a_ledger_cannot_point_the_answering_model_out_of_its_folder(
    tmp_path: Path, version: str
) -> None:
    registry = Registry(tmp_path)
    with registry.ledger.locked():
        registry.ledger.append("promote", version, {}, at_s=0.0)
    with pytest.raises(StateError), registry.ledger.locked():
        registry.settle()
    assert not (registry.folder / "current").is_symlink()


@fuzz
@given(data=st.binary(max_size=60) | values.map(lambda v: json.dumps(v).encode()))
def test_any_mark_and_cached_state_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MARKS_NAME).write_bytes(data)
    (tmp_path / CACHE_NAME).write_bytes(data)
    read_or_refused(lambda: Marks(tmp_path, tmp_path / "log").covered("sacct", "lab"))
    read_or_refused(lambda: load_state(tmp_path / CACHE_NAME))
    read_cache(tmp_path, now_s=0.0, most_age_s=60.0)


@pytest.mark.parametrize("name", [MARKS_NAME, CACHE_NAME, "history.jsonl"])
def test_json_nested_too_deeply_stops_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b'{"a":' * 200_000 + b"\n")
    read_or_refused(lambda: Marks(tmp_path, tmp_path / "log").covered("sacct", "lab"))
    read_cache(tmp_path, now_s=0.0, most_age_s=60.0)
    assert list(Store.open(tmp_path).rows()) == []


# What runs code that came as data, or hands text to a shell.
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_MODULES = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "torch",
    "xml", "lxml",
}  # fmt: skip
BANNED_NAMES = {"system", "popen", "yaml", "load_module", "extractall"}


def banned(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                found.append(f"{node.lineno}: {node.func.id}()")
            if isinstance(node.func, ast.Attribute) and node.func.attr in BANNED_NAMES:
                found.append(f"{node.lineno}: .{node.func.attr}()")
            for keyword in node.keywords:
                on = not isinstance(keyword.value, ast.Constant) or keyword.value.value
                if keyword.arg in {"shell", "allow_pickle"} and on:
                    found.append(f"{node.lineno}: {keyword.arg}=True")
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if (
                name == "load"
                and "np" in ast.dump(node.func)
                and not any(k.arg == "allow_pickle" for k in node.keywords)
            ):
                found.append(f"{node.lineno}: np.load() without allow_pickle=False")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            found += [
                f"{node.lineno}: import {n}" for n in names if n.split(".")[0] in BANNED_MODULES
            ]
    return found


@pytest.mark.parametrize(
    "text", ["eval('1')", "import pickle", "from yaml import load", "run(x, shell=True)",
             "np.load(f, allow_pickle=True)", "np.load(f)", "os.system('x')"],
)  # fmt: skip
def test_what_runs_foreign_code_is_found(text: str) -> None:
    assert banned(ast.parse(text))


def test_nothing_in_the_package_runs_code_that_came_as_data() -> None:
    found = {
        str(path.relative_to(SOURCE)): hits
        for path in sorted(SOURCE.rglob("*.py"))
        if (hits := banned(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}
    suffixes = {path.suffix for path in SOURCE.rglob("*") if path.is_file()}
    assert not suffixes & {".pkl", ".pickle", ".joblib", ".pt", ".so"}


def test_whatever_the_umask_the_home_and_its_files_are_their_owner_s_only(tmp_path: Path) -> None:
    script = (
        "import os, sys\nos.umask(0)\nfrom pathlib import Path\n"
        "from test_hostile_files import write_all_kinds\nwrite_all_kinds(Path(sys.argv[1]))\n"
    )
    home = tmp_path / "above" / "home"
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", script, str(home)], check=True, env=place)
    files = [path for path in (home.parent, *home.parent.rglob("*")) if not path.is_symlink()]
    assert len(files) >= 10
    for path in files:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:04o}"


def write_all_kinds(home: Path) -> None:
    """Make a file of each kind that a site has."""
    store = Store.open(home)
    store.append([RUN], now_s=0.0)
    with store.path.open("ab") as out:
        out.write(b"torn")
    Store.open(home)
    Marks(home, store.path).set("sacct", "lab", 0, 1)
    ledger = Ledger(home / "bundles")
    with ledger.locked():
        ledger.append("fit", "v", {}, at_s=0.0)
    open_site_key(home)
    TokenFile(home).add("name", ("read",), 0.0)
    from omnipilot.collect.live_cache import write_cache  # noqa: PLC0415 - only in the child
    from omnipilot.domain.cluster import ClusterState  # noqa: PLC0415 - same

    write_cache(home, ClusterState(taken_s=0.0, nodes=()))


def test_a_link_planted_where_a_file_will_be_written_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    home = tmp_path / "home"
    home.mkdir()
    for name in ("harvest.json.new", "history.jsonl.torn-1"):
        (home / name).symlink_to(victim)
    replace_file(home / "harvest.json", b"{}")
    assert not (home / "harvest.json").is_symlink()
    (home / "history.jsonl").write_bytes(b"torn")
    Store.open(home)
    (home / "x.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic link"), exclusive(home / "x.lock"):
        pass
    (home / KEY_NAME).symlink_to(victim)
    with pytest.raises(StateError):
        open_site_key(home)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_home_that_anybody_can_write_in_is_refused(tmp_path: Path, mode: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    for use in (
        lambda: Store.open(home).append([RUN], now_s=0.0),
        lambda: make_private(home),
        lambda: Advisor.open(home),
    ):
        with pytest.raises(StateError, match=r"anybody can write in .*chmod o-w"):
            use()
    assert list(home.iterdir()) == []


def test_a_home_shared_by_a_group_is_accepted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o770)
    assert Store.open(home).append([RUN], now_s=0.0).accepted == 1
    assert stat.S_IMODE((home / "history.jsonl").stat().st_mode) == 0o600


def test_the_security_page_names_what_the_tests_check() -> None:
    page = (SOURCE.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    for words in ("0700", "0600", "login node", "pickle", "report", "trusted"):
        assert re.search(words, page, re.IGNORECASE), words
