"""What was on the wire, kept: one safetensors file per message, just as it was encoded.

For audits, and only if asked for: it holds all that the clients released. A broadcast that is the same for all clients
is kept once. Files are named `message-<round>-<exchange>-<sitting>-<client>-<up|down>`, so that they sort; a run that
is resumed is a further sitting, and adds to what is there. Replies that were lost on the way are kept too: they were
on the wire.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import quote, unquote

from fedspan._files import make_private_folder, write_whole
from fedspan._types import Arrays
from fedspan.channel import wire
from fedspan.channel.link import Receiver
from fedspan.channel.stage import Channel, Stage
from fedspan.errors import InputError, ProtocolError

_ALL = "@all"  # in the place of a client: what every client was sent that has no file of its own
_NAME = re.compile(r"message-(\d{6})-(\d{4})-(\d{3})-(.+)-(up|down)\.safetensors")
_LONGEST = 200  # bytes of a client's name in a file name; file systems take 255 in all


class _Key(NamedTuple):
    """Where a message stands, in the order of time."""

    sitting: int
    round: int
    exchange: int
    client: str

    def file(self, way: str) -> str:
        name = self.client if self.client == _ALL else quote(self.client, safe="")
        return f"message-{self.round:06d}-{self.exchange:04d}-{self.sitting:03d}-{name}-{way}.safetensors"


@dataclass(frozen=True)
class Talk:
    """One question to one client and its answer: decoded as the two sides decode them, and how many bytes they had."""

    sitting: int
    round: int
    exchange: int
    client: str
    task: str
    question: Arrays
    answer: Arrays
    bytes_down: int
    bytes_up: int


class Transcript:
    """The messages in a folder, to write while a run goes on and to read when it is over."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock = Lock()
        self._sitting: int | None = None
        self._common: dict[tuple[int, int, str], bytes] = {}  # the broadcast of an exchange; only the last one is kept

    def record_down(self, client: str, message: wire.Message) -> None:
        """A question, as it is sent."""
        blob, at = wire.encode(message), (message.round, message.exchange, message.task)
        with self._lock:
            if at not in self._common:
                self._common = {at: blob}
                self._write(message, _ALL, "down", blob)
            elif self._common[at] != blob:
                self._write(message, client, "down", blob)

    def record_up(self, client: str, message: wire.Message) -> None:
        """An answer, as it is sent."""
        blob = wire.encode(message)
        with self._lock:
            self._write(message, client, "up", blob)

    def _write(self, message: wire.Message, client: str, way: str, blob: bytes) -> None:
        try:
            if self._sitting is None:
                make_private_folder(self.folder)
                self._sitting = max((key.sitting for key, _ in self._list_messages()), default=-1) + 1
            key = _Key(self._sitting, message.round, message.exchange, client)
            if len(quote(client, safe="")) > _LONGEST:
                raise InputError(
                    f"The client name {client[:20]!r}… is too long for the files of a transcript. Rename the client."
                )
            name = key.file(way)
            if message.task.startswith("@"):  # a phase of secure aggregation: kept, but no answer to a question
                name = name.replace("message-", f"phase-{message.task[1:]}-", 1)
            write_whole(self.folder / name, blob)
        except OSError as error:
            raise InputError(f"Cannot write the transcript in {self.folder}: {error.strerror}.") from None

    def talks(self, channel: Channel) -> Iterator[Talk]:
        """All answers with their questions, in the order of time; of one exchange in the order of client ids.

        `channel` must be that of the run: what it remembers from message to message is followed here as well. Where
        a run was resumed, the memories are those of the round from which it went on.
        """
        found = list(self._list_messages())
        ups = sorted(key for key, way in found if way == "up")
        downs = {key for key, way in found if way == "down"}
        ends = _Ends(self, channel, downs)
        before: list[_Key] = []  # what led to the memories at the beginning of this sitting
        for sitting in sorted({key.sitting for key in ups}):
            here = [key for key in ups if key.sitting == sitting]
            first = min(key.round for key, _ in found if key.sitting == sitting)
            before = [key for key in before if key.round < first]
            if sitting > 0 and (channel.up.remembers or channel.down.remembers):
                ends = _Ends(self, channel, downs)
                for key in before:
                    ends.talk(key)
            for key in here:
                yield ends.talk(key)
            before += here

    def answers(self) -> int:
        """How many answers there are."""
        return sum(way == "up" for _, way in self._list_messages())

    def _list_messages(self) -> Iterator[tuple[_Key, str]]:
        """Each message and its way, up or down, as the names of the files say."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith((".", "phase-")):  # half-written, or put there by a system; or keys and shares
                continue
            found = _NAME.fullmatch(path.name)
            if found is None:
                raise InputError(f"{path.name!r} in the transcript {self.folder} is not a message. Move it away.")
            round, exchange, sitting = map(int, found.groups()[:3])
            yield _Key(sitting, round, exchange, unquote(found[4])), found[5]

    def read(self, key: _Key, way: str) -> tuple[wire.Message, int]:
        """One message, and how many bytes it had."""
        path = self.folder / key.file(way)
        try:
            blob = path.read_bytes()
            message = wire.decode(blob)
        except OSError as error:
            raise InputError(f"Cannot read {path}: {error.strerror}.") from None
        except ProtocolError as error:
            raise InputError(f"The transcript is damaged in {path.name}: {error} Audit a whole copy.") from None
        if (message.round, message.exchange) != (key.round, key.exchange):
            at = f"round {message.round}, exchange {message.exchange}"
            raise InputError(f"The transcript is damaged: {path.name} holds a message of {at}. Audit a whole copy.")
        return message, len(blob)


class _Ends:
    """The receiving ends of all links, which follow the messages one by one."""

    def __init__(self, transcript: Transcript, channel: Channel, downs: set[_Key]) -> None:
        self.transcript, self.channel, self.own = transcript, channel, downs
        self.up: dict[str, Receiver] = {}
        self.down: dict[str, Receiver] = {}

    def talk(self, key: _Key) -> Talk:
        asked = key if key in self.own else key._replace(client=_ALL)
        if asked not in self.own:
            raise InputError(
                f"The transcript is damaged: the question to {key.file('up')} is missing. Audit a whole copy."
            )
        question, bytes_down = self.transcript.read(asked, "down")
        answer, bytes_up = self.transcript.read(key, "up")
        down = self.down.setdefault(key.client, Receiver(self.channel.down))
        up = self.up.setdefault(key.client, Receiver(self.channel.up))
        try:
            return Talk(
                key.sitting,
                key.round,
                key.exchange,
                key.client,
                answer.task,
                question=_decode_message(self.channel.down, down, question),
                answer=_decode_message(self.channel.up, up, answer),
                bytes_down=bytes_down,
                bytes_up=bytes_up,
            )
        except (ProtocolError, KeyError, ValueError) as error:
            raise InputError(
                f"Cannot decode {key.file('up')} of the transcript ({error}): a message before it is missing, or the "
                "run had another channel."
            ) from None


def _decode_message(stage: Stage, end: Receiver, message: wire.Message) -> Arrays:
    """The arrays of a message. Without a memory each decodes by itself, also where some are not kept (secure sums)."""
    if stage.remembers:
        return end.decode(message)
    return stage.decode(message.arrays, stage.init()[1])[0]
