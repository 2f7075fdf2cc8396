"""Masks and message keys: what is hidden stays hidden, and what cannot be done is refused by name."""

from __future__ import annotations

import hashlib

import pytest
from cdcworker.connectors.capture.column_mapping import MappedType
from cdcworker.connectors.capture.config.column_masks import ColumnMasks, MaskRule, java_bytes
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType, TypeRegistry, map_type
from cdcworker.schemas.change import Column, Table
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

TEXT = map_type(PgType(25, "text"), -1, HandlingModes(), TypeRegistry())


def masked(key: str, mapped: MappedType = TEXT, *, length: int = 0, in_key: bool = False) -> MappedType:
    rules = ColumnMasks(CAPTURE, (MaskRule(key, (r"public\.people\.(name|age)",)),))
    return rules.apply(mapped, "public", "People", "NAME", length=length, in_key=in_key)


def test_each_mask_hides_what_it_should():
    text = "Grüße".encode()
    assert masked("column.mask.with.3.chars").parse(text) == "***"
    assert masked("column.mask.with.0.chars").parse(text) == ""
    assert masked("column.truncate.to.3.chars").parse(text) == "Grü"
    assert masked("column.truncate.to.3.chars", length=3).parse is TEXT.parse
    digest = hashlib.sha256(b"salt" + text).hexdigest()
    assert masked("column.mask.hash.v2.SHA-256.with.salt.salt").parse(text) == digest
    assert masked("column.mask.hash.v2.SHA-256.with.salt.salt", length=10).parse(text) == digest[:10]
    assert masked("column.mask.with.3.chars").avro["connect.parameters"] == {"masked": "true"}


def test_the_first_hash_digests_what_java_serialises():
    data = b"\xac\xed\x00\x05t\x00\x05hello"
    assert java_bytes("hello") == data
    digest = hashlib.md5(b"s.t" + data, usedforsecurity=False).hexdigest()
    assert masked("column.mask.hash.MD5.with.salt.s.t").parse(b"hello") == digest
    assert java_bytes("é\U0001f600")[5:] == b"\x00\x08\xc3\xa9\xed\xa0\xbd\xed\xb8\x80"
    assert java_bytes("x" * 65536)[4:13] == b"|" + (65536).to_bytes(8, "big")


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_any_text_can_be_serialised(text):
    data = java_bytes(text)[7:]
    assert int.from_bytes(java_bytes(text)[5:7], "big") == len(data)
    back = data.decode("utf-8", "surrogatepass").encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    assert back == text


def test_a_column_that_no_rule_names_is_left_alone():
    rules = ColumnMasks(CAPTURE, (MaskRule("column.mask.with.3.chars", (r"public\.people\.nam",)),))
    assert rules.apply(TEXT, "public", "people", "name", length=0, in_key=False) is TEXT


@pytest.mark.parametrize(
    ("key", "name", "in_key"),
    [
        ("column.mask.with.3.chars", "int4", False),
        ("column.mask.hash.MD5.with.salt.x", "bytea", False),
        ("column.mask.with.3.chars", "text", True),
        ("column.truncate.to.3.chars", "text", True),
    ],
)
def test_a_mask_that_would_not_hide_is_refused(key, name, in_key):
    mapped = map_type(PgType(1, name), -1, HandlingModes(), TypeRegistry())
    with pytest.raises(CdcError) as caught:
        masked(key, mapped, in_key=in_key)
    assert (caught.value.code, caught.value.where["key"]) == ("postgres.mask_unfit", key)


def test_a_key_may_be_hashed():
    assert len(masked("column.mask.hash.v2.SHA-256.with.salt.x", in_key=True).parse(b"a")) == 64


def definition(**config: str) -> tuple[ConfigDef, dict[str, str]]:
    given_keys = {
        "database.hostname": "h", "database.user": "u", "database.dbname": "d", "topic.prefix": "p", **config,
    }  # fmt: skip
    return CONFIG_DEF, given_keys


@pytest.mark.parametrize(
    "name",
    [
        "column.mask.with.x.chars",
        "column.mask.hash.NOSUCH.with.salt.x",
        "column.truncate.to.0.chars",
        "column.masked.with.3.chars",
        "column.mask.with.99999.chars",
    ],
)
def test_a_mask_that_cannot_be_read_is_refused(name):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.require_valid(definition(**{name: r"public\.t\.c"})[1])
    shown, _, salt = name.partition(".salt.")
    assert shown in str(caught.value)
    assert not salt or name not in str(caught.value), "a salt is a secret"


def test_masks_and_keys_are_read_from_the_config():
    raw = CONFIG_DEF.parse(
        definition(**{"column.mask.hash.SHA-256.with.salt.a.b": "x,y", "message.key.columns": "public.t:a,b;(.*).u:c"})[
            1
        ]
    )
    assert raw["column.mask.hash.SHA-256.with.salt.a.b"] == ["x", "y"]
    keys = MessageKeys.parse(raw["message.key.columns"])
    assert (keys.columns_of("public", "T"), keys.columns_of("any", "u")) == (("a", "b"), ("c",))
    assert keys.columns_of("public", "v") == ()


@pytest.mark.parametrize("value", ["public.t", "public.t:", ":a", "public.(t:a", "public.t:a,,b"])
def test_a_message_key_that_cannot_be_read_is_refused(value):
    with pytest.raises(CdcError, match=r"message\.key\.columns"):
        CONFIG_DEF.parse(definition(**{"message.key.columns": value})[1])


def test_a_message_key_needs_columns_that_a_deletion_holds():
    table = Table(("public", "t"), 1, (Column("id", "int"), Column("a", "int")), (0,), {})
    keys = MessageKeys.parse("public.t:a,id")
    assert keys.rekeyed(table, ["id", "a"], "REPLICA IDENTITY FULL", CAPTURE).key == (1, 0)
    for logged, columns in ((["id"], "a"), (["id", "a"], "nothing")):
        with pytest.raises(CdcError) as caught:
            MessageKeys.parse(f"public.t:{columns}").rekeyed(table, logged, "REPLICA IDENTITY FULL", CAPTURE)
        assert caught.value.code == "postgres.message_key"


@pytest.mark.parametrize(
    ("oid", "name", "typmod"),
    [
        (1700, "numeric", (12 << 16 | 2) + 4),
        (1700, "numeric", -1),
        (1560, "bit", 8),
        (23, "int4", -1),
        (16, "bool", -1),
    ],
)
def test_what_has_no_length_is_not_cut_and_passes_as_it_is(oid, name, typmod):
    number = map_type(PgType(oid, name), typmod, HandlingModes(), TypeRegistry())
    assert masked("column.truncate.to.3.chars", number) is number
    assert masked("column.truncate.to.3.chars", number, in_key=True) is number
    with pytest.raises(CdcError):
        masked("column.mask.with.3.chars", number)
