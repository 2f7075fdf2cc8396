"""The first thing a request meets: an id, and who asks. What follows can rely on a caller in the scope."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from dataclasses import dataclass
from typing import Final

from cdcworker.schemas.errors import declare
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import too_large
from cdcworker.worker.rest.routing import split_path
from cdcworker.worker.security import browser
from cdcworker.worker.security.access import ANYBODY, CALLER, REQUEST_ID, Caller, Grant, unauthenticated
from cdcworker.worker.security.audit import SIGNED
from cdcworker.worker.security.authenticate import Authenticator, Busy
from cdcworker.worker.security.rate import HOLD_S, Limiter, client_of
from cdcworker.worker.security.signing import MAC_HEADER, Signed, Signer
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
"""Workers look here whether a silent one has gone; it tells a worker's name and the id of its process."""
HEALTH_PATHS: Final = frozenset({"/health", "/healthz", "/readyz"})
KEY_WAIT_S: Final = 1.0
KEY_POLL_S: Final = 0.02
"""The key may just have changed, and this worker may have to read on in the config log to know it."""
PEER: Final = "cdc.peer"
"""The common name of the client's verified certificate."""


@dataclass(frozen=True)
class Gate:
    """What a REST server knows about callers. `open_paths` need none. Without an authenticator and without trusted
    certificates everybody may do everything."""

    authenticator: Authenticator | None = None
    certificate_grants: tuple[Grant, ...] | None = None
    """What every client with a certificate of our authority may do; None: only those that the file of users lists."""
    health_is_open: bool = True
    limiter: Limiter | None = None
    local_only: bool = False
    """Nobody has to say who asks, since only this machine can: then pages in its browser must not ask either."""

    @property
    def is_closed(self) -> bool:
        return self.authenticator is not None or self.certificate_grants is not None

    @property
    def open_paths(self) -> frozenset[str]:
        return LIVE_PATHS | HEALTH_PATHS if self.health_is_open else LIVE_PATHS

    async def caller(self, scope: Scope) -> Caller:
        """RestError 401 when nobody known asks."""
        if not self.is_closed:
            if self.local_only:
                browser.check(scope)
            return ANYBODY
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(headers) > 1:
            raise unauthenticated("There is more than one Authorization")
        if headers and self.authenticator is not None:
            return await self._by_header(self.authenticator, headers[0].decode("latin-1"), address_of(scope))
        peer = scope.get(PEER)
        found = self.authenticator.by_certificate(peer) if peer and self.authenticator is not None else None
        if found is None and peer and self.certificate_grants is not None:
            found = Caller(peer, self.certificate_grants, "certificate")
        if found is None:
            raise unauthenticated()
        return found

    async def _by_header(self, authenticator: Authenticator, header: str, address: str) -> Caller:
        """Guessing is slowed down for each address; who is known is not hindered by others behind the same one."""
        limiter = self.limiter
        if limiter is None or authenticator.knows(header):
            return await authenticator.by_header(header)
        if not limiter.may_fail(address):
            raise too_often("Too many credentials from this address were wrong")
        try:
            return await authenticator.by_header(header)
        except e.RestError:
            limiter.failed(address)
            raise

    def counted(self, scope: Scope, error: e.RestError) -> e.RestError:
        """The refusal, or 429 when its client has been refused too often: to be told costs time as well."""
        if error.status == 429 or self.limiter is None or self.limiter.may_ask(f"refused:{address_of(scope)}"):
            return error
        return too_often("Too many requests")

    def count(self, scope: Scope, *, is_open: bool) -> None:
        """RestError 429 when the client asks too often."""
        if self.limiter is None or scope.get(SIGNED):
            return
        address, caller = address_of(scope), scope.get(CALLER, ANYBODY)
        if is_open:
            fine = self.limiter.may_look(address)
        else:
            fine = self.limiter.may_ask(f"user:{caller.name}" if caller.by else address)
        if not fine:
            raise too_often("Too many requests")


class GateMiddleware:
    """Outermost: nothing runs for a caller who is not known, except what is open."""

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
        answer = _named(send, scope[REQUEST_ID])
        try:
            is_open = self._is_open(scope)
            if not is_open:
                receive = await self._admit(scope, receive)
            self.gate.count(scope, is_open=is_open)
        except e.RestError as error:
            refusal = self.gate.counted(scope, error)
            if refusal.status == 429:
                await _hold(receive)
            await refusal.response()(scope, receive, answer)
            return
        except Busy:
            await busy().response()(scope, receive, answer)
            return
        await self.app(scope, receive, answer)

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        """Puts the caller into the scope. A request of another worker is judged by its signature alone."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if MAC_HEADER not in headers:
            scope[CALLER] = await self.gate.caller(scope)
            return receive
        deadline = time.monotonic() + KEY_WAIT_S
        while not self.signer.knows_key(headers) and time.monotonic() < deadline:
            await asyncio.sleep(KEY_POLL_S)
        # Strangers do not know a key's id: of them nothing is read.
        body = await _whole(receive, self.bytes_max) if self.signer.knows_key(headers) else b""
        scope[CALLER] = self.signer.verified(Signed(scope["method"], target_of(scope), body), headers)
        scope[SIGNED] = True
        return _again(body, receive)

    def _is_open(self, scope: Scope) -> bool:
        segments = split_path(scope)
        is_open = segments is not None and "/" + "/".join(segments) in self.gate.open_paths
        return is_open and scope["method"] in ("GET", "HEAD", "OPTIONS")


def identify(scope: Scope) -> None:
    """The caller's own id of the request if it can stand in a log, else a new one."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID_HEADER), b"")
    scope[REQUEST_ID] = given.decode() if GOOD_ID.fullmatch(given) else uuid.uuid4().hex


def target_of(scope: Scope) -> str:
    """Path and query as they came."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


async def _whole(receive: Receive, bytes_max: int) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > bytes_max:
            raise too_large(bytes_max)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was read, once more; then whatever comes, such as the end of the connection."""
    given = False

    async def read() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _named(send: Send, request_id: str) -> Send:
    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, request_id.encode())]
        await send(message)

    return named


async def _hold(receive: Receive) -> None:
    """Until the time is over or the client has gone; what it still sends is thrown away."""
    with contextlib.suppress(TimeoutError, e.RestError):
        async with asyncio.timeout(HOLD_S):
            while (await receive())["type"] != "http.disconnect":
                pass


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client_of(str(client[0])) if client else ""


def too_often(message: str) -> e.RestError:
    return e.RestError(429, message, TOO_OFTEN, headers={"Retry-After": str(e.RETRY_AFTER_S)})


def busy() -> e.RestError:
    return e.RestError(
        503, "Too many credentials are being checked", e.TIMEOUT, headers={"Retry-After": str(e.RETRY_AFTER_S)}
    )
