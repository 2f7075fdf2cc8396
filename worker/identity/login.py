"""A person's login to the console at the provider: the authorization code flow with PKCE, and the logout there."""

from __future__ import annotations

import base64
import functools
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from cdcworker.worker.http import errors as e
from cdcworker.worker.identity import codes
from cdcworker.worker.identity.access_rules import Identity
from cdcworker.worker.identity.bearer import Tokens
from cdcworker.worker.identity.claims import Claims, RefusedToken, found
from cdcworker.worker.identity.fetch import Asks, NoAnswer, Question, parsed
from cdcworker.worker.identity.provider import Addresses, Provider
from cdcworker.worker.identity.sessions import BY, Attempt, Cookie, Sessions, too_many_roles
from cdcworker.worker.identity.settings import ConsoleClient, ProviderSettings
from cdcworker.worker.security.access import Caller

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
"""Logins at the same time that ask the provider: strangers can begin them."""
CODE_CHARS_MAX: Final = 4_096
DENIED: Final = "access_denied"
KNOWN_ERRORS: Final = frozenset({DENIED, "invalid_request", "invalid_scope", "login_required", "server_error", "temporarily_unavailable", "unauthorized_client", "unsupported_response_type"})  # fmt: skip
"""What a provider may say of a login that did not succeed; nothing else of it is repeated."""


class ConsoleLogin:
    """Logs people in and out. RestError 401 for a login that does not succeed, 503 while the provider is away."""

    def __init__(
        self, settings: ProviderSettings, provider: Provider, ask: Asks, tokens: Tokens, sessions: Sessions
    ) -> None:
        assert settings.client is not None
        self.client: ConsoleClient = settings.client
        self.sessions = sessions
        self._settings = settings
        self._provider = provider
        self._ask = ask
        self._tokens = tokens
        self._under_way = 0

    async def begin(self, *, again: bool = False) -> tuple[str, Cookie]:
        """Returns where the provider asks who somebody is, and the cookie of the login. `again`: also who is logged in there."""
        addresses = await self._provider.addresses()
        if not addresses.authorization or not addresses.token:
            raise codes.unusable()
        attempt = self.sessions.begin()
        query = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.client.callback,
            "scope": " ".join(self.client.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
            **({"prompt": "login"} if again else {}),
        }
        return _with_query(addresses.authorization, query), self.sessions.cookies.login(attempt.cookie)

    async def complete(self, query: Mapping[str, str], cookies: str) -> tuple[Caller, tuple[Cookie, ...]]:
        """Returns who has logged in, and the cookies to set. `query` is what the provider has sent the browser back with."""
        attempt = self.sessions.resumed(cookies, query.get("state", ""))
        if attempt is None:
            raise codes.login_failed("it was not begun in this browser, or too long ago")
        if (error := query.get("error")) is not None:
            raise codes.login_failed(f"the provider says {error if error in KNOWN_ERRORS else 'no'}")
        code = query.get("code", "")
        if not 0 < len(code) <= CODE_CHARS_MAX:
            raise codes.login_failed("the provider has sent no code")
        if self._under_way >= AT_ONCE_MAX:
            raise busy()
        self._under_way += 1
        try:
            identity, token = await self._identity(code, attempt, query.get("iss"))
        except RefusedToken as exc:
            raise codes.login_failed(f"the token {exc}") from None
        finally:
            self._under_way -= 1
        session = self.sessions.open(identity)
        if session is None:
            raise too_many_roles()
        cookies_now = self.sessions.cookies
        more = (self.sessions.hint(token), cookies_now.login("", 0))
        return self._tokens.caller_of(identity, BY), (session, *more)

    async def end(self, cookies: str) -> tuple[str, tuple[Cookie, ...]]:
        """Returns where the provider logs somebody out, empty where it does not, and the cookies that end the session here."""
        own = self.sessions.cookies
        ended = (own.session("", 0), own.hint("", 0))
        try:
            address = (await self._provider.addresses()).end_session
        except e.RestError:
            return "", ended
        query = {"client_id": self.client.id, "post_logout_redirect_uri": self.client.url}
        if hint := self.sessions.hinted(cookies):
            query["id_token_hint"] = hint
        return (_with_query(address, query) if address else ""), ended

    async def _identity(self, code: str, attempt: Attempt, issuer: str | None) -> tuple[Identity, str]:
        """Returns whom the code names, and the ID token."""
        addresses = await self._provider.addresses()
        if issuer != self._settings.issuer and (issuer is not None or addresses.names_issuer):
            raise codes.login_failed("another provider has answered")
        answer = await self._exchanged(addresses, code, attempt)
        token, access = answer.get("id_token"), answer.get("access_token")
        if not isinstance(token, str):
            raise codes.login_failed("the provider has sent no ID token")
        identity, claims = await self._tokens.logged_in(token, attempt.nonce)
        return await self._completed(identity, claims, addresses, access if isinstance(access, str) else ""), token

    async def _exchanged(self, addresses: Addresses, code: str, attempt: Attempt) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.client.callback,
            "code_verifier": attempt.verifier,
        }
        secret, headers = self.client.secret, dict[str, str]()
        if secret and addresses.takes_basic:
            # RFC 6749: both are encoded as in a form first.
            pair = f"{quote(self.client.id, safe='')}:{quote(secret.reveal(), safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self.client.id
            if secret:
                form["client_secret"] = secret.reveal()
        try:
            return parsed(*await self._ask.body(Question(addresses.token, form, headers)))
        except NoAnswer as exc:
            log.warning("identity provider gave no token issuer=%s error=%s", self._settings.issuer, exc)
            raise (
                codes.unreachable() if exc.is_away else codes.login_failed("the provider gives no token for the code")
            ) from None

    async def _completed(self, identity: Identity, claims: Claims, addresses: Addresses, access: str) -> Identity:
        """Returns the identity with the roles and the name that the ID token may lack: of the access token where that is for us,
        else of what the provider tells of the user."""
        wanted = (self._settings.roles_claim, self._settings.username_claim)
        for ask in (self._tokens.other_claims, functools.partial(self._userinfo, addresses.userinfo)):
            if not access or all(found(claims, name) is not None for name in wanted):
                break
            more = await ask(access)
            if more.get("sub") == identity.subject:
                claims = {**more, **claims}
        return self._tokens.identity(claims)

    async def _userinfo(self, url: str, access: str) -> Claims:
        if not url:
            return {}
        try:
            return parsed(*await self._ask.body(Question(url, headers={"Authorization": f"Bearer {access}"})))
        except NoAnswer as exc:
            log.warning("identity provider told nothing of a user issuer=%s error=%s", self._settings.issuer, exc)
            return {}


def busy() -> e.RestError:
    headers = {"Retry-After": str(e.RETRY_AFTER_S)}
    return e.RestError(503, "Too many log in at the same time", e.TOO_MANY, headers=headers)


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
