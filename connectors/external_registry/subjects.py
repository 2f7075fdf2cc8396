"""Subjects: the names under which an existing registry keeps schemas, by the strategies of Confluent's."""

from __future__ import annotations

from cdcworker.connectors.external_registry.errors import INVALID, REFUSED
from cdcworker.connectors.formats.registry_keys import STRATEGIES
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.change import Avro
from cdcworker.schemas.errors import CdcError


def subject_of(strategy: str, topic: str, side: str, schema: Avro | TypedSchema) -> str:
    """Returns the subject of a topic's keys or values, of the record, or of both."""
    if strategy == "TopicNameStrategy":
        return f"{topic}-{side}"
    if strategy not in STRATEGIES:
        raise CdcError(
            REFUSED, f"{side}.subject.name.strategy of the {side} converter is none of {', '.join(STRATEGIES)}"
        )
    name = record_name(schema)
    if not name:
        text = f"the {strategy} names subjects by records, and the {side} is none that has a name"
        raise CdcError(INVALID, text, where={"topic": topic})
    return name if strategy == "RecordNameStrategy" else f"{topic}-{name}"


def record_name(schema: Avro | TypedSchema) -> str:
    """Returns the whole name of a record; empty for what has none."""
    if isinstance(schema, TypedSchema):
        return schema.name
    if not isinstance(schema, dict) or "name" not in schema:
        return ""
    space, name = schema.get("namespace"), str(schema["name"])
    return f"{space}.{name}" if space and "." not in name else name
