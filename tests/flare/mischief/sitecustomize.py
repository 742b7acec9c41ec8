"""A rogue or broken site, for tests: Python loads this at the start of a process that has this folder in its path.

In the process of a site's job it wraps the site's answers, as `mischief.json` in the kit says (see rogue.py). In that
of the server's job it changes questions, if the server's kit has such a file (see liar.py). The network and all others
are the real ones.
"""

import json
import os
import sys
from pathlib import Path


def _misbehave(kit: Path) -> None:
    import rogue

    from fedspan.deployment.site_service import SiteService

    honest, file = SiteService.exchange, kit / "mischief.json"

    def exchange(self: SiteService, blob: bytes, kept: int) -> object:
        plans = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        before = json.dumps(plans)
        try:
            return rogue.answer(plans, blob, lambda: honest(self, blob, kept))
        finally:
            if json.dumps(plans) != before:
                file.write_text(json.dumps(plans), encoding="utf-8")

    SiteService.exchange = exchange


_words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
_JOBS = (b"nvflare.private.fed.app.client.worker_process", b"nvflare.private.fed.app.server.runner_process")
if any(job in _words for job in _JOBS):
    # No test sends tensors. FLARE would load torch to be able to, which takes each process of a job some seconds.
    sys.modules.setdefault("nvflare.app_opt.pt.decomposers", None)  # type: ignore[arg-type]
    sys.modules.setdefault("nvflare.app_opt.pt.tensor_downloader", None)  # type: ignore[arg-type]
    _kit = Path(os.fsdecode(_words[_words.index(b"-m", _words.index(b"-m") + 1) + 1]))
if _JOBS[1] in _words:
    import liar

    liar.lie(_kit)
if _JOBS[0] in _words:
    if (_kit / "mischief.json").exists():
        print("this site misbehaves", file=sys.stderr)
    _misbehave(_kit)
