"""The keys of the sink into RabbitMQ. Names are those of Confluent's sink where that has one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.allowed_hosts import host_list
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of
from cdcworker.connectors.network.tls import tls_checks, tls_keys
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets import templates
from cdcworker.connectors.targets.rabbitmq.addresses import PLACE_KEY, addresses_problem, is_secure
from cdcworker.connectors.targets.rabbitmq.topology import CHECK, CREATE, DECLARES, QUEUE_TYPES, RESERVED

OTHERS: Final = (
    "io.confluent.connect.rabbitmq.sink.RabbitMQSinkConnector",
    "RabbitMQSinkConnector",
    "RabbitMQSink",
    "com.github.themeetgroup.kafka.connect.rabbitmq.sink.RabbitMQSinkConnector",
)
"""Names of sinks whose messages are the values alone."""
PERSISTENT, TRANSIENT = "PERSISTENT", "TRANSIENT"
UNROUTABLE: Final = ("refuse", "retry", "ignore")
PENDING_DEFAULT: Final = 512
_NAME_FORM: Final = matches(r"[^\x00-\x1f\x7f]{0,127}", "a name of up to 127 characters")
_TYPE_FORM: Final = matches(
    r"direct|fanout|headers|topic|x-[a-z-]{1,60}", "direct, fanout, headers, topic or a plugin's type (x-…)"
)
_ARGUMENT: Final = matches(r"[a-z][a-z0-9-]{0,60} ?= ?[^\x00-\x1f\x7f]{1,200}", "NAME=VALUE, separated by commas")
_HEADER: Final = matches(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}:[^\x00-\x1f\x7f]{0,1000}", "NAME:VALUE, separated by commas"
)
_HEADER_NAME: Final = matches(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", "the name of a header")
_LINE: Final = matches(r"[ -~]{0,200}", "one line of ASCII")


def format_of(config: Mapping[str, Any], connector_class: str) -> str:
    """Returns what a message's body is."""
    return str(config["rabbitmq.format"] or ("value" if connector_class in OTHERS else "event"))


