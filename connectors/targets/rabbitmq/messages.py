"""A record as a message: its exchange, its routing key, its body and its properties."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from amqp import Message as Content
from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.connectors.targets.events import event_text
from cdcworker.connectors.targets.rabbitmq.config import PERSISTENT, format_of, header_items, queue_map
from cdcworker.connectors.targets.rabbitmq.confirms import Message
from cdcworker.connectors.targets.templates import TextTemplate, found_at, has_places
from cdcworker.connectors.transforms.data import DataError
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.errors import CdcError

SHORT_BYTES_MAX: Final = 255
"""The longest text of a routing key, a name and most properties, in UTF-8."""
_SPECIAL: Final = str.maketrans({"%": "%25", ".": "%2E"})


class RouteTemplate(TextTemplate):
    """Fills a template with values, each of which is one word; the dots of a topic stay."""

    def __init__(self, text: str) -> None:
        super().__init__(text, word, "_")
        self._is_fixed = not has_places(text)

    def fill(self, record: TargetRecord) -> str:
        return super().fill(record) if self._is_fixed else short(super().fill(record))

    def _at(self, record: TargetRecord, place: str) -> str:
        return record.topic if place == "topic" else super()._at(record, place)


class MessageForm:
    """Makes messages as a config says."""

    def __init__(self, config: Mapping[str, Any], connector_class: str) -> None:
        self._values = JsonValues(numeric=True)
        self._exchange = RouteTemplate(config["rabbitmq.exchange"])
        self._routing_key = RouteTemplate(config["rabbitmq.routing.key"])
        self._queues = queue_map(config)
        self._is_event = format_of(config, connector_class) == "event"
        self._content_type = config["rabbitmq.content.type"]
        self._id_header = config["rabbitmq.id.header"]
        self._keeps_order = config["rabbitmq.publish.order"] == "key"
        self._headers = [(name, TextTemplate(text, str, ",")) for name, text in header_items(config)]
        self._has_key = config["rabbitmq.forward.kafka.key"]
        self._has_place = config["rabbitmq.forward.kafka.metadata"]
        self._has_headers = config["rabbitmq.forward.kafka.headers"]
        self._shared = _shared_properties(config)

    def message(self, record: TargetRecord) -> Message:
        """Returns the message of a record. CdcError of kind `data` for one that has none."""
        body, content_type = self._body(record)
        properties = {
            **self._shared,
            "content_type": self._content_type or content_type,
            "message_id": record.id,
            "timestamp": max(0, record.timestamp_ms) // 1000,
            "application_headers": self._table(record),
        }
        if self._has_key and record.key is not None:
            properties["correlation_id"] = short(self._key_text(record))
        exchange, routing_key = self._route(record)
        order = order_of(record) if self._keeps_order else None
        return Message(record.id, order, exchange, routing_key, Content(body, **properties))

    def _route(self, record: TargetRecord) -> tuple[str, str]:
        if record.topic in self._queues:
            # The default exchange knows each queue by its name.
            return "", self._queues[record.topic]
        return self._exchange.fill(record), self._routing_key.fill(record)

    def _body(self, record: TargetRecord) -> tuple[bytes, str]:
        if self._is_event:
            return encoded(event_text(self._values, record)), "application/json"
        value = record.value
        if isinstance(value, bytes):
            return value, "application/octet-stream"
        if isinstance(value, str):
            return encoded(value), "text/plain"
        return encoded(self._values.text(record.value_schema, value)), "application/json"

    def _table(self, record: TargetRecord) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._has_headers:
            for header in record.headers:
                found[short(header.key)] = self._header(header.schema, header.value)
        if self._has_place:
            found["KAFKA_TOPIC"], found["KAFKA_PARTITION"], found["KAFKA_OFFSET"] = (
                record.topic, record.partition, record.offset,
            )  # fmt: skip
        for name, template in self._headers:
            found[name] = _unicode(template.fill(record))
        found[self._id_header] = record.id
        return found

    def _header(self, schema: Any, value: Any) -> Any:
        """Returns the value of a header: bytes that are text are text."""
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        if value is None or isinstance(value, bool):
            return value
        return _unicode(self._text(schema, value))

    def _key_text(self, record: TargetRecord) -> str:
        key = record.key
        if isinstance(key, Mapping) and len(key) == 1:
            (name,) = key
            found = found_at(record, f"key.{name}")
            return self._text(found.schema, found.value)
        return self._text(record.key_schema, key)

    def _text(self, schema: Any, value: Any) -> str:
        if value is None or isinstance(value, Mapping | list):
            return self._values.text(schema, value)
        try:
            return text_of(value, schema)
        except (DataError, ValueError):
            raise CdcError(RECORD_REFUSED, "a key or a header has no text") from None


def _shared_properties(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties that all messages have in common."""
    found: dict[str, Any] = {"delivery_mode": 2 if config["rabbitmq.delivery.mode"] == PERSISTENT else 1}
    if config["rabbitmq.priority"] is not None:
        found["priority"] = config["rabbitmq.priority"]
    if config["rabbitmq.expiration.ms"] >= 0:
        found["expiration"] = str(config["rabbitmq.expiration.ms"])
    return found


def order_of(record: TargetRecord) -> Hashable:
    """Returns what is the same for records of one key; None for a record without one."""
    key = record.key
    if key is None:
        return None
    found = (record.topic, tuple(key.values()) if isinstance(key, Mapping) else key)
    try:
        hash(found)
    except TypeError:
        return repr(found)
    return found


def word(value: str) -> str:
    """Returns a value as one word of a routing key. Two values that differ are two words that differ."""
    return value.translate(_SPECIAL)


def short(text: str) -> str:
    """Returns a text that fits where AMQP has short ones. CdcError of kind `data` for another."""
    if len(encoded(text)) > SHORT_BYTES_MAX:
        raise CdcError(RECORD_REFUSED, f"a routing key, a name or an id is longer than {SHORT_BYTES_MAX} bytes")
    return text


def _unicode(text: str) -> str:
    encoded(text)
    return text
