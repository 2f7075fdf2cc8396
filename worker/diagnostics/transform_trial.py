"""What the transforms of a config make of records that a topic has: each before and after. Nothing is written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.record_sink.converters import RecordReader, converted
from cdcworker.connectors.record_sink.json_values import JsonValues
from cdcworker.connectors.record_sink.unwrap import Unwrap, options_of
from cdcworker.connectors.topic_reader import SchemaReader, TopicReader
from cdcworker.connectors.transform_chain.chain import TransformChain
from cdcworker.connectors.transform_chain.config import (
    PREDICATES_KEY,
    TRANSFORMS_KEY,
    transform_checks,
    transform_keys,
    whole_chain_of,
)
from cdcworker.connectors.transforms.data import ConnectRecord
from cdcworker.coordinator.kafka.clients import make_consumer, reader_config
from cdcworker.coordinator.kafka.errors import translate
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import CdcError, declare

INVALID = declare(
    "transform.invalid",
    "config",
    "The transforms of the config are not valid",
    "Correct the keys that the error names; the reference of transforms has them all.",
)
NO_TOPIC = declare(
    "transform.no_topic",
    "config",
    "The topic is not there",
    "Correct --topic; `cdcworker connector describe NAME` lists the topics of a connector.",
)
CLIENT: Final = "cdcworker-transform-try"
ANSWER_S: Final = 10.0
WIDER: Final = 8
"""How many times as many places are looked at where records were missing among them."""
READ_AT_ONCE: Final = 1_000
_CONVERTERS: Final = ("key.converter", "value.converter")


@dataclass(frozen=True)
class TrialRequest:
    """Which records are tried: the last `records` of the topic, or the first ones."""

    topic: str
    records: int
    from_beginning: bool
    kafka: Mapping[str, str]
    """The properties of Kafka clients."""
    schema_topic: str


def checked_chain(config: Mapping[str, str]) -> TransformChain:
    """Returns the transforms of a config. CdcError `transform.invalid` with every problem of their keys."""
    keys = [TRANSFORMS_KEY, PREDICATES_KEY, *converter_keys(config)]
    definition = ConfigDef(keys, check=transform_checks(None), more=transform_keys)
    own = {name: value for name, value in config.items() if name.startswith(("transforms", "predicates", *_CONVERTERS))}
    found = ((one.name, error) for one in definition.validate(own) for error in one.errors)
    problems = [error if error.startswith(name) else f"{name} {error}" for name, error in found]
    if problems:
        raise CdcError(INVALID, "; ".join(problems))
    return whole_chain_of(own, lambda at: Unwrap(options_of(own, at)))


def trial(config: Mapping[str, str], asked: TrialRequest) -> Iterator[JsonObject]:
    """Yields `{"before", "after"}` for each record: `after` is null where a transform leaves the record out, which `left_out`
    names; `error` says why one cannot be read or transformed. Raises CdcError."""
    chain = checked_chain(config)
    settings = {**reader_config(asked.kafka, client_id=CLIENT), "auto.offset.reset": "earliest"}
    schemas = SchemaReader({**settings, "enable.partition.eof": False}, asked.schema_topic)
    reader, texts = converted(config, schemas), JsonValues(numeric=True)
    try:
        for message in _messages(settings, asked):
            yield _tried(message, reader, chain, texts)
    finally:
        schemas.close()


def _messages(settings: Mapping[str, Any], asked: TrialRequest) -> list[Any]:
    """Returns the first or the last records of the topic, by their time where it has several partitions."""
    bounds, wanted = _bounds(settings, asked.topic), asked.records
    width = wanted
    while True:
        parts = {
            place: (low, min(high, low + width)) if asked.from_beginning else (max(low, high - width), high)
            for place, (low, high) in bounds.items()
        }
        found = _read(settings, asked.topic, parts)
        counts = Counter((message.topic(), message.partition()) for message in found)
        # Markers of transactions take places too, and so do records that are aborted or compacted away.
        if all(counts[place] >= wanted or parts[place] == bounds[place] for place in bounds):
            break
        width *= WIDER
    found.sort(key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))
    return found[:wanted] if asked.from_beginning else found[-wanted:]


def _read(settings: Mapping[str, Any], topic: str, parts: Mapping[tuple[str, int], tuple[int, int]]) -> list[Any]:
    """Returns the records between two offsets of each partition."""
    found: list[Any] = []
    messages = TopicReader(settings, (topic,), {place: begin for place, (begin, _) in parts.items()}, reports_ends=True)
    try:
        while any(messages.read_to.get(place, -1) < end for place, (_, end) in parts.items()):
            for message in messages.read_soon(READ_AT_ONCE, 0.25):
                place = (str(message.topic()), int(message.partition() or 0))
                if place in parts and int(message.offset() or 0) < parts[place][1]:
                    found.append(message)
    finally:
        messages.close()
    return found


def _bounds(settings: Mapping[str, Any], topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the first offset and the end, as they are at this moment, of each partition that has records."""
    from confluent_kafka import KafkaException, TopicPartition

    consumer = make_consumer(dict(settings))
    bounds = {}
    try:
        found = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        if found.error is not None:
            raise CdcError(NO_TOPIC, f"there is no topic {topic}")
        for number in found.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_S)
            if high > low:
                bounds[topic, number] = (low, high)
    except KafkaException as error:
        raise translate(error, "read the topic") from error
    finally:
        consumer.close()
    return bounds


def _tried(message: Any, reader: RecordReader, chain: TransformChain, texts: JsonValues) -> JsonObject:
    place = {"partition": message.partition(), "offset": message.offset()}
    try:
        record = reader.read(message)
        before = _shown(record, texts)
    except CdcError as error:
        return {**place, "before": None, "after": None, "error": error.to_dict()}
    try:
        changed = chain.apply(record)
        after = None if changed is None else _shown(changed, texts)
    except CdcError as error:
        return {**place, "before": before, "after": None, "error": error.to_dict()}
    left_out = next(iter(chain.take_filtered()), None)
    return {**place, "before": before, "after": after, **({"left_out": left_out} if left_out else {})}


def _shown(record: ConnectRecord, texts: JsonValues) -> JsonObject:
    return {
        "topic": record.topic,
        "key": _parsed(texts.text(record.key_schema, record.key)),
        "value": _parsed(texts.text(record.value_schema, record.value)),
        "headers": _parsed(texts.headers_text(record.headers)),
        "partition": record.partition,
    }


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | str:
    """Returns a number; one with more digits than a floating-point number has stays as its text."""
    number = float(text)
    return number if Decimal(text) == Decimal(repr(number)) else text
