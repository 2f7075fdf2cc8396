"""The worker's properties for an identity provider."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import ConfigKey, between
from cdcworker.worker.security import properties
from cdcworker.worker.security.cross_site import is_local

ISSUER: Final = properties.OIDC_ISSUER
AUDIENCE: Final = "rest.oidc.audience"
PARTIES: Final = "rest.oidc.authorized.parties"
JWKS_URL: Final = "rest.oidc.jwks.url"
ACCESS_FILE: Final = "rest.oidc.access.file"
ROLES_CLAIM: Final = "rest.oidc.roles.claim"
USERNAME_CLAIM: Final = "rest.oidc.username.claim"
ALGORITHMS: Final = "rest.oidc.algorithms"
TRUSTSTORE: Final = "rest.oidc.truststore.location"
CLIENT_ID: Final = "rest.oidc.client.id"
CLIENT_SECRET: Final = "rest.oidc.client.secret"  # noqa: S105  the name of a property
SCOPES: Final = "rest.oidc.scopes"
CONSOLE_URL: Final = "rest.oidc.console.url"
SESSION_MS: Final = "rest.oidc.session.ttl.ms"
KNOWN_ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures with a public key. What needs no key, or one that the provider shares with us, is never taken."""
CONSOLE_PATH: Final = "/ui/"


def url_problem(url: str) -> str | None:
    """Returns why an address of a provider is not asked; None for https, and for http to this machine itself."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is no address"
    if not url.isprintable() or " " in url or not host or port == 0:
        return "is no address"
    if parts.username is not None or parts.fragment:
        return "has a login or a fragment in it"
    if parts.scheme == "https" or (parts.scheme == "http" and is_local(parts.netloc)):
        return None
    return "has to begin with https://; http:// is for this machine itself"


def _url(value: str) -> str | None:
    return url_problem(value) if value else None


def _console(value: str) -> str | None:
    if not value:
        return None
    fine = value.endswith(CONSOLE_PATH) and "?" not in value and ";" not in value
    return url_problem(value) or (None if fine else "is the address of the console in a browser and ends in /ui/")


def _algorithms(value: list[str]) -> str | None:
    fine = value and set(value) <= set(KNOWN_ALGORITHMS)
    return None if fine else f"expects some of {', '.join(KNOWN_ALGORITHMS)}"


OIDC_KEYS: Final = (
    ConfigKey(
        ISSUER,
        importance="HIGH",
        doc="The identity provider whose tokens are taken over REST, as it stands in their claim iss, such as "
        "https://login.example.com/realms/main. Its addresses and keys are found below it "
        "(.well-known/openid-configuration). With it every request needs a credential.",
        validator=_url,
    ),
    ConfigKey(
        AUDIENCE,
        "LIST",
        default=[],
        importance="HIGH",
        doc="A bearer token needs one of these in its claim aud. Use a name that stands for this cluster alone, and not the "
        "id of the console's client. Empty: no bearer tokens of the provider are taken.",
    ),
    ConfigKey(
        PARTIES,
        "LIST",
        default=[],
        doc="Clients of the provider whose bearer tokens are taken, by the claim azp (or client_id). Empty: all that have "
        "the audience.",
    ),
    ConfigKey(
        JWKS_URL,
        doc="Where the provider publishes its keys. Default: what its .well-known/openid-configuration says.",
        validator=_url,
    ),
    ConfigKey(
        ACCESS_FILE,
        importance="HIGH",
        doc="The YAML file that says what the provider's roles may do here, as grants of the file of users, and which "
        "subjects, tokens and sessions are revoked. All workers have it. It is read again when it changes.",
    ),
    ConfigKey(
        ROLES_CLAIM,
        default="roles",
        doc="The claim that holds a user's roles, a list or a text with blanks. Dots lead into claims: realm_access.roles. "
        "A claim that has the whole name counts first.",
    ),
    ConfigKey(
        USERNAME_CLAIM,
        default="sub",
        doc="The claim by which a user is named in answers and in the audit, such as preferred_username; sub where a token "
        "has not got it. The audit names the subject besides.",
    ),
    ConfigKey(
        ALGORITHMS,
        "LIST",
        default=list(KNOWN_ALGORITHMS),
        doc="Algorithms of signatures that are taken.",
        validator=_algorithms,
    ),
    ConfigKey(
        TRUSTSTORE,
        doc="PEM file with the authorities that sign the provider's certificate. Default: those of the machine.",
    ),
    ConfigKey(
        CLIENT_ID,
        importance="HIGH",
        doc="The console's client at the provider. With it people log in to the console there (authorization code with "
        "PKCE). It needs rest.oidc.console.url and inter.worker.secret.file.",
    ),
    ConfigKey(CLIENT_SECRET, "PASSWORD", doc="Its secret. Empty: a public client, which PKCE alone protects."),
    ConfigKey(
        SCOPES,
        "LIST",
        default=["openid", "profile"],
        doc="What the console asks the provider for: the scopes that bring the claims of roles and name. openid is always "
        "among them.",
    ),
    ConfigKey(
        CONSOLE_URL,
        doc="The console's address in a browser, one for all workers, such as https://cdc.example.com/ui/. The provider has "
        "to know it with callback behind it, and itself for the way back from a logout.",
        validator=_console,
    ),
    ConfigKey(
        SESSION_MS,
        "INT",
        default=8 * 3_600_000,
        doc="How long a login to the console counts (ms). A change of a user's roles at the provider shows with the next "
        "login, and with the next token.",
        validator=between(300_000, 86_400_000),
    ),
)
ACCESS_KEYS: Final = (*OIDC_KEYS, *properties.SECURITY_KEYS)
"""All properties that say who may do what, and what connectors may reach."""
