"""The address on which the REST API listens, and whether it may listen there."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import invalid
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.security import properties

INSECURE_BIND: Final = declare(
    "worker.insecure_bind",
    "config",
    "The REST API would be open to the network without authentication",
    "Set rest.auth.file (cdcworker auth add makes it) or rest.oidc.issuer, require client certificates of an https listener, or bind to 127.0.0.1; rest.insecure.bind=true opens it to "
    "everybody who can reach it.",
)
PORT: Final = 8083
ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104  names the address to refuse it


@dataclass(frozen=True, slots=True)
class Listener:
    """The address of the REST API; an empty `host` means all addresses."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listener(listeners: str) -> Listener:
    """Returns the first listener of the property. CdcError `config.invalid` when it is none."""
    first = listeners.split(",")[0].strip()
    try:
        parts = urlsplit(first)
        if parts.scheme.lower() not in ("http", "https"):
            raise ValueError("it begins with http:// or https://")
        return Listener(parts.scheme.lower(), parts.hostname or "", PORT if parts.port is None else parts.port)
    except ValueError as exc:
        raise invalid([("listeners", f"is not a listener such as http://127.0.0.1:8083: {exc}")]) from None


def check_bind(listener: Listener, values: Mapping[str, Any]) -> list[str]:
    """Returns warnings. CdcError when the listener would be open to the network without authentication."""
    if listener.is_loopback:
        return []
    by_certificate = listener.scheme == "https" and values[properties.CLIENT_AUTH] == "required"
    known = values[properties.AUTH_FILE] or values[properties.OIDC_ISSUER]
    if not known and not by_certificate:
        if not values[properties.INSECURE_BIND]:
            place = listener.host or "every address"
            raise CdcError(INSECURE_BIND, f"listeners binds to {place}", where={"key": "listeners"})
        return [
            f"{properties.INSECURE_BIND}: everybody who reaches {listener.host or '*'}:{listener.port} may do everything"
        ]
    if by_certificate and not known and not values[properties.CERTIFICATE_GRANTS]:
        return [f"nobody may do anything: {properties.CERTIFICATE_GRANTS} and {properties.AUTH_FILE} are empty"]
    if listener.scheme == "http":
        return ["credentials come over the network in the clear: use an https listener, or end TLS in front of it"]
    return []
