"""The keys of the sink into OpenSearch. Names are those of Confluent's Elasticsearch sink and of Aiven's OpenSearch sink where these
have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of
from cdcworker.connectors.network.http_keys import address_problem, printable, timeout_keys
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import EngineSettings, config_def
from cdcworker.connectors.targets import templates
from cdcworker.connectors.targets.opensearch import names
from cdcworker.connectors.targets.opensearch.documents import JSON_KINDS

CONFLUENT: Final = (
    "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
    "ElasticsearchSinkConnector",
    "ElasticsearchSink",
)
AIVEN: Final = (
    "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector",
    "io.aiven.connect.elasticsearch.ElasticsearchSinkConnector",
    "OpenSearchSinkConnector",
    "OpenSearchSink",
)
_FORMER_TIMEOUTS: Final = {
    "http.connect.timeout.ms": "connection.timeout.ms",
    "http.request.timeout.ms": "read.timeout.ms",
}
_ENGINE_NAMES: Final = {
    "batch.size": "batch.max.size",
    "bulk.size.bytes": "batch.max.bytes",
    "linger.ms": "batch.linger.ms",
    "max.in.flight.requests": "max.in.flight.batches",
    "flush.timeout.ms": "target.timeout.ms",
}
_RESOURCES: Final = ("DISABLED", "INDEX", "DATASTREAM", "ALIAS_INDEX", "ALIAS_DATASTREAM")


def is_stream(config: Mapping[str, Any]) -> bool:
    """Returns whether records go into data streams, which hold events alone."""
    return bool(config["data.stream.enabled"]) or config["external.resource.usage"].endswith("DATASTREAM")


def holds_events(config: Mapping[str, Any]) -> bool:
    """Returns whether each record is a document of its own."""
    return is_stream(config) or bool(config["key.ignore"])


def content_of(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns what the document of an event has."""
    other = connector_class in (*CONFLUENT, *AIVEN)
    return str(config["event.content"] or ("value" if other else "event"))


