"""A whole federation on this machine, as separate processes with mutual TLS: for examples, tests and benchmarks.

The kits, the certificates, the processes and the bytes are the real ones; only the machines are one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fedspan._files import close_tree, make_private_folder, open_private, write_whole
from fedspan.deployment.flare_admin import connect, list_sites
from fedspan.deployment.kit import project_file, role, tighten, update_class_list
from fedspan.errors import ClientError, InputError, MissingExtraError

RESEARCHER = "researcher@fedspan.org"
_READY = 120.0  # seconds
_SITE_PROCESS = b"nvflare.private.fed.app.client.client_train"
_JOB_PROCESS = b"nvflare.private.fed.app.client.worker_process"


def provision(project: Path, into: Path) -> Path:
    """Make the kits of a project file by `nvflare provision`, which makes the keys; returns their folder.

    All that is made is closed to other users from the start: the kits, and the root key beside them.
    """
    tool = Path(sys.executable).with_name("nvflare")
    if not tool.exists():
        raise MissingExtraError("Making the kits of a federation", "flare")
    command = [str(tool), "provision", "-p", str(project), "-w", str(into)]
    make_private_folder(into)
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)  # noqa: S603
    kits = sorted(into.glob("*/prod_*"))
    if done.returncode or not kits:
        raise InputError(f"nvflare does not accept the project file {project}: {(done.stdout + done.stderr)[-400:]}")
    close_tree(kits[-1].parent)  # what an earlier version left open, and what FLARE opens itself
    return kits[-1]


def find_root_key(kits: Path) -> Path:
    """The file with the key that signs all certificates of a federation, beside the kits that were made with it."""
    return kits.parent / "state" / "cert.json"


def find_free_ports() -> int:
    """A free port; the next one is free, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def is_listening(port: int) -> bool:
    """Whether somebody on this machine listens there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start_kit(kit: Path, log: Path | None = None, **environment: str) -> subprocess.Popen[bytes]:
    """Run a kit's process as its start script does, with this Python; its output goes to a file."""
    kit = kit.resolve()
    if role(kit) == "researcher":
        raise InputError(f"{kit} is a researcher's kit, for `fedspan run --on`. Only sites and the server are started.")
    path = os.pathsep.join([str(_find_python_folder(kit)), os.environ.get("PATH", "")])
    update_class_list(kit)
    return subprocess.Popen(  # noqa: S603
        [str(kit / "startup" / "sub_start.sh"), "--once"],
        stdout=subprocess.DEVNULL if log is None else open(log, "ab", opener=open_private),
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=kit,
        env={**os.environ, "PATH": path, **environment},
        start_new_session=True,
    )


def _find_python_folder(kit: Path) -> Path:
    """The folder of this Python, by a path that FLARE can start jobs with; if need be, by a link in the kit."""
    if not _is_one_word(kit):
        raise InputError(
            f"FLARE cannot start jobs in {str(kit)!r}, because the path contains spaces, quotes, # or backslashes. "
            "Move the kit."
        )
    folder = Path(sys.executable).parent
    if _is_one_word(folder):
        return folder
    link = kit / ".python"
    if not link.is_symlink() or link.readlink() != folder.parent:
        if link.is_dir() and not link.is_symlink():  # the kit was copied, and the link followed
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.parent, target_is_directory=True)
    return link / folder.name


def _is_one_word(path: Path) -> bool:
    """Whether a path stays whole where FLARE splits the command of a job, which it does as a shell would."""
    try:
        return shlex.split(str(path), comments=True) == [str(path)]
    except ValueError:  # a quote that is not closed
        return False


