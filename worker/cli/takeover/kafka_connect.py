"""A Kafka Connect cluster over its REST API, as far as a connector's move needs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.cli.client.remote import segment

CONNECT_REFUSED: Final = declare(
    "cli.connect_refused",
    "environment",
    "Kafka Connect refuses a request or does not answer it",
    "Check --connect and what the worker's log says; the message says what stands where.",
)
ANSWER_S: Final = 100.0
"""Longer than Kafka Connect's own limit of 90 seconds."""
STAND_S: Final = 120.0
_POLL_S: Final = 0.25
_ABSENT: Final = (404, 405)
_PASSING: Final = 409
"""A rebalance is under way."""


class KafkaConnect:
    """One worker's REST API. `login` is a user and a password, where the API asks for them."""

    def __init__(self, url: str, login: tuple[str, str] | None = None) -> None:
        """Raises CdcError for what is no address. A user and a password in it are used, and shown nowhere."""
        try:
            address = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL:
            address = httpx.URL("")
        if address.scheme not in ("http", "https") or not address.host:
            raise CdcError(CONNECT_REFUSED, "--connect is no address, as http://HOST:8083 is one")
        if address.userinfo and login is None:
            login = (address.username, address.password)
        self.url = str(address.copy_with(userinfo=b""))
        self._client = httpx.Client(timeout=ANSWER_S, trust_env=False, auth=login)

    def version(self) -> str:
        return str(self._asked("GET", "/").get("version", ""))

    def connectors(self) -> list[str]:
        return sorted(map(str, self._asked("GET", "/connectors", kind=list)))

    def config(self, name: str) -> dict[str, str]:
        found = self._asked("GET", f"{_path(name)}/config")
        return {str(key): str(value) for key, value in found.items() if value is not None}

    def state(self, name: str) -> str:
        return str(self._asked("GET", f"{_path(name)}/status")["connector"]["state"])

    def can_stop(self, name: str) -> bool:
        """Returns whether the version has the offsets of a connector, and with them its stop (3.5 and newer)."""
        return self._answer("GET", f"{_path(name)}/offsets").status_code not in _ABSENT

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Returns pairs of `partition` and `offset`."""
        found: list[dict[str, Any]] = self._asked("GET", f"{_path(name)}/offsets")["offsets"]
        return found

    def write_offsets(self, name: str, offsets: Sequence[Mapping[str, Any]]) -> None:
        self._asked("PATCH", f"{_path(name)}/offsets", {"offsets": list(offsets)})

    def stop(self, name: str) -> None:
        """Stops the connector and waits until it and its tasks stand. One that stands is left alone.

        It is paused first: a task that still hands on records when it has to stop may be given up after
        `task.shutdown.graceful.timeout.ms`, and then the offsets of what it has written last are not stored.
        """
        if self._stands(name):
            return
        self._asked("PUT", f"{_path(name)}/pause")
        self._wait(lambda: self._rests(name), f"connector {name} did not pause")
        self._asked("PUT", f"{_path(name)}/stop")
        self._wait(lambda: self._stands(name), f"connector {name} did not stop")

    def resume(self, name: str) -> None:
        self._asked("PUT", f"{_path(name)}/resume")

    def wait_running(self, name: str) -> None:
        def runs() -> bool:
            status = self._asked("GET", f"{_path(name)}/status")
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            if "FAILED" in states:
                raise CdcError(CONNECT_REFUSED, f"connector {name} has failed in Kafka Connect")
            return bool(status["tasks"]) and set(states) == {"RUNNING"}

        self._wait(runs, f"connector {name} does not run")

    def _rests(self, name: str) -> bool:
        """Whether no task of it hands on records."""
        status = self._asked("GET", f"{_path(name)}/status")
        states = {status["connector"]["state"], *(task["state"] for task in status["tasks"])}
        return states <= {"PAUSED", "STOPPED", "FAILED"}

    def _stands(self, name: str) -> bool:
        status = self._asked("GET", f"{_path(name)}/status")
        return status["connector"]["state"] == "STOPPED" and not status["tasks"]

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + STAND_S
        while not holds():
            if time.monotonic() > deadline:
                raise CdcError(CONNECT_REFUSED, f"{otherwise} within {STAND_S:g} s")
            time.sleep(_POLL_S)

    def _asked(self, method: str, path: str, body: Any = None, *, kind: type = dict) -> Any:
        """Returns the answer's content, None where it has none. CdcError for a refusal, and for content of another kind."""
        deadline = time.monotonic() + STAND_S
        while True:
            answer = self._answer(method, path, body)
            if answer.status_code != _PASSING or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        if answer.status_code >= 300:
            raise CdcError(CONNECT_REFUSED, f"{method} {path} was answered with {answer.status_code}{_why(answer)}")
        if not answer.content:
            return None
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise CdcError(CONNECT_REFUSED, f"{method} {path} was answered as Kafka Connect does not answer it")
        return found

    def _answer(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            return self._client.request(method, self.url + path, json=body)
        except httpx.HTTPError as error:
            raise CdcError(CONNECT_REFUSED, f"{method} {path} was not answered: {type(error).__name__}") from error


def _path(name: str) -> str:
    return f"/connectors/{segment(name)}"


def _why(answer: httpx.Response) -> str:
    try:
        message = answer.json().get("message")
    except (ValueError, AttributeError):
        return ""
    # Kafka Connect's messages may show a config, in lines of their own.
    return f": {str(message).partition(chr(10))[0][:300]}" if message else ""
