"""A record as an object of JSON: how targets that carry messages tell it."""

from __future__ import annotations

from json.encoder import encode_basestring

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.json_values import JsonValues


def event_text(values: JsonValues, record: TargetRecord, *, headers: bool = False) -> str:
    """Returns id, place, timestamp, key and value of a record, and its headers where they are asked for."""
    text = values.text
    told = f',"headers":{values.headers_text(list(record.headers))}' if headers else ""
    return (
        f'{{"id":"{record.id}","topic":{encode_basestring(record.topic)},"partition":{record.partition},"offset":{record.offset},'
        f'"timestamp":{record.timestamp_ms}{told},"key":{text(record.key_schema, record.key)},'
        f'"value":{text(record.value_schema, record.value)}}}'
    )
