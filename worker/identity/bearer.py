"""Callers by the provider's tokens: bearer tokens of REST, and the tokens of a login."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cdcworker.worker.identity import codes
from cdcworker.worker.identity.access_rules import AccessFile, Identity
from cdcworker.worker.identity.claims import (
    Claims,
    RefusedToken,
    check_bearer,
    check_issuer,
    check_login,
    check_times,
    identity_of,
)
from cdcworker.worker.identity.keys import header_of, is_token, verified_claims
from cdcworker.worker.identity.provider import Provider
from cdcworker.worker.identity.settings import ProviderSettings
from cdcworker.worker.security.access import Caller

BY: Final = "oidc"
"""How a caller with a token of the provider was authenticated."""


class Tokens:
    """Judges tokens. `clock` is the time since 1970."""

    def __init__(
        self,
        settings: ProviderSettings,
        provider: Provider,
        rules: AccessFile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._provider = provider
        self._rules = rules
        self._clock = clock

    def takes(self, credential: str) -> bool:
        """Returns whether a bearer's credential is for these rules: it has the form of the provider's tokens."""
        return bool(self._settings.audience) and is_token(credential)

    async def caller(self, token: str) -> Caller:
        """Returns the caller of a bearer token. RestError 401 for one that does not count, 503 while that cannot be known."""
        try:
            claims = await self._claims(token)
            check_bearer(claims, self._settings.audience, self._settings.parties)
            identity = self.identity(claims)
        except RefusedToken as exc:
            raise codes.refused(str(exc)) from None
        return self.caller_of(identity, BY)

    async def logged_in(self, token: str, nonce: str) -> tuple[Identity, Claims]:
        """Returns whom the ID token of a login names, and its claims. RefusedToken; RestError 503."""
        assert self._settings.client is not None
        claims = await self._claims(token)
        check_login(claims, self._settings.client.id, nonce)
        return self.identity(claims), claims

    async def other_claims(self, token: str) -> Claims:
        """Returns the claims of the access token that came with a login, where it is a token for us; else none."""
        if not self.takes(token):
            return {}
        try:
            claims = await self._claims(token)
            check_bearer(claims, self._settings.audience, self._settings.parties)
        except RefusedToken:
            return {}
        return claims

    def caller_of(self, identity: Identity, by: str) -> Caller:
        """Returns the caller with what the roles may do now. RestError 401 for one that is revoked."""
        rules = self._rules.content()
        if rules.is_revoked(identity):
            raise codes.revoked()
        return Caller(identity.name, rules.grants(identity.roles), by, identity.subject)

    def known_roles(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """Returns those of the roles that the operator's file names."""
        return self._rules.content().known(roles)

    def identity(self, claims: Claims) -> Identity:
        """Returns whom the claims name. RefusedToken."""
        return identity_of(claims, self._settings.roles_claim, self._settings.username_claim)

    async def _claims(self, token: str) -> Claims:
        """Returns the claims of a token whose signature, issuer and times hold."""
        header = header_of(token, self._settings.algorithms)
        claims = verified_claims(token, header, await self._provider.key(header))
        check_issuer(claims, self._settings.issuer)
        check_times(claims, self._clock())
        return claims
