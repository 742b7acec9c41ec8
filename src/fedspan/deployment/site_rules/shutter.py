"""What happens at a site if questions keep failing there: after the fifth time within a day the table is shut.

A refusal that depends on values is an answer, whatever its words: whoever may ask often enough finds any value by it.
So refusals are counted, over all runs and jobs, in `fedspan/refusals.json` of the site's kit:

    {"default": {"times": [1763470000.1, …], "shut": false}}

A table that is shut stays shut until its administrator opens it (`fedspan site reopen`), whatever the clock says. A
file that cannot be read shuts all tables: without a count there is no protection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from fedspan._files import make_private_folder, write_whole
from fedspan.core.checkpoint import build
from fedspan.errors import CheckpointError, InputError, PolicyRefusal

try:
    import fcntl
except ImportError:  # no lock on such a system: a site runs one job at a time there
    fcntl = None  # type: ignore[assignment]

MOST = 5  # refusals that depend on values, before a table is shut
WITHIN = 24 * 3600.0  # seconds


class _Record(TypedDict):
    """What is known of one table: when questions about it were refused, in seconds since 1970."""

    times: list[float]
    shut: bool


class Shutter:
    """The counts of one site."""

    def __init__(self, kit: Path) -> None:
        self.path = kit / "fedspan" / "refusals.json"
        self.failed = False  # a refusal could not be written down: all tables are shut as far as this process knows

    def check_open(self, table: str) -> None:
        """Refuse a table that is shut."""
        try:
            record = self._read().get(table)
            shut = self.failed or (record is not None and record["shut"])
        except InputError:
            shut = True
        if shut:
            raise PolicyRefusal(
                f"The table {table!r} is shut at this site, because too many questions about it were refused. Its "
                "administrator can open it again, with: fedspan site reopen"
            )

    def count(self, table: str) -> int:
        """Write down one more refusal, before it is told; returns how many there were within a day."""
        try:
            return self._count(table)
        except OSError:  # a full disk, say
            self.failed = True
            return MOST

    def _count(self, table: str) -> int:
        with self._lock():
            try:
                records = self._read()
            except InputError:
                return MOST  # all tables are shut already
            old = records.get(table) or _Record(times=[], shut=False)
            now = max([time.time(), *old["times"]])  # a clock that was set back forgets nothing
            times = [at for at in old["times"] if now - at < WITHIN] + [now]
            records[table] = _Record(times=times[-MOST:], shut=old["shut"] or len(times) >= MOST)
            self._write(records)
            return len(times)

    def reopen(self, table: str) -> bool:
        """Open a table again, and forget its refusals; returns whether it was shut."""
        with self._lock():
            try:
                records = self._read()
            except InputError:  # its administrator has been told by `site check`, and decides
                self._write({})
                return True
            record = records.pop(table, None)
            self._write(records)
            return record is not None and record["shut"]

    def list_shut(self) -> list[str]:
        """The tables that are shut."""
        return [table for table, record in self._read().items() if record["shut"]]

    def _read(self) -> dict[str, _Record]:
        try:
            return build(dict[str, _Record], json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, CheckpointError) as error:
            raise InputError(
                f"Cannot read the count of refusals in {self.path} ({type(error).__name__}), so all tables of this "
                "site are shut. Open them with: fedspan site reopen KIT TABLE"
            ) from None

    def _write(self, records: dict[str, _Record]) -> None:
        write_whole(self.path, json.dumps(records, indent=1))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One process at a time counts; the lock goes with the process, however it ends."""
        make_private_folder(self.path.parent)
        with self.path.with_suffix(".lock").open("ab") as file:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
