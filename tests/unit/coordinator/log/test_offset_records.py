"""Keys and values of the offsets log."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.log.offset_records import (
    OffsetKey,
    OffsetRecord,
    offset_key,
    offset_value,
    offsets_partition,
    parse_offset_key,
    parse_offset_value,
)
from cdcworker.schemas.errors import CdcError


def test_a_key_is_the_same_bytes_whatever_the_order_of_the_partition():
    assert offset_key("c", {"task": 1, "server": "s"}) == offset_key("c", {"server": "s", "task": 1})
    assert offset_key("c", {"server": "s", "task": 1}) == '["c",{"server":"s","task":1}]'


def test_a_key_gives_its_parts_back():
    key = parse_offset_key(offset_key("ü/c", {"server": "s", "task": 1}))
    assert key == OffsetKey("ü/c", (("server", "s"), ("task", 1)))
    assert key.task == 1
    assert parse_offset_key('["c", {"server": "x"}]').task is None


@pytest.mark.parametrize("key", ["", "[]", '["c"]', '{"c": 1}', "[1, {}]", '["c", 1]'])
def test_what_is_not_a_key_is_refused(key):
    with pytest.raises(CdcError, match="offsets_format"):
        parse_offset_key(key)


def test_a_value_gives_its_parts_back():
    stored = OffsetRecord("i", 7, {"lsn": 1})
    assert parse_offset_value(offset_value(stored)) == stored


@pytest.mark.parametrize("value", [{}, {"v": 2, "position": {}}, {"v": 1}, {"v": 1, "position": None}])
def test_half_a_position_is_refused(value):
    with pytest.raises(CdcError, match="offsets_format"):
        parse_offset_value(value)


def test_partitions_are_fixed_for_ever_and_spread():
    assert offsets_partition("orders", 0, 25) == 9
    assert {offsets_partition("c", n, 25) for n in range(500)} == set(range(25))
    with pytest.raises(ValueError, match="no partitions"):
        offsets_partition("c", 0, 0)
