"""What tells a long-running program that the files behind its answers have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Stamp", "stamp_of"]

WATCHED: Final = ("settings.toml", "gpus", "models", "bundles/current")
_INSIDE: Final = ("bundle.json", "arrays.npz")

Stamp = tuple[tuple[str, int, int, int], ...]


def stamp_of(home: Path) -> Stamp:
    """What tells whether the files that answers rest on have changed."""
    found: list[tuple[str, int, int, int]] = []
    for name in WATCHED:
        top = home / name
        inside = [top / part for part in _INSIDE] if name.startswith("bundles") else _files(top)
        for path in (top, *inside):
            try:
                about = path.stat()
            except OSError:
                continue
            is_folder = path.is_dir()
            found.append(
                (
                    str(path.resolve()),
                    about.st_ino,
                    0 if is_folder else about.st_mtime_ns,
                    0 if is_folder else about.st_size,
                )
            )
    return tuple(found)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.rglob("*")) if folder.is_dir() else []
    except OSError:
        return []
