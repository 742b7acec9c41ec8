"""What a rogue or broken site does to its answers, as plans say: a list of {"what", "task", "round", "times"}.

`what` is one of `KINDS`, or "huge", or "sleep" (with "seconds"), or "hold" (as long as the file "while" exists).
A plan without a task or a round is for all of them; with "times" it ends after so many answers: they are counted down.
"""

import time
from pathlib import Path
from typing import Any

KINDS = ("names", "shape", "dtype", "nan", "garbage", "text", "raise")


def answer(plans: list[dict[str, Any]], blob: bytes, honest: Any) -> Any:
    """What the site says to a request; `honest` is a function that computes its true answer."""
    from fedspan.channel import wire

    message = wire.decode(blob)
    for plan in plans:
        if plan.get("task", message.task) != message.task or plan.get("round", message.round) != message.round:
            continue
        if plan.get("times") == 0:
            continue
        if plan.get("times") is not None:
            plan["times"] -= 1
        if plan["what"] == "sleep":
            time.sleep(plan["seconds"])
            continue
        if plan["what"] == "hold":
            while Path(plan["while"]).exists():
                time.sleep(0.05)
            continue
        return _distort(plan["what"], honest)
    return honest()


def _distort(what: str, honest: Any) -> Any:
    import numpy as np

    from fedspan.channel import wire

    if what == "raise":
        raise MemoryError("the site ran out of memory")
    if what == "garbage":
        return b"\0" * 100
    if what == "text":
        return "hello"
    reply = wire.decode(honest())
    name, array = next(iter(reply.arrays.items()))
    others = {key: value for key, value in reply.arrays.items() if key != name}
    if what == "names":
        return wire.encode(reply._replace(arrays={**others, "password": array}))
    if what == "shape":
        array = np.zeros((*array.shape, 2), dtype=array.dtype)
    elif what == "dtype":
        array = array.astype(np.float32)
    elif what == "nan":
        array = np.full(array.shape, np.nan)
    elif what == "huge":
        array = np.zeros(125_000_000)
    else:
        raise ValueError(f"A rogue site cannot do {what!r}.")
    return wire.encode(reply._replace(arrays={**others, name: array}))
