"""Asks the provider in bounded time and memory, and follows it nowhere else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cdcworker.connectors.config.definition import invalid
from cdcworker.schemas.untrusted.json_text import JsonLimits, JsonRefused, parse_object
from cdcworker.worker.identity.properties import TRUSTSTORE, url_problem

REQUEST_S: Final = 10.0
BYTES_MAX: Final = 1 << 20
ANSWER: Final = JsonLimits(bytes_max=BYTES_MAX, depth_max=32)


class NoAnswer(Exception):
    """The provider gave no answer that counts. `is_away`: asking again later may help. The text quotes nothing of the answer."""

    def __init__(self, why: str, *, is_away: bool) -> None:
        super().__init__(why)
        self.is_away = is_away


@dataclass(frozen=True, slots=True)
class Question:
    """One request. `form` makes it a POST."""

    url: str
    form: Mapping[str, str] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Asks(Protocol):
    """Who asks a provider."""

    async def body(self, question: Question) -> tuple[int, bytes]:
        """Returns the status and the body of the answer. NoAnswer."""


class Fetcher:
    """Asks over https, or over http on this machine. CdcError `config.invalid` for a truststore that cannot be read."""

    def __init__(self, truststore: str = "", limit_s: float = REQUEST_S) -> None:
        self._limit_s = limit_s
        try:
            self._tls = ssl.create_default_context(cafile=truststore or None)
        except (OSError, ValueError):
            raise invalid([(TRUSTSTORE, "is no file of certificates that can be read")]) from None
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def body(self, question: Question) -> tuple[int, bytes]:
        import httpx

        if problem := url_problem(question.url):
            raise NoAnswer(f"its address {problem}", is_away=False)
        method = "GET" if question.form is None else "POST"
        # What is packed small may be large.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **question.headers}
        options: dict[str, Any] = {"headers": headers, "data": question.form}
        try:
            async with (
                asyncio.timeout(self._limit_s),
                httpx.AsyncClient(verify=self._tls, timeout=self._limit_s, follow_redirects=False) as client,
                client.stream(method, question.url, **options) as answer,
            ):
                return answer.status_code, await _bounded(answer)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            raise NoAnswer(f"no answer ({type(exc).__name__})", is_away=True) from None


async def _bounded(answer: Any) -> bytes:
    content = b""
    async for piece in answer.aiter_raw():
        content += piece
        if len(content) > BYTES_MAX:
            raise NoAnswer(f"an answer of more than {BYTES_MAX} bytes", is_away=False)
    return content


def parsed(status: int, body: bytes) -> dict[str, Any]:
    """Returns the object of an answer. NoAnswer for another status than 200, and for what is no object."""
    if status != 200:
        raise NoAnswer(f"the status {status}", is_away=status >= 500 or status == 429)
    try:
        return parse_object(body, ANSWER)
    except JsonRefused as exc:
        raise NoAnswer(f"an answer that cannot be used ({exc})", is_away=False) from None
