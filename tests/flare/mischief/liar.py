"""A lying server: in the runs that `mischief.json` of its kit names, it asks with columns of the unit matrix."""

import json
from pathlib import Path
from typing import Any


def lie(kit: Path) -> None:
    """Change the questions of this process, which is that of the server's job."""
    from dataclasses import replace

    import numpy as np

    from fedspan.engines.remote import RemoteSession

    honest, file = RemoteSession.exchange, kit / "mischief.json"

    def exchange(self: RemoteSession, ask: Any, cohort: tuple[str, ...], round: int, exchange: int) -> Any:
        lies = json.loads(file.read_text(encoding="utf-8"))["lies"] if file.exists() else []
        if self.engine.run in lies and "Z" in ask.arrays:
            rows, columns = ask.arrays["Z"].shape
            ask = replace(ask, arrays={**ask.arrays, "Z": np.eye(rows)[:, :columns]})
        return honest(self, ask, cohort, round, exchange)

    RemoteSession.exchange = exchange
