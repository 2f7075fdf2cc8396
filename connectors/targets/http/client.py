"""One connection to a web service: to an address that was judged, with TLS, and without following the server elsewhere."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config import tls_policy
from cdcworker.connectors.config.allowed_hosts import UnknownHost
from cdcworker.connectors.config.tls_policy import PLAIN, VERIFIED
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.connections import Endpoint, break_off, connected, name_of
from cdcworker.connectors.targets.tls import tls_context
from cdcworker.schemas.errors import CdcError

ANSWER_BYTES_MAX: Final = 65_536
"""So much of an answer's body is read, to use the connection again; it is not looked at."""
INTERIM_MAX: Final = 16
"""So many answers that say that the real one is to come (1xx) are passed over."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    retry_after: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def endpoint_of(config: Mapping[str, Any], state_dir: str = "") -> Endpoint:
    """Returns the place that a parsed config names. CdcError `config.tls_not_enough` where the worker asks for more TLS."""
    url = urlsplit(config["http.url"].partition("${")[0])
    host = url.hostname or ""
    is_tls = url.scheme == "https"
    tls_policy.check("http.url", "http://", VERIFIED if is_tls else PLAIN, [host])
    request_s = config["http.timeout"] or config["http.request.timeout.ms"] / 1000
    return Endpoint(
        host,
        url.port or (443 if is_tls else 80),
        tls_context(config, "http.ssl.", state_dir) if is_tls else None,
        config["http.connect.timeout.ms"] / 1000,
        request_s,
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
            self._known(connected(self._place, "http.url", self._known))
        except BaseException:
            self.close()
            raise

    def _known(self, sock: socket.socket) -> None:
        self.sock = sock


class HttpClient:
    """Sends requests over a connection that is kept. One thread uses it, but for `cancel`."""

    def __init__(self, place: Endpoint) -> None:
        self._place = place
        self._connection: _Connection | None = None
        self._is_cancelled = False

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Returns the answer. `TargetUnavailable` when there is none; CdcError of kind `config` for a certificate that is not
        trusted and a host that may not be reached. Whether the server has taken the request is not known then."""
        self._is_cancelled = False
        try:
            return self._answered(method, path, body, headers)
        except CdcError:
            self.close()
            raise
        except UnknownHost:
            self.close()
            raise TargetUnavailable(TARGET_UNAVAILABLE, "the host of http.url leads to no address") from None
        except ssl.SSLCertVerificationError as exc:
            self.close()
            text = f"the server's certificate is not trusted: {exc.verify_message}"
            raise CdcError(TARGET_REFUSES, text) from None
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            raise TargetUnavailable(TARGET_UNAVAILABLE, f"no answer ({name_of(exc)})") from None

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

    def _answered(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
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
            answer.read(ANSWER_BYTES_MAX)
            is_read = answer.isclosed() or not answer.read(1)
        if cut is not None or not is_read or answer.will_close:
            self.close()
        return Answer(answer.status, answer.getheader("Retry-After"))
