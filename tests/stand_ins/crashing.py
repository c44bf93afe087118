"""A machine that dies at any one of the calls by which a program changes files.

The program runs in a forked process whose calls to the operating system below one folder are
counted. At the chosen call it dies: before the call, or, where the call writes, half-way through
it. Two states of the disk come out. ``killed`` is what a ``kill -9`` leaves: all that was done.
``unplugged`` is the least that a loss of power may leave: of each file what it held when it was
last synced, of each folder the names it had when it was last synced. What sits between the two is
what file systems really do.
"""

# pathlib would go through the very calls that are replaced here.
# ruff: noqa: PTH102, PTH109, PTH114, PTH115, PTH116, PTH118, PTH120, PTH211

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import shutil
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Crash", "crashes", "refusals"]

_DIED, _FAILED = 137, 99
_MOST_CALLS = 2000
_PATH_CALLS = ("open", "mkdir", "unlink", "remove", "rmdir", "rename", "replace", "link", "symlink")
_FD_CALLS = ("write", "fsync", "ftruncate")
# fork, write and _exit as they are, for the machine itself.
_WRITE, _OPEN, _FSTAT = os.write, os.open, os.fstat


@dataclass(frozen=True)
class Crash:
    """What one death left.

    ``call`` is the name of the call at which the machine died, "" where the program ended before;
    ``told`` what the program had told as done by then.
    """

    n: int
    call: str
    killed: Path
    unplugged: Path
    told: tuple[str, ...]


