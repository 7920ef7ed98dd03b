"""Serves one page to this machine's browser, and takes the record of the session: `shoal play`.

Binds to 127.0.0.1. Every address has a token that only the printed URL holds; requests from other hosts and origins
are refused, so that no other page of the browser can read or write.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shoal.errors import ConfigError

MOST_BYTES = 256 << 20  # of a record


class PageServer:
    """A page at `url`. `receive` gets what it posts to `url` + "record"; a ConfigError is answered with 400."""

    def __init__(self, html: Callable[[str], str], receive: Callable[[str], None], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(18)
        path = f"/{self.token}/"
        page = html(f"{path}record").encode()
        try:
            self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(path, page, receive))
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used: {error.strerror}. Leave it out, or choose another."
            ) from None
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}{path}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def _handler(path: str, page: bytes, receive: Callable[[str], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def is_foreign(self) -> bool:
            address: Any = self.server.server_address
            hosts = [f"{name}:{address[1]}" for name in ("127.0.0.1", "localhost")]
            origin = self.headers.get("Origin")
            return self.headers.get("Host") not in hosts or origin not in (None, *(f"http://{host}" for host in hosts))

        def answer(self, status: int, body: bytes = b"", kind: str = "text/plain") -> None:
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
            headers |= {
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
                "Referrer-Policy": "no-referrer",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            """The page."""
            if self.is_foreign() or not secrets.compare_digest(self.path.encode(), path.encode()):
                self.answer(403)
            else:
                self.answer(200, page, "text/html")

        def do_POST(self) -> None:
            """A record."""
            if self.is_foreign() or not secrets.compare_digest(self.path.encode(), f"{path}record".encode()):
                self.answer(403)
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > MOST_BYTES:
                self.answer(413)
                return
            try:
                receive(self.rfile.read(int(length)).decode())
            except (ConfigError, UnicodeDecodeError) as error:
                self.answer(400, str(error).encode())
                return
            self.answer(204)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal belongs to the command."""

    return Handler
