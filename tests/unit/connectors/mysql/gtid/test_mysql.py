"""Sets of GTIDs as MySQL has them: a set of Python's is the oracle."""

from __future__ import annotations

import uuid

import pytest
from cdcworker.connectors.mysql.errors import GTID_INVALID, MalformedError
from cdcworker.connectors.mysql.gtid.mysql import GtidSet, Source
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

A, B = uuid.UUID(int=10), uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
SOURCES = [Source(A), Source(B), Source(B, "blue"), Source(B, "_x1")]
MEMBERS = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 12)))
Members = set[tuple[Source, int]]


def of(members: Members) -> GtidSet:
    found = GtidSet()
    for source, number in members:
        found = found.union(GtidSet.of(source, number))
    return found


def members(found: GtidSet) -> Members:
    return {(s, n) for s, own in found.intervals.items() for first, last in own for n in range(first, last + 1)}


@given(MEMBERS, MEMBERS)
def test_sets_do_what_sets_do(one: Members, other: Members) -> None:
    left, right = of(one), of(other)
    assert members(left) == one
    assert members(left.union(right)) == one | other
    assert members(left.subtract(right)) == one - other
    assert left.contains(right) == (other <= one)
    assert (left == right) == (one == other)
    assert all(left.holds(*member) == (member in one) for member in one | other)
    assert bool(left) == bool(one)


@given(MEMBERS)
def test_a_set_is_read_from_what_is_printed_and_from_what_is_encoded(one: Members) -> None:
    found = of(one)
    assert GtidSet.parse(str(found)) == found
    assert GtidSet.decode(found.encode()) == found


@given(st.binary(max_size=100))
def test_any_bytes_are_a_set_or_refused(data: bytes) -> None:
    try:
        found = GtidSet.decode(data)
    except MalformedError:
        return
    assert GtidSet.decode(found.encode()) == found


def test_the_text_is_as_servers_print_it() -> None:
    text = f"{B}:5-7:1:3-4:BLUE:1:2 ,\n {str(A).upper()} : 1 - 3"
    assert str(GtidSet.parse(text)) == f"{A}:1-3,{B}:1:3-7:blue:1-2"
    assert str(GtidSet.parse("")) == ""
    assert str(GtidSet.parse(f"{A}:1,{A}:2,")) == f"{A}:1-2"


def test_the_encoding_of_a_set_without_tags_is_that_of_all_versions() -> None:
    encoded = GtidSet.parse(f"{B}:1-5:9").encode()
    assert encoded.hex() == "0100000000000000" + B.hex + "0200000000000000" + "01000000000000000600000000000000" + (
        "09000000000000000a00000000000000"
    )


def test_the_encoding_with_tags_says_so_at_both_ends_of_its_count() -> None:
    encoded = GtidSet.parse(f"{B}:blue:1").encode()
    assert encoded[:8] == bytes([1, 1, 0, 0, 0, 0, 0, 1])
    assert encoded[24:29] == b"\x08blue"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x",
            "1-2-3",
            f"{A}:0",
            f"{A}:5-3",
            f"{A}:1-",
            f"{A}:-5",
            f"{A}:1-2-3",
            f"{A}:9223372036854775808",
            f"{A}:a b:1",
        ),
        *(f"{A}:{'t' * 33}:1", f"{A}:1:", f"{A}:²", "{0a}:1", f"{A}:1x"),
    ],
)
def test_a_text_that_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(CdcError) as caught:
        GtidSet.parse(text)
    assert caught.value.code == GTID_INVALID