def end_kit(kit: Path, process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """Ask a kit's process and those of its jobs to end; kill those that are still there after `patience` seconds."""
    for pid in pids_of(kit, process):
        _kill(pid, signal.SIGTERM)
    end = time.monotonic() + patience
    while time.monotonic() < end and (process.poll() is None or _find_pids(kit)):
        time.sleep(0.1)
    for pid in pids_of(kit, process):
        _kill(pid)
    process.wait()


class LocalFederation:
    """A server and sites on loopback: configure the sites' kits, then enter it; processes run until it is left."""

    def __init__(self, folder: Path, sites: Sequence[str], *, port: int | None = None, **environment: str) -> None:
        self.folder, self.sites = folder, list(sites)
        self.port = port or find_free_ports()
        self.admin_port = self.port + 1
        self.environment = environment
        self.own: dict[str, dict[str, str]] = {}  # what single processes have in theirs besides
        make_private_folder(folder)
        project = folder / "project.yml"
        text = project_file("localhost", self.sites, RESEARCHER, port=self.port, name="local", days=30)
        write_whole(project, text)
        self.kits = provision(project, folder / "kits")
        tighten(self.kit("localhost"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def kit(self, name: str) -> Path:
        return self.kits / name

    @property
    def researcher(self) -> Path:
        return self.kit(RESEARCHER)

    def start(self, name: str) -> None:
        """Start one process: the server ("localhost") or a site."""
        self.processes[name] = start_kit(
            self.kit(name), self.folder / f"{name}.log", **{**self.environment, **self.own.get(name, {})}
        )

    def __enter__(self) -> LocalFederation:
        self.start("localhost")
        try:
            for site in self.sites:
                self.start(site)
            self.wait_for(self.sites)
        except BaseException:
            self.stop()
            raise
        return self

    def wait_for(self, sites: Sequence[str], timeout: float = _READY) -> None:
        """Wait until the server listens and those sites are connected to it."""
        end = time.monotonic() + timeout
        while not (is_listening(self.port) and is_listening(self.admin_port)):
            self._check(end, "server")
        found: list[str] = []
        while not set(sites) <= set(found):
            try:
                with connect(self.researcher) as session:
                    while not set(sites) <= set(found := list_sites(session)):
                        self._check(end, f"sites {', '.join(sorted(set(sites) - set(found)))}")
            except ClientError:
                self._check(end, "console of the server")

    def _check(self, end: float, what: str) -> None:
        dead = [name for name, process in self.processes.items() if process.poll() not in (None, -signal.SIGKILL)]
        if dead or time.monotonic() > end:
            why = f"{', '.join(dead)} ended" if dead else "it took too long"
            raise ClientError(f"The federation did not start: no {what} ({why}). See the logs in {self.folder}.")
        time.sleep(0.3)

    def pids(self, name: str) -> list[int]:
        """The processes of a kit: its own first, then those of its jobs."""
        return pids_of(self.kit(name), self.processes[name])

    def kill(self, name: str, *, job_only: bool = False) -> None:
        """`kill -9`: a kit's processes, or only those of its jobs."""
        for pid in self.pids(name):
            if not job_only or pid != self.processes[name].pid:
                _kill(pid)
        if not job_only:
            self.processes[name].wait()

    def stop(self) -> None:
        """End every process that was started here, by its id."""
        for name, process in self.processes.items():
            for pid in reversed(self.pids(name)):
                _kill(pid, signal.SIGKILL)
            process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def pids_of(kit: Path, process: subprocess.Popen[bytes]) -> list[int]:
    """The process that was started first, unless it ended, then those of its jobs."""
    own = [process.pid] if process.poll() is None else []
    return own + [pid for pid in _find_pids(kit) if pid != process.pid]


def find_activity(kit: Path) -> tuple[bool, int]:
    """Whether a site's own process runs on this machine, and how many processes of jobs it has."""
    own = jobs = 0
    for pid in _find_pids(kit):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            own += _SITE_PROCESS in words
            jobs += _JOB_PROCESS in words
    return own > 0, jobs


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _find_pids(kit: Path) -> list[int]:
    """The processes that were started with that kit as their workspace; a job's are in sessions of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if os.fsencode(kit.resolve()) in words:
                    found.append(int(entry.name))
    return sorted(found)
