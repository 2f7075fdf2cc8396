"""The codes of what is wrong with a token, a login or the identity provider, and the answers that tell of them."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.security.access import CHALLENGE

UNREACHABLE: Final = declare(
    "oidc.provider_unreachable",
    "transient",
    "The identity provider cannot be asked now",
    "Repeat after Retry-After seconds. If it stays, check that the workers reach rest.oidc.issuer and rest.oidc.jwks.url, and "
    "rest.oidc.truststore.location. The worker's log has the reason.",
)
UNUSABLE: Final = declare(
    "oidc.provider_unusable",
    "config",
    "The identity provider's answer cannot be used",
    "Compare rest.oidc.issuer with `issuer` in /.well-known/openid-configuration of the provider; its addresses have to be "
    "https. The worker's log has the reason.",
)
KEY_UNKNOWN: Final = declare(
    "oidc.key_unknown",
    "config",
    "The token is signed with a key that the identity provider does not publish",
    "Get a new token. If it stays, the token is of another provider than rest.oidc.issuer.",
)
REFUSED: Final = declare(
    "oidc.token_refused",
    "config",
    "The token of the identity provider does not count here",
    "Get a new token, for the audience that rest.oidc.audience names. The message says what does not fit.",
)
REVOKED: Final = declare(
    "oidc.revoked",
    "config",
    "The token or the session has been revoked",
    "Log in again; if that is refused too, ask the operator, whose file rest.oidc.access.file lists what is revoked.",
)
LOGIN_FAILED: Final = declare(
    "oidc.login_failed",
    "config",
    "The login at the identity provider did not succeed",
    "Begin again at /ui/. If it stays, compare rest.oidc.client.id, rest.oidc.client.secret and rest.oidc.console.url with the "
    "client at the provider.",
)
FILE_INVALID: Final = declare(
    "oidc.file_invalid",
    "config",
    "The file of the identity provider's roles cannot be used",
    "Correct it. It belongs to root or to the worker's user, and nobody else has the right to write it.",
)
_AGAIN: Final = {"Retry-After": str(e.RETRY_AFTER_S)}
_INVALID: Final = {
    "WWW-Authenticate": CHALLENGE["WWW-Authenticate"].replace("Bearer ", 'Bearer error="invalid_token", ', 1)
}


def unreachable() -> e.RestError:
    return e.RestError(503, "The identity provider cannot be asked now", UNREACHABLE, headers=_AGAIN)


def refused(why: str) -> e.RestError:
    """Returns the refusal of a token. `why` ends the sentence and holds nothing of the token."""
    return e.RestError(401, f"The token {why}", REFUSED, headers=_INVALID)


def key_unknown() -> e.RestError:
    text = "The token is signed with a key that the identity provider does not publish"
    return e.RestError(401, text, KEY_UNKNOWN, headers=_INVALID)


def revoked() -> e.RestError:
    return e.RestError(401, "The token or the session has been revoked", REVOKED, headers=_INVALID)


def login_failed(why: str) -> e.RestError:
    return e.RestError(401, f"The login did not succeed: {why}", LOGIN_FAILED)


def unusable() -> e.RestError:
    return e.RestError(503, "The identity provider's answer cannot be used", UNUSABLE, headers=_AGAIN)
