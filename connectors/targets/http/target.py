"""Posts batches of records: one request for the records of one address, each with its id."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config.allowed_hosts import UnknownHost
from cdcworker.connectors.network import webhook_signature
from cdcworker.connectors.network.http_client import Codes, HttpClient, endpoint_of
from cdcworker.connectors.network.http_keys import login_headers
from cdcworker.connectors.network.http_statuses import StatusRules, parse_ranges, retry_after_s
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.connectors.targets.events import event_text
from cdcworker.connectors.targets.http.config import AIVEN, CONFLUENT, header_items
from cdcworker.connectors.targets.templates import BodyTemplate, UrlTemplate, has_places
from cdcworker.schemas.errors import CdcError


class Frame(NamedTuple):
    """What stands around the records of a request."""

    prefix: str
    separator: str
    suffix: str


class _Request(NamedTuple):
    path: str
    id: str
    body: bytes


class HttpTarget:
    """A web service. It has taken a request once it has answered with a status from 200 to 299."""

    def __init__(self, place: TargetPlace) -> None:
        config = place.config
        self._config = config
        request_s = config["http.timeout"] or config["http.request.timeout.ms"] / 1000
        self._place = endpoint_of(config, TARGET_REFUSES, request_s, place.state_dir)
        self._client = HttpClient(self._place, Codes(TARGET_UNAVAILABLE, TARGET_REFUSES))
        self._values = JsonValues(numeric=config["body.decimal.format"] == "NUMERIC")
        url = urlsplit(config["http.url"])
        self._url = UrlTemplate((url.path or "/") + (f"?{url.query}" if url.query else ""))
        self._rules = StatusRules(parse_ranges(config["retry.on.status.codes"]), not has_places(config["http.url"]))
        self._body = self._body_writer(place.connector_class)
        self._frame = frame_of(config, place.connector_class)
        self._nulls = config["behavior.on.null.values"] or (
            "ignore" if format_of(config, place.connector_class) == "value" else "send"
        )
        self._headers = headers_of(config)
        self._secret = signing_key(config)

    def write(self, batch: RecordBatch) -> None:
        # All of them are made before one is sent: a record that cannot be is no reason to send the others twice.
        for request in [self._made(path, records) for path, records in self._by_address(batch)]:
            self._send(request)

    def cancel(self) -> None:
        self._client.cancel()

    def close(self) -> None:
        self._client.close()

    def check(self) -> Sequence[CheckFinding]:
        """Opens a connection, and sends no request."""
        try:
            self._client.connect()
        except CdcError as error:
            return [CheckFinding("http.url", "error", error.code, error.message, error.hint)]
        except UnknownHost:
            text = "the host of http.url leads to no address"
            return [CheckFinding("http.url", "warning", TARGET_UNAVAILABLE, text)]
        except OSError as exc:
            text = f"no connection to the host of http.url ({type(exc).__name__})"
            return [CheckFinding("http.url", "warning", TARGET_UNAVAILABLE, text)]
        finally:
            self._client.close()
        return []

    # Requests

    def _by_address(self, batch: RecordBatch) -> Iterator[tuple[str, Sequence[TargetRecord]]]:
        """Yields records in their order: those behind each other that have one address go together."""
        path, together = "", list[TargetRecord]()
        for record in batch.records:
            if record.value is None and self._nulls != "send":
                if self._nulls == "fail":
                    raise CdcError(RECORD_REFUSED, "the record has no value (behavior.on.null.values=fail)")
                continue
            own = self._url.fill(record)
            if together and own != path:
                yield path, together
                together = []
            path = own
            together.append(record)
        if together:
            yield path, together

    def _made(self, path: str, records: Sequence[TargetRecord]) -> _Request:
        prefix, separator, suffix = self._frame
        return _Request(path, request_id(records), encoded(prefix + separator.join(map(self._body, records)) + suffix))

    def _send(self, request: _Request) -> None:
        headers = {**self._headers, self._config["http.idempotency.header"]: request.id}
        if self._secret is not None:
            headers |= self._signed(request.id, request.body, self._secret)
        answer = self._client.request(self._config["http.method"], request.path, request.body, headers)
        status, rules = answer.status, self._rules
        if rules.is_taken(status):
            return
        where = {"status": status}
        if rules.is_retried(status):
            raise TargetUnavailable(
                TARGET_UNAVAILABLE,
                "the server does not take requests now",
                where=where,
                retry_after_s=retry_after_s(answer.headers.get("retry-after")),
            )
        if rules.refuses_all(status):
            text = "the server refuses requests of this sink"
            if 300 <= status < 400:
                text = "the server redirects elsewhere, which is not followed: name the final address in http.url"
            raise CdcError(TARGET_REFUSES, text, where=where)
        raise CdcError(RECORD_REFUSED, "the server refuses the record", where=where)

    def _signed(self, id: str, body: bytes, secret: bytes) -> Mapping[str, str]:
        at = str(int(time.time()))
        name = self._config.__getitem__
        return {
            name("http.signature.header.id"): id,
            name("http.signature.header.timestamp"): at,
            name("http.signature.header.signature"): webhook_signature.signature(secret, id, at, body),
        }

    # Bodies

    def _body_writer(self, connector_class: str) -> Callable[[TargetRecord], str]:
        template = self._config["http.body.template"]
        if template:
            return BodyTemplate(template, self._values, self._event).fill
        if format_of(self._config, connector_class) == "value":
            return lambda record: self._values.text(record.value_schema, record.value)
        return self._event

    def _event(self, record: TargetRecord) -> str:
        return event_text(self._values, record, headers=self._config["http.body.headers"])


def format_of(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns what a body holds of each record."""
    other = connector_class in (*AIVEN, *CONFLUENT)
    return str(config["http.body.format"] or ("value" if other else "event"))


def batch_size(config: Mapping[str, Any], connector_class: str, default: int) -> int:
    """Returns the most records of a request where the config does not say: one, where receivers expect that."""
    if config["batching.enabled"] is not None:
        return default if config["batching.enabled"] else 1
    return 1 if format_of(config, connector_class) == "value" else default


def frame_of(config: Mapping[str, Any], connector_class: str) -> Frame:
    """Returns what stands around the records of a request: a JSON array unless the config says otherwise."""
    size = config["batch.max.size"] or batch_size(config, connector_class, 2)
    is_single = size == 1 or config["batching.enabled"] is False
    default = Frame("", "", "") if is_single else Frame("[", ",", "]")
    if connector_class in AIVEN and not is_single:
        default = Frame("", "\n", "")
    given = (config[f"batch.{name}"] for name in Frame._fields)
    return Frame(*(own if text is None else text for own, text in zip(default, given, strict=True)))


def request_id(records: Sequence[TargetRecord]) -> str:
    """Returns the id of one record, or one that stands for several: the same when the same records come together again."""
    if len(records) == 1:
        return records[0].id
    digest = hashlib.sha256("\n".join(record.id for record in records).encode()).hexdigest()
    return f"batch-{digest[:40]}"


def headers_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the headers that every request has."""
    headers = {"Content-Type": config["http.headers.content.type"], "User-Agent": "cdcworker"}
    return login_headers(config, {**headers, **dict(header_items(config))}, TARGET_REFUSES)


def signing_key(config: Mapping[str, Any]) -> bytes | None:
    """Returns the key that requests are signed with; None: they are not."""
    secret = config["http.signature.secret"]
    if not secret:
        return None
    try:
        return webhook_signature.signing_key(secret.reveal())
    except ValueError as exc:
        raise CdcError(TARGET_REFUSES, f"http.signature.secret {exc}") from None
