"""A page as a reader types it: each block of shell into one terminal, each block of Python into one session, in order.

Blocks marked `sh` are typed, `python` is pasted, and a `toml` block that begins with `# NAME.toml` is saved under that
name. Blocks of other kinds show outputs or variants, and are not typed. Nothing else is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from fcntl import F_DUPFD, fcntl
from pathlib import Path

_TERMINAL = 'set -eo pipefail; while read -r block <&3; do . "$block" </dev/null; echo done >&4; done'
_SESSION = (
    "import sys\nnamespace = {'__name__': '__main__'}\n"
    "for path in open(3):\n"
    "    path = path.strip()\n"
    "    exec(compile(open(path, encoding='utf-8').read(), path, 'exec'), namespace)\n"
    "    sys.stdout.flush()\n"
    "    print('done', file=open(4, 'w', closefd=False), flush=True)\n"
)


@dataclass(frozen=True)
class Block:
    """One block of a page: its language, its text, and the line on which it begins."""

    language: str
    text: str
    line: int


def read_blocks(page: str) -> list[Block]:
    """All fenced blocks, in order."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [Block(one[1], one[2], page[: one.start()].count("\n") + 1) for one in found]


class Reader:
    """Someone with an empty home and nothing installed but Python, who types what a page says.

    `folder` is where the page is read: a copy of the repository.
    """

    def __init__(self, folder: Path, home: Path, path: str) -> None:
        self.folder, self.home, self.log = folder, home, home / "typed.log"
        home.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        kept |= {key: os.environ[key] for key in ("http_proxy", "https_proxy", "no_proxy") if key in os.environ}
        self.environment = {**kept, "HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8", "TERM": "dumb"}
        self._terminal = _Talk(["bash", "--norc", "-c", _TERMINAL], folder, self.environment, self.log)
        self._session: _Talk | None = None
        self._count = 0

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        if self._session is not None:
            self._session.end()
        self._terminal.end()

    def follow(self, page: str, without: str = "") -> list[Block]:
        """Type all blocks of a page, but those that match `without`; return what was typed."""
        typed = []
        for block in read_blocks(page):
            if without and re.search(without, block.text):
                continue
            first = block.text.partition("\n")[0]
            if block.language == "sh":
                self._type(self._terminal, block)
            elif block.language == "python":
                self._type(self._open_session(), block)
            elif block.language == "toml" and re.fullmatch(r"# [\w-]+\.toml", first):
                (self._where() / first.removeprefix("# ")).write_text(block.text, encoding="utf-8")
            else:
                continue
            typed.append(block)
        return typed

    def _where(self) -> Path:
        """The folder that the terminal is in."""
        return Path(self._ask('printf "%s" "$PWD"'))

    def _ask(self, command: str) -> str:
        answer = self.home / "answer"
        self._terminal.do(self._save(f'{command} > "{answer}"'))
        return answer.read_text(encoding="utf-8")

    def _open_session(self) -> _Talk:
        """Python as the terminal would start it now."""
        if self._session is None:
            environment = dict(line.split("=", 1) for line in self._ask("env -0").split("\0") if "=" in line)
            self._session = _Talk(["python3", "-c", _SESSION], self._where(), environment, self.log)
        return self._session

    def _type(self, talk: _Talk, block: Block) -> None:
        if not talk.do(self._save(block.text)):
            said = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
            raise AssertionError(f"The block of line {block.line} failed:\n{block.text}\nIt printed:\n{said}")

    def _save(self, text: str) -> Path:
        self._count += 1
        path = self.home / f"block-{self._count}"
        path.write_text(text, encoding="utf-8")
        return path


class _Talk:
    """A process that carries out one file after another."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str], log: Path) -> None:
        read_by_it, self._to = os.pipe()
        self._from, written_by_it = os.pipe()
        own = [fcntl(number, F_DUPFD, 10) for number in (read_by_it, written_by_it)]  # above 3 and 4
        moved = f'exec 3<&{own[0]} 4>&{own[1]}; exec "$@"'
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["bash", "--norc", "-c", moved, "bash", *command],
                cwd=folder,
                env=environment,
                pass_fds=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for number in (read_by_it, written_by_it, *own):
            os.close(number)

    def do(self, path: Path) -> bool:
        """Carry out one file; whether that went well."""
        os.write(self._to, f"{path}\n".encode())
        return os.read(self._from, 16) == b"done\n"

    def end(self, patience: float = 60.0) -> None:
        """End the process and all that it started in its session; these may have to end others first."""
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        with_it = self.process.pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(with_it, number)
            except ProcessLookupError:
                break
            end = time.monotonic() + patience
            while self._is_alive() and time.monotonic() < end:
                time.sleep(0.1)
        self.process.wait()

    def _is_alive(self) -> bool:
        """Whether any process of the session is left."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True