class _Machine:
    """The calls of one process below ``folder``, and what of their effects is safe."""

    def __init__(self, folder: Path, log: Path, *, at: int, error: int = 0) -> None:
        self._folder = os.path.realpath(folder)
        self._fd = _OPEN(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._at = at
        self._error = error
        self._n = 0
        # By inode: files' bytes and folders' names. Kept open, so that no number is used twice.
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[str, Any]]] = {}
        self._open: list[int] = []

    def tell(self, words: str) -> None:
        _WRITE(self._fd, f"told {words}\n".encode())

    def start(self) -> None:
        """Take what there is as safe, and stand before the calls."""
        for place, _, files in os.walk(self._folder):
            for path in (place, *(os.path.join(place, name) for name in files)):
                if not os.path.islink(path):
                    fd = _OPEN(path, os.O_RDONLY)
                    self._sync(fd)
        for name in _PATH_CALLS:
            setattr(os, name, self._path_call(name, getattr(os, name)))
        for name in _FD_CALLS:
            setattr(os, name, self._fd_call(name, getattr(os, name)))
        fcntl.flock = self._fd_call("flock", fcntl.flock)
        io.open = self._io_open(io.open)

    def _is_mine(self, path: object, dir_fd: int | None = None) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
        whole = os.path.join(base, os.fspath(path))
        return f"{os.path.realpath(os.path.dirname(whole))}/".startswith(f"{self._folder}/")

    def _reach(self, call: str, half: Callable[[], object] | None = None) -> None:
        """Count one call, and die or refuse at the chosen one."""
        self._n += 1
        if self._n != self._at:
            return
        _WRITE(self._fd, f"call {call}\n".encode())
        if half is not None:
            half()
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        self.lose()
        os._exit(_DIED)

    def _path_call(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            changes = name != "open" or bool((args[0] if args else 0) & (os.O_CREAT | os.O_TRUNC))
            other = args[0] if name == "symlink" else path
            dir_fd = options.get("dir_fd", options.get("src_dir_fd"))
            if changes and self._is_mine(other, dir_fd):
                self._reach(name)
            return original(path, *args, **options)

        return call

    def _fd_call(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: Any, *args: Any) -> Any:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            if not f"{path}/".startswith(f"{self._folder}/"):
                return original(fd, *args)
            half = None
            if name == "write":
                data = bytes(args[0])

                def half() -> object:
                    return original(fd, data[: len(data) // 2])

            self._reach(name, half)
            done = original(fd, *args)
            if name == "fsync":
                self._sync(os.dup(number))
            return done

        return call

    def _io_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        machine = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                content = bytes(data)
                machine._reach("write", lambda: super(Raw, self).write(content[: len(data) // 2]))
                return super().write(content)

        def call(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
            errors: str | None = None, newline: str | None = None, *_: Any, **__: Any,
        ) -> Any:  # fmt: skip
            if not set(mode) & set("wax+") or not (isinstance(file, int) or self._is_mine(file)):
                return original(file, mode, buffering, encoding, errors, newline)
            if not isinstance(file, int):
                self._reach("open")
            raw = Raw(file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, encoding, errors, newline)

        return call

    def _sync(self, fd: int) -> None:
        """Note what a file or folder holds as safe; keeps the descriptor."""
        status = _FSTAT(fd)
        path = f"/proc/self/fd/{fd}"
        self._open.append(fd)
        if not stat.S_ISDIR(status.st_mode):
            other = _OPEN(path, os.O_RDONLY)
            self._bytes[status.st_ino] = os.pread(other, status.st_size, 0)
            os.close(other)
            return
        names = self._names[status.st_ino] = {}
        for entry in os.scandir(path):
            if entry.is_symlink():
                names[entry.name] = ("link", os.readlink(entry.path))
            else:
                what = "folder" if entry.is_dir() else "file"
                names[entry.name] = (what, entry.inode())
                self._open.append(_OPEN(entry.path, os.O_RDONLY))

    def lose(self) -> None:
        """Write down what a loss of power would leave."""
        at = self._at
        self._at = -1
        target = f"{self._folder}.unplugged"
        self._restore(os.stat(self._folder).st_ino, target)
        self._at = at

    def _restore(self, inode: int, to: str) -> None:
        os.mkdir(to, 0o700)
        for name, (what, which) in self._names.get(inode, {}).items():
            path = os.path.join(to, name)
            if what == "link":
                os.symlink(which, path)
            elif what == "folder":
                self._restore(which, path)
            else:
                fd = _OPEN(path, os.O_WRONLY | os.O_CREAT, 0o600)
                _WRITE(fd, self._bytes.get(which, b""))
                os.close(fd)


def crashes(
    root: Path,
    program: Callable[[Path, Callable[[str], None]], None],
    *,
    before: Callable[[Path], None] = lambda _: None,
) -> Iterator[Crash]:
    """Run a program once for each of its calls, dying there; the last run dies nowhere.

    Args:
        root: an empty folder for all this.
        program: gets a folder and a function by which it tells what is done.
        before: fills the folder first, undisturbed.
    """
    yield from _runs(root, program, before, 0)


def refusals(
    root: Path,
    program: Callable[[Path, Callable[[str], None]], None],
    *,
    before: Callable[[Path], None] = lambda _: None,
    error: int = errno.ENOSPC,
) -> Iterator[Crash]:
    """Run a program once for each of its calls, which is refused there; the program goes on."""
    yield from _runs(root, program, before, error)


def _runs(
    root: Path, program: Callable[..., None], before: Callable[[Path], None], error: int
) -> Iterator[Crash]:
    template = root / "template"
    template.mkdir()
    before(template)
    for n in range(1, _MOST_CALLS):
        folder, log = root / str(n), root / f"{n}.log"
        shutil.copytree(template, folder, symlinks=True)
        code = _run(folder, log, program, n, error)
        lines = [line.partition(" ") for line in log.read_text(encoding="utf-8").splitlines()]
        call = "".join(words for what, _, words in lines if what == "call")
        told = tuple(words for what, _, words in lines if what == "told")
        assert code in ((0, _DIED) if not error else (0,)), f"{program} broke at call {n}, {call}"
        yield Crash(n, call, folder, Path(f"{folder}.unplugged"), told)
        for used in (folder, Path(f"{folder}.unplugged")):
            shutil.rmtree(used, ignore_errors=True)
        if not call:
            return
    raise AssertionError(f"{program} makes more than {_MOST_CALLS} calls")


def _run(folder: Path, log: Path, program: Callable[..., None], n: int, error: int) -> int:
    with warnings.catch_warnings():
        # The child runs no other thread's code and leaves by _exit.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = _FAILED
    with contextlib.suppress(BaseException):
        machine = _Machine(folder, log, at=n, error=error)
        machine.start()
        program(folder, machine.tell)
        machine.lose()
        code = 0
    os._exit(code)
