"""MessagePack by the examples of its specification."""

from __future__ import annotations

import pytest
from cdcworker.connectors.formats.message_pack import MessagePackFormat, MessagePackReader, packed
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.connectors.formats.contract import PRICE

EXAMPLES = [
    (None, "c0"), (False, "c2"), (True, "c3"), (0, "00"), (127, "7f"), (128, "cc80"), (255, "ccff"), (256, "cd0100"),
    (65535, "cdffff"), (65536, "ce00010000"), (2**32, "cf0000000100000000"), (-1, "ff"), (-32, "e0"), (-33, "d0df"),
    (-128, "d080"), (-129, "d1ff7f"), (-(2**31), "d280000000"), (-(2**63), "d38000000000000000"), (1.5, "cb3ff8000000000000"),
    ("", "a0"), ("a", "a161"), ("a" * 32, "d920" + "61" * 32), (b"", "c400"), (b"\1", "c40101"), ([], "90"), ([1, "a"], "9201a161"),
    ({"compact": True, "schema": 0}, "82a7636f6d70616374c3a6736368656d6100"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "hex"), EXAMPLES)
def test_examples(value, hex):
    assert packed(value).hex() == hex
    assert MessagePackReader().read(bytes.fromhex(hex)).value == value


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=20,
)


@given(VALUES)
def test_any_value_is_read_as_it_was_written(value):
    assert MessagePackReader().read(packed(value)).value == value


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_refused(data):
    found = set()
    try:
        MessagePackReader().read(data)
    except CdcError as error:
        found.add(error.code)
    assert found <= {"sink.record_unreadable"}


def test_decimals_are_bytes_or_text():
    kind = {"type": "record", "name": "V", "fields": [{"name": "p", "type": PRICE}]}
    assert MessagePackReader().read(MessagePackFormat().writer(kind).body({"p": b"\x04\xd2"})).value == {
        "p": b"\x04\xd2"
    }
    assert MessagePackReader().read(MessagePackFormat(text=True).writer(kind).body({"p": b"\x04\xd2"})).value == {
        "p": "12.34"
    }
