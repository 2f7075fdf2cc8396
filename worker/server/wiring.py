"""Makes the parts of the REST server from the worker's properties: authentication, TLS and limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdcworker.connectors.config.definition import invalid, parse_list
from cdcworker.worker.config.config_providers import DIR_PATHS_KEY, FILE_PATHS, FILE_PATHS_KEY
from cdcworker.worker.config.file_roots import FILE_ROOTS, file_roots
from cdcworker.worker.security import properties
from cdcworker.worker.security.access import parse_grants
from cdcworker.worker.security.allowed_targets import is_inside
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.caller_shares import CallerShares
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.rate_limit import RateLimiter, RequestRate
from cdcworker.worker.security.tls import TlsContexts, files_of
from cdcworker.worker.security.users import UserFile
from cdcworker.worker.security.worker_secrets import SecretFile, Secrets, plain_only
from cdcworker.worker.server.protocol import ConnectionLimits


def gate_of(values: Mapping[str, Any], scheme: str = "http", *, loopback: bool = False) -> Gate:
    """Returns the gate. CdcError `auth.file_invalid` for an unusable file of users: a worker must not start without
    authentication by mistake."""
    path = values[properties.AUTH_FILE]
    authenticator = Authenticator(UserFile(Path(path))) if path else None
    trusted = not path and scheme == "https" and values[properties.CLIENT_AUTH] == "required"
    grants = parse_grants(values[properties.CERTIFICATE_GRANTS]) if trusted else None
    rate = RequestRate(values[properties.PER_SECOND], values[properties.BURST])
    limiter = RateLimiter(rate) if rate.per_second else None
    local_only = loopback and not values[properties.INSECURE_BIND]
    workers = frozenset(values[properties.WORKER_CERTIFICATES])
    if workers and (scheme != "https" or values[properties.CLIENT_AUTH] == "none"):
        raise invalid([(properties.WORKER_CERTIFICATES, f"needs https with {properties.CLIENT_AUTH}")])
    return Gate(
        authenticator,
        grants,
        health_is_open=values[properties.HEALTH_OPEN],
        limiter=limiter,
        local_only=local_only,
        worker_certificates=workers,
    )


def secrets_of(values: Mapping[str, Any], providers: Mapping[str, str]) -> Secrets:
    """Returns the secrets between workers. CdcError for an unusable file, and for one that connectors could read."""
    path = values[properties.SECRET_FILE]
    if not path:
        return plain_only
    check_unreadable(properties.SECRET_FILE, path, providers)
    return SecretFile(Path(path), plain_accepted=values[properties.PLAIN_KEY])


def check_unreadable(key: str, path: str, providers: Mapping[str, str]) -> None:
    """Raises CdcError `config.invalid` for a file of the operator, named by this property, that connectors could read."""
    open_folders = {
        FILE_ROOTS: file_roots(providers),
        **{name: parse_list(providers.get(name, FILE_PATHS)) for name in (FILE_PATHS_KEY, DIR_PATHS_KEY)},
    }
    for where, folders in open_folders.items():
        real = [os.path.realpath(folder) for folder in folders]
        if is_inside(os.path.abspath(path), [*folders, *real]) or is_inside(os.path.realpath(path), real):
            raise invalid([(key, f"lies in a folder of {where}: connectors could read it")])


def tls_of(values: Mapping[str, Any], scheme: str) -> TlsContexts | None:
    return TlsContexts(files_of(values)) if scheme == "https" else None


def limits_of(values: Mapping[str, Any]) -> ConnectionLimits:
    return ConnectionLimits(
        values[properties.CONNECTIONS],
        values[properties.CLIENT_CONNECTIONS],
        users=CallerShares(values[properties.USER_CONNECTIONS]),
    )
