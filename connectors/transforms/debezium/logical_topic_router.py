"""ToLogicalTopicRouter (ByLogicalTableRouter): the records of several tables in one topic, with the table's name in their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcworker.connectors.transforms.data import ConnectRecord, ConnectSchema, DataError, Field
from cdcworker.connectors.transforms.debezium.envelope import PerSchema, envelope_of
from cdcworker.connectors.transforms.routing import TOPICS_MAX
from cdcworker.schemas.record_format import RegexRoute


@dataclass(frozen=True, slots=True)
class KeyField:
    """The field that keys get so that rows of different tables have different ones. `route` makes its value of a topic's name,
    which is the value itself where it does not match."""

    name: str
    route: RegexRoute | None = None


class ToLogicalTopicRouter:
    """Another topic for those that an expression matches, with the schemas of keys and envelopes named after it."""

    def __init__(self, route: RegexRoute, key_field: KeyField | None) -> None:
        self._route = route
        self._key_field = key_field
        self._by_topic: dict[str, _TopicRoute] = {}

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        found = self._by_topic.get(record.topic)
        if found is None:
            if len(self._by_topic) >= TOPICS_MAX:
                self._by_topic.clear()
            found = self._by_topic[record.topic] = self._made(record.topic)
        return found.apply(record) if found.topic != record.topic else record

    def _made(self, topic: str) -> _TopicRoute:
        field, identifier = self._key_field, topic
        if field is not None and field.route is not None:
            identifier = field.route.apply(topic) or topic
        # A name without a character is no topic's: such a record stays where it is.
        return _TopicRoute(self._route.apply(topic) or topic, field.name if field is not None else "", identifier)


class _TopicRoute:
    """What becomes of the records of one topic."""

    def __init__(self, topic: str, key_field: str, identifier: str) -> None:
        self.topic = topic
        self._key_field = key_field
        self._identifier = identifier
        self._key_schema = PerSchema(self._renamed_key)
        self._envelope = PerSchema(self._renamed_envelope)

    def apply(self, record: ConnectRecord) -> ConnectRecord:
        made = record.with_topic(self.topic)
        if record.key is not None:
            if record.key_schema is None or record.key_schema.type != "struct":
                raise DataError("Only Struct objects supported for [Updating schema]")
            made.key_schema, made.key = self._key_schema(record.key_schema), self._named(record.key)
        schema = envelope_of(record)
        if schema is not None:
            made.value_schema = self._envelope(schema)
        return made

    def _named(self, key: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**key, self._key_field: self._identifier} if self._key_field else key

    def _renamed_key(self, schema: ConnectSchema) -> ConnectSchema:
        fields = schema.fields
        if self._key_field:
            if self._key_field in schema.by_name:
                raise DataError(f"Cannot create field because of field name duplication {self._key_field}")
            fields = (*fields, Field(self._key_field, ConnectSchema("string")))
        return replace(schema, name=f"{self.topic}.Key", fields=fields)

    def _renamed_envelope(self, schema: ConnectSchema) -> ConnectSchema:
        row = schema.by_name.get("before") or schema.by_name.get("after")
        renamed = None if row is None else replace(row, name=f"{self.topic}.Value")
        fields = tuple(
            Field(name, renamed if renamed is not None and name in ("before", "after") else of)
            for name, of in schema.fields
        )
        return replace(schema, name=f"{self.topic}.Envelope", fields=fields)
