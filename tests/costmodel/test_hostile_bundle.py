"""A bundle whose digest is right and whose content is a stranger's: read or refused, in bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.costmodel import bundle as module
from omnipilot.costmodel.bundle import ARRAYS, DOCUMENT, base_model_path, load_bundle
from omnipilot.domain.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6")) * 3
LIMIT_BYTES = 3 * 2**30
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 10**300, 1e308, "", "x", "../..", "\u202e", [], {}, [[]], [None],
    {"": None}, [[[[]]]], "__class__",
)  # fmt: skip


SAVED = base_model_path()


def spots(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of a document; of long lists and tables only the first few."""
    below = (
        list(value.items()) if isinstance(value, dict)
        else list(enumerate(value)) if isinstance(value, list) else []
    )  # fmt: skip
    return [at, *(spot for key, child in below[:6] for spot in spots(child, (*at, key)))]


@settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_any_document_with_a_right_digest_is_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    document = json.loads((SAVED / DOCUMENT).read_text(encoding="utf-8"))
    document.pop("digest")
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(spots(document)[1:]))
        parent = document
        for key in way:
            parent = parent[key]
        if data.draw(st.booleans()) and isinstance(parent, dict):
            del parent[last]
        else:
            parent[last] = data.draw(st.sampled_from(JUNK))
    with np.load(SAVED / ARRAYS, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    document["digest"] = module._digest(document, arrays)
    (tmp_path / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / ARRAYS).write_bytes((SAVED / ARRAYS).read_bytes())
    try:
        load_bundle(tmp_path)
    except BundleError as error:
        words = str(error)
        assert words
        assert "\n" not in words


BOMBS = """
import resource, struct, sys, zipfile
from pathlib import Path
from omnipilot.costmodel.bundle import load_bundle
from omnipilot.domain.errors import BundleError
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
folder = Path(sys.argv[1])
arrays = folder / "arrays.npz"
def header(shape, descr="<f8"):
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\\n"
    return b"\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(text)) + text
def zipped(data):
    with zipfile.ZipFile(arrays, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("physics/base.npy", data)
def lying():
    data = header((2**20,)) + bytes(2**23)
    zipped(data)
    said = arrays.read_bytes().replace(struct.pack("<I", len(data)), struct.pack("<I", 200))
    arrays.write_bytes(said)
bombs = {
    "a size that lies": lying,
    "huge shape": lambda: zipped(header((2**60,))),
    "large shape": lambda: zipped(header((2**35,))),
    "overflowing shape": lambda: zipped(header((2**40, 2**40))),
    "negative shape": lambda: zipped(header((-1,))),
    "objects": lambda: zipped(header((1,), "|O") + b"cos\\nsystem\\n(S'kill $PPID'\\ntR."),
    "hidden objects": lambda: zipped(header((1,), [("a", "|O")]) + bytes(8)),
    "code in the header": lambda: zipped(header("__import__('os')._exit(0)")),
    "deep header": lambda: zipped(header("(" * 9000)),
}
for name, write in bombs.items():
    write()
    try:
        load_bundle(folder)
    except BundleError as error:
        print(name, "|", error)
print("all refused")
"""


def test_bombs_are_refused_within_memory_and_time_and_run_nothing(tmp_path: Path) -> None:
    (tmp_path / DOCUMENT).write_bytes((SAVED / DOCUMENT).read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, str(tmp_path), str(LIMIT_BYTES)],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "all refused"
    assert len(lines) == 10, lines
    assert all("restore it or fit again" in line for line in lines[:-1]), lines
