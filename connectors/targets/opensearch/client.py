"""Asks the nodes of a cluster: one at a time, the next one where one does not answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.config.definition import Secret
from cdcworker.connectors.network.http_client import Answer, AnswerLimits, Codes, HttpClient, endpoint_at
from cdcworker.connectors.network.http_keys import login_headers
from cdcworker.connectors.network.http_statuses import RETRIED, StatusRules, parse_ranges, retry_after_s
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.targets.opensearch.errors import kind_of
from cdcworker.schemas.errors import CdcError

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
ANSWER_BYTES_MAX: Final = 134_217_728
_RULES: Final = StatusRules(parse_ranges(RETRIED))


class Reply(NamedTuple):
    """An answer whose status its caller expects."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Returns the body's value. `TargetUnavailable` for a body that is no JSON, as that of a proxy."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise TargetUnavailable(TARGET_UNAVAILABLE, "the server's answer is no JSON") from None

    @property
    def error(self) -> str:
        """The type of the error that the body holds; empty: none."""
        try:
            found = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError):
            return ""
        return kind_of(found) if isinstance(found, dict) else ""


class SearchClient:
    """A cluster. One thread uses it, but for `cancel`."""

    def __init__(self, config: Mapping[str, Any], state_dir: str) -> None:
        request_s = config["http.request.timeout.ms"] / 1000
        codes, limits = Codes(TARGET_UNAVAILABLE, TARGET_REFUSES), AnswerLimits(ANSWER_BYTES_MAX)
        self._clients = [
            HttpClient(endpoint_at("connection.url", url, config, TARGET_REFUSES, request_s, state_dir), codes, limits)
            for url in config["connection.url"]
        ]
        self._current = 0
        self._headers = login_headers(_login(config), {"User-Agent": "cdcworker"}, TARGET_REFUSES)
        self._compresses = config["connection.compression"]

    def ask(
        self, method: str, path: str, body: Any = None, expected: Collection[int] = (), *, lines: bool = False
    ) -> Reply:
        """Returns the answer to a request: one with a status from 200 to 299 or of `expected`. `body` is JSON's value, or with `lines`
        bytes. Raises CdcError."""
        data = body if lines or body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if data is not None:
            headers["Content-Type"] = LINES if lines else JSON
            if self._compresses:
                data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        try:
            answer = self._clients[self._current].request(method, path, data, headers)
        except TargetUnavailable:
            self._current = (self._current + 1) % len(self._clients)
            raise
        if not answer.is_whole:
            raise TargetUnavailable(TARGET_UNAVAILABLE, "the server's answer is too long")
        reply = Reply(answer.status, answer.body)
        if not _RULES.is_taken(answer.status) and answer.status not in expected:
            raise self._error(answer, reply.error)
        return reply

    def cancel(self) -> None:
        for client in self._clients:
            client.cancel()

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _error(self, answer: Answer, kind: str) -> CdcError:
        status = answer.status
        where: dict[str, str | int] = {"status": status}
        if _RULES.is_retried(status):
            self._current = (self._current + 1) % len(self._clients)
            text = "the server does not take requests now"
            wait_s = retry_after_s(answer.headers.get("retry-after"))
            return TargetUnavailable(TARGET_UNAVAILABLE, text, where=where, retry_after_s=wait_s)
        told = f" ({kind})" if kind else ""
        if 300 <= status < 400:
            text = "the server redirects elsewhere, which is not followed: name the final address in connection.url"
            return CdcError(TARGET_REFUSES, text, where=where)
        if _RULES.refuses_all(status):
            return CdcError(TARGET_REFUSES, f"the server refuses requests of this sink{told}", where=where)
        return CdcError(RECORD_REFUSED, f"the server refuses the request{told}", where=where)


def _login(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the login in the words of all connectors over HTTP."""
    if config["connection.api.key"]:
        header = Secret(f"ApiKey {config['connection.api.key'].reveal().strip()}")
        return {"http.authorization.type": "static", "http.headers.authorization": header}
    if config["connection.token"]:
        return {"http.authorization.type": "bearer", "http.authorization.token": config["connection.token"]}
    if not config["connection.username"]:
        return {"http.authorization.type": "none"}
    return {
        "http.authorization.type": "basic",
        "http.authorization.user": config["connection.username"],
        "http.authorization.password": config["connection.password"],
    }
