"""One connection to a web service: to an address that was judged, with TLS, and without following the server elsewhere."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.allowed_hosts import UnknownHost
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.network.sockets import Endpoint, break_off, connected, name_of
from cdcworker.connectors.network.tls import tls_context
from cdcworker.schemas.errors import CdcError

INTERIM_MAX: Final = 16
"""So many answers that say that the real one is to come (1xx) are passed over."""
PIECE_BYTES: Final = 65_536


class Codes(NamedTuple):
    """Codes of the errors that a client raises: no answer now, and a server or a config that will not do."""

    unavailable: str
    refused: str


class AnswerLimits(NamedTuple):
    """How much of an answer's body is read, and for how many seconds."""

    bytes_max: int = 65_536
    seconds_max: float = float("inf")


DRAINED: Final = AnswerLimits()
"""Of an answer whose body nobody looks at: it is read to use the connection again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is what the limits allow; `is_whole`: that is all of it. Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    is_whole: bool = True


def endpoint_of(config: Mapping[str, Any], code: str, request_s: float, state_dir: str = "") -> Endpoint:
    """Returns the place that http.url of a parsed config names. CdcError `config.tls_not_enough` where the worker asks for more
    TLS, and of `code` for certificates that cannot be read."""
    return endpoint_at("http.url", config["http.url"].partition("${")[0], config, code, request_s, state_dir)


def endpoint_at(
    key: str, address: str, config: Mapping[str, Any], code: str, request_s: float, state_dir: str = ""
) -> Endpoint:
    """Returns the place of an address that a key names, as `endpoint_of` does."""
    url = urlsplit(address)
    host = url.hostname or ""
    is_tls = url.scheme == "https"
    tls_policy.check(key, "http://", VERIFIED if is_tls else PLAIN, [host])
    return Endpoint(
        host,
        url.port or (443 if is_tls else 80),
        tls_context(config, "http.ssl.", state_dir, code) if is_tls else None,
        config["http.connect.timeout.ms"] / 1000,
        request_s,
        key,
    )


class _Response(http.client.HTTPResponse):
    """Passes over early hints and other answers that are not the final one: the library does so for 100 only."""

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(INTERIM_MAX):
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 102 <= found[1] < 200:
                return found
            http.client.parse_headers(self.fp)
        raise http.client.BadStatusLine("too many interim answers")


class _Connection(http.client.HTTPConnection):
    """Connects to the addresses that were judged; the name is not looked up a second time."""

    response_class = _Response

    def __init__(self, place: Endpoint) -> None:
        super().__init__(place.host, place.port, timeout=place.request_s)
        self._place = place
        # The header Host has no port where it is the scheme's own.
        self.default_port = 80 if place.tls is None else 443

    def connect(self) -> None:
        try:
            self._known(connected(self._place, self._place.key, self._known))
        except BaseException:
            self.close()
            raise

    def _known(self, sock: socket.socket) -> None:
        self.sock = sock


class HttpClient:
    """Sends requests over a connection that is kept. One thread uses it, but for `cancel`."""

    def __init__(self, place: Endpoint, codes: Codes, limits: AnswerLimits = DRAINED) -> None:
        self._place = place
        self._codes = codes
        self._limits = limits
        self._connection: _Connection | None = None
        self._is_cancelled = False

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Returns the answer. `TargetUnavailable` when there is none; CdcError for a certificate that is not
        trusted and a host that may not be reached. Whether the server has taken the request is not known then."""
        self._is_cancelled = False
        try:
            return self._answered(method, path, body, headers)
        except CdcError:
            self.close()
            raise
        except UnknownHost:
            self.close()
            text = f"the host of {self._place.key} leads to no address"
            raise TargetUnavailable(self._codes.unavailable, text) from None
        except ssl.SSLCertVerificationError as exc:
            self.close()
            text = f"the server's certificate is not trusted: {exc.verify_message}"
            raise CdcError(self._codes.refused, text) from None
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            raise TargetUnavailable(self._codes.unavailable, f"no answer ({name_of(exc)})") from None

    def connect(self) -> None:
        """Opens the connection, and sends nothing."""
        self._connection = _Connection(self._place)
        self._connection.connect()

    def cancel(self) -> None:
        """Breaks the connection, from any thread."""
        self._is_cancelled = True
        connection = self._connection
        sock = connection.sock if connection is not None else None
        break_off(sock)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _answered(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        is_kept = self._connection is not None
        connection = self._connection = self._connection or _Connection(self._place)
        cut: OSError | None = None
        try:
            try:
                connection.request(method, path, body, dict(headers))
            except (ConnectionResetError, BrokenPipeError) as exc:
                if connection.sock is None:
                    raise
                cut = exc  # a server that takes no body of this size answers, and reads no further
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if not is_kept or self._is_cancelled:
                raise
            # The server has closed a connection that nobody used for a while: that says nothing of the request.
            self.close()
            return self._answered(method, path, body, headers)
        if cut is not None and answer.status < 400:
            raise cut
        with answer:
            content, is_read = self._read(answer)
        if cut is not None or not is_read or answer.will_close:
            self.close()
        return Answer(
            answer.status,
            {name.lower(): answer.getheader(name, "") for name, _ in answer.getheaders()},
            content,
            is_read,
        )

    def _read(self, answer: http.client.HTTPResponse) -> tuple[bytes, bool]:
        """Returns an answer's body up to the limit, and whether it is whole. TimeoutError for one that does not end in time."""
        deadline, pieces, left = time.monotonic() + self._limits.seconds_max, list[bytes](), self._limits.bytes_max
        while left > 0 and (piece := answer.read1(min(left, PIECE_BYTES))):
            if time.monotonic() > deadline:
                raise TimeoutError("the answer does not end")
            pieces.append(piece)
            left -= len(piece)
        is_cut = bool(answer.length) and answer.isclosed()
        return b"".join(pieces), not is_cut and (answer.isclosed() or not answer.read(1))
