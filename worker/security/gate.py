"""The first middleware of a request: it assigns a request id and authenticates the caller, so that handlers find it in
the scope."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from dataclasses import dataclass
from typing import Final, Protocol

from cdcworker.schemas.errors import declare
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import too_large
from cdcworker.worker.http.paths import split_path
from cdcworker.worker.security import cross_site
from cdcworker.worker.security.access import ANYBODY, CALLER, REQUEST_ID, Caller, Grant, unauthenticated
from cdcworker.worker.security.audit import ASKED_FROM, FORWARDED_BY, SIGNED
from cdcworker.worker.security.authenticate import Authenticator, TooManyChecks, refused
from cdcworker.worker.security.caller_shares import ConnectionOwner
from cdcworker.worker.security.rate_limit import HOLD_S, RateLimiter, client_of
from cdcworker.worker.security.signing import SignedRequest, Signer, bad_signature, claims_worker
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER: Final = b"x-request-id"
GOOD_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
TOO_OFTEN: Final = declare(
    "rest.too_often",
    "transient",
    "One client asks more often than this worker allows",
    "Wait for Retry-After seconds; the operator may raise rest.requests.per.second.",
)
LIVE_PATHS: Final = frozenset({"/v1/live"})
"""Paths that never need a credential: workers check there whether a silent worker is gone. They show a worker's name
and the id of its process."""
HEALTH_PATHS: Final = frozenset({"/health", "/healthz", "/readyz"})
LOGOUT: Final = ["ui", "logout"]
"""The path of a logout: nobody needs a session to end it."""
CONSOLE: Final = "ui"
"""The first segment of the paths of the console's files, which hold nothing of the cluster."""
ASKED_BY_SCRIPT: Final = b"x-requested-with"
"""The header by which the console's page says that it asks."""
BEARER_ONLY: Final = 'Bearer realm="cdcworker"'
KEY_WAIT_S: Final = 1.0
KEY_POLL_S: Final = 0.02
"""The session key may just have changed, and this worker may have to read the config log on before it knows the new
key."""
PROBE_HOLD_S: Final = 0.25
"""Seconds by which the answer to a probe is delayed while its address asks too often: less than a probe's patience."""
CONNECTION: Final = "cdc.connection"
"""The key in the scope under which the owner of the connection stands."""
PEER: Final = "cdc.peer"
"""The key in the scope under which the common name of the client's verified certificate stands."""


class ForeignTokens(Protocol):
    """Who judges the tokens of an identity provider."""

    def takes(self, credential: str) -> bool:
        """Returns whether a bearer's credential has the form of such a token."""

    async def caller(self, token: str) -> Caller:
        """Returns the caller of a token. RestError 401 for one that does not count."""


class CookieSessions(Protocol):
    """Who judges the sessions of the console."""

    def caller(self, header: str) -> Caller | None:
        """Returns the caller of a Cookie header, None if it holds no session. RestError 401 for a session that was revoked."""