def nulls_of(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns what becomes of a row that is gone."""
    default = "fail" if connector_class in CONFLUENT else "ignore" if connector_class in AIVEN else "delete"
    return str(config["behavior.on.null.values"] or default)


def engine_of(config: Mapping[str, Any], settings: EngineSettings) -> EngineSettings:
    """Returns what the engine is told where a config has the names of the other sinks for it."""
    linger, flush = config["linger.ms"], config["flush.timeout.ms"]
    return replace(
        settings,
        batch_bytes=config["bulk.size.bytes"] or settings.batch_bytes,
        linger_s=settings.linger_s if linger is None else linger / 1000,
        lanes=config["max.in.flight.requests"] or settings.lanes,
        target_timeout_s=settings.target_timeout_s if flush is None else flush / 1000,
    )


def _urls(value: list[str]) -> str | None:
    for url in value:
        if problem := address_problem(url):
            return problem
        if urlsplit(url).path.strip("/"):
            return "expects addresses without a path"
    return None


def _mapping(value: list[str]) -> str | None:
    for item in value:
        topic, colon, name = item.rpartition(":")
        if not colon or not topic or names.name_problem(name.strip()):
            return "expects TOPIC:NAME, separated by commas"
    return None


def _server_keys() -> Iterable[ConfigKey]:
    group = "Server"
    yield ConfigKey(
        "connection.url", "LIST", required=True, importance="HIGH", group=group, validator=_urls, connects=True,
        doc="Where the server is, as http://HOST:PORT or https://HOST:PORT. Of a cluster several nodes: where one does not answer the next"
        " one is asked.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.username", default="", group=group, connects=False, of_server=True, doc="The user of a login with a password.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.password", "PASSWORD", group=group, connects=False, doc="The password; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.token", "PASSWORD", group=group, validator=printable, connects=False,
        doc="A bearer token instead; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "connection.api.key", "PASSWORD", group=group, validator=printable, connects=False,
        doc="An API key instead, as Elasticsearch writes it in base64; best a reference such as ${file:/path}.",
    )  # fmt: skip
    for key in timeout_keys("; the whole batch has target.timeout.ms", group):
        yield replace(key, former=_FORMER_TIMEOUTS[key.name])
    yield ConfigKey(
        "connection.compression", "BOOLEAN", False, group=group, connects=False, doc="Whether requests are compressed with gzip.",
    )  # fmt: skip


def _index_keys() -> Iterable[ConfigKey]:
    group = "Indexes"
    yield ConfigKey(
        "index.name.template", default="${topic}", group=group, importance="HIGH", former="data.stream.name.template",
        validator=lambda value: templates.problem(value, whole=False),
        doc="The index of a record, with places such as ${topic} and ${value.after.tenant}; it is written in small letters.",
    )  # fmt: skip
    yield ConfigKey(
        "index.create", "BOOLEAN", True, group=group,
        doc="Whether an index that is not there is created, with a mapping made from the schema. One that is there gets fields that it"
        " does not have, and keeps those that it has.",
    )  # fmt: skip
    yield ConfigKey(
        "schema.ignore", "BOOLEAN", False, group=group,
        doc="Whether the server makes the mapping from the documents instead of the sink from schemas.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.schema.ignore", "LIST", [], group=group, importance="LOW", doc="Topics for which that holds, as Confluent's sink names it.",
    )  # fmt: skip
    yield ConfigKey(
        "index.gc.deletes.ms", "LONG", 3_600_000, group=group, validator=between(0),
        doc="How long an index that the sink creates remembers the version of a deleted document (index.gc_deletes): so long a late write"
        " of an older one is refused.",
    )  # fmt: skip
    yield ConfigKey(
        "mapping.json", default="object", group=group, validator=one_of(*JSON_KINDS), recommended=JSON_KINDS,
        doc="How columns of JSON are kept. object: as JSON, not searchable. dynamic: as JSON whose fields the server maps. text: as text.",
    )  # fmt: skip
    yield ConfigKey(
        "mapping.ignore.malformed", "BOOLEAN", False, group=group,
        doc="Whether fields that the sink maps take values that they cannot hold, such as NaN or a date in the year 20000: they are kept, and"
        " are not searchable. Otherwise such a document is refused.",
    )  # fmt: skip


def _resource_keys() -> Iterable[ConfigKey]:
    group = "Indexes"
    yield ConfigKey(
        "external.resource.usage", default="DISABLED", group=group, importance="LOW", validator=one_of(*_RESOURCES),
        recommended=_RESOURCES,
        doc="Other than DISABLED: indexes, data streams or aliases are there already, and none is created.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.to.external.resource.mapping", "LIST", [], group=group, importance="LOW", validator=_mapping,
        doc="Names of indexes, aliases or data streams by topic, as TOPIC:NAME, before index.name.template.",
    )  # fmt: skip
    yield ConfigKey(
        "data.stream.enabled", "BOOLEAN", False, group=group,
        doc="Whether records are events in data streams, which are made with an index template of their own where they are not there.",
    )  # fmt: skip
    yield ConfigKey(
        "versions.index", default="cdcworker-versions", group=group,
        validator=lambda value: names.name_problem(value) if value else None,
        doc="An index that holds which topics have been of a name: records of one that was created again count as later. Empty: versions"
        " are offsets alone.",
    )  # fmt: skip


def _document_keys() -> Iterable[ConfigKey]:
    group = "Documents"
    yield ConfigKey(
        "key.ignore", "BOOLEAN", False, group=group, importance="HIGH",
        doc="false: a document is the current row of a key. true: each record is a document of its own, whose id is the record's.",
    )  # fmt: skip
    yield ConfigKey(
        "document.id.template", default="${key}", group=group, validator=lambda value: templates.problem(value, whole=False),
        doc="The id of a row's document, with places such as ${topic}, ${key} and ${key.id}. Columns of a key are separated by a colon; an id"
        " of more than 512 bytes is a hash.",
    )  # fmt: skip
    yield ConfigKey(
        "event.content", group=group, validator=one_of("event", "value"), recommended=("event", "value"),
        doc="What the document of a record has with key.ignore or in a data stream. event: id, topic, partition, offset, timestamp, key"
        " and value. value: the fields of the value. Default: event; value for configs of Confluent's and Aiven's sinks.",
    )  # fmt: skip
    yield ConfigKey(
        "write.method", default="INSERT", group=group, former="index.write.method", validator=one_of("INSERT", "UPSERT"),
        recommended=("INSERT", "UPSERT"),
        doc="INSERT: a document has the fields of the row. UPSERT: fields that the row does not have stay as they are stored.",
    )  # fmt: skip
    yield ConfigKey(
        "behavior.on.null.values", group=group, validator=one_of("delete", "ignore", "fail"),
        recommended=("delete", "ignore", "fail"),
        doc="What becomes of a row that is gone, by a deletion or a tombstone. Default: delete; fail for configs of Confluent's sink, ignore"
        " for Aiven's.",
    )  # fmt: skip
    yield ConfigKey(
        "external.version.header", default="", group=group, importance="LOW",
        doc="A header that holds the version of a row, as a number, instead of its place in the topic.",
    )  # fmt: skip
    yield ConfigKey(
        "unavailable.value.placeholder", default="__debezium_unavailable_value", group=group, importance="LOW",
        doc="What the source writes for a large value that did not change. A document keeps what it has in that field.",
    )  # fmt: skip
    yield ConfigKey(
        "refresh", default="false", group="Batches", validator=one_of("false", "wait_for", "true"),
        recommended=("false", "wait_for", "true"),
        doc="When searches see what was written. false: with the index's own interval. wait_for: before a batch counts as written. true: at"
        " once, which costs the server much.",
    )  # fmt: skip


def _policy_keys() -> Iterable[ConfigKey]:
    group = "Error handling"
    kinds = ("fail", "warn", "ignore", "report")
    yield ConfigKey(
        "behavior.on.malformed.documents", default="fail", group=group, validator=one_of(*kinds), recommended=kinds,
        doc="What becomes of a document that the server refuses. fail and report: errors.tolerance decides. warn and ignore: it is dropped,"
        " with warn by a line in the log.",
    )  # fmt: skip
    yield ConfigKey(
        "drop.invalid.message", "BOOLEAN", False, group=group,
        doc="Whether a record that is no document, as one without a key, is dropped with a line in the log. false: errors.tolerance decides.",
    )  # fmt: skip
    for name, of in _ENGINE_NAMES.items():
        least = 0 if name == "linger.ms" else 1
        yield ConfigKey(
            name, "INT", group="Batches", importance="LOW", validator=between(least, 67_108_864),
            doc=f"The same as {of}, as Confluent's sink names it.",
        )  # fmt: skip


_HEADER: Final = matches(r"[^\s:]{1,200}", "the name of a header")


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    logins = [name for name in ("connection.username", "connection.token", "connection.api.key") if config[name]]
    if len(logins) > 1:
        yield logins[1], f"takes the place of {logins[0]}: set one of them"
    if bool(config["connection.username"]) != bool(config["connection.password"]):
        has_user = bool(config["connection.username"])
        absent, given = ("password", "username") if has_user else ("username", "password")
        yield f"connection.{absent}", f"is needed with connection.{given}"
    plain = [url for url in config["connection.url"] if url.startswith("http:")]
    if plain and len(plain) < len(config["connection.url"]):
        yield "connection.url", "expects addresses that begin with http:// or with https://, not both"
    yield from tls_checks(config, "http.ssl.", "a connection.url that begins with http://" if plain else "")
    if config["external.version.header"] and (problem := _HEADER(config["external.version.header"])):
        yield "external.version.header", problem
    yield from _name_checks(config)


def _name_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    found = names.names_of(config)
    for topic, name in found.items():
        if problem := names.name_problem(name):
            yield "index.name.template", f"makes a name of topic {topic} that {problem}"
            return
    unlike = {topic: name for topic, name in found.items() if topic not in names.resources_of(config)}
    topics = names.twice(unlike)
    if topics and "${topic}" in config["index.name.template"]:
        yield "index.name.template", f"makes one index of several topics: {', '.join(topics)}"


CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_server_keys(), *tls_keys("http.ssl."), *_index_keys(), *_resource_keys(), *_document_keys(), *_policy_keys()],
    {
        "type.name": "Indexes have no types any more.",
        "key.ignore.id.strategy": "With key.ignore an id is that of the record: its topic, partition and offset.",
        "compact.map.entries": "Maps are objects.",
        "max.buffered.records": "What waits is bounded by bytes.",
        "flush.synchronously": "Offsets are committed behind what the server has taken.",
        "use.autogenerated.ids": "Ids are those of records, so that what comes again is not added again.",
        "max.connection.idle.time.ms": "",
        "data.stream.timestamp.field": "Events have @timestamp, the time of the record.",
        "elastic.security.protocol": "connection.url says whether there is TLS.",
        "elastic.https.*": "Certificates are PEM text: http.ssl.truststore.certificates and its neighbours.",
        "log.sensitive.data": "Row values are never logged.",
        "confluent.topic.*": "Not needed: the worker's own Kafka is used.",
        "confluent.license": "Not needed: the worker's own Kafka is used.",
        "reporter.*": "Not written: dead letters go to errors.deadletterqueue.topic.name.",
    },
    _checks,
)
