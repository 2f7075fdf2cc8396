"""Headers of every answer: it is what its media type says, and nobody keeps it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

EVERY_ANSWER: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class AnswerHeaders:
    """The outermost middleware: adds the headers that an answer does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                message["headers"] = [*given, *(item for item in EVERY_ANSWER if item[0] not in names)]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)
