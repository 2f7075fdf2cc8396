"""The keys of the sink into a web service. Names are those of the HTTP sinks of Aiven and Confluent where these have one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, non_empty, one_of
from cdcworker.connectors.network.http_keys import (
    RESERVED,
    additional_headers,
    address_problem,
    headers_problem,
    login_checks,
    login_keys,
    parse_headers,
    timeout_keys,
)
from cdcworker.connectors.network.http_statuses import RETRIED, ranges_problem
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets import templates

AIVEN: Final = ("io.aiven.kafka.connect.http.HttpSinkConnector",)
CONFLUENT: Final = ("io.confluent.connect.http.HttpSinkConnector", "HttpSinkConnector")
_HEADER_FORM: Final = matches(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", "the name of a header")


def _header_name(value: str) -> str | None:
    if value.lower() in RESERVED:
        return "names a header that has a key of its own, or that belongs to the connection"
    return _HEADER_FORM(value)


def _url(value: str) -> str | None:
    host, _, _ = value.partition("${")
    if wrong := templates.problem(value, whole=False):
        return wrong
    if templates.has_places(value) and (host.count("/") < 3 or "#" in value):
        return "may have places in its path and its parameters only"
    filled = re.sub(r"\$\{[^}]*\}", "x", value)
    return address_problem(filled)


def header_items(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the further headers of a parsed config."""
    own, confluent = config["http.headers.additional"], config["headers"]
    return [*parse_headers(own), *parse_headers(confluent, config["header.separator"])]


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
    yield additional_headers()
    yield ConfigKey(
        "headers", "PASSWORD", group=group, importance="LOW", connects=False,
        doc="The same as Confluent's sink names it, separated by header.separator.",
    )  # fmt: skip
    yield ConfigKey(
        "header.separator", default="|", group=group, importance="LOW", validator=non_empty, connects=False,
        of_server=True, doc="What separates the items of headers.",
    )  # fmt: skip
    yield from timeout_keys("; the whole batch has target.timeout.ms")
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
    yield from login_keys()
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
    yield from login_checks(config)
    if config["headers"] and (problem := headers_problem(config["headers"], config["header.separator"])):
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
