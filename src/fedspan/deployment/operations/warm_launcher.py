"""In the process of a site or of the server: jobs are started as forks of a warm process. See `warm_process.py`.

`fedspan site warm KIT` puts one of these classes in the place of FLARE's own. If the warm process is not there, a job
is started as FLARE starts it; if it dies, all its jobs have ended.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import JOB_RETURN_CODE_MAPPING
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

_ANSWER = 10.0  # seconds in which a fork must be there; the warm process may be at its imports
_KILLED = 9


class ForkHandle(JobHandleSpec):  # type: ignore[misc]
    """One job that the warm process has forked."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid, self.ended, self.code = pid, threading.Event(), 0

    def terminate(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def poll(self) -> Any:
        if not self.ended.is_set():
            return JobReturnCode.UNKNOWN
        return JOB_RETURN_CODE_MAPPING.get(abs(self.code), JobReturnCode.EXECUTION_ERROR)

    def wait(self) -> None:
        self.ended.wait()

    def note_end(self, code: int) -> None:
        self.code = code
        self.ended.set()


class WarmPool:
    """The warm process of one site or server, and the jobs that it has forked."""

    def __init__(self, kit: str, kind: str) -> None:
        ours, theirs = socket.socketpair()
        module = "fedspan.deployment.operations.warm_process"
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module, kit, kind, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.link = ours
        self.changed = threading.Condition()
        self.new: list[ForkHandle] = []
        self.running: dict[int, ForkHandle] = {}
        self.asking = threading.Lock()
        threading.Thread(target=self._listen, daemon=True, name="fedspan-warm").start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def fork(self, argv: list[str], environment: dict[str, str]) -> ForkHandle | None:
        """Start a job; None if the warm process does not do it."""
        with self.asking:
            try:
                self.link.sendall(json.dumps({"argv": argv, "env": environment}).encode() + b"\n")
            except OSError:
                return None
            with self.changed:
                if not self.changed.wait_for(lambda: self.new or not self.alive, timeout=_ANSWER) or not self.new:
                    self.stop()
                    return None
                return self.new.pop()

    def stop(self) -> None:
        """End the warm process and all that it forked, so that a late fork starts nothing twice."""
        with suppress(ProcessLookupError):
            self.process.kill()

    def _listen(self) -> None:
        with self.link.makefile("rb") as lines:
            for line in lines:
                tree = json.loads(line)
                with self.changed:
                    if "pid" in tree:
                        handle = self.running[tree["pid"]] = ForkHandle(tree["pid"])
                        self.new.append(handle)
                    elif tree["ended"] in self.running:
                        self.running.pop(tree["ended"]).note_end(tree["code"])
                    self.changed.notify_all()
        self.process.wait()
        with self.changed:  # its jobs notice that their parent is gone, and end
            for handle in self.running.values():
                handle.note_end(_KILLED)
            self.running.clear()
            self.changed.notify_all()


class _WarmStart:
    """What both launchers do."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.pool: WarmPool | None = None
        self.starting = threading.Lock()
        self.log = logging.getLogger("fedspan.warm")

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._start()
        super().handle_event(event_type, fl_ctx)  # type: ignore[misc]

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> Any:
        pool, workspace = self.pool, fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        custom = workspace.get_app_custom_dir(job_meta.get(JobConstants.JOB_ID))
        if pool is not None and pool.alive and not os.path.isdir(custom):
            secrets = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
            argv = shlex.split(self.get_command(job_meta, fl_ctx), True)  # type: ignore[attr-defined]
            handle = pool.fork(argv, {**os.environ, **secrets})
            if handle is not None:
                return handle
            self.log.error("the warm process does not answer; the job is started without it")
        self._start()  # for the next job
        return super().launch_job(job_meta, fl_ctx)  # type: ignore[misc]

    def _start(self) -> None:
        with self.starting:
            if self.pool is None or not self.pool.alive:
                self.pool = WarmPool(os.getcwd(), self.kind)


class WarmSite(_WarmStart, ClientProcessJobLauncher):  # type: ignore[misc]
    """The launcher in a site's kit."""

    kind = "site"


class WarmServer(_WarmStart, ServerProcessJobLauncher):  # type: ignore[misc]
    """The launcher in the server's kit."""

    kind = "server"