@dataclass(frozen=True)
class Gate:
    """The authentication of a REST server. Without users, an identity provider and trusted certificates everybody may do
    everything."""

    authenticator: Authenticator | None = None
    certificate_grants: tuple[Grant, ...] | None = None
    """The grants of every client with a certificate of our authority; None: only certificates in the file of users
    count."""
    health_is_open: bool = True
    limiter: RateLimiter | None = None
    local_only: bool = False
    """True if no authentication is needed because only this machine can connect: pages in its browser are refused then.
    """
    worker_certificates: frozenset[str] = frozenset()
    """The common names of the workers' certificates: signed requests come on connections with one of them only. Empty:
    the signature alone counts."""
    tokens: ForeignTokens | None = None
    sessions: CookieSessions | None = None

    @property
    def is_closed(self) -> bool:
        known = (self.authenticator, self.tokens, self.sessions, self.certificate_grants)
        return any(one is not None for one in known)

    @property
    def open_paths(self) -> frozenset[str]:
        """The paths that need no credential."""
        return LIVE_PATHS | HEALTH_PATHS if self.health_is_open else LIVE_PATHS

    async def caller(self, scope: Scope) -> Caller:
        """Returns the caller of a request. RestError 401 for an unknown caller."""
        if not self.is_closed:
            if self.local_only:
                cross_site.check(scope)
            return ANYBODY
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(headers) > 1:
            raise unauthenticated("There is more than one Authorization")
        found = await self._by_credential(headers[0].decode("latin-1"), scope) if headers else self._by_session(scope)
        if found is not None:
            # A browser sends these by itself, whatever page asks.
            if found.by in ("basic", "session"):
                cross_site.check_change(scope)
            return found
        peer = scope.get(PEER)
        caller = self.authenticator.by_certificate(peer) if peer and self.authenticator is not None else None
        if caller is None and peer and self.certificate_grants is not None:
            caller = Caller(peer, self.certificate_grants, "certificate")
        if caller is None:
            raise unauthenticated()
        cross_site.check_change(scope)
        return caller

    async def _by_credential(self, header: str, scope: Scope) -> Caller | None:
        """Returns the caller of an Authorization header; None where nobody knows such callers."""
        scheme, _, credential = header.partition(" ")
        if self.tokens is not None and scheme.lower() == "bearer" and self.tokens.takes(credential.strip()):
            return await self._by_token(self.tokens, credential.strip(), address_of(scope))
        if self.authenticator is not None:
            return await self._by_header(self.authenticator, header, address_of(scope))
        if self.tokens is not None:
            raise refused()
        return None

    def _by_session(self, scope: Scope) -> Caller | None:
        cookies = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
        return self.sessions.caller("; ".join(cookies)) if self.sessions is not None and cookies else None

    async def _by_token(self, tokens: ForeignTokens, token: str, address: str) -> Caller:
        """Authenticates by a token of the identity provider. That costs little, so that it is done first: wrong ones are limited
        by address."""
        try:
            return await tokens.caller(token)
        except e.RestError as error:
            if error.status == 401 and self.limiter is not None and not self.limiter.may_guess(address):
                raise too_often("Too many credentials from this address were wrong") from None
            raise

    async def _by_header(self, authenticator: Authenticator, header: str, address: str) -> Caller:
        """Authenticates by the header. Failures are limited by address; a caller that is known is not slowed down by
        others behind it."""
        limiter = self.limiter
        if limiter is None or authenticator.knows(header):
            return await authenticator.by_header(header)
        if not limiter.may_guess(address):
            raise too_often("Too many credentials from this address were wrong")
        try:
            caller = await authenticator.by_header(header)
        except TooManyChecks:
            limiter.was_no_guess(address)
            raise
        limiter.was_no_guess(address)
        return caller

    def counted(self, scope: Scope, error: e.RestError) -> e.RestError:
        """Returns the refusal, or 429 when the client was refused too often: a refusal costs time as well."""
        if error.status == 429 or self.limiter is None or self.limiter.may_ask(f"refused:{address_of(scope)}"):
            return error
        return too_often("Too many requests")

    def count(self, scope: Scope, *, is_open: bool) -> None:
        """RestError 429 when the client asks too often."""
        if self.limiter is None or scope.get(SIGNED):
            return
        if is_open:
            return
        if not self.limiter.may_ask(who_of(scope)):
            raise too_often("Too many requests")

    def is_slowed_down(self, scope: Scope) -> bool:
        """Returns whether a request to an open path has to wait a little. It is answered all the same: a probe must
        not fail because something else at its address asks too often."""
        return self.limiter is not None and not self.limiter.may_look(address_of(scope))


