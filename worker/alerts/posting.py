"""Posts a message to a receiver in bounded time and memory, however it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

REQUEST_S: Final = 10.0


class Answer(NamedTuple):
    """What counts of a receiver's answer: its body is not read."""

    status_code: int
    headers: Mapping[str, str]


class Poster:
    """Posts messages; follows no redirects. `limit_s` is the time of a whole request, from the connection to the answer's headers:
    the limits of httpx hold for each step, so that a receiver that answers byte by byte would be waited for without an end."""

    def __init__(self, limit_s: float = REQUEST_S) -> None:
        import httpx

        self._limit_s = limit_s
        self._tls = httpx.create_ssl_context()

    def post(self, url: str, *, content: bytes, headers: Mapping[str, str]) -> Answer:
        """Posts one message. Raises httpx.HTTPError, httpx.InvalidURL, OSError or ValueError when it gets no answer."""
        return asyncio.run(self._post(url, content, headers))

    async def _post(self, url: str, content: bytes, headers: Mapping[str, str]) -> Answer:
        import httpx

        async with (
            asyncio.timeout(self._limit_s),
            httpx.AsyncClient(verify=self._tls, timeout=self._limit_s, follow_redirects=False) as client,
            client.stream("POST", url, content=content, headers=dict(headers)) as answer,
        ):
            return Answer(answer.status_code, dict(answer.headers))
