"""Files are written whole or not at all, and are their owner's alone unless they are made to be shared."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedspan.errors import InputError

_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = 0o077  # what a mode allows to the group and to everybody


def write_whole(
    path: str | os.PathLike[str], data: bytes | str | Sequence[bytes | memoryview], *, public: bool = False
) -> None:
    """Replace `path` by `data` or its pieces in one step; a crash leaves the old file or the new one, never a part.

    Only the owner may read it, whatever the umask. A `public` file, which a user asked for by its path, gets the mode
    that any program would give it: the umask decides.
    """
    path = Path(path)
    name = path.parent / f".{path.name}.{secrets.token_hex(4)}"

    def create(file: str, flags: int) -> int:
        return os.open(file, flags, 0o666 if public else _PRIVATE_FILE)

    file = open(name, "xb", opener=create)  # noqa: SIM115 - if the name is taken, the file is another's to delete
    try:
        with file:
            whole = data.encode() if isinstance(data, str) else data
            file.writelines([whole] if isinstance(whole, bytes) else whole)
            file.flush()
            os.fsync(file.fileno())
        if not public:
            os.chmod(name, _PRIVATE_FILE)  # an unusual umask may have taken the owner's rights, too
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            name.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write down the names in a folder, so that a new file is there after a power failure, too."""
    if os.name != "posix":
        return
    with suppress(OSError):  # a folder that may not be read, or a file system that has nothing to write down
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter, and those above it that are missing; one that exists stays."""
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)
        folder.chmod(_PRIVATE_FOLDER)
        _sync_folder(folder.parent)
    path.mkdir(exist_ok=True)  # refuses a file in its place


def close_tree(path: str | os.PathLike[str]) -> None:
    """Take from everybody but the owner all rights to a folder that exists, and to all that is in it."""
    for folder, _, names in os.walk(path):
        for part in (Path(folder), *(Path(folder) / name for name in names)):
            if not part.is_symlink():
                part.chmod(stat.S_IMODE(part.stat().st_mode) & ~_OTHERS)


def open_private(file: str, flags: int) -> int:
    """The `opener` of a file that is kept open while it grows, and that only its owner may read."""
    handle = os.open(file, flags, _PRIVATE_FILE)
    with suppress(OSError):  # another's file, which is the other's to close
        os.chmod(file, _PRIVATE_FILE)
    return handle


def append_line(path: Path, line: str) -> None:
    """Add a line to a private file of ASCII text, and come back when it is on disk, and the file's name, too.

    A new line begins before it, so that what a crash once cut off stays on a line of its own.
    """
    new = not path.exists()
    with open(path, "a", encoding="ascii", opener=open_private) as file:
        file.write(f"\n{line}")
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_folder(path.parent)


def require_private(path: str | os.PathLike[str]) -> None:
    """Refuse a file with secrets in it that anybody but its owner may read."""
    if os.name != "posix":
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & _OTHERS:
        raise InputError(
            f"{path} contains a password or a secret, but its mode is {mode:03o}, so other users of this machine may "
            f"read it. Close it with: chmod 600 {shlex.quote(os.fspath(path))}"
        )
