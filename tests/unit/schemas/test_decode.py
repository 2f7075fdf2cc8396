import pytest
from cdcworker.schemas import avro
from cdcworker.schemas.decode import RecordDecoder, decode
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import SchemaLog, schema_value


@pytest.fixture
def log():
    schema = {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}}
    fp = avro.fingerprint(schema)
    return SchemaLog([(f"schema/{fp}", schema_value(9, fp, avro.canonical(schema)))])


def test_values_come_back_raw(log):
    assert RecordDecoder(log).decode(avro.frame(9, b"\4\2\3\0")) == [1, -2]
    assert RecordDecoder(log).decode(None) is None


def test_an_unknown_id_is_named(log):
    with pytest.raises(CdcError) as caught:
        RecordDecoder(log).decode(avro.frame(10, b"\0"))
    assert (caught.value.code, caught.value.where) == ("schema.unknown_id", {"id": 10})


@pytest.mark.parametrize("body", [b"", b"\2", b"\0\0", b"\2\2\0\0"])
def test_a_body_that_is_too_short_or_too_long_is_an_error(log, body):
    with pytest.raises(CdcError) as caught:
        RecordDecoder(log).decode(avro.frame(9, body))
    assert caught.value.code == "schema.undecodable"


@pytest.mark.parametrize("body", [b"\2\xff", b"\x05a"])
def test_text_that_is_not_utf8_or_of_negative_size_is_an_error(body):
    with pytest.raises(CdcError):
        decode("string", body)
