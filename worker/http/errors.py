"""Errors of requests: their codes, the exception that handlers raise, and its JSON form."""

from __future__ import annotations

import http
from collections.abc import Mapping, Sequence
from typing import Any

from cdcworker.schemas.errors import CODES, CdcError, declare
from starlette.responses import JSONResponse, Response

BAD_JSON = declare("rest.bad_json", "config", "The body is not valid JSON", "Correct the body at the line and column.")
BAD_REQUEST = declare(
    "rest.bad_request", "config", "The request is not valid", "Correct the part that configPath names."
)
INVALID_CONFIG = declare(
    "rest.invalid_config",
    "config",
    "The connector's configuration is not valid",
    "Correct every listed key; PUT /connector-plugins/{class}/config/validate shows them with their definitions.",
)
NOT_FOUND = declare("rest.not_found", "config", "There is no such thing", "List what exists, and mind the spelling.")
EXISTS = declare(
    "rest.exists", "config", "A connector of this name exists", "Choose another name, or change it with PUT …/config."
)
CONFLICT = declare(
    "rest.conflict", "config", "The request does not fit the present state", "Look at the connector's status first."
)
NOT_STOPPED = declare(
    "rest.not_stopped",
    "config",
    "The connector has to be stopped first",
    "PUT .../stop, wait until its tasks are gone, then ask again; PUT .../resume starts it again.",
)
NO_LEADER = declare(
    "rest.no_leader", "transient", "No worker leads at this moment", "Repeat after Retry-After seconds."
)
VERSION_MISMATCH = declare(
    "rest.version_mismatch",
    "config",
    "The connector changed since the version that If-Match names",
    "Read the config again, apply the change to it, and send it with the new ETag.",
)
TIMEOUT = declare(
    "rest.timeout",
    "transient",
    "The cluster did not answer in time",
    "The change may still happen: read before repeating it.",
)
FORWARD_FAILED = declare(
    "rest.forward_failed",
    "environment",
    "The leader's answer could not be obtained",
    "Check that every worker reaches the URL that the others advertise (rest.advertised.host.name).",
)
NOT_AVAILABLE = declare(
    "rest.not_available",
    "environment",
    "This version does not offer the operation",
    "GET / tells the version; docs/limits.md lists what it does not do.",
)
FORBIDDEN = declare("rest.forbidden", "config", "The worker's settings forbid this", "Change the worker's properties.")
NOT_CAUGHT_UP = declare(
    "rest.not_caught_up",
    "transient",
    "This worker has not yet read the write that the request wants to see",
    "Repeat after Retry-After seconds, or ask another worker.",
)
STARTING = declare(
    "rest.starting",
    "transient",
    "This worker is starting and has not read the cluster's state yet",
    "Repeat after Retry-After seconds, or ask another worker.",
)
TOO_LARGE = declare("rest.body_too_large", "config", "The body is larger than allowed", "Send a smaller body.")
TOO_MANY = declare(
    "rest.too_many", "transient", "Too many do this at the same time", "Repeat after Retry-After seconds."
)
PORT_UNAVAILABLE = declare(
    "rest.port_unavailable",
    "environment",
    "The REST listener cannot be opened",
    "Choose another port or address in `listeners`, or end the process that holds it.",
)

CONFLICTING_OPERATION = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
NO_KNOWN_LEADER = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)
STILL_STARTING = "Worker is still starting up."
RETRY_AFTER_S = 1

STATUS_OF_KIND: Mapping[str, int] = {"config": 400, "fenced": 409}
"""Statuses by the kind of an error. An error of any other kind is not the caller's: 500, as in Kafka Connect."""

NOT_OFFERED = frozenset(
    (
        "letters.not_kept",
        "letters.not_offered",
        "offsets.not_offered",
        "sink.letters_elsewhere",
        "spark.letters_elsewhere",
    )
)
"""Codes of what a connector cannot be asked for, by its class or its config: the request is wrong, and nothing is broken."""

STATUS_OF_CODE: Mapping[str, int] = {"worker.stopped": 503, STARTING: 503, **dict.fromkeys(NOT_OFFERED, 400)}
"""Statuses of errors whose kind does not tell. Another worker does not have the first two: one that stops does not know what
became of the request, one that starts does not know what exists."""
HEADERS_OF_STATUS: Mapping[int, Mapping[str, str]] = {
    409: {"Retry-After": str(RETRY_AFTER_S), "X-CDC-Reason": "epoch"},
    503: {"Retry-After": str(RETRY_AFTER_S)},
}


class RestError(Exception):
    """An answer with a status of 400 or above. Without a `code` it has the two members of Kafka Connect only."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(message)
        if code is not None and code not in CODES:
            raise ValueError(f"error code {code} is not declared")
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        self.members = members

    def body(self) -> dict[str, Any]:
        out: dict[str, Any] = {"error_code": self.status, "message": self.message}
        if self.code is not None:
            out["code"] = self.code
            out["suggestion"] = CODES[self.code].hint
        out.update({name: value for name, value in self.members.items() if value is not None})
        return out

    def response(self) -> Response:
        return JSONResponse(self.body(), self.status, headers=self.headers)


def bad_request(message: str, path: str | None = None, **members: Any) -> RestError:
    return RestError(400, message, BAD_REQUEST, configPath=path, **members)


def not_found(message: str) -> RestError:
    return RestError(404, message, NOT_FOUND)


def not_available(what: str) -> RestError:
    """Returns the error for an operation that this worker does not offer; `what` is the subject of the sentence."""
    return RestError(501, f"{what} is not available yet", NOT_AVAILABLE)


def plain(status: int, headers: Mapping[str, str] | None = None) -> RestError:
    """Returns a refusal of the web framework (404, 405, 406, 415) in Kafka Connect's words."""
    return RestError(status, f"HTTP {status} {http.HTTPStatus(status).phrase}", headers=headers)


def starting() -> RestError:
    return RestError(503, STILL_STARTING, STARTING, headers=HEADERS_OF_STATUS[503])


def no_leader(message: str = NO_KNOWN_LEADER) -> RestError:
    headers = {"Retry-After": str(RETRY_AFTER_S), "X-CDC-Reason": "rebalance"}
    return RestError(409, message, NO_LEADER, headers=headers)


def from_cdc(error: CdcError) -> RestError:
    """Returns a CdcError as an answer."""
    status = STATUS_OF_CODE.get(error.code) or STATUS_OF_KIND.get(error.kind, 500)
    key = error.where.get("key")
    return RestError(
        status,
        error.message,
        error.code,
        suggestion=error.hint or None,
        headers=HEADERS_OF_STATUS.get(status),
        configPath=pointer("config", str(key)) if key is not None else None,
        where=error.where or None,
        fix=error.fix,
    )


def pointer(*parts: str) -> str:
    """Returns a JSON pointer."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def parameter(name: str) -> str:
    """Returns the place of a mistake in a query parameter."""
    return f"?{name}"


def listed(lines: Sequence[str], advice: str = "") -> str:
    """Returns Kafka Connect's text for an invalid configuration, with a sentence of advice behind its lines."""
    return "\n".join(
        (
            f"Connector configuration is invalid and contains the following {len(lines)} error(s):",
            *lines,
            *([advice] if advice else ()),
            "You can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`",
        )
    )
