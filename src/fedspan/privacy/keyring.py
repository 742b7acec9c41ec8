"""The secrets from which a client's noise comes: one key per client, in a file that only its owner can read.

Noise is a pseudorandom function of the key and of the release (guard.py). So the same release again is the same bytes,
which costs nothing, and any other release has fresh noise. Whoever has the key can take the noise off again.
"""

from __future__ import annotations

import hmac
import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedspan._files import make_private_folder
from fedspan._foreign import parse_json
from fedspan.errors import PrivacyError

_BYTES = 32


def draw_secret(size: int) -> bytes:
    """Bytes from the operating system, which nobody can repeat. All noise comes from here."""
    return os.urandom(size)


def derive_key(key: bytes, *purpose: object) -> bytes:
    """A key for one purpose, from which the others cannot be found."""
    return hmac.digest(key, repr(purpose).encode(), "sha256")


def read_key(path: Path) -> bytes:
    """The key in a file; a new one if there is none yet."""
    try:
        _create(path, draw_secret(_BYTES).hex())
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise PrivacyError(
            f"Cannot read or create the noise key {path.name} ({type(error).__name__}), so nothing was sent. Check the "
            "rights of its folder."
        ) from None
    if len(key) != _BYTES:
        raise PrivacyError(f"The noise key {path.name} is damaged, so nothing was sent. Restore it from a copy.")
    return key


@dataclass(frozen=True)
class RunKey:
    """What names one private run, and the key of its clients where they are all in one process."""

    run: str
    key: bytes

    @classmethod
    def open(cls, folder: Path | None) -> RunKey:
        """That of the run in a checkpoint's folder, so that a resumption repeats what was sent; else a new one."""
        new = cls(draw_secret(16).hex(), draw_secret(_BYTES))
        if folder is None:
            return new
        path = folder / "noise.json"
        try:
            make_private_folder(folder)
            _create(path, json.dumps({"run": new.run, "key": new.key.hex()}))
            tree = parse_json(path.read_text(encoding="ascii"))
            return cls(str(tree["run"]), bytes.fromhex(tree["key"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PrivacyError(
                f"Cannot read or create {path} ({type(error).__name__}), without which noise could not be repeated. "
                "Choose another checkpoint folder."
            ) from None

    def key_of(self, client: str) -> bytes:
        """The key of one client."""
        return derive_key(self.key, "client", client)


def _create(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step; one that is there stays as it is."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # of two processes, one is first
        except FileExistsError:
            return
    finally:
        draft.unlink()
