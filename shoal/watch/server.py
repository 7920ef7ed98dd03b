"""The server of `shoal watch`: standard library, 127.0.0.1, read only.

Every request needs the token: in the printed address once, then in a cookie. Requests with another Host, Origin or
Sec-Fetch-Site are refused, so that no other page of the browser, also none from another port of this machine, gets an
answer. Pages may run the scripts of the package alone (Content-Security-Policy).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from shoal import html_page, registry
from shoal.errors import ConfigError
from shoal.watch import compare
from shoal.watch.background import Background
from shoal.watch.curves import Curves
from shoal.watch.files import Root, plain
from shoal.watch.index import Entry, Index
from shoal.watch.panels import Panels
from shoal.watch.worker import NOT_NATIVE

PAGE = Path(__file__).parent / "page"
STATIC = {".js": "text/javascript", ".css": "text/css"}
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".png": "image/png"}
FACTS = ("command", "commit", "versions", "machine", "started", "lost", "init")  # of run.json
SUMMARY = ("reason", "eval", "best", "selected_by", "diagnosis")  # of summary.json
MOST_VIDEO_BYTES = 1 << 30
CHUNK = 1 << 18
MOST_COMPARED = 200  # runs
MOST_POINTS, LEAST_POINTS = 80_000, 64  # of all curves of an answer; of one of them
MOST_VIDEOS = 200
IDLE_S = 60.0  # a connection without requests is closed
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; media-src 'self'; frame-src 'self'; "
    "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "script-src {scripts}"
)


class Missing(Exception):
    """There is no such page: 404."""


class Watch:
    """The runs of a folder, and what is served about them."""

    def __init__(self, folder: Path, headers: list[Path] | None = None, background: Background | None = None) -> None:
        self.root = Root(folder)
        self.index, self.curves, self.panels = Index(self.root), Curves(self.root), Panels(self.root)
        self.background = background or Background(self.root.folder, headers or [])
        self._making, self._game = threading.Lock(), ("", dict[str, Any]())

    def warm(self, name: str = "") -> None:
        """Reads the runs, and makes the game of a run that is about to be shown."""
        self.index.scan()
        with contextlib.suppress(ConfigError, Missing):
            if name:
                self.game(name)

    def game(self, name: str) -> dict[str, Any]:
        """The game of a run's newest checkpoint. That of the run that was shown last is kept."""
        entry = self.run(name)
        steps = self.panels.checkpoints(entry.path)
        with self._making:  # two requests for the same game make it once
            known, facts = self._game
            if known != name or not steps or facts["step"] != steps[-1]:
                facts = self.background.ask(do="game", folder=str(entry.path), newer_than=-1)
                self._game = name, facts
        return facts

    def run(self, name: str) -> Entry:
        """A run by its name."""
        entry = self.index.find(name)
        if entry is None:
            raise Missing(f"no run {name}")
        return entry

    # ---- answers as JSON ----

    def api_runs(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """The rows that changed since a version."""
        since = query.get("since", ["0"])[0]
        return self.index.changes(int(since) if since.isdecimal() and len(since) < 16 else 0)

    def api_options(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """The names of all options; with `name`, the values of those options by run."""
        self.index.scan()
        wanted = query.get("name", [])
        tables = {name: self.index.options.of(entry.path) for name, entry in list(self.index.runs.items())}
        if not wanted:
            return {"names": sorted({option for table in tables.values() for option in table})}
        return {"values": {option: {run: t[option] for run, t in tables.items() if option in t} for option in wanted}}

    def api_run(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """Everything about one run but its curves."""
        name = query.get("run", [""])[0]
        self.index.refresh(name)
        entry = self.run(name)
        steps = self.panels.checkpoints(entry.path)
        summary, facts = entry.summary, entry.facts
        videos = self._videos(entry)
        return {
            "row": entry.row,
            "panels": self.panels.of(entry),
            "options": self.index.options.of(entry.path),
            "facts": plain({key: facts.get(key) for key in FACTS}),
            "summary": plain({key: summary.get(key) for key in SUMMARY}),
            "is_native": registry.is_native(str(facts.get("env", ""))),
            "checkpoints": steps,
            "videos": videos,
            "has_league": self.index.options.of(entry.path).get("league.on") is True,
        }

    def api_curves(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """The curves of several runs: `run` and `key` may be given more than once, `version` once for each run."""
        names, keys = query.get("run", [])[:MOST_COMPARED], query.get("key", [])[:64]
        versions = query.get("version", [])
        most = max(LEAST_POINTS, MOST_POINTS // max(1, len(names) * len(keys)))
        found = {}
        for k, name in enumerate(names):
            known = versions[k] if k < len(versions) else ""
            version = int(known) if known.isdecimal() and len(known) < 16 else -1
            entry = self.index.find(name)
            if entry is not None:
                found[name] = self.curves.of(entry.path, keys, version, most)
        return {"runs": found}

    def api_compare(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """Options and groups of several runs."""
        self.index.scan()
        names = dict.fromkeys(query.get("run", [])[:MOST_COMPARED])
        return compare.compare(self.index, {n: entry for n in names if (entry := self.index.find(n)) is not None})

    def api_game(self, query: dict[str, list[str]]) -> dict[str, Any] | None:
        """The game of a run's newest checkpoint; None if it is not newer than `newer`."""
        name, newer = query.get("run", [""])[0], query.get("newer", ["-1"])[0]
        least = int(newer) if newer.isdecimal() and len(newer) < 20 else -1
        steps = self.panels.checkpoints(self.run(name).path)
        if steps and steps[-1] <= least:
            return None
        facts = self.game(name)
        return facts if facts["step"] > least else None

    def _videos(self, entry: Entry) -> list[str]:
        folder = entry.path / "videos"
        if not self.root.holds(folder) or not folder.is_dir():
            return []
        with contextlib.suppress(OSError):
            files = [path for path in folder.iterdir() if path.suffix in VIDEOS and self.root.holds(path)]
            return [path.name for path in sorted(files, key=lambda path: path.stat().st_mtime)[-MOST_VIDEOS:]]
        return []

    # ---- pages ----

    def play_page(self, name: str) -> tuple[str, str]:
        """The page of the newest checkpoint, which gets newer ones by itself; and its script."""
        from shoal.web.page import html as page_html
        from shoal.web.page import script

        entry = self.run(name)
        if not registry.is_native(str(entry.facts.get("env", ""))):
            raise ConfigError(NOT_NATIVE)
        facts = {**self.game(name), "renew": f"/api/game?run={quote(name, safe='')}"}
        return page_html(facts, is_packed=False), f"\n{script()}"

    def league_page(self, name: str) -> tuple[str, str]:
        """The page of a run's league."""
        return self.background.ask(do="league", folder=str(self.run(name).path)), ""

    def sweep_page(self, name: str) -> tuple[str, str]:
        """The page of a sweep."""
        self.index.scan()
        entry = self.index.sweeps.get(name)
        if entry is None:
            raise Missing(f"no sweep {name}")
        template = Path(html_page.__file__).parent / "sweep" / "page.html"
        own = re.findall(r"<script>(.*?)</script>", template.read_text(), re.DOTALL)
        return self.background.ask(do="sweep", folder=str(entry.path)), own[0]

    def close(self) -> None:
        """Ends the process in the background."""
        self.background.close()


class Server:
    """Serves a Watch at `url`, which holds the token."""

    def __init__(self, watch: Watch, port: int = 0, start: str = "") -> None:
        self.watch, self.token = watch, secrets.token_urlsafe(18)
        try:
            self.server = _Listener(("127.0.0.1", port), _handler(watch, self.token))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used: {error.strerror}. Leave it out, or choose another."
            ) from None
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/?token={self.token}{start}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.5,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
        self.watch.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a browser that closes a connection is no error."""


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _handler(watch: Watch, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_S

        # ---- who asks ----

        def is_foreign(self) -> bool:
            address: Any = self.server.server_address
            hosts = [f"{name}:{address[1]}" for name in ("127.0.0.1", "localhost")]
            if len(self.headers.get_all("Host", [])) != 1 or self.headers["Host"] not in hosts:
                return True
            if self.headers.get("Origin") not in (None, *(f"http://{host}" for host in hosts)):
                return True
            return self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not self.is_arriving()

        def is_arriving(self) -> bool:
            """Whether someone follows the printed link, maybe from a page of another site: it shows the page alone."""
            return self.path.startswith("/?token=") and self.headers.get("Sec-Fetch-Mode") == "navigate"

        def cookie_name(self) -> str:
            address: Any = self.server.server_address
            return f"shoal-watch-{address[1]}"  # cookies do not distinguish ports

        def has_token(self, query: dict[str, list[str]]) -> bool:
            given = query.get("token", [])
            for part in self.headers.get("Cookie", "").split(";"):
                name, _, value = part.strip().partition("=")
                given += [value] if name == self.cookie_name() else []
            return any(secrets.compare_digest(one.encode(), token.encode()) for one in given)

        # ---- answers ----

        def do_GET(self) -> None:
            """Everything."""
            try:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query, max_num_fields=1000)
            except ValueError:
                return self.refuse(400, "bad address")
            if parts.scheme or parts.netloc:  # of a proxy
                return self.refuse(400, "bad address")
            if self.is_foreign():
                return self.refuse(
                    403, "requests from other hosts and pages are refused (a tunnel needs the same port on both ends)"
                )
            if not self.has_token(query):
                return self.refuse(403, "the address has no token: open the one that shoal watch printed")
            try:
                self.route(unquote(parts.path), query)
            except Missing as error:
                self.refuse(404, str(error))
            except ConfigError as error:
                self.refuse(409, str(error))
            except (BrokenPipeError, ConnectionError):
                self.close_connection = True

        def do_HEAD(self) -> None:
            """Nothing is answered without its contents."""
            self.refuse(405, "only GET")

        do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD  # noqa: N815

        def route(self, path: str, query: dict[str, list[str]]) -> None:
            kind, _, rest = path.lstrip("/").partition("/")
            if path == "/":
                return self.front(query)
            if kind == "static":
                return self.static(rest)
            answers: dict[str, Callable[[dict[str, list[str]]], Any]] = {
                name: getattr(watch, f"api_{name}") for name in ("runs", "run", "curves", "compare", "options", "game")
            }
            if kind == "api" and rest in answers:
                found = answers[rest](query)
                if found is None:
                    return self.answer(204, b"", "application/json")
                body = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
                return self.answer(200, body, "application/json")
            pages = {"play": watch.play_page, "league": watch.league_page, "sweep": watch.sweep_page}
            if kind in pages:
                return self.page(pages[kind], rest)
            if kind == "video":
                return self.video(rest)
            raise Missing("no such page")

        def front(self, query: dict[str, list[str]]) -> None:
            text = html_page.fill(PAGE / "index.html", f"shoal watch: {watch.root.folder}")
            cookie = f"{self.cookie_name()}={token}; HttpOnly; SameSite=Strict; Path=/"
            self.answer(200, text.encode(), "text/html", {"Set-Cookie": cookie} if "token" in query else {})

        def static(self, name: str) -> None:
            from shoal.web.page import PAGE as WEB

            folder = WEB if name.startswith("web/") else PAGE
            known = {path.name: path for path in folder.iterdir() if path.suffix in STATIC}
            path = known.get(name.removeprefix("web/"))
            if path is None:
                raise Missing("no such file")
            self.answer(200, path.read_bytes(), STATIC[path.suffix])

        def page(self, make: Callable[[str], tuple[str, str]], name: str) -> None:
            """A page of its own, or why there is none: it may stand in a frame."""
            try:
                text, script = make(name)
            except ConfigError as error:
                note = f"<style>body {{ padding: 16px; }}</style></head><body><p>{html.escape(str(error))}</p>"
                style = f"<style>{html_page.STYLE.read_text()}</style>"
                return self.answer(
                    200,
                    f"{html_page.head('shoal watch')}{style}{note}</body></html>".encode(errors="replace"),
                    "text/html",
                )
            allowed = f"{_hash(script)} 'wasm-unsafe-eval'" if script else "'none'"
            return self.answer(200, text.encode(), "text/html", scripts=allowed)

        def video(self, name: str) -> None:
            run, _, file = name.rpartition("/")
            path = watch.run(run).path / "videos" / file
            handle = watch.root.open(path) if path.suffix in VIDEOS and "/" not in file else None
            if handle is None:
                raise Missing("no such video")
            with os.fdopen(handle, "rb") as stream:
                size = min(os.fstat(stream.fileno()).st_size, MOST_VIDEO_BYTES)
                wanted = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", self.headers.get("Range", ""))
                first = int(wanted[1]) if wanted else 0
                last = min(int(wanted[2]) if wanted and wanted[2] else size - 1, size - 1)
                if first > last:
                    return self.refuse(416, "no such part")
                more = {"Accept-Ranges": "bytes"}
                if wanted:
                    more["Content-Range"] = f"bytes {first}-{last}/{size}"
                stream.seek(first)
                body = _chunks(stream, last + 1 - first)
                self.answer(206 if wanted else 200, body, VIDEOS[path.suffix], more, length=last + 1 - first)
            return None

        def answer(
            self,
            status: int,
            body: bytes | Iterable[bytes],
            kind: str = "text/plain",
            more: dict[str, str] | None = None,
            *,
            scripts: str = "'self'",
            length: int | None = None,
        ) -> None:
            self.send_response_only(status)
            known = len(body) if isinstance(body, bytes) else length
            text = "" if kind in VIDEOS.values() else "; charset=utf-8"
            headers = {
                **HEADERS,
                "Content-Type": f"{kind}{text}",
                "Content-Security-Policy": POLICY.format(scripts=scripts),
            }
            if status != 204:
                headers["Content-Length"] = str(known)
            for name, value in {**headers, **(more or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in [body] if isinstance(body, bytes) else body:
                self.wfile.write(part)

        def refuse(self, status: int, reason: str) -> None:
            self.close_connection = True  # a body may follow, which nobody reads
            self.answer(status, reason.encode(errors="replace"), more={"Connection": "close"})

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Of a request that cannot be read, or another method: as every other answer."""
            self.refuse(int(code), message or "bad request")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to the command."""

    return Handler


def _chunks(stream: Any, count: int) -> Iterable[bytes]:
    while count > 0 and (part := stream.read(min(CHUNK, count))):
        count -= len(part)
        yield part
