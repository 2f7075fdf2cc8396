"""Schemas that are no Avro, in the schema log."""

from __future__ import annotations

import pytest
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import (
    OTHER_TYPE,
    Registration,
    RegistrationMeta,
    SchemaLog,
    encode_record,
    plan_all,
    register_in_memory,
)

PROTO = TypedSchema("PROTOBUF", 'syntax = "proto3";\n', "A")
AVRO = {"type": "record", "name": "A", "fields": []}


def registered(log: SchemaLog, *schemas, subject: str = "t-value") -> list[int]:
    return list(register_in_memory(log)([Registration(subject, schema, RegistrationMeta()) for schema in schemas]))


def test_a_schema_is_kept_with_its_type_and_read_back():
    log = SchemaLog()
    [id] = registered(log, PROTO)
    stored = log.by_id(id)
    assert (stored.type, stored.text, stored.fingerprint) == ("PROTOBUF", PROTO.text, PROTO.fingerprint)
    assert log.by_guid(stored.guid) is stored
    with pytest.raises(CdcError) as caught:
        _ = stored.schema
    assert caught.value.code == OTHER_TYPE
    assert registered(log, PROTO) == [id], "the same schema has the same id"


def test_records_of_the_log_give_the_same_fold():
    log, again, ids = SchemaLog(), SchemaLog(), []
    for schema in (AVRO, PROTO):
        [id], records = plan_all(log, [Registration("t-value", schema, RegistrationMeta())])
        ids.append(id)
        for record in records:
            log.apply(record.key, record.value)
            again.read(*encode_record(record))
    assert [again.by_id(id).type for id in ids] == ["AVRO", "PROTOBUF"]
    assert [version.change for version in again.versions("t-value")] == ["add", "add"]


def test_one_text_is_another_schema_as_another_type():
    log = SchemaLog()
    text = '"string"'
    ids = registered(
        log, text.strip('"'), TypedSchema("PROTOBUF", text), TypedSchema("JSON", "{}"), TypedSchema("PROTOBUF", "{}")
    )
    assert len(set(ids)) == 4


@pytest.mark.parametrize("text", ["[", "[1]", '"a"', "{" * 300, "x" * (1 << 21)])
def test_a_json_schema_that_is_none_is_refused(text):
    with pytest.raises(CdcError) as caught:
        registered(SchemaLog(), TypedSchema("JSON", text))
    assert caught.value.code == "schema.invalid"


@pytest.mark.parametrize(
    ("type", "fp"),
    [("THRIFT", PROTO.fingerprint), ("JSON", PROTO.fingerprint), ("PROTOBUF", "0" * 64), (7, PROTO.fingerprint)],
)
def test_a_record_whose_type_or_fingerprint_does_not_fit_is_rejected(type, fp):
    log = SchemaLog()
    log.apply(f"schema/{fp}", {"id": 7, "fp": fp, "type": type, "schema": PROTO.text, "references": []})
    assert log.rejected
    assert log.by_id(7) is None


def test_a_record_without_a_type_is_avro():
    log = SchemaLog()
    [id] = registered(log, AVRO)
    [(key, value)] = [(f"schema/{log.by_id(id).fingerprint}", {"id": id, "schema": log.by_id(id).text})]
    again = SchemaLog([(key, value)])
    assert again.by_id(id).type == "AVRO"