class GateMiddleware:
    """The outermost middleware: no handler runs for an unknown caller, except on open paths."""

    def __init__(self, app: ASGIApp, gate: Gate, signer: Signer, bytes_max: int) -> None:
        self.app = app
        self.gate = gate
        self.signer = signer
        self.bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identify(scope)
        answer = _with_request_id(send, scope)
        try:
            is_open = self._is_open(scope)
            if not is_open:
                receive = await self._admit(scope, receive)
                _check_connection(scope)
            elif self.gate.is_slowed_down(scope):
                await asyncio.sleep(PROBE_HOLD_S)
            self.gate.count(scope, is_open=is_open)
        except e.RestError as error:
            refusal = _quietly(scope, self.gate.counted(scope, error))
            if refusal.status == 429:
                await _delay(receive)
            await refusal.response()(scope, receive, answer)
            return
        except TooManyChecks:
            await busy().response()(scope, receive, answer)
            return
        await self.app(scope, receive, answer)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Puts the caller into the scope. A request of another worker is judged by its signature alone."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not claims_worker(headers):
            scope[CALLER] = await self.gate.caller(scope)
            return receive
        if self.gate.worker_certificates and scope.get(PEER) not in self.gate.worker_certificates:
            raise bad_signature("The connection of the internal request has no certificate of a worker")
        deadline = time.monotonic() + KEY_WAIT_S
        while not self.signer.knows_key(headers) and time.monotonic() < deadline:
            await asyncio.sleep(KEY_POLL_S)
        # Strangers do not know a key's id: of them nothing is read.
        body = await _read_body(receive, self.bytes_max) if self.signer.knows_key(headers) else b""
        pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        request = SignedRequest(scope["method"], target_of(scope), body, headers=pairs)
        signature = self.signer.verified(request, headers)
        scope.update({CALLER: signature.caller, SIGNED: True})
        scope.update({FORWARDED_BY: signature.worker, ASKED_FROM: signature.address})
        if signature.headers is not None:
            _keep_headers(scope, signature.headers, len(body))
        return _replayed(body, receive)

    def _is_open(self, scope: Scope) -> bool:
        segments = split_path(scope)
        is_open = segments is not None and (
            segments[:1] == [CONSOLE] or "/" + "/".join(segments) in self.gate.open_paths
        )
        if segments == LOGOUT and scope["method"] == "POST":
            return True
        return is_open and scope["method"] in ("GET", "HEAD", "OPTIONS")


def _check_connection(scope: Scope) -> None:
    """RestError 429 for a user who holds too many connections; the connection ends with the answer."""
    owner, caller = scope.get(CONNECTION), scope.get(CALLER, ANYBODY)
    if (
        isinstance(owner, ConnectionOwner)
        and caller.by
        and not scope.get(SIGNED)
        and not owner.belongs_to(caller.share)
    ):
        refusal = too_often(f"{caller.name} has too many connections")
        refusal.headers["Connection"] = "close"
        raise refusal


def _quietly(scope: Scope, refusal: e.RestError) -> e.RestError:
    """Has no browser ask for a password over a script's request: the page asks itself."""
    if refusal.status == 401 and any(name == ASKED_BY_SCRIPT for name, _ in scope["headers"]):
        refusal.headers["WWW-Authenticate"] = BEARER_ONLY
    return refusal


def identify(scope: Scope) -> None:
    """Puts the request id into the scope: the client's own id if it may stand in a log, else a new one."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"")
    scope[REQUEST_ID] = given.decode() if GOOD_ID.fullmatch(given) else uuid.uuid4().hex


def _keep_headers(scope: Scope, covered: frozenset[str], body_bytes: int) -> None:
    """Leaves only the headers that the signature covers: no handler can act on one that was added on the way."""
    kept = [(name, value) for name, value in scope["headers"] if name.decode("latin-1") in covered]
    scope["headers"] = [*kept, (b"content-length", str(body_bytes).encode())]
    identify(scope)


def target_of(scope: Scope) -> str:
    """Returns path and query as the client has sent them."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


async def _read_body(receive: Receive, bytes_max: int) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > bytes_max:
            raise too_large(bytes_max)
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a receive function that yields the body again, then what follows, such as the end of the connection."""
    given = False

    async def read() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _with_request_id(send: Send, scope: Scope) -> Send:
    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, scope[REQUEST_ID].encode())]
        await send(message)

    return named


async def _delay(receive: Receive) -> None:
    """Waits until the delay is over or the client has gone; what it still sends is dropped."""
    with contextlib.suppress(TimeoutError, e.RestError):
        async with asyncio.timeout(HOLD_S):
            while (await receive())["type"] != "http.disconnect":
                pass


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client_of(str(client[0])) if client else ""


def who_of(scope: Scope) -> str:
    """Returns for whom a request counts: the user, or the address where nobody has to say who asks."""
    caller = scope.get(CALLER, ANYBODY)
    return caller.share if caller.by else address_of(scope)


def too_often(message: str) -> e.RestError:
    return e.RestError(429, message, TOO_OFTEN, headers={"Retry-After": str(e.RETRY_AFTER_S)})


def busy() -> e.RestError:
    return e.RestError(
        503, "Too many credentials are being checked", e.TIMEOUT, headers={"Retry-After": str(e.RETRY_AFTER_S)}
    )
