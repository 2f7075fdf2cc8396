"""A record as an object of JSON: how targets that carry messages tell it."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any, Protocol

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.transforms.data import ConnectSchema, Header


class ValueTexts(Protocol):
    """What writes values as JSON, as `JsonValues` does."""

    def text(self, schema: ConnectSchema | None, value: Any) -> str: ...
    def headers_text(self, headers: tuple[Header, ...] | list[Header]) -> str: ...


def event_text(values: ValueTexts, record: TargetRecord, *, headers: bool = False) -> str:
    """Returns id, place, timestamp, key and value of a record, and its headers where they are asked for."""
    text = values.text
    told = f',"headers":{values.headers_text(list(record.headers))}' if headers else ""
    return (
        f'{{"id":"{record.id}","topic":{encode_basestring(record.topic)},"partition":{record.partition},"offset":{record.offset},'
        f'"timestamp":{record.timestamp_ms}{told},"key":{text(record.key_schema, record.key)},'
        f'"value":{text(record.value_schema, record.value)}}}'
    )
