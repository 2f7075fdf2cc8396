"""Requests to a JSON API: one server, no detours, and what each answer means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from cdcworker.connectors.api.plugin_errors import UNAVAILABLE, Unavailable
from cdcworker.connectors.api.small_source import SourcePlace
from cdcworker.connectors.network.http_client import Answer, AnswerLimits, Codes, HttpClient, endpoint_of
from cdcworker.connectors.network.http_keys import login_headers, parse_headers
from cdcworker.connectors.network.http_statuses import StatusRules, parse_ranges, retry_after_s
from cdcworker.schemas.errors import CdcError, declare

REFUSED: Final = declare(
    "http.refused",
    "config",
    "The API refuses the requests of the source",
    "Look at the status that the message names: at http.url, the login, or the parameters of pages and cursor.",
)
ANSWER_UNEXPECTED: Final = declare(
    "http.answer_unexpected",
    "config",
    "The API's answer is not what the config says",
    "Compare an answer with http.items.pointer, http.pagination and http.next.pointer.",
)
ANSWER_TOO_LARGE: Final = declare(
    "http.answer_too_large",
    "config",
    "An answer is larger than the source takes",
    "Ask for smaller pages (http.page.size with http.page.size.parameter), or raise http.answer.bytes.max.",
)
OTHER_SERVER: Final = declare(
    "http.other_server",
    "config",
    "The next page lies on another server",
    "Nothing is asked there, and the login stays here. Name the server that answers with its own address in http.url.",
)
ANSWER_S_MAX: Final = 30.0
"""A task that makes no step for a minute is killed."""


class Requests:
    """One connection to the server of http.url."""

    def __init__(self, place: SourcePlace) -> None:
        config = place.config
        self._headers = login_headers(
            config,
            {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "cdcworker"}
            | dict(parse_headers(config["http.headers.additional"])),
            REFUSED,
        )
        self._rules = StatusRules(parse_ranges(config["retry.on.status.codes"]))
        request_s = min(config["http.request.timeout.ms"] / 1000, ANSWER_S_MAX)
        self._client = HttpClient(
            endpoint_of(config, REFUSED, request_s, place.state_dir),
            Codes(UNAVAILABLE, REFUSED),
            AnswerLimits(config["http.answer.bytes.max"], ANSWER_S_MAX),
        )
        self._bytes_max = config["http.answer.bytes.max"]

    def get(self, target: str) -> Answer:
        """Returns the answer, whatever its status. CdcError."""
        return self._client.request("GET", target, None, self._headers)

    def body(self, answer: Answer) -> Any:
        """Returns the JSON of an answer. Unavailable, or CdcError, for one that has none."""
        if not self._rules.is_taken(answer.status):
            self._refuse(answer)
        if not answer.is_whole:
            if len(answer.body) < self._bytes_max:
                raise Unavailable("the answer breaks off")
            text = f"the answer has more than {self._bytes_max} bytes"
            raise CdcError(ANSWER_TOO_LARGE, text, where={"key": "http.answer.bytes.max"})
        try:
            return json.loads(answer.body, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise CdcError(ANSWER_UNEXPECTED, "the answer is no JSON", where={"key": "http.url"}) from None

    def close(self) -> None:
        self._client.close()

    def _refuse(self, answer: Answer) -> NoReturn:
        where: Mapping[str, str | int] = {"status": answer.status}
        if self._rules.is_retried(answer.status):
            after = retry_after_s(answer.headers.get("retry-after"))
            raise Unavailable("the server takes no requests now", retry_after_s=after, status=answer.status)
        text = "the server refuses the request"
        if 300 <= answer.status < 400:
            text = "the server redirects elsewhere, which is not followed: name the final address in http.url"
        raise CdcError(REFUSED, text, where=where)


def _no_number(_text: str) -> NoReturn:
    raise ValueError("JSON has no such number")
