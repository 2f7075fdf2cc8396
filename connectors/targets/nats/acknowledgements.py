"""Messages that wait for what JetStream says of them: acknowledged, or refused with a code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_UNAVAILABLE
from cdcworker.connectors.targets.nats.replies import of_code
from cdcworker.schemas.errors import CdcError
from nats.aio.client import Client

_STATUS: Final = "Status"
_STREAM: Final = "Nats-Expected-Stream"
_ERROR: Final = b'"error"'


class Message(NamedTuple):
    subject: str
    body: bytes
    headers: dict[str, str]


class NobodyTakesIt(TargetUnavailable):
    """No stream takes the subject of a message."""


class Acknowledgements:
    """What is said of the messages of one connection. The client's own way loses answers that are errors."""

    def __init__(self, client: Client, stream: str, pending_max: int) -> None:
        self._client, self._stream, self._pending_max = client, stream, pending_max
        self._inbox = client.new_inbox()
        self._waiting: set[str] = set()
        """The last parts of the subjects at which answers are waited for."""
        self._wrong: list[CdcError] = []
        self._answered = asyncio.Event()
        self._number = 0

    async def listen(self) -> None:
        """Begins to take answers."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take)

    async def publish(self, messages: Sequence[Message]) -> list[CdcError]:
        """Sends messages, so many at a time as may wait; returns what is wrong with some of them, once each has its answer. A
        connection on which this was broken off is of no use any more."""
        self._wrong = []
        for message in messages:
            while len(self._waiting) >= self._pending_max:
                await self._any()
            self._number += 1
            token = str(self._number)
            self._waiting.add(token)
            message.headers[_STREAM] = self._stream
            await self._client.publish(message.subject, message.body, f"{self._inbox}.{token}", message.headers)
        while self._waiting:
            await self._any()
        return self._wrong

    async def _any(self) -> None:
        self._answered.clear()
        await self._answered.wait()

    async def _take(self, answer: Any) -> None:
        token = answer.subject.rpartition(".")[2]
        if token not in self._waiting:
            return
        self._waiting.remove(token)
        if (wrong := _said(answer)) is not None:
            self._wrong.append(wrong)
        self._answered.set()


def _said(answer: Any) -> CdcError | None:
    if answer.headers and _STATUS in answer.headers:
        return NobodyTakesIt(TARGET_UNAVAILABLE, "no stream takes the subject now")
    if answer.data.startswith(b'{"stream"') and _ERROR not in answer.data:
        # To read each answer takes as long as to send a message.
        return None
    try:
        error = json.loads(answer.data).get("error")
    except ValueError:
        return TargetUnavailable(TARGET_UNAVAILABLE, "an answer cannot be read")
    return None if error is None else of_code(error.get("code", 0), error.get("err_code", 0))
