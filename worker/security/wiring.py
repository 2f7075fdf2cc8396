"""From the worker's properties to what the REST server needs: who may ask, and for what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdcworker.worker.rest.protocol import ConnectionLimits
from cdcworker.worker.security import keys
from cdcworker.worker.security.access import parse_grants
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.rate import Limiter, Rate
from cdcworker.worker.security.tls import Tls, files_of
from cdcworker.worker.security.users import UserFile


def gate_of(values: Mapping[str, Any], scheme: str = "http", *, loopback: bool = False) -> Gate:
    """CdcError `auth.file_invalid` when the file of users cannot be used: a worker does not start open by mistake."""
    path = values[keys.AUTH_FILE]
    authenticator = Authenticator(UserFile(Path(path))) if path else None
    trusted = not path and scheme == "https" and values[keys.CLIENT_AUTH] == "required"
    grants = parse_grants(values[keys.CERTIFICATE_GRANTS]) if trusted else None
    rate = Rate(values[keys.PER_SECOND], values[keys.BURST])
    limiter = Limiter(rate) if rate.per_second else None
    local_only = loopback and not values[keys.INSECURE_BIND]
    return Gate(authenticator, grants, health_is_open=values[keys.HEALTH_OPEN], limiter=limiter, local_only=local_only)


def tls_of(values: Mapping[str, Any], scheme: str) -> Tls | None:
    return Tls(files_of(values)) if scheme == "https" else None


def limits_of(values: Mapping[str, Any]) -> ConnectionLimits:
    return ConnectionLimits(values[keys.CONNECTIONS], values[keys.CLIENT_CONNECTIONS])
