"""An HTTP proxy on loopback, as many hospitals have one: CONNECT, then bytes. While it is cut, nothing arrives."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Tunnel:
    """Threads that end with the test process."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []  # to whom it was asked to connect
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What sends a process through it."""
        address = f"http://127.0.0.1:{self.port}"
        return {"https_proxy": address, "http_proxy": address, "no_proxy": "", "NO_PROXY": ""}

    def cut(self) -> None:
        """As if a cable was pulled: connections stay, bytes do not arrive."""
        self.open.clear()

    def mend(self) -> None:
        self.open.set()

    def _serve(self) -> None:
        while True:
            near, _ = self._door.accept()
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with suppress(OSError, ValueError, IndexError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (byte := near.recv(1)):
                    return
                head += byte
            self.open.wait()
            target = head.split()[1].decode()
            self.asked.append(head.split(b"\r\n")[0].decode())
            host, port = target.rsplit(":", 1)
            far = socket.create_connection((host, int(port)))
            near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
            self._pump(near, far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
