"""Limits of one request in size, number of headers and time, before anything reads it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from cdcworker.worker.http import errors as e
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE: Final = {"Connection": "close"}
HEADERS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 32_768
"""The parser has the same limit for headers that arrive in pieces."""
BODY_S: Final = 30.0


class RequestLimitsMiddleware:
    """The outermost middleware: 431 for too many or too large headers, 408 for a body that does not arrive in time."""

    def __init__(self, app: ASGIApp, body_s: float = BODY_S) -> None:
        self.app = app
        self.body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > HEADERS_MAX or size > HEAD_BYTES_MAX:
            message = f"More than {HEADERS_MAX} headers, or more than {HEAD_BYTES_MAX} bytes of path, query and headers"
            await e.RestError(431, message, e.TOO_LARGE, headers=CLOSE).response()(scope, receive, send)
            return
        await self.app(scope, self._timed(receive), send)

    def _timed(self, receive: Receive) -> Receive:
        """Returns a receive function with a time limit until the body is complete; a handler may then wait for the
        client's end for any time."""
        deadline, complete = time.monotonic() + self.body_s, False

        async def read() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                complete = True
                raise e.RestError(408, "The body did not arrive in time", e.TIMEOUT, headers=CLOSE) from None
            complete = not message.get("more_body", False)
            return message

        return read
