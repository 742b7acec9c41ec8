"""A web server for one person on one machine: who knows the link sees the pages, and nobody else.

Other users and other web sites are kept out:

- It listens on loopback only, and answers only to its own name there. So a web site whose name is turned into this
  address (DNS rebinding) gets nothing.
- The link holds a token of 256 bits. The first visit exchanges it for a cookie, so that it does not stay in the
  address.
- What changes something is a POST with a second token, which only the page itself knows, and comes from this page.
- A content security policy lets nothing run or load but this server's own script and style.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from fedspan._files import write_whole
from fedspan.errors import FedspanError, InputError, MissingExtraError
from fedspan.web.frame import LIVE_SCRIPT, WEB_STYLE, render_frame

if TYPE_CHECKING:
    from flask import Flask, Response
    from werkzeug.wrappers import Response as Answer

HOST = "127.0.0.1"
_MOST_SENT = 64_000  # bytes of a form
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with "no-referrer" a browser would not say where a form comes from
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSED = "This page opens only by the link that the command printed when it was started. Open that link again."


class LocalPages(Protocol):
    """What is shown, and what can be done."""

    @property
    def title(self) -> str:
        """The name of the page."""
        ...

    def show(self, path: str, token: str) -> str | None:
        """The body of a page; None if there is none. `token` goes into its forms."""
        ...

    def find_file(self, path: str) -> Path | None:
        """A page that was written before, a report say; None if there is none."""
        ...

    def act(self, action: str, form: Mapping[str, str]) -> str:
        """Do what a form asks for, and say what was done."""
        ...


@dataclass
class _Told:
    """What is said on the next page, once."""

    text: str = ""
    wrong: bool = False


class LocalServer:
    """Serves pages until it is stopped. `link` is what to open; it is as good as a password as long as it runs."""

    def __init__(self, pages: LocalPages, port: int = 0) -> None:
        try:
            from werkzeug.serving import make_server
        except ImportError:
            raise MissingExtraError("A page in the browser", "flare") from None
        if not 0 <= port <= 65535:
            raise InputError(f"A port is a number from 1 to 65535, but this is {port}.")
        self.pages = pages
        self._token, self._cookie, self._form = (secrets.token_urlsafe(32) for _ in range(3))
        self._told, self._lock = _Told(), Lock()
        app = self._make_app()
        try:
            self._server = make_server(HOST, port, app, threaded=True, request_handler=_make_silent_handler())
        except (OSError, SystemExit):  # werkzeug ends the process if the port is in use
            raise InputError(f"Port {port} is in use on this machine, or not allowed. Choose another --port.") from None
        self.port = int(self._server.server_port)

    @property
    def link(self) -> str:
        """The address with its token."""
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def serve(self, link_file: Path | None = None, say: Callable[[str], object] = print) -> None:
        """Answer until Ctrl-C. The link is printed or, with `link_file`, kept there for its owner alone."""
        if link_file is None:
            say(f"open {self.link}")
        else:
            write_whole(link_file, self.link + "\n")
            say(f"the link is in {link_file}, which only you can read")
        say("it works on this machine and for you only; Ctrl-C ends it")
        try:
            self._server.serve_forever()
        finally:
            self.stop()
            if link_file is not None:
                link_file.unlink(missing_ok=True)

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def _make_app(self) -> Flask:
        from flask import Flask, Response, redirect, request

        app = Flask("fedspan", static_folder=None)
        app.config["MAX_CONTENT_LENGTH"] = _MOST_SENT

        def refuse(code: int, words: str) -> Response:
            return Response(f"{words}\n", status=code, mimetype="text/plain")

        @app.before_request
        def check_visitor() -> Answer | None:
            own = {f"{HOST}:{self.port}", f"localhost:{self.port}"}
            if request.headers.get("Host") not in own:
                return refuse(400, "This server answers to its own address only.")
            if request.method == "GET" and request.path == "/" and "token" in request.args:
                if not _is_token(request.args["token"], self._token):
                    return refuse(403, _CLOSED)
                answer = redirect("/", 303)
                answer.set_cookie(self._cookie_name, self._cookie, httponly=True, samesite="Strict")
                return answer
            if not _is_token(request.cookies.get(self._cookie_name, ""), self._cookie):
                return refuse(403, _CLOSED)
            if request.method == "POST":
                origin = request.headers.get("Origin")
                if origin is not None and origin not in {f"http://{name}" for name in own}:
                    return refuse(403, "This form was sent by another page.")
                if not _is_token(request.form.get("form_token", ""), self._form):
                    return refuse(403, "This form is too old. Load the page again.")
            return None

        @app.after_request
        def add_headers(answer: Response) -> Response:
            for name, value in _HEADERS.items():
                answer.headers[name] = value
            answer.headers.setdefault("Content-Security-Policy", _POLICY)
            return answer

        @app.errorhandler(FedspanError)
        def explain_error(error: FedspanError) -> Answer:
            return Response(render_frame(self.pages.title, "", str(error), wrong=True), status=500)

        @app.get("/live.js")
        def send_script() -> Answer:
            return Response(LIVE_SCRIPT, mimetype="text/javascript")

        @app.get("/style.css")
        def send_style() -> Answer:
            return Response(WEB_STYLE, mimetype="text/css")

        @app.get("/", defaults={"path": ""})
        @app.get("/<path:path>")
        def show_page(path: str) -> Answer:
            file = self.pages.find_file(path)
            if file is not None:  # written by fedspan; it brings its style along, and needs nothing else
                policy = "sandbox allow-downloads; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
                return Response(file.read_bytes(), mimetype="text/html", headers={"Content-Security-Policy": policy})
            body = self.pages.show(path, self._form)
            if body is None:
                missing = '<p>There is no such page, or not yet.</p><p><a href="/">To the first page</a></p>'
                return Response(render_frame(self.pages.title, missing), status=404)
            told = self._take_told() if request.headers.get("X-Live") is None else _Told()
            return Response(render_frame(self.pages.title, body, told.text, wrong=told.wrong))

        @app.post("/do/<action>")
        def act(action: str) -> Answer:
            try:
                self._told = _Told(self.pages.act(action, request.form))
            except FedspanError as error:
                self._told = _Told(str(error), wrong=True)
            return redirect("/", 303)

        return app

    @property
    def _cookie_name(self) -> str:
        return f"fedspan-{self.port}"  # cookies of one host are shared by its ports

    def _take_told(self) -> _Told:
        with self._lock:
            told, self._told = self._told, _Told()
        return told


def _is_token(given: str, own: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), own.encode())


def _make_silent_handler() -> type:
    """Werkzeug's handler, which prints no line for each request: the token is in the first one."""
    from werkzeug.serving import WSGIRequestHandler

    class Silent(WSGIRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...

    return Silent
