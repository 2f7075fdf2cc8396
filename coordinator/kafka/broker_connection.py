"""One connection to a broker for the few requests that librdkafka has no call for: TLS, login, requests and answers.

The connection is as guarded as the worker's others: a way to log in, or a TLS property, that is not known here is refused.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.kafka.clients import settings
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaError

ANSWER_BYTES_MAX: Final = 1 << 20
_HANDSHAKE: Final = (17, 1)
_AUTHENTICATE: Final = (36, 0)
_LOGINS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_KNOWN: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_GUARDING: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")


@dataclass(frozen=True, slots=True)
class BrokerLogin:
    """How to reach the brokers. The password is never printed (INV-11)."""

    servers: tuple[tuple[str, int], ...]
    client_id: str
    mechanism: str = ""
    """Of SASL; empty without a login."""
    username: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def broker_login(properties: Mapping[str, str], *, client_id: str) -> BrokerLogin:
    """Returns the login for the worker's connection properties.

    Raises CdcError `kafka.unsupported` for a way to log in, or a TLS property, that is not known here.
    """
    own = settings(properties, "admin")
    unknown = sorted(name for name in own if name.startswith(_GUARDING) and name not in _KNOWN)
    mechanism = own.get("sasl.mechanism", own.get("sasl.mechanisms", "")).upper()
    protocol = own.get("security.protocol", "plaintext").upper()
    if protocol.startswith("SASL") and mechanism not in _LOGINS:
        unknown.append("sasl.mechanism")
    if unknown:
        raise CdcError(
            e.UNSUPPORTED,
            f"a dead leader is not taken out of the group with {', '.join(unknown)}",
            hint="Nothing needs to be done: another worker leads when the session of the dead one has ended.",
        )
    return BrokerLogin(
        servers=tuple(_address(server) for server in own["bootstrap.servers"].split(",")),
        client_id=client_id,
        mechanism=mechanism if protocol.startswith("SASL") else "",
        username=own.get("sasl.username", ""),
        password=own.get("sasl.password", ""),
        tls=_tls(own) if protocol.endswith("SSL") else None,
    )


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition("://")[2].rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise CdcError(e.UNSUPPORTED, "bootstrap.servers names a broker without a port")
    return host.strip("[]"), int(port)


def _tls(own: Mapping[str, str]) -> ssl.SSLContext:
    """Returns a TLS context that checks brokers as the worker's other clients do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = own.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    if own.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        if "ssl.ca.pem" in own:
            context.load_verify_locations(cadata=own["ssl.ca.pem"])
        elif "ssl.ca.location" in own:
            context.load_verify_locations(cafile=own["ssl.ca.location"])
        else:
            context.load_default_certs()
        if "ssl.certificate.location" in own:
            context.load_cert_chain(
                own["ssl.certificate.location"], own.get("ssl.key.location"), own.get("ssl.key.password")
            )
    except (OSError, ValueError) as exc:
        raise CdcError(e.UNSUPPORTED, f"a certificate or key cannot be used: {type(exc).__name__}") from None
    return context


# --- the protocol's words -------------------------------------------------------------------------------------------


def text(value: str | None) -> bytes:
    """Returns a text, or null, as requests hold it."""
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Answer:
    """Reads an answer field by field. Raises struct.error for one that ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """Returns the next number; `form` is `h` for 16 and `i` for 32 bits."""
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """Returns the next text; an empty one for null."""
        return self._bytes(self.number("h")).decode(errors="replace")

    def data(self) -> bytes:
        """Returns the next bytes."""
        return self._bytes(self.number("i"))

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise struct.error("the answer ends too early")
        begin, self._at = self._at, self._at + max(length, 0)
        return self._data[begin : self._at]


class BrokerConnection:
    """A connection that is logged in. Raises OSError, struct.error, CdcError, or ValueError for an address that is none, as
    its methods do. Each of its steps takes at most `timeout_s`."""

    def __init__(self, login: BrokerLogin, address: tuple[str, int], timeout_s: float) -> None:
        self._client_id = login.client_id
        self._count = 0
        self._timeout_s = timeout_s
        self._socket = socket.create_connection(address, timeout_s)
        try:
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=address[0])
            if login.mechanism:
                self._log_in(login)
        except BaseException:
            self.close()
            raise

    def ask(self, api: tuple[int, int], body: bytes) -> Answer:
        """Sends a request of a kind and version, and returns its answer."""
        self._count += 1
        request = struct.pack(">hhi", *api, self._count) + text(self._client_id) + body
        deadline = time.monotonic() + self._timeout_s
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", self._received(4, deadline))
        if not 4 <= length <= ANSWER_BYTES_MAX:
            raise struct.error("an answer of an impossible length")
        answer = Answer(self._received(length, deadline))
        if answer.number("i") != self._count:
            raise struct.error("an answer to another request")
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _received(self, length: int, deadline: float) -> bytes:
        """The limit is that of the whole answer: one that comes byte by byte would keep each wait short for ever."""
        data = bytearray()
        while len(data) < length:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the answer takes too long")
            self._socket.settimeout(left_s)
            part = self._socket.recv(length - len(data))
            if not part:
                raise ConnectionResetError("the broker has closed the connection")
            data += part
        return bytes(data)

    # --- login ------------------------------------------------------------------------------------------------------

    def _log_in(self, login: BrokerLogin) -> None:
        check(self.ask(_HANDSHAKE, text(login.mechanism)).number("h"), "log in")
        if login.mechanism == "PLAIN":
            self._authenticate(f"\0{login.username}\0{login.password}".encode())
            return
        from scramp import ScramClient
        from scramp.utils import ScramException

        try:
            client = ScramClient([login.mechanism], login.username, login.password)
            client.set_server_first(self._authenticate(client.get_client_first().encode()).decode())
            client.set_server_final(self._authenticate(client.get_client_final().encode()).decode())
        except (ScramException, UnicodeDecodeError) as exc:
            raise CdcError(e.AUTHENTICATION, f"log in: {type(exc).__name__}") from None

    def _authenticate(self, message: bytes) -> bytes:
        answer = self.ask(_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        check(answer.number("h"), "log in")
        answer.text()
        return answer.data()


def check(code: int, doing: str, *, passing: Callable[[int], bool] = lambda _code: False) -> None:
    """Raises the CdcError of a broker's error code, unless it is none or `passing` lets it pass."""
    if code and not passing(code):
        raise e.translate(KafkaError(code), doing)
