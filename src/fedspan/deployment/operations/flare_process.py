"""What the process of a job does at a site and at the server alike: its bytes, its imports and its end."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np

_INLINE = 32_000_000  # measured: at 8 MB inline is quicker, at 80 MB the download

Blob = bytes | str | np.ndarray  # an array of bytes is what FLARE downloads in pieces


def wrap_blob(blob: bytes | str) -> Blob:
    """Bytes go inline; an array is downloaded."""
    return np.frombuffer(blob, dtype=np.uint8) if isinstance(blob, bytes) and len(blob) > _INLINE else blob


def unwrap_blob(blob: Blob) -> bytes | str:
    return blob.tobytes() if isinstance(blob, np.ndarray) else blob


def end_with_parent() -> None:
    """A job's process whose site or server has died is cut off from the job, and must not go on by itself."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(3)

    threading.Thread(target=watch, daemon=True, name="fedspan-parent").start()


def do_without_torch() -> None:
    """Keep FLARE from importing torch into every job for tensors that we never send: 3 s and 200 MB for each process.

    An algorithm that needs torch imports it itself.
    """
    for name in ("decomposers", "tensor_downloader"):
        sys.modules.setdefault(f"nvflare.app_opt.pt.{name}", None)  # type: ignore[arg-type]
