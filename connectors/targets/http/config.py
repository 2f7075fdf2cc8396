"""The keys of the sink into a web service. Names are those of the HTTP sinks of Aiven and Confluent where these have one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, non_empty, one_of
from cdcworker.connectors.config.place_forms import http_problem
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets import templates
from cdcworker.connectors.targets.http.statuses import ranges_problem
from cdcworker.connectors.targets.tls import tls_checks, tls_keys

AIVEN: Final = ("io.aiven.kafka.connect.http.HttpSinkConnector",)
CONFLUENT: Final = ("io.confluent.connect.http.HttpSinkConnector", "HttpSinkConnector")
RETRIED: Final = "408,425,429,500-"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "authorization", "content-type"}
)
_HEADER_FORM: Final = matches(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", "the name of a header")


def _header_name(value: str) -> str | None:
    if value.lower() in _RESERVED:
        return "names a header that has a key of its own, or that belongs to the connection"
    return _HEADER_FORM(value)


def _url(value: str) -> str | None:
    host, _, _ = value.partition("${")
    if wrong := templates.problem(value, whole=False):
        return wrong
    if templates.has_places(value) and (host.count("/") < 3 or "#" in value):
        return "may have places in its path and its parameters only"
    filled = re.sub(r"\$\{[^}]*\}", "x", value)
    return http_problem(filled) or _port_problem(filled)


def _port_problem(url: str) -> str | None:
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    return "expects a port from 1 to 65535" if port == 0 else None


def header_items(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the further headers of a parsed config."""
    own, confluent = config["http.headers.additional"], config["headers"]
    texts = own.reveal().split(",") if own else []
    texts += confluent.reveal().split(config["header.separator"]) if confluent else []
    found = (text.partition(":") for text in texts if text.strip())
    return [(name.strip(), value.strip()) for name, _, value in found]


def _headers(value: Any, separator: str = ",") -> str | None:
    for item in filter(None, (part.strip() for part in value.reveal().split(separator))):
        name, colon, text = item.partition(":")
        if not colon or not _TOKEN.fullmatch(name.strip()) or not text.strip().isprintable():
            return f"expects NAME:VALUE, separated by {separator}"
        if name.strip().lower() in _RESERVED:
            return "names a header that has a key of its own, or that belongs to the connection"
    return None


def _printable(value: Any) -> str | None:
    return None if value.reveal().isprintable() else "expects one line without control characters"


def _request_keys() -> Iterable[ConfigKey]:
    group = "Requests"
    yield ConfigKey(
        "http.url", required=True, importance="HIGH", group=group, validator=_url, former="http.api.url", connects=True,
        doc="Where records are posted to. Its path and parameters may hold places such as ${topic}, ${key.id} and"
        " ${value.after.tenant}; then a request has records of one address only.",
    )  # fmt: skip
    yield ConfigKey(
        "http.method", default="POST", group=group, validator=one_of("POST", "PUT", "PATCH"), former="request.method",
        recommended=("POST", "PUT", "PATCH"), connects=False, doc="The method of requests.",
    )  # fmt: skip
    yield ConfigKey(
        "http.headers.content.type", default="application/json", group=group, connects=False,
        validator=matches(r"[ -~]{1,200}", "one line of ASCII"), doc="The Content-Type of requests.",
    )  # fmt: skip
    yield ConfigKey(
        "http.headers.additional", "PASSWORD", group=group, validator=_headers, connects=False,
        doc="Further headers, as NAME:VALUE separated by commas. They may be secrets, so they are shown nowhere.",
    )  # fmt: skip
    yield ConfigKey(
        "headers", "PASSWORD", group=group, importance="LOW", connects=False,
        doc="The same as Confluent's sink names it, separated by header.separator.",
    )  # fmt: skip
    yield ConfigKey(
        "header.separator", default="|", group=group, importance="LOW", validator=non_empty, connects=False,
        of_server=True, doc="What separates the items of headers.",
    )  # fmt: skip
    yield ConfigKey(
        "http.connect.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for a connection.",
    )  # fmt: skip
    yield ConfigKey(
        "http.request.timeout.ms", "INT", 30_000, group=group, validator=between(1, 3_600_000), connects=False,
        doc="Longest wait for each piece of an answer; the whole batch has target.timeout.ms.",
    )  # fmt: skip
    yield ConfigKey(
        "http.timeout", "INT", group=group, validator=between(1, 3_600), importance="LOW", connects=False,
        doc="The same in seconds, as Aiven's sink names it.",
    )  # fmt: skip
    yield ConfigKey(
        "retry.on.status.codes", default=RETRIED, group="Retries", validator=ranges_problem,
        doc="Statuses after which a batch is written again: numbers and ranges (`500-599`, `500-`). Other statuses from 400"
        " on refuse a record. 401, 403 and 407, and without places in http.url also 404 and 405, halt the task.",
    )  # fmt: skip


