"""Link: the TCP connection between the training process and one Ray actor. Ray starts and places actors; steps go here.

A message is a header and two runs of bytes:

    driver -> actor     command, 0, bytes of the command, 0          actions, or pickled arguments
    actor -> driver     status, steps, bytes of the frame, of the rest    results of a step, then infos or a report

One command of an actor is under way at a time, so an answer is read with one call of the system, or a few if it is
large. The actor listens on the address that Ray knows its node by, and takes the connection that shows its token, which
the driver has sent it through Ray. Like Ray's own connections it is not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.errors import ConfigError

HEADER = struct.Struct("<4I")
TOKEN_BYTES = 32
CONNECT_S = 10.0
SHOW_TOKEN_S = 5.0  # for a connection to show its token, before the next one is taken
LONGEST = (1 << 32) - 1  # bytes of one part of a message


class Message(NamedTuple):
    """A message that was received. The next one overwrites its bytes."""

    kind: int
    number: int
    first: memoryview
    second: memoryview


class LinkClosed(OSError):
    """The other side has closed the connection, or its process has ended."""


class Link:
    """One end of a connection.

    Args:
        sock: the connected socket.
        size: bytes of a usual message; longer ones get a larger buffer.
        waits: whether `receive` waits for a whole message. Otherwise it returns None as long as one is not complete.
    """

    def __init__(self, sock: socket.socket, size: int, *, waits: bool) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setblocking(waits)
        self.sock, self._at = sock, 0
        self._buffer = memoryview(bytearray(HEADER.size + size))

    def fileno(self) -> int:
        """The descriptor, to wait for."""
        return self.sock.fileno()

    def send(self, kind: int, number: int, first: Sequence[Any] = (), second: bytes = b"") -> None:
        """Sends a message. `first` is sent without being joined."""
        parts = [memoryview(part).cast("B") for part in first if len(part)]
        size = sum(len(part) for part in parts)
        if max(size, len(second)) > LONGEST:
            raise ConfigError(f"a step of one actor has {max(size, len(second)):,} bytes. Use more workers.")
        views = [memoryview(HEADER.pack(kind, number, size, len(second))), *parts]
        if second:
            views.append(memoryview(second))
        while views:
            try:
                sent = self.sock.sendmsg(views)
            except BlockingIOError:
                select.select([], [self.sock], [], 1.0)
                continue
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def receive(self) -> Message | None:
        """The next message, or None if it is not complete. Raises LinkClosed if there will be none."""
        while True:
            if self._at >= HEADER.size:
                kind, number, size, rest = HEADER.unpack_from(self._buffer)
                middle = HEADER.size + size
                end = middle + rest
                if self._at >= end:
                    self._at = 0
                    return Message(kind, number, self._buffer[HEADER.size : middle], self._buffer[middle:end])
                if end > len(self._buffer):
                    larger = memoryview(bytearray(end))
                    larger[: self._at] = self._buffer[: self._at]
                    self._buffer = larger
            try:
                got = self.sock.recv_into(self._buffer[self._at :])
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise LinkClosed(str(error)) from None
            if not got:
                raise LinkClosed("the connection was closed")
            self._at += got

    def close(self) -> None:
        """Closes this end."""
        with contextlib.suppress(OSError):
            self.sock.close()


class Listener:
    """Waits in an actor for the connection of the driver."""

    def __init__(self, host: str) -> None:
        self._sock = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.address: tuple[str, int] = (host, self._sock.getsockname()[1])

    def accept(self, token: bytes, size: int, timeout_s: float) -> Link | None:
        """The connection that shows the token; None if there is none in time. Then nobody else can connect."""
        until = time.monotonic() + timeout_s
        with self._sock:
            while (left := until - time.monotonic()) > 0:
                self._sock.settimeout(left)
                try:
                    sock, _ = self._sock.accept()
                except TimeoutError:
                    return None
                sock.settimeout(SHOW_TOKEN_S)
                if hmac.compare_digest(_read_token(sock), token):
                    return Link(sock, size, waits=True)
                sock.close()
        return None


def _read_token(sock: socket.socket) -> bytes:
    shown = b""
    with contextlib.suppress(OSError):
        while len(shown) < TOKEN_BYTES and (part := sock.recv(TOKEN_BYTES - len(shown))):
            shown += part
    return shown


def connect(address: tuple[str, int], token: bytes, size: int) -> Link:
    """The driver's end of the connection to an actor. Raises OSError."""
    sock = socket.create_connection(address, timeout=CONNECT_S)
    try:
        sock.sendall(token)
        return Link(sock, size, waits=False)
    except BaseException:
        sock.close()
        raise