def header_items(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the further headers of a parsed config, each with the template of its value."""
    return [(name, text) for name, _, text in (item.partition(":") for item in config["rabbitmq.headers"])]


def queue_map(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the queue of each topic that has one of its own."""
    text = config["rabbitmq.topic.queue.map"]
    return json.loads(text) if text else {}


def _host(value: str) -> str | None:
    return host_list(value.strip("[]")) if value else None


def _template(value: str) -> str | None:
    return templates.problem(value, whole=False) or _NAME_FORM(templates.filled_with(value, "x"))


def _each(check: Any) -> Any:
    return lambda value: next(filter(None, map(check, value)), None)


def _header_problem(item: str) -> str | None:
    return _HEADER(item) or templates.problem(item.partition(":")[2], whole=False)


def _map_problem(text: str) -> str | None:
    expected = 'expects a JSON object of topics and queues, such as {"orders":"orders-queue"}'
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return expected
    is_map = isinstance(found, dict) and all(isinstance(each, str) and each for each in found.values())
    return (next(filter(None, map(_NAME_FORM, found.values())), None)) if is_map else expected


def _server_keys() -> Iterable[ConfigKey]:
    group = "Server"
    yield ConfigKey(
        PLACE_KEY, "LIST", [], importance="HIGH", group=group, validator=addresses_problem, connects=True,
        doc="Servers of RabbitMQ, as HOST:PORT, amqp://HOST:PORT or with TLS amqps://HOST:PORT. They are tried in turn.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.host", default="", group=group, validator=_host, connects=True, doc="The same for one server, with rabbitmq.port.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.port", "INT", 0, group=group, validator=between(0, 65_535), connects=True,
        doc="The port of rabbitmq.host. 0: 5672, with TLS 5671.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.virtual.host", default="/", group=group, validator=_NAME_FORM, connects=False, of_server=True, doc="The virtual host.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.username", default="guest", group=group, importance="HIGH", connects=False, of_server=True, doc="The user.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.password", "PASSWORD", group=group, importance="HIGH", connects=False,
        doc="The password; best a reference such as ${file:/path}.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.auth.mechanism", default="PLAIN", group=group, validator=one_of("PLAIN", "EXTERNAL"), connects=False, of_server=True,
        recommended=("PLAIN", "EXTERNAL"), doc="PLAIN: user and password. EXTERNAL: the certificate of this client says who it is.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.connection.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for a connection.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.handshake.timeout.ms", "INT", 10_000, group=group, validator=between(1, 600_000), connects=False,
        doc="Longest wait for each step of the login.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.requested.heartbeat.seconds", "INT", 60, group=group, validator=between(0, 3_600), importance="LOW", connects=False,
        doc="How often client and server show each other that they are there; a server that is silent for twice as long is given up. The"
        " smaller of this and the server's own counts. 0: never.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.ssl.enabled", "BOOLEAN", False, group="TLS", connects=True,
        doc="Whether connections have TLS; the server's certificate is always verified.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.security.protocol", default="PLAINTEXT", group="TLS", validator=one_of("PLAINTEXT", "SSL"), connects=True,
        recommended=("PLAINTEXT", "SSL"), importance="LOW", doc="SSL is the same as rabbitmq.ssl.enabled=true.",
    )  # fmt: skip


def _route_keys() -> Iterable[ConfigKey]:
    group = "Routing"
    yield ConfigKey(
        "rabbitmq.exchange", default="", importance="HIGH", group=group, validator=_template,
        doc="The exchange, with places such as ${topic} if it depends on the record. Empty: the default exchange, where the routing"
        " key is the name of a queue.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.routing.key", default="${topic}", importance="HIGH", group=group, validator=_template,
        doc="The routing key, with places such as ${topic}, ${key} and ${value.after.tenant}.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.topic.queue.map", default="", group=group, validator=_map_problem, importance="LOW",
        doc="Topics whose records go straight to a queue, as a JSON object of topics and queues.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.unroutable", default="refuse", group=group, validator=one_of(*UNROUTABLE), recommended=UNROUTABLE,
        doc="What becomes of a message that no queue takes. refuse: the record is refused, and with errors.tolerance=all a dead letter."
        " retry: it is published again until a queue takes it. ignore: the server drops it.",
    )  # fmt: skip


def _topology_keys() -> Iterable[ConfigKey]:
    group = "Exchange and queues"
    yield ConfigKey(
        "rabbitmq.declare", default=CHECK, group=group, validator=one_of(*DECLARES), recommended=DECLARES,
        doc="check: the exchange and the queues have to be there. create: those that are not there are made. none: nobody looks.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.exchange.type", default="topic", group=group, validator=_TYPE_FORM,
        doc="The type of an exchange that is made. It is durable.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.queues", "LIST", [], group=group, validator=_each(lambda text: _NAME_FORM(text) if text.partition("=")[0] else "expects a name"),
        doc="Queues that have to be there, as QUEUE=KEY with the key by which it is bound to the exchange, or QUEUE alone. A queue may"
        " stand there with several keys.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.queue.type", default="quorum", group=group, validator=one_of(*QUEUE_TYPES), recommended=QUEUE_TYPES,
        doc="The type of queues that are made. They are durable.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.queue.arguments", "LIST", [], group=group, validator=_each(_ARGUMENT),
        doc="Further arguments of queues that are made, as NAME=VALUE, such as x-single-active-consumer=true.",
    )  # fmt: skip


def _message_keys() -> Iterable[ConfigKey]:
    group = "Messages"
    yield ConfigKey(
        "rabbitmq.format", group=group, validator=one_of("event", "value"), recommended=("event", "value"),
        doc="event: an object with id, topic, partition, offset, timestamp, key and value. value: the record's value alone, as JSON;"
        " a value that is text or bytes stays as it is. Default: event; value for configs of Confluent's sink.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.content.type", default="", group=group, validator=_LINE,
        doc="The content type. Default: application/json, for text text/plain and for bytes application/octet-stream.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.delivery.mode", default=PERSISTENT, importance="HIGH", group=group, validator=one_of(PERSISTENT, TRANSIENT),
        recommended=(PERSISTENT, TRANSIENT), doc="PERSISTENT: messages in durable queues outlive a restart of the server.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.headers", "LIST", [], group=group, validator=_each(_header_problem),
        doc="Further headers, as NAME:VALUE; values may have places such as ${topic} and ${value.op}.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.id.header", default="cdc-id", group=group, validator=_HEADER_NAME,
        doc="The header that has the record's id, as the property message_id has it. x-deduplication-header for the server's plugin of that"
        " purpose.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.forward.kafka.key", "BOOLEAN", False, group=group, doc="Whether the property correlation_id has the record's key.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.forward.kafka.metadata", "BOOLEAN", False, group=group,
        doc="Whether the headers KAFKA_TOPIC, KAFKA_PARTITION and KAFKA_OFFSET say where the record is.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.forward.kafka.headers", "BOOLEAN", False, group=group, doc="Whether messages have the headers of the record.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.priority", "INT", group=group, validator=between(0, 255), importance="LOW", doc="The priority of messages.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.expiration.ms", "LONG", -1, group=group, validator=between(-1, 4_294_967_295), importance="LOW",
        doc="After how long a queue drops a message. -1: never.",
    )  # fmt: skip


def _publish_keys() -> Iterable[ConfigKey]:
    group = "Publishing"
    yield ConfigKey(
        "rabbitmq.publish.pending.max", "INT", PENDING_DEFAULT, group=group, validator=between(1, 100_000),
        former="rabbitmq.publish.max.batch.size",
        doc="Most messages without a confirm. Of one lane; each partition is in one lane at a time.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.publish.order", default="key", group=group, validator=one_of("key", "none"), recommended=("key", "none"),
        doc="key: a message waits until the one before it of the same key is confirmed, so one that the server takes at a second try is"
        " not behind a newer one. none: it does not wait.",
    )  # fmt: skip
    yield ConfigKey(
        "rabbitmq.publish.ack.timeout", "INT", 30_000, group=group, validator=between(1, 3_600_000),
        doc="Longest wait, in ms, for the next confirm; the whole batch has target.timeout.ms.",
    )  # fmt: skip


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if bool(config[PLACE_KEY]) == bool(config["rabbitmq.host"]):
        yield PLACE_KEY, "set one of rabbitmq.addresses and rabbitmq.host"
        return
    is_external = config["rabbitmq.auth.mechanism"] == "EXTERNAL"
    if is_external and not config["rabbitmq.ssl.keystore.certificate.chain"]:
        yield "rabbitmq.ssl.keystore.certificate.chain", "is needed with rabbitmq.auth.mechanism=EXTERNAL"
    if not (is_external or config["rabbitmq.password"] or config["rabbitmq.username"] == "guest"):
        yield "rabbitmq.password", "is needed with rabbitmq.username"
    yield from _topology_checks(config)
    yield from tls_checks(config, "rabbitmq.ssl.", "" if is_secure(config) else "rabbitmq.ssl.enabled=false")


def _topology_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    exchange = config["rabbitmq.exchange"]
    is_one = bool(exchange) and not templates.has_places(exchange)
    if exchange and not is_one and config["rabbitmq.declare"] == CREATE:
        yield "rabbitmq.declare", "create needs an exchange whose name has no places"
    if not is_one and any("=" in text for text in config["rabbitmq.queues"]):
        yield "rabbitmq.queues", "can be bound by a key only to an exchange whose name has no places"
    if exchange.startswith(RESERVED) and config["rabbitmq.declare"] == CREATE and not config["rabbitmq.queues"]:
        yield "rabbitmq.declare", "create has nothing to make: exchanges named amq.… are the server's own"


_CONNECTS_AGAIN: Final = "Connections are always made again, and what has to be there is looked at again."
CONFIG_DEF: Final[ConfigDef] = config_def(
    [
        *_server_keys(),
        *tls_keys("rabbitmq.ssl."),
        *_route_keys(),
        *_topology_keys(),
        *_message_keys(),
        *_publish_keys(),
    ],
    {
        "rabbitmq.publish.max.retries": "retry.backoff.ms and max.retries say how often a batch is tried.",
        "rabbitmq.automatic.recovery.enabled": _CONNECTS_AGAIN,
        "rabbitmq.topology.recovery.enabled": _CONNECTS_AGAIN,
        "rabbitmq.network.recovery.interval.ms": "retry.backoff.ms and errors.retry.delay.max.ms say how long it waits.",
        "rabbitmq.requested.channel.max": "Each lane has one channel.",
        "rabbitmq.requested.frame.max": "The server says how large frames are.",
        "rabbitmq.shutdown.timeout.ms": "",
        "rabbitmq.queue": "Messages go to the exchange; rabbitmq.queues names queues that are bound to it.",
    },
    _checks,
)
