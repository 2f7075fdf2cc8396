"""The claims of a token whose signature holds: whether it counts here and now, and whom it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.worker.identity.access_rules import Identity

LEEWAY_S: Final = 30.0
"""Seconds by which the provider's clock may be ahead or behind."""
TEXT_CHARS_MAX: Final = 255
ROLES_MAX: Final = 2_000
"""Roles of one token that are looked at."""
Claims = Mapping[str, Any]


class RefusedToken(Exception):
    """The token does not count. The text ends the sentence "The token …" and holds nothing of it."""


def check_times(claims: Claims, now_s: float) -> None:
    """RefusedToken unless the token is good now."""
    expires, begins, issued = (_seconds(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise RefusedToken("does not say when it expires (exp)")
    if now_s >= expires + LEEWAY_S:
        raise RefusedToken("has expired")
    if any(moment is not None and moment > now_s + LEEWAY_S for moment in (begins, issued)):
        raise RefusedToken("is not good yet: compare the clocks of the worker and of the provider")


def check_issuer(claims: Claims, issuer: str) -> None:
    if claims.get("iss") != issuer:
        raise RefusedToken("is of another issuer than rest.oidc.issuer")


def check_bearer(claims: Claims, audience: tuple[str, ...], parties: frozenset[str]) -> None:
    """RefusedToken unless the token was made for this audience and for a client that may use it. What only proves a login to a
    client is no bearer token."""
    kind = claims.get("typ")
    # Keycloak's access tokens hold the login's nonce too, and say that they are bearer tokens.
    of_login = "nonce" in claims and kind != "Bearer"
    if (
        kind in ("ID", "Refresh", "Logout")
        or of_login
        or any(name in claims for name in ("at_hash", "c_hash", "events"))
    ):
        raise RefusedToken("is no access token")
    if not set(audience) & set(_audience(claims)):
        raise RefusedToken("is for another audience than rest.oidc.audience")
    party = claims.get("azp", claims.get("client_id"))
    if parties and not (isinstance(party, str) and party in parties):
        raise RefusedToken("was given to a client that rest.oidc.authorized.parties does not name")


def check_login(claims: Claims, client_id: str, nonce: str) -> None:
    """RefusedToken unless the token proves the login that this client began with this nonce."""
    audience, party = _audience(claims), claims.get("azp")
    if client_id not in audience:
        raise RefusedToken("is for another client than rest.oidc.client.id")
    if (party is not None or len(audience) > 1) and party != client_id:
        raise RefusedToken("was given to another client than rest.oidc.client.id")
    if not nonce or claims.get("nonce") != nonce:
        raise RefusedToken("is not of this login (nonce)")


def identity_of(claims: Claims, roles_claim: str, username_claim: str) -> Identity:
    """Returns whom the claims name. RefusedToken without a subject."""
    subject = _text(claims.get("sub"))
    if not subject:
        raise RefusedToken("names no subject (sub)")
    issued = _seconds(claims, "iat")
    return Identity(
        subject,
        _text(found(claims, username_claim)) or subject,
        roles_of(found(claims, roles_claim)),
        token=_text(claims.get("jti")),
        session=_text(claims.get("sid")),
        issued_s=issued,
        expires_s=_seconds(claims, "exp") or 0.0,
    )


def roles_of(value: Any) -> tuple[str, ...]:
    """Returns the roles of a claim: a list, or a text with blanks between them."""
    items = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return tuple(item for item in items[:ROLES_MAX] if isinstance(item, str) and item)


def found(claims: Any, path: str) -> Any:
    """Returns the claim of this name, else the one to which its dots lead; None if there is none."""
    if not isinstance(claims, Mapping):
        return None
    if path in claims:
        return claims[path]
    at = path.find(".")
    while at > 0:
        inner = found(claims.get(path[:at]), path[at + 1 :])
        if inner is not None:
            return inner
        at = path.find(".", at + 1)
    return None


def _audience(claims: Claims) -> list[str]:
    value = claims.get("aud")
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def _seconds(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise RefusedToken(f"has a time that is none ({name})")
    return float(value)


def _text(value: Any) -> str:
    """Returns a text that may stand in a log and in the audit; empty for anything else."""
    fine = isinstance(value, str) and 0 < len(value) <= TEXT_CHARS_MAX and value.isprintable()
    return value if fine else ""
