"""What one request may be, in size, number and time, before anything looks into it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from cdcworker.worker.rest import errors as e
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSE: Final = {"Connection": "close"}
HEADERS_MAX: Final = 100
HEAD_BYTES_MAX: Final = 32_768
"""The parser has the same limit for what comes in pieces."""
BODY_S: Final = 30.0


class RequestLimits:
    """Outermost: 431 for headers, 408 for a body that does not arrive in time."""

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
            message = f"The headers are more than {HEADERS_MAX}, or larger than {HEAD_BYTES_MAX} bytes"
            await e.RestError(431, message, e.TOO_LARGE, headers=CLOSE).response()(scope, receive, send)
            return
        await self.app(scope, self._timed(receive), send)

    def _timed(self, receive: Receive) -> Receive:
        """Until the body is complete; then a handler may wait for the client's end as long as it likes."""
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
