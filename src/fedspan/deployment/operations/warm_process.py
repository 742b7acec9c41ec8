"""A process that has imported what a job needs, and forks for every job: quicker to start, and its pages are shared.

    python -m fedspan.deployment.operations.warm_process KIT site|server FD

It talks with the process of the site or the server over one socket, in lines of JSON: `{"argv": …, "env": …}` comes in,
`{"pid": …}` and `{"ended": …, "code": …}` go out. When the other end is closed, it ends, and its jobs with it. It has
one thread, so that a fork is a whole copy of it; it has opened no data, and holds no key.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from fedspan.deployment.operations.flare_process import do_without_torch

_LOOK_AFTER = 0.1  # seconds between two looks at what has ended
_QUIET_END = 0.2  # seconds that FLARE lets pass before a job's process ends; 3 by itself
_CLEAN = 3.0
_MODULES = {
    "site": [
        "nvflare.private.fed.app.client.worker_process",
        "nvflare.private.fed.client.client_json_config",
        "nvflare.collab.runtime.executor",
        "fedspan.deployment.flare",
        "pyarrow.parquet",
    ],
    "server": [
        "nvflare.private.fed.app.server.runner_process",
        "nvflare.private.fed.server.server_json_config",
        "nvflare.collab.runtime.controller",
        "fedspan.deployment.operations.flare_server",
        "fedspan.estimators.pca",
    ],
}


def serve_forks(kind: str, link: socket.socket) -> None:
    """Import, then fork for every line, until the other end is closed."""
    do_without_torch()
    for name in [*_MODULES[kind], "grpc", "psutil", "yaml"]:
        with suppress(ImportError):  # a job that needs it will say so
            import_module(name)
    gc.collect()
    gc.freeze()  # what is here now is in every job, and need not be looked at there
    rest = b""
    while True:
        ready, _, _ = select.select([link], [], [], _LOOK_AFTER)
        _report_ended(link)
        if not ready:
            continue
        data = link.recv(1 << 16)
        if not data:
            os._exit(0)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _carry_out(order["argv"], order["env"], link)
            _send_line(link, {"pid": pid})


def _report_ended(link: socket.socket) -> None:
    """Say which jobs have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send_line(link, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send_line(link: socket.socket, tree: dict[str, int]) -> None:
    with suppress(OSError):  # the other end is gone; the next look will show it
        link.sendall(json.dumps(tree).encode() + b"\n")


def _carry_out(argv: Sequence[str], environment: dict[str, str], link: socket.socket) -> None:
    """In the fork: do what `python -m MODULE …` would do, and end."""
    code: object = 1
    try:
        link.close()
        os.setsid()
        os.environ.clear()
        os.environ.update(environment)
        at = list(argv).index("-m") + 1
        module = import_module(argv[at])
        sys.argv = list(argv[at:])
        given = vars(module)
        arguments = given["parse_arguments"]()
        place = Path(arguments.workspace) / arguments.job_id
        monitor = given["mpm"]
        code = monitor.run(
            main_func=given["main"],
            run_dir=str(place),
            args=arguments,
            shutdown_grace_time=_QUIET_END,
            cleanup_grace_time=_CLEAN,
        )
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve_forks(sys.argv[2], socket.socket(fileno=int(sys.argv[3])))
