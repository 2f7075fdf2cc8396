"""The identity provider as this worker knows it: its addresses and its keys, asked for when they are needed and kept for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.worker.http import errors as e
from cdcworker.worker.identity import codes
from cdcworker.worker.identity.fetch import Asks, NoAnswer, Question, parsed
from cdcworker.worker.identity.keys import ProviderKey, TokenHeader, key_for, parse_key_set
from cdcworker.worker.identity.properties import url_problem
from cdcworker.worker.identity.settings import ProviderSettings

log = logging.getLogger(__name__)

FRESH_S: Final = 300.0
"""Keys and addresses that are older are asked for again, before they count once more; beside the requests that use them only
while the provider is known to be away."""
KEPT_S: Final = 86_400.0
"""So long the keys count while the provider is away."""
AGAIN_S: Final = 10.0
"""Seconds between two questions for keys, however many tokens name keys that are not known."""
ADDRESSES_AGAIN_S: Final = 1.0
"""Seconds after a question for addresses without an answer until there is another, however many begin a login."""
ADDRESSES: Final = ("jwks_uri", "authorization_endpoint", "token_endpoint", "end_session_endpoint", "userinfo_endpoint")
"""The names in a discovery document, in the order of `Addresses`."""
DISCOVERY: Final = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Addresses:
    """What the provider says of itself. An empty one is not there."""

    keys: str
    authorization: str = ""
    token: str = ""
    end_session: str = ""
    userinfo: str = ""
    _: KW_ONLY
    takes_basic: bool = True
    """Whether the client's secret goes into a header, and not into the form."""
    names_issuer: bool = False
    """Whether the way back from a login names the issuer."""


def addresses_of(issuer: str, content: Mapping[str, Any]) -> Addresses:
    """Returns the addresses of a discovery document. NoAnswer for one of another issuer, or with addresses that are not asked."""
    if content.get("issuer") != issuer:
        raise NoAnswer("a document of another issuer than rest.oidc.issuer", is_away=False)
    for name in ADDRESSES:
        url = content.get(name) or ""
        problem = (url_problem(url) or _lower(issuer, url)) if isinstance(url, str) else "is no address"
        if url and problem:
            raise NoAnswer(f"a document whose {name} {problem}", is_away=False)
    methods = content.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return Addresses(
        *(content.get(name) or "" for name in ADDRESSES),
        takes_basic="client_secret_basic" in methods or "client_secret_post" not in methods,
        names_issuer=content.get("authorization_response_iss_parameter_supported") is True,
    )


def _lower(issuer: str, url: str) -> str | None:
    """Returns why an address is not asked although its form is good: a provider elsewhere leads nobody to this machine's http."""
    away = urlsplit(issuer).scheme == "https" and urlsplit(url).scheme != "https"
    return "has to begin with https:// as the issuer does" if away else None


class Provider:
    """Used by one event loop. `clock` is a monotonic time."""

    def __init__(self, settings: ProviderSettings, ask: Asks, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._ask = ask
        self._clock = clock
        self._keys: tuple[ProviderKey, ...] = ()
        self._addresses: Addresses | None = None
        self._keys_at = self._tried_at = self._addresses_at = float("-inf")
        self._trouble: NoAnswer | None = None
        """Why the last question for keys had no answer; None: it had one."""
        self._under_way: asyncio.Task[None] | None = None
        self._discovery: asyncio.Task[Addresses] | None = None
        self._no_addresses: NoAnswer | None = None
        """Why the last question for addresses had no answer; None: it had one."""
        self._no_addresses_at = float("-inf")

    async def key(self, header: TokenHeader) -> ProviderKey:
        """Returns the key that a token names. RestError 401 for one that is not published, 503 while that is not known."""
        found, age = key_for(self._keys, header), self._clock() - self._keys_at
        if found is not None and age < FRESH_S:
            return found
        is_away = self._trouble is not None and self._clock() - self._tried_at < FRESH_S
        asked = self._begin()
        if found is not None and age < KEPT_S and is_away:
            return found
        if asked is not None:
            # Shielded: a client that goes away must not end the question for the others.
            await asyncio.shield(asked)
        found = key_for(self._keys, header)
        if found is not None and self._clock() - self._keys_at < KEPT_S:
            return found
        raise self._refusal() if self._trouble else codes.key_unknown()

    async def addresses(self) -> Addresses:
        """Returns the provider's addresses. RestError 503 without them."""
        try:
            return await self._discovered()
        except NoAnswer as exc:
            if self._addresses is not None:
                return self._addresses
            raise _refusal_of(exc) from None

    def _refusal(self) -> e.RestError:
        assert self._trouble is not None
        return _refusal_of(self._trouble)

    def _begin(self) -> asyncio.Task[None] | None:
        """Begins to ask for keys, unless that was done a short time ago. Returns the question under way."""
        if self._under_way is None and self._clock() - self._tried_at >= AGAIN_S:
            self._tried_at = self._clock()
            self._under_way = asyncio.get_running_loop().create_task(self._renew())
            self._under_way.add_done_callback(self._ended)
        return self._under_way

    def _ended(self, _: object) -> None:
        self._under_way = None

    async def _renew(self) -> None:
        try:
            url = self._settings.jwks_url or (await self._discovered()).keys
            if not url:
                raise NoAnswer("a document without jwks_uri", is_away=False)
            status, body = await self._ask.body(Question(url))
            parsed(status, body)
            keys = parse_key_set(body)
        except (NoAnswer, ValueError) as exc:
            self._trouble = exc if isinstance(exc, NoAnswer) else NoAnswer("no key set", is_away=False)
            self._tell("keys", self._trouble)
            return
        if {key.id for key in keys} != {key.id for key in self._keys}:
            log.info("keys of the identity provider read issuer=%s keys=%d", self._settings.issuer, len(keys))
        self._keys, self._keys_at, self._trouble = keys, self._clock(), None

    async def _discovered(self) -> Addresses:
        if self._addresses is not None and self._clock() - self._addresses_at < FRESH_S:
            return self._addresses
        if self._no_addresses is not None and self._clock() - self._no_addresses_at < ADDRESSES_AGAIN_S:
            raise self._no_addresses
        if self._discovery is None:
            self._discovery = asyncio.get_running_loop().create_task(self._discover())
            self._discovery.add_done_callback(self._discovery_ended)
        # Strangers can begin logins: together they ask once. One that goes away does not end the question for the others.
        return await asyncio.shield(self._discovery)

    async def _discover(self) -> Addresses:
        issuer = self._settings.issuer
        try:
            content = parsed(*await self._ask.body(Question(issuer.rstrip("/") + DISCOVERY)))
            found = addresses_of(issuer, content)
        except NoAnswer as exc:
            self._no_addresses, self._no_addresses_at = exc, self._clock()
            self._tell("addresses", exc)
            raise
        self._addresses, self._addresses_at, self._no_addresses = found, self._clock(), None
        return found

    def _discovery_ended(self, task: asyncio.Task[Addresses]) -> None:
        self._discovery = None
        if not task.cancelled():
            task.exception()  # whoever waits has it

    def _tell(self, what: str, exc: NoAnswer) -> None:
        log.warning("identity provider gave no %s issuer=%s error=%s", what, self._settings.issuer, exc)


def _refusal_of(exc: NoAnswer) -> e.RestError:
    return codes.unreachable() if exc.is_away else codes.unusable()
