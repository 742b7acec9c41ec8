"""A group of clients in a forked process: it has the data without a copy, and hears questions through a pipe."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from fedspan.errors import FedspanError

_END = b""  # the question that ends the process
_FOREIGN = b"!"  # begins the answer that is an error which is not ours


def can_fork() -> bool:
    """Whether this system can."""
    return "fork" in multiprocessing.get_all_start_methods()


class ForkedGroup:
    """The way to the process, which begins with it. `earlier`: the processes that were forked before."""

    def __init__(
        self, handle: Callable[[bytes], bytes], close: Callable[[], None], earlier: Sequence[ForkedGroup]
    ) -> None:
        fork = multiprocessing.get_context("fork")
        self._end, other = fork.Pipe()
        held = [self._end, *(group._end for group in earlier)]
        self._process = fork.Process(target=_serve, args=(other, held, handle, close), daemon=True)
        self._process.start()
        other.close()

    def send(self, blob: bytes) -> None:
        with suppress(BrokenPipeError):  # then nothing comes back, which says why
            self._end.send_bytes(blob)

    def receive(self) -> bytes:
        try:
            answer = self._end.recv_bytes()
        except (EOFError, ConnectionError):
            self._process.join(5)
            raise FedspanError(
                f"A process with clients has ended (exit code {self._process.exitcode}); perhaps memory was short. Go "
                "on from the checkpoint, with fewer processes or a smaller max_open."
            ) from None
        if answer.startswith(_FOREIGN):
            raise RuntimeError(answer[1:].decode())
        return answer

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._end.send_bytes(_END)
        self._end.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


def _serve(
    end: Connection, held: Sequence[Connection], handle: Callable[[bytes], bytes], close: Callable[[], None]
) -> None:
    """The process: one answer to each question, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    for other in held:  # or this process would keep the others' pipes open
        other.close()
    with suppress(EOFError, ConnectionError):
        while blob := end.recv_bytes():
            try:
                answer = handle(blob)
            except Exception as error:
                answer = _FOREIGN + f"{type(error).__name__}: {error}".encode()
            end.send_bytes(answer)
    close()
