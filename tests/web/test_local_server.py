"""Who may see a page of the local server, and who may press its buttons: nobody but the owner of the link."""

from __future__ import annotations

import re
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("flask", reason="needs fedspan[flare]")

from gated_site import Visitor, serve

from fedspan.errors import InputError
from fedspan.web.frame import render_form
from fedspan.web.local_server import LocalServer


class Counter:
    """A page with one button."""

    title = "Counter <b>"

    def __init__(self) -> None:
        self.pressed: list[dict[str, str]] = []
        self.file: Path | None = None

    def show(self, path: str, token: str) -> str | None:
        return render_form("press", token, "Press") if path == "" else None

    def find_file(self, path: str) -> Path | None:
        return self.file if path == "file" else None

    def act(self, action: str, form: Mapping[str, str]) -> str:
        if action != "press":
            raise InputError("There is no such <button>.")
        self.pressed.append(dict(form))
        return "Pressed <once>."


@pytest.fixture(scope="module")
def pages() -> Counter:
    return Counter()


@pytest.fixture(scope="module")
def server(pages: Counter) -> Iterator[LocalServer]:
    with serve(pages) as running:
        yield running


def token_of(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found
    return found[1]


def test_the_link_opens_the_page_and_the_token_leaves_the_address(server: LocalServer) -> None:
    visitor = Visitor(server)
    status, _, headers = visitor.ask(server.link.split(str(server.port), 1)[1])
    assert (status, headers["Location"]) == (303, "/")
    assert re.fullmatch(rf"fedspan-{server.port}=[\w-]+; HttpOnly; Path=/; SameSite=Strict", headers["Set-Cookie"])
    assert server.link.split("=")[1] not in headers["Set-Cookie"]
    page = Visitor(server).enter()
    assert "<title>Counter &lt;b&gt;</title>" in page


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=x", "/live.js", "/style.css", "/file", "/%2e%2e/etc/passwd"]
)
def test_who_does_not_have_the_link_sees_nothing(server: LocalServer, path: str) -> None:
    status, text, _ = Visitor(server).ask(path)
    assert status == 403
    assert "opens only by the link" in text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{port}", ""])
def test_a_name_that_was_turned_into_this_address_gets_nothing(server: LocalServer, host: str) -> None:
    visitor = Visitor(server)
    visitor.enter()
    status, text, _ = visitor.ask("/", Host=host.format(port=server.port))
    assert status == 400
    assert "form_token" not in text


def test_buttons_need_the_token_of_the_page_and_come_from_it(server: LocalServer, pages: Counter) -> None:
    pages.pressed.clear()
    visitor = Visitor(server)
    form = {"form_token": token_of(visitor.enter())}
    assert Visitor(server).ask("/do/press", form)[0] == 403  # without the cookie
    assert visitor.ask("/do/press", {})[0] == 403
    assert visitor.ask("/do/press", {"form_token": "x"})[0] == 403
    assert visitor.ask("/do/press", form, Origin="http://evil.example")[0] == 403
    assert visitor.ask("/do/press", form, Origin="null")[0] == 403
    assert visitor.ask("/do/press")[0] == 404  # a link, or an image of another site
    assert not pages.pressed
    assert visitor.ask("/do/press", form, Origin=f"http://127.0.0.1:{server.port}")[0] == 303
    assert len(pages.pressed) == 1
    assert visitor.ask("/", X_Live="1")[1].count("Pressed") == 0  # what keeps the page up to date takes nothing away
    assert "Pressed &lt;once&gt;." in visitor.ask("/")[1]
    assert "Pressed" not in visitor.ask("/")[1]
    assert visitor.ask("/do/nothing", form)[0] == 303
    assert "no such &lt;button&gt;" in visitor.ask("/")[1]
    assert visitor.ask("/do/press", {**form, "more": "x" * 100_000})[0] == 413


def test_a_browser_may_run_and_load_nothing_else(server: LocalServer, pages: Counter, tmp_path: Path) -> None:
    visitor = Visitor(server)
    visitor.enter()
    for path in ("/", "/live.js", "/style.css"):
        _, _, headers = visitor.ask(path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert not any(name.startswith("Access-Control") for name in headers)
    pages.file = tmp_path / "report.html"
    pages.file.write_text("<script>alert(1)</script>")
    status, text, headers = visitor.ask("/file")
    assert (status, text) == (200, "<script>alert(1)</script>")
    assert headers["Content-Security-Policy"].startswith("sandbox")
    assert visitor.ask("/nothing")[0] == 404


def test_it_listens_on_loopback_only(server: LocalServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((own, server.port)) != 0


def test_the_link_can_be_kept_in_a_file_that_goes_with_the_server(tmp_path: Path) -> None:
    said: list[str] = []
    running = LocalServer(Counter())
    link = tmp_path / "link"
    thread = threading.Thread(target=running.serve, args=(link, said.append))
    thread.start()
    end = time.monotonic() + 30
    while not link.exists() or len(said) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert stat.S_IMODE(link.stat().st_mode) == 0o600
    assert link.read_text() == running.link + "\n"
    assert not any("token" in line for line in said)  # a service's log may be read by others
    running.stop()
    thread.join(20)
    assert not link.exists()


def test_a_port_in_use_is_named(server: LocalServer) -> None:
    with pytest.raises(InputError, match=f"Port {server.port} is in use"):
        LocalServer(Counter(), server.port)
    with pytest.raises(InputError, match="from 1 to 65535"):
        LocalServer(Counter(), 70000)