def _login_keys() -> Iterable[ConfigKey]:
    group = "Login"
    kinds = ("none", "basic", "bearer", "static")
    yield ConfigKey(
        "http.authorization.type", default="none", group=group, recommended=kinds, former="auth.type", connects=False,
        of_server=True, validator=one_of(*kinds), doc="What the header Authorization holds: nothing, a user with a password, a token, or a fixed text.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.user", group=group, former="connection.user", connects=False, of_server=True,
        doc="The user of basic.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.password", "PASSWORD", group=group, former="connection.password", connects=False,
        doc="The password of basic; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "http.authorization.token", "PASSWORD", group=group, validator=_printable, connects=False,
        doc="The token of bearer; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "http.headers.authorization", "PASSWORD", group=group, validator=_printable, connects=False,
        doc="The whole header of static.",
    )  # fmt: skip
    yield ConfigKey(
        "http.signature.secret", "PASSWORD", group=group, importance="HIGH", connects=False,
        doc="Signs each request as Standard Webhooks do: HMAC-SHA256 over id, timestamp and body. A secret that begins with"
        " whsec_ is base64 behind it; any other is taken as it is.",
    )  # fmt: skip
    for name, what in (("id", "its id"), ("timestamp", "its time, in seconds"), ("signature", "the signature")):
        yield ConfigKey(
            f"http.signature.header.{name}", default=f"webhook-{name}", group=group, validator=_header_name,
            importance="LOW", connects=False, doc=f"The header of a signed request that holds {what}.",
        )  # fmt: skip
    yield ConfigKey(
        "http.idempotency.header", default="Idempotency-Key", group=group, validator=_header_name, connects=False,
        doc="The header with a request's id: of one record its id, of several a hash of theirs.",
    )  # fmt: skip


def _body_keys() -> Iterable[ConfigKey]:
    group = "Bodies"
    yield ConfigKey(
        "http.body.format", group=group, validator=one_of("event", "value"), recommended=("event", "value"), importance="HIGH",
        doc="event: an object with id, topic, partition, offset, timestamp, key and value. value: the record's value alone. The value is"
        " Debezium's envelope, or with ExtractNewRecordState the row. Default: event; value for configs of Aiven's and Confluent's sinks.",
    )  # fmt: skip
    yield ConfigKey(
        "http.body.headers", "BOOLEAN", False, group=group, doc="Whether an event has the record's headers, as `headers`.",
    )  # fmt: skip
    yield ConfigKey(
        "http.body.template", group=group, validator=lambda value: templates.problem(value, whole=True),
        doc="The body of one record instead, with places such as ${id}, ${key.id}, ${value}, ${value.after} and ${event},"
        " each filled with JSON.",
    )  # fmt: skip
    yield ConfigKey(
        "behavior.on.null.values", group=group, validator=one_of("send", "ignore", "fail"),
        recommended=("send", "ignore", "fail"),
        doc="What becomes of a tombstone: sent as null, left out, or refused. Default: send; ignore with http.body.format=value.",
    )  # fmt: skip
    yield ConfigKey(
        "body.decimal.format", default="NUMERIC", group=group, validator=one_of("BASE64", "NUMERIC"),
        recommended=("BASE64", "NUMERIC"), doc="Decimals as numbers, or as base64 of their bytes.",
    )  # fmt: skip
    yield ConfigKey(
        "batching.enabled", "BOOLEAN", group=group, importance="LOW",
        doc="Of Aiven's sink: false means requests of one record, true of up to batch.max.size.",
    )  # fmt: skip
    for name, what in (("prefix", "before"), ("separator", "between"), ("suffix", "behind")):
        yield ConfigKey(
            f"batch.{name}", group=group,
            doc=f"What stands {what} the records of a request. Default: a JSON array, and of one record without batches nothing.",
        )  # fmt: skip


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    kind = config["http.authorization.type"]
    needs = {
        "basic": ("http.authorization.user", "http.authorization.password"),
        "bearer": ("http.authorization.token",),
        "static": ("http.headers.authorization",),
    }
    for name in needs.get(kind, ()):
        if not config[name]:
            yield name, f"is needed with http.authorization.type={kind}"
    if config["headers"] and (problem := _headers(config["headers"], config["header.separator"])):
        yield "headers", problem
    is_plain = urlsplit(config["http.url"]).scheme == "http"
    yield from tls_checks(config, "http.ssl.", "an http.url that begins with http://" if is_plain else "")
    if config["http.body.template"] and config["http.body.format"]:
        yield "http.body.template", "takes the place of http.body.format: set one of them"


_ALWAYS: Final = "Not needed: the worker's own Kafka is used."
CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_request_keys(), *_login_keys(), *tls_keys("http.ssl."), *_body_keys()],
    {
        "batch.buffering.enabled": "",
        "batch.json.as.array": "Records of a request are a JSON array, unless batch.prefix or batch.suffix says otherwise.",
        "request.body.format": "Bodies are JSON.",
        "confluent.topic.*": _ALWAYS,
        "confluent.license": _ALWAYS,
        "reporter.*": "Not written: dead letters go to errors.deadletterqueue.topic.name.",
        "report.errors.as": "Dead letters hold the record that was refused.",
        "http.ssl.trust.all.certs": "Certificates are always verified.",
        "batch.max.time.ms": "",
    },
    _checks,
)
