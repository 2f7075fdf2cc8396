"""Makes the parts of the REST server from the worker's properties: authentication, TLS and limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcworker.connectors.config.definition import invalid, parse_list
from cdcworker.worker.config.config_providers import DIR_PATHS_KEY, FILE_PATHS, FILE_PATHS_KEY
from cdcworker.worker.config.file_roots import FILE_ROOTS, file_roots
from cdcworker.worker.identity.access_rules import AccessFile
from cdcworker.worker.identity.bearer import Tokens
from cdcworker.worker.identity.fetch import Fetcher
from cdcworker.worker.identity.login import ConsoleLogin
from cdcworker.worker.identity.properties import ACCESS_FILE
from cdcworker.worker.identity.provider import Provider
from cdcworker.worker.identity.sessions import Cookies, Sessions
from cdcworker.worker.identity.settings import settings_of
from cdcworker.worker.quotas.properties import QUOTAS_FILE
from cdcworker.worker.quotas.settings import QuotaFile, QuotaSettings
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


@dataclass(frozen=True)
class IdentityParts:
    """What judges the tokens of an identity provider, and logs people in there; all None without one."""

    tokens: Tokens | None = None
    sessions: Sessions | None = None
    login: ConsoleLogin | None = None


NOBODY = IdentityParts()


def identity_of(
    values: Mapping[str, Any],
    providers: Mapping[str, str],
    worker_secrets: Secrets,
    clock: Callable[[], float] = time.monotonic,
) -> IdentityParts:
    """Returns what the properties say of an identity provider. CdcError for properties and for a file that cannot be used. The
    provider is asked when it is needed: a worker starts while it is away."""
    settings = settings_of(values)
    if settings is None:
        return NOBODY
    check_unreadable(ACCESS_FILE, values[ACCESS_FILE], providers)
    ask = Fetcher(settings.truststore)
    provider = Provider(settings, ask, clock)
    tokens = Tokens(settings, provider, AccessFile(Path(values[ACCESS_FILE]), clock))
    if settings.client is None:
        return IdentityParts(tokens)
    cookies = Cookies(settings.client.url, str(values["group.id"]))
    sessions = Sessions(tokens, settings.client, cookies, worker_secrets)
    return IdentityParts(tokens, sessions, ConsoleLogin(settings, provider, ask, tokens, sessions))


def gate_of(
    values: Mapping[str, Any], scheme: str = "http", *, loopback: bool = False, identity: IdentityParts = NOBODY
) -> Gate:
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
        tokens=identity.tokens,
        sessions=identity.sessions,
    )


def secrets_of(values: Mapping[str, Any], providers: Mapping[str, str]) -> Secrets:
    """Returns the secrets between workers. CdcError for an unusable file, and for one that connectors could read."""
    path = values[properties.SECRET_FILE]
    if not path:
        return plain_only
    check_unreadable(properties.SECRET_FILE, path, providers)
    return SecretFile(Path(path), plain_accepted=values[properties.PLAIN_KEY])


def quotas_of(values: Mapping[str, Any], providers: Mapping[str, str]) -> Callable[[], QuotaSettings] | None:
    """Returns what tells the quotas of labels; None without any. CdcError for a file that cannot be used, or that connectors could
    write."""
    path = values[QUOTAS_FILE]
    if not path:
        return None
    check_unreadable(QUOTAS_FILE, path, providers)
    return QuotaFile(Path(path)).content


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
