"""A rogue or broken site, for tests: Python loads this at the start of a process that has this folder in its path.

It wraps the site's answers in the job's own process as a file in the kit says: `mischief.json`, a list of
{"what": …, "task": …, "round": …, "times": …}. The network, the server and the other sites are the real ones.
"""

import json
import os
import sys
import time
from pathlib import Path


def _misbehave(kit: Path) -> None:
    import numpy as np

    from fedspan.channel import wire
    from fedspan.deployment.station import Station

    honest = Station.exchange

    def answer(self: Station, blob: bytes, kept: int) -> object:
        message = wire.decode(blob)
        plans = json.loads((kit / "mischief.json").read_text()) if (kit / "mischief.json").exists() else []
        for i, plan in enumerate(plans):
            if plan.get("task", message.task) != message.task or plan.get("round", message.round) != message.round:
                continue
            if plan.get("times") is not None:
                if plan["times"] == 0:
                    continue
                plans[i]["times"] -= 1
                (kit / "mischief.json").write_text(json.dumps(plans))
            what = plan["what"]
            if what == "sleep":
                time.sleep(plan["seconds"])
                continue
            if what == "raise":
                raise MemoryError("the site ran out of memory")
            if what == "garbage":
                return b"\0" * 100
            if what == "text":
                return "hello"
            reply = wire.decode(honest(self, blob, kept))
            name, array = next(iter(reply.arrays.items()))
            changed = {
                "names": {**{k: v for k, v in reply.arrays.items() if k != name}, "password": array},
                "shape": {**reply.arrays, name: np.zeros((*array.shape, 2), dtype=array.dtype)},
                "dtype": {**reply.arrays, name: array.astype(np.float32)},
                "nan": {**reply.arrays, name: np.full(array.shape, np.nan)},
                "huge": {**reply.arrays, name: np.zeros(125_000_000)},
            }[what]
            return wire.encode(reply._replace(arrays=changed))
        return honest(self, blob, kept)

    Station.exchange = answer


_words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
if b"nvflare.private.fed.app.client.worker_process" in _words:
    _kit = Path(os.fsdecode(_words[_words.index(b"-m", _words.index(b"-m") + 1) + 1]))
    if (_kit / "mischief.json").exists():
        print("this site misbehaves", file=sys.stderr)
    _misbehave(_kit)
