"""Arrays by name in one npz file: the same bytes for the same arrays, and never a pickle."""

from __future__ import annotations

import io
import re
import zipfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.domain.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["read_arrays", "write_arrays"]

_SUFFIX: Final = ".npy"
# Header of a plain array, as NumPy writes it (numpy.lib.format, version 1.0). NumPy itself parses
# it as Python, which takes longer than all the rest where a file holds hundreds of small arrays.
_PLAIN: Final = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][fi][1248])', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an npz of plain arrays; the same arrays give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}{_SUFFIX}", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def read_arrays(path: Path, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Read every array of an npz.

    Args:
        path: the file.
        most_bytes: what all of it may unpack to.

    Raises:
        BundleError: it cannot be read, is damaged, holds objects, or unpacks to more.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) <= most_bytes:
                return {e.filename.removesuffix(_SUFFIX): _array(archive.read(e)) for e in entries}
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    # zipfile, zlib, tokenize and numpy raise a dozen unrelated kinds on damaged input.
    except Exception as error:
        raise BundleError(f"{path} is damaged: restore it or fit again") from error
    raise BundleError(f"{path} unpacks to too much for a bundle")


def _array(data: bytes) -> NDArray[Any]:
    header = _PLAIN.match(data)
    if header is None:
        array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return array
    shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
    return np.frombuffer(data, header[1].decode(), offset=header.end()).reshape(shape).copy()
