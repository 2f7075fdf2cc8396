"""Answers that stream for a long time: each caller has a share of them, which it holds until its stream ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cdcworker.worker.http import errors as e
from cdcworker.worker.security.caller_shares import CallerShares
from cdcworker.worker.security.gate import who_of
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

STREAM = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
BUSY_S = 5


def too_many(message: str) -> e.RestError:
    return e.RestError(503, message, e.TOO_MANY, headers={"Retry-After": str(BUSY_S)})


class HeldStream(StreamingResponse):
    """A stream of server-sent events that counts for its caller. RestError 503 when the caller has too many."""

    def __init__(self, parts: AsyncIterator[str], request: Request, shares: CallerShares) -> None:
        super().__init__(parts, headers=HEADERS, media_type=STREAM)
        self._shares, self._who = shares, who_of(request.scope)
        if not shares.take(self._who):
            raise too_many("This caller has too many streams at this worker")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._shares.give_back(self._who)
