"""Bundles on disk: exact round trips, and one clear line for whatever is wrong with one."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from costmodel_builders import fitted, made, scenario

from omnipilot.costmodel import bundle as module
from omnipilot.costmodel.array_file import write_arrays
from omnipilot.costmodel.bundle import (
    ARRAYS,
    DOCUMENT,
    FORMAT_VERSION,
    base_model_path,
    load_bundle,
    save_bundle,
)
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.hyperparameters import Scales
from omnipilot.domain.errors import BundleError, OlderBundleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

CARD = {"rows": 300, "note": "made up"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "model"
    save_bundle(fitted(), folder, CARD)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A bundle that a test may damage."""
    for name in (ARRAYS, DOCUMENT):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def rewrite(
    folder: Path, change: Callable[[dict[str, Any], dict[str, NDArray[Any]]], None]
) -> None:
    """Change a bundle the way a stranger would who also corrects the digest."""
    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    with np.load(folder / ARRAYS, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    change(document, arrays)
    document["digest"] = module._digest(document, arrays)
    write_arrays(folder / ARRAYS, arrays)
    (folder / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def test_a_saved_bundle_answers_as_the_model_did_to_the_last_bit(saved: Path) -> None:
    model, card, version = load_bundle(saved)
    assert card == CARD
    assert len(version) == 12
    questions = [scenario("google/gemma-2-9b-it"), scenario(gpu="b200-180"), scenario(source="")]
    for frame in (made().data.frame, build_frame(questions)):
        before, after = fitted().predict(frame), model.predict(frame)
        assert before.values.keys() == after.values.keys()
        for name, value in before.values.items():
            assert value.tobytes() == after.values[name].tobytes(), name
            assert (before.crossed[name] == after.crossed[name]).all()
        assert before.source == after.source
        assert before.support == after.support
        assert model.envelope.evidence(frame, 5) == fitted().envelope.evidence(frame, 5)


def test_scales_of_a_source_s_own_are_kept(tmp_path: Path) -> None:
    model = fitted()
    head = model.heads["throughput"]
    hyper = head.layer.hyper
    own = {"beta": Scales(2.0 * hyper.shared.sd, (0.5, 2.0))}
    layer = replace(head.layer, hyper=replace(hyper, own=own))
    save_bundle(
        replace(model, heads=model.heads | {"throughput": replace(head, layer=layer)}),
        tmp_path,
        CARD,
    )
    kept = load_bundle(tmp_path)[0].heads["throughput"].layer.hyper
    assert list(kept.own) == ["beta"]
    assert kept.scales("beta").sd.tobytes() == own["beta"].sd.tobytes()
    assert kept.scales("beta").lengths == own["beta"].lengths
    assert kept.scales("alpha").sd.tobytes() == hyper.shared.sd.tobytes()


@pytest.mark.parametrize(
    ("form", "said"),
    [(3, "earlier version of OmniPilot.*omnipilot fit"), (99, "another bundle format"),
     ("3", "another bundle format"), (None, "another bundle format")],
)  # fmt: skip
def test_a_bundle_of_another_format_is_refused_with_what_to_do(
    copy: Path, form: object, said: str
) -> None:
    def to_format(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        document["format"] = form

    rewrite(copy, to_format)
    with pytest.raises(BundleError, match=said) as caught:
        load_bundle(copy)
    assert isinstance(caught.value, OlderBundleError) == (form == 3)


def test_two_saves_give_the_same_version_and_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    version = save_bundle(fitted(), tmp_path, CARD)
    assert version == load_bundle(saved)[2] == load_bundle(tmp_path)[2]
    for name in (ARRAYS, DOCUMENT):
        assert (tmp_path / name).read_bytes() == (saved / name).read_bytes()


def test_saving_what_was_loaded_gives_the_same_version(saved: Path, tmp_path: Path) -> None:
    model, card, version = load_bundle(saved)
    assert save_bundle(model, tmp_path, card) == version


def test_another_card_is_another_version(saved: Path, tmp_path: Path) -> None:
    assert save_bundle(fitted(), tmp_path, {"rows": 301}) != load_bundle(saved)[2]


def test_a_bundle_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_bundle(fitted(), tmp_path, {"rows": 1})
    save_bundle(fitted(), tmp_path, CARD)
    assert load_bundle(tmp_path)[1] == CARD
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted((ARRAYS, DOCUMENT))


def test_a_folder_without_a_bundle_says_what_to_run(tmp_path: Path) -> None:
    assert "omnipilot fit" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("name", [ARRAYS, DOCUMENT])
def test_a_missing_file_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    refusal(copy)


@pytest.mark.parametrize("name", [ARRAYS, DOCUMENT])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_file_is_refused(copy: Path, name: str, share: float) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(len(content) * share)])
    refusal(copy)


def test_an_edited_number_is_refused(copy: Path) -> None:
    document = json.loads((copy / DOCUMENT).read_text(encoding="utf-8"))
    document["heads"]["throughput"]["spreads"]["seen"]["offset"] += 0.01
    (copy / DOCUMENT).write_text(json.dumps(document), encoding="utf-8")
    assert "digest" in refusal(copy)


def test_an_array_of_other_values_is_refused(copy: Path) -> None:
    with np.load(copy / ARRAYS, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["throughput/seen/bias"] = arrays["throughput/seen/bias"] + 0.01
    write_arrays(copy / ARRAYS, arrays)
    assert "digest" in refusal(copy)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"format": 1}', '{"format": NaN}', "[" * 100_000, "\x00\xff"]
)
def test_a_document_that_is_no_bundle_is_refused(copy: Path, text: str) -> None:
    (copy / DOCUMENT).write_bytes(text.encode("latin-1"))
    refusal(copy)


