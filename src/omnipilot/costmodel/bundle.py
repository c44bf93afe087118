"""Model bundles on disk: a folder with ``bundle.json`` and ``arrays.npz``.

Text and plain arrays only: loading one runs no code, and sizes are checked before anything is
unpacked, so a stranger's bundle can be looked at safely. The digest over both files names the
version.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.array_file import read_arrays, write_arrays
from omnipilot.costmodel.deviation import (
    DEVIATION_TERMS,
    LEFT_EDGES,
    Deviation,
    LocalRows,
    class_terms,
)
from omnipilot.costmodel.envelope import Envelope
from omnipilot.costmodel.features import FEATURES, ONE_HOT, FeatureSpace
from omnipilot.costmodel.fitted import ANY_SOURCE, FittedHead, FittedModel
from omnipilot.costmodel.heads import HEADS
from omnipilot.costmodel.hyperparameters import Hyperparameters, Scales
from omnipilot.costmodel.kernel import KERNEL_TERMS, KernelLevels
from omnipilot.costmodel.physics import PARAMETER_NAMES
from omnipilot.costmodel.physics_fit import PhysicsParameters
from omnipilot.costmodel.points import array_of, decode_points, encode_points
from omnipilot.costmodel.quantiles import Forest
from omnipilot.costmodel.residual import Block, GaussianLayer
from omnipilot.costmodel.spread import Spread
from omnipilot.domain.errors import BundleError, OlderBundleError
from omnipilot.domain.targets import QUANTILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = 9  # 7, 8, 3 and older: other prior parameters; 4 to 6: other covariance terms
DOCUMENT = "bundle.json"
ARRAYS = "arrays.npz"
MAX_DOCUMENT_BYTES = 32 * 2**20
MAX_ARRAY_BYTES = 512 * 2**20
# Tables whose order the arrays follow; a bundle of another order means something else.
_LAYOUT = {
    "physics_parameters": PARAMETER_NAMES,
    "kernel_terms": tuple(t.name for t in KERNEL_TERMS),
    "deviation_terms": tuple(t.name for t in DEVIATION_TERMS),
    "features": tuple(f.name for f in FEATURES),
    "one_hot": ONE_HOT,
}


def base_model_path() -> Path:
    """Folder of the bundle shipped in the package."""
    return Path(__file__).parents[1] / "base_model"


def save_bundle(model: FittedModel, folder: Path, card: dict[str, Any]) -> str:
    """Write a bundle; the document goes last, so a cut write leaves no valid bundle.

    Args:
        model: what to save.
        folder: created where missing; existing bundle files are replaced.
        card: facts about the fit (sources, row counts, errors) that belong to the version.

    Returns:
        The version: the first 12 digits of the digest.
    """
    document, arrays = _encode(model)
    document["card"] = card
    document["digest"] = _digest(document, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ARRAYS, DOCUMENT):
        partial = folder / f".{name}.partial"
        if name == ARRAYS:
            write_arrays(partial, arrays)
        else:
            partial.write_text(_json(document) + "\n", encoding="utf-8")
        partial.replace(folder / name)
    return str(document["digest"])[:12]


def load_bundle(folder: Path) -> tuple[FittedModel, dict[str, Any], str]:
    """Read a bundle.

    Returns:
        The model, its card and its version.

    Raises:
        BundleError: missing, damaged, edited, of another format version, or too large.
    """
    document = _read_document(folder / DOCUMENT)
    arrays = read_arrays(folder / ARRAYS, MAX_ARRAY_BYTES)
    stated = document.pop("digest", None)
    if stated != _digest(document, arrays):
        raise BundleError(
            f"the bundle in {folder} does not match its digest: it was changed or cut; "
            "restore it or fit again"
        )
    try:
        return _decode(document, arrays), document["card"], str(stated)[:12]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"the bundle in {folder} lacks a part: {error}") from error


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _digest(document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> str:
    content = {k: v for k, v in document.items() if k != "digest"}
    sha = hashlib.sha256(_json(content).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def _read_document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise BundleError(f"{path} is too large for a bundle")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise BundleError(
            f"no model bundle in {path.parent} ({error.strerror}): run 'omnipilot fit'"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: restore it or fit again") from error
    form = document.get("format") if isinstance(document, dict) else None
    if isinstance(form, int) and 0 < form < FORMAT_VERSION:
        raise OlderBundleError(
            f"{path} was fitted by an earlier version of OmniPilot (format {form}, this one reads "
            f"{FORMAT_VERSION}): omnipilot fit fits the site's rows anew"
        )
    if form != FORMAT_VERSION:
        raise BundleError(f"{path} is of another bundle format: fit again with this version")
    return dict(document)


def _encode(model: FittedModel) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {"physics/base": model.physics.base}
    # A list, because sums of offsets must keep their order to give the same last bit.
    offsets = []
    for category, levels in model.physics.offsets.items():
        offsets.append([category, list(levels)])
        arrays[f"physics/{category}"] = np.stack(list(levels.values()))
    heads = {}
    for name, head in model.heads.items():
        layer = head.layer
        for i, block in enumerate(layer.blocks.values()):
            at = f"{name}/block{i}"
            arrays |= encode_points(at, block.points)
            arrays[f"{at}/alpha"] = block.alpha
        arrays[f"{name}/sd"] = layer.hyper.shared.sd
        if layer.hyper.own:
            arrays[f"{name}/own_sd"] = np.stack([s.sd for s in layer.hyper.own.values()])
        spreads = {}
        for label, spread in head.spreads.items():
            at = f"{name}/{label}"
            arrays[f"{at}/features"] = spread.forest.features.astype(np.int16)
            arrays[f"{at}/thresholds"] = spread.forest.thresholds
            arrays[f"{at}/leaves"] = spread.forest.leaves
            arrays[f"{at}/bias"] = spread.forest.bias
            spreads[label] = {
                "levels": spread.space.levels,
                "withheld": spread.space.withheld,
                "offset": spread.offset,
                "source_offsets": spread.source_offsets,
                "n_rows": spread.n_rows,
                "n_groups": spread.n_groups,
                "crossing_rate": spread.crossing_rate,
                "nested_coverage": spread.nested_coverage,
                "mape": spread.mape,
                "median_ape": spread.median_ape,
            }
        deviations = {}
        for label, deviation in head.deviations.items():
            arrays[f"{name}/{label}/deviation"] = deviation.sd
            deviations[label] = {
                "category": deviation.category,
                "lengths": deviation.lengths,
                "noise_sd": deviation.noise_sd,
                "offsets": deviation.offsets,
            }
        heads[name] = {
            "n_rows": head.n_rows,
            "shares": head.shares,
            "deviations": deviations,
            "blocks": list(layer.blocks),
            "keys": layer.levels.keys,
            "lengths": layer.hyper.shared.lengths,
            "own_lengths": {source: s.lengths for source, s in layer.hyper.own.items()},
            "noise_sd": layer.hyper.noise_sd,
            "group_noise_sd": layer.hyper.group_noise_sd,
            "spreads": spreads,
        }
    local = []
    for i, ((name, label), rows) in enumerate(model.local.items()):
        at = f"local{i}"
        arrays |= encode_points(at, rows.points)
        arrays[f"{at}/whiten"] = rows.whiten.astype(np.float32)
        arrays[f"{at}/root"] = rows.root.astype(np.float32)
        arrays[f"{at}/gain"] = rows.gain
        local.append({"head": name, "class": label, "keys": rows.levels.keys, "band": rows.band})
    e = model.envelope
    document = {
        "format": FORMAT_VERSION,
        **_LAYOUT,
        "physics_offsets": offsets,
        "heads": heads,
        "local": local,
        "envelope": {
            "levels": e.levels,
            "ranges": e.ranges,
            "novelty": e.novelty,
            "engine_eras": e.engine_eras,
            "cells": e.cells,
            # Left out where there is nothing to say: a base model's digest stays what it was.
            **(
                {"site_levels": e.site_levels, "site_ranges": e.site_ranges}
                if e.site_levels
                else {}
            ),
        },
    }
    return document, arrays


def _decode_spread(s: dict[str, Any], arrays: dict[str, NDArray[Any]], at: str) -> Spread:
    space = FeatureSpace(
        {category: tuple(s["levels"][category]) for category in ONE_HOT}, tuple(s["withheld"])
    )
    features = array_of(arrays, f"{at}/features", (None, None)).astype(np.int32)
    n_trees, depth = features.shape
    if features.size and not 0 <= features.min() <= features.max() < len(space.names):
        raise ValueError(f"a tree of '{at}' splits on a feature that does not exist")
    n_outputs = len(QUANTILES)
    forest = Forest(
        features=features,
        thresholds=array_of(arrays, f"{at}/thresholds", (n_trees, depth)),
        leaves=array_of(arrays, f"{at}/leaves", (n_trees, 1 << depth, n_outputs)),
        bias=array_of(arrays, f"{at}/bias", (n_outputs,)),
    )
    return Spread(
        space=space,
        forest=forest,
        offset=s["offset"],
        source_offsets=s["source_offsets"],
        n_rows=s["n_rows"],
        n_groups=s["n_groups"],
        crossing_rate=s["crossing_rate"],
        nested_coverage=s["nested_coverage"],
        mape=s["mape"],
        median_ape=s["median_ape"],
    )


def _offsets(values: list[float]) -> tuple[float, ...]:
    if len(values) != len(LEFT_EDGES) + 1:
        raise ValueError(f"{len(values)} offsets of narrowed bands")
    return tuple(float(v) for v in values)


def _decode(document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> FittedModel:
    for part, names in _LAYOUT.items():
        if document[part] != list(names):
            raise BundleError(
                f"the bundle has other {part.replace('_', ' ')}: fit again with this version"
            )
    physics = PhysicsParameters(
        base=array_of(arrays, "physics/base", (len(PARAMETER_NAMES),)),
        offsets={
            category: dict(
                zip(
                    levels,
                    array_of(arrays, f"physics/{category}", (None, len(PARAMETER_NAMES))),
                    strict=True,
                )
            )
            for category, levels in document["physics_offsets"]
        },
    )
    by_name, heads = {head.name: head for head in HEADS}, {}
    for name, d in document["heads"].items():
        blocks = {}
        for i, label in enumerate(d["blocks"]):
            at = f"{name}/block{i}"
            alpha = array_of(arrays, f"{at}/alpha", (None,))
            m = len(alpha)
            points = decode_points(arrays, at, m, KERNEL_TERMS)
            blocks[label] = Block(points=points, alpha=alpha)
        own = d["own_lengths"]
        shape = (len(own), len(KERNEL_TERMS))
        own_sd = array_of(arrays, f"{name}/own_sd", shape) if own else np.empty(shape)
        hyper = Hyperparameters(
            shared=Scales(
                array_of(arrays, f"{name}/sd", (len(KERNEL_TERMS),)),
                (d["lengths"][0], d["lengths"][1]),
            ),
            noise_sd=d["noise_sd"],
            group_noise_sd=d["group_noise_sd"],
            own={
                source: Scales(sd, (lengths[0], lengths[1]))
                for (source, lengths), sd in zip(own.items(), own_sd, strict=True)
            },
        )
        levels = KernelLevels.from_keys(d["keys"])
        spreads = {
            label: _decode_spread(s, arrays, f"{name}/{label}") for label, s in d["spreads"].items()
        }
        if not spreads:
            raise ValueError(f"head '{name}' has no calibrated class")
        layer = GaussianLayer(levels=levels, blocks=blocks, hyper=hyper)
        deviations = {
            label: Deviation(
                category=v["category"],
                sd=array_of(arrays, f"{name}/{label}/deviation", (len(DEVIATION_TERMS),)),
                lengths=(v["lengths"][0], v["lengths"][1]),
                noise_sd=v["noise_sd"],
                offsets=_offsets(v["offsets"]),
            )
            for label, v in d["deviations"].items()
        }
        told = {label: d["shares"][label] for label in spreads}
        shares = {k: {s: float(v[s]) for s in (ANY_SOURCE, *v)} for k, v in told.items()}
        heads[name] = FittedHead(by_name[name], layer, shares, spreads, deviations, d["n_rows"])
    local = {}
    for i, d in enumerate(document["local"]):
        at = f"local{i}"
        deviation = heads[d["head"]].deviations[d["class"]]
        gain = array_of(arrays, f"{at}/gain", (None,))
        m = len(gain)
        local[d["head"], d["class"]] = LocalRows(
            deviation,
            KernelLevels.from_keys(d["keys"], class_terms(deviation.category)),
            decode_points(arrays, at, m, DEVIATION_TERMS),
            array_of(arrays, f"{at}/whiten", (m, m)).astype(np.float64),
            array_of(arrays, f"{at}/root", (m, m)).astype(np.float64),
            gain,
            (float(d["band"][0]), float(d["band"][1])) if d["band"] is not None else None,
        )
    e = document["envelope"]
    envelope = Envelope(
        levels={k: tuple(v) for k, v in e["levels"].items()},
        ranges={k: (v[0], v[1]) for k, v in e["ranges"].items()},
        novelty={k: tuple(v) for k, v in e["novelty"].items()},
        engine_eras=tuple(e["engine_eras"]),
        cells=tuple(tuple(c) for c in e["cells"]),
        site_levels={k: tuple(v) for k, v in e.get("site_levels", {}).items()},
        site_ranges={k: (v[0], v[1]) for k, v in e.get("site_ranges", {}).items()},
    )
    return FittedModel(physics=physics, heads=heads, envelope=envelope, local=local)
