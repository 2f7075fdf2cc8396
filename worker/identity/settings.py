"""What the operator said of the identity provider, checked together."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.config.definition import Secret, invalid
from cdcworker.worker.identity import properties as p
from cdcworker.worker.security.properties import SECRET_FILE

LIBRARY: Final = "joserfc"
OPENID: Final = "openid"


@dataclass(frozen=True, slots=True)
class ConsoleClient:
    """The client as which the console logs people in."""

    id: str
    secret: Secret | None
    scopes: tuple[str, ...]
    url: str
    """The console's address in a browser; it ends in /ui/."""
    session_s: float

    @property
    def callback(self) -> str:
        return f"{self.url}callback"


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """The identity provider and the rules by which its tokens count."""

    issuer: str
    audience: tuple[str, ...] = ()
    parties: frozenset[str] = frozenset()
    jwks_url: str = ""
    roles_claim: str = "roles"
    username_claim: str = "sub"
    algorithms: tuple[str, ...] = field(default=p.KNOWN_ALGORITHMS)
    truststore: str = ""
    client: ConsoleClient | None = None


def settings_of(values: Mapping[str, Any]) -> ProviderSettings | None:
    """Returns the settings; None without an identity provider. CdcError `config.invalid` for properties that do not go together."""
    if problems := list(_problems(values)):
        raise invalid(problems)
    if not values[p.ISSUER]:
        return None
    return ProviderSettings(
        issuer=values[p.ISSUER],
        audience=tuple(values[p.AUDIENCE]),
        parties=frozenset(values[p.PARTIES]),
        jwks_url=values[p.JWKS_URL] or "",
        roles_claim=values[p.ROLES_CLAIM],
        username_claim=values[p.USERNAME_CLAIM],
        algorithms=tuple(values[p.ALGORITHMS]),
        truststore=values[p.TRUSTSTORE] or "",
        client=_client(values) if values[p.CLIENT_ID] else None,
    )


def _client(values: Mapping[str, Any]) -> ConsoleClient:
    scopes = dict.fromkeys((OPENID, *values[p.SCOPES]))
    return ConsoleClient(
        values[p.CLIENT_ID],
        values[p.CLIENT_SECRET] or None,
        tuple(scopes),
        values[p.CONSOLE_URL],
        values[p.SESSION_MS] / 1000,
    )


def _problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not values[p.ISSUER]:
        for key in (p.AUDIENCE, p.PARTIES, p.JWKS_URL, p.ACCESS_FILE, p.TRUSTSTORE, p.CLIENT_ID, p.CONSOLE_URL):
            if values[key]:
                yield key, f"has no meaning without {p.ISSUER}"
        return
    if importlib.util.find_spec(LIBRARY) is None:
        yield p.ISSUER, 'needs the package joserfc: pip install "cdcworker[oidc]"'
    if not values[p.ACCESS_FILE]:
        yield p.ACCESS_FILE, f"is needed with {p.ISSUER}: without it no role of the provider may do anything"
    if not values[p.AUDIENCE] and not values[p.CLIENT_ID]:
        yield p.AUDIENCE, f"or {p.CLIENT_ID} is needed with {p.ISSUER}: without both nobody gets in"
    if values[p.CLIENT_ID]:
        if not values[p.CONSOLE_URL]:
            yield p.CONSOLE_URL, f"is needed with {p.CLIENT_ID}"
        if not values[SECRET_FILE]:
            yield SECRET_FILE, f"is needed with {p.CLIENT_ID}: sessions of the console are signed with it"
        if not values["ui.enabled"]:
            yield p.CLIENT_ID, "has no meaning with ui.enabled=false"
    elif values[p.CONSOLE_URL] or values[p.CLIENT_SECRET]:
        yield p.CLIENT_ID, f"is needed with {p.CONSOLE_URL if values[p.CONSOLE_URL] else p.CLIENT_SECRET}"