def test_a_document_with_nan_in_it_is_refused(copy: Path) -> None:
    text = (copy / DOCUMENT).read_text(encoding="utf-8")
    (copy / DOCUMENT).write_text(text.replace('"rows":300', '"rows":NaN'), encoding="utf-8")
    assert "JSON" in refusal(copy)


def test_another_format_says_to_fit_again(copy: Path) -> None:
    def change(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        document["format"] = FORMAT_VERSION + 1

    rewrite(copy, change)
    assert "fit again" in refusal(copy)


@pytest.mark.parametrize("part", ["physics_parameters", "kernel_terms", "features", "one_hot"])
def test_a_bundle_of_other_tables_says_which(copy: Path, part: str) -> None:
    def change(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        document[part] = [*document[part][1:], document[part][0]]

    rewrite(copy, change)
    assert part.replace("_", " ") in refusal(copy)


@pytest.mark.parametrize("part", ["card", "heads", "envelope", "physics_offsets"])
def test_a_bundle_that_lacks_a_part_is_refused(copy: Path, part: str) -> None:
    def change(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        del document[part]

    rewrite(copy, change)
    assert part in refusal(copy)


def test_a_class_without_the_share_of_sources_not_named_is_refused(copy: Path) -> None:
    def change(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        del document["heads"]["throughput"]["shares"]["model"][""]

    rewrite(copy, change)
    assert "lacks a part" in refusal(copy)


def test_a_flipped_bit_anywhere_in_the_arrays_never_changes_an_answer_unnoticed(
    copy: Path,
) -> None:
    content = (copy / ARRAYS).read_bytes()
    version = load_bundle(copy)[2]
    refused = 0
    for at in np.random.default_rng(6).integers(0, len(content), 80).tolist():
        spoilt = bytearray(content)
        spoilt[at] ^= 1 << (at % 8)
        (copy / ARRAYS).write_bytes(bytes(spoilt))
        try:
            # time stamps and attributes of the archive do not belong to the model
            same = load_bundle(copy)[2] == version
        except BundleError:
            refused += 1
        else:
            assert same
    assert refused > 50


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_read(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("read an oversized archive")

    monkeypatch.setattr(module, "MAX_ARRAY_BYTES", 1000)
    monkeypatch.setattr(zipfile.ZipFile, "read", never)
    assert "too much" in refusal(copy)


def test_an_array_that_claims_a_petabyte_is_refused(copy: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (140737488355328,), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    bomb = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(copy / ARRAYS, "a") as archive:
        archive.writestr("bomb.npy", bomb)
    assert "damaged" in refusal(copy)


def test_an_object_array_is_refused_unread(copy: Path) -> None:
    with zipfile.ZipFile(copy / ARRAYS, "a") as archive:
        archive.writestr("evil.npy", npy(np.array([{"a": 1}], dtype=object)))
    assert "damaged" in refusal(copy)


def test_an_object_array_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / ARRAYS, {"evil": np.array([{"a": 1}], dtype=object)})


def test_a_pickle_in_place_of_the_arrays_is_refused(copy: Path) -> None:
    # the pickle of an empty dictionary: a file that np.load would run with allow_pickle
    (copy / ARRAYS).write_bytes(b"\x80\x04}\x94.")
    refusal(copy)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("physics/base", lambda a: a[:-1]),
        ("physics/base", lambda a: a * np.nan),
        ("physics/source", lambda a: a[:, :-1]),
        ("physics/source", lambda a: a[:-1]),
        ("throughput/sd", lambda a: a[:-1]),
        ("throughput/block0/alpha", lambda a: a[:-1]),
        ("throughput/block0/codes", lambda a: a[:, :-1]),
        ("throughput/block0/workload", lambda a: a.T),
        ("throughput/seen/features", lambda a: a + 30_000),
        ("throughput/seen/features", lambda a: a - 30_000),
        ("throughput/seen/leaves", lambda a: a[:, :-1]),
        ("throughput/seen/thresholds", lambda a: a[:-1]),
        ("throughput/seen/bias", lambda a: a.astype("S8")),
    ],
)
def test_an_array_that_cannot_be_computed_with_is_refused_when_loading(
    copy: Path, name: str, spoil: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    def change(_: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        arrays[name] = spoil(arrays[name])

    rewrite(copy, change)
    assert "lacks a part" in refusal(copy)


def test_a_head_without_a_calibrated_class_is_refused(copy: Path) -> None:
    def change(document: dict[str, Any], _: dict[str, NDArray[Any]]) -> None:
        document["heads"]["throughput"]["spreads"] = {}

    rewrite(copy, change)
    assert "no calibrated class" in refusal(copy)


def test_the_base_model_lies_in_the_package() -> None:
    assert base_model_path().name == "base_model"
    assert base_model_path().parent.name == "omnipilot"
