"""Sends messages to receivers: one that does not take them is asked again later and later, and keeps no other one waiting for long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.network.http_statuses import retry_after_s
from cdcworker.worker.alerts.messages import AlertMessage
from cdcworker.worker.alerts.settings import Receiver

log = logging.getLogger(__name__)

BACKOFF_S: Final = (1.0, 300.0)
"""The first and the longest pause before a receiver that took no message is asked again; it doubles in between."""


@dataclass(slots=True)
class _Refusing:
    """A receiver that took no message: how often in a row, why, and when it is asked again."""

    tries: int
    why: str
    again_at: float


class Delivery:
    """Posts messages. One thread uses it. `post` sends a request and returns the answer, as `Poster.post` does."""

    def __init__(self, post: Callable[..., Any], clock: Callable[[], float]) -> None:
        self._post = post
        self._clock = clock
        self._refusing: dict[str, _Refusing] = {}

    def is_asked(self, receiver: str) -> bool:
        """Returns whether the receiver may be sent a message now."""
        refusing = self._refusing.get(receiver)
        return refusing is None or self._clock() >= refusing.again_at

    def problems(self) -> dict[str, str]:
        """Returns why receivers take no messages, by their names."""
        return {name: refusing.why for name, refusing in self._refusing.items()}

    def send(self, receiver: Receiver, message: AlertMessage) -> bool:
        """Sends one message; returns whether the receiver has taken it: with a status from 200 to 299."""
        import httpx

        wait_s = None
        try:
            answer = self._post(receiver.url, content=message.body, headers=dict(message.headers))
            if 200 <= answer.status_code < 300:
                if self._refusing.pop(receiver.name, None) is not None:
                    log.info("alerts are taken again receiver=%s", receiver.name)
                return True
            why = f"status {answer.status_code}"
            wait_s = retry_after_s(answer.headers.get("retry-after"))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            why = type(exc).__name__
        self._put_off(receiver.name, why, wait_s)
        return False

    def _put_off(self, name: str, why: str, wait_s: float | None) -> None:
        before = self._refusing.get(name)
        tries = before.tries + 1 if before is not None else 1
        pause_s = min(BACKOFF_S[1], max(wait_s or 0.0, BACKOFF_S[0] * 2.0 ** min(tries - 1, 30)))
        self._refusing[name] = _Refusing(tries, why, self._clock() + pause_s)
        log.error("alert not taken receiver=%s why=%s tries=%d next_s=%.0f", name, why, tries, pause_s)
