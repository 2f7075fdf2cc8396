"""Rows with binary values as rows with text values: what of them may be larger than a record."""

from __future__ import annotations

import pytest
from cdcworker.connectors.capture.config.column_masks import ColumnMasks, MaskRule
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.postgres.decode.binary_transcoder import BinaryTranscoder
from cdcworker.connectors.postgres.decode.decoder import PgoutputDecoder
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.errors import CdcError

from .. import messages as m

KNOWN = TypeNames({23: PgType(23, "int4"), 25: PgType(25, "text"), 17: PgType(17, "bytea")}, {})
COLUMNS = [("id", 23, True), ("v", 25, False), ("data", 17, False)]
MOST = 100


def in_binary(message: bytes) -> bytes:
    """The same row with its values in binary."""
    return message[:33] + message[33:].replace(b"t\0\0", b"b\0\0")


def handed_on(masks: ColumnMasks, *row: bytes) -> tuple:
    planner = TableDecodePlanner(None, HandlingModes(), TableFilters(), masks)  # type: ignore[arg-type]
    changes = PgoutputDecoder(
        lambda relation: build_plan(relation, None, KNOWN, key_of(relation, None), planner), source_template("s", "db")
    )
    changes.transcode = BinaryTranscoder(lambda columns: KNOWN, MOST, masks)
    for data in (m.begin(1), m.relation(1, COLUMNS), in_binary(m.insert(1, *row))):
        changes.feed(data)
    return changes.out[0].after


@pytest.mark.parametrize(
    ("key", "column", "kept"),
    [
        ("column.truncate.to.5.chars", "v", "xxxxx"),
        ("column.mask.with.3.chars", "v", "***"),
        ("column.mask.hash.SHA-256.with.salt.s", "v", None),
        ("column.truncate.to.5.chars", "data", b"xxxxx"),
    ],
)
def test_a_value_of_which_the_record_holds_less_may_be_larger_than_a_record(key, column, kept):
    row = [b"\0\0\0\1", b"a", b"a"]
    at = [name for name, _, _ in COLUMNS].index(column)
    row[at] = b"x" * (MOST + 1)
    found = handed_on(ColumnMasks(CAPTURE, (MaskRule(key, (f"public.t.{column}",)),)), *row)[at]
    assert found == kept if kept else len(found) == 64
    with pytest.raises(CdcError) as caught:
        handed_on(ColumnMasks(CAPTURE, (MaskRule(key, ("public.t.other",)),)), *row)
    assert (caught.value.code, caught.value.where["column"]) == ("postgres.row_too_large", column)


def test_a_value_as_large_as_a_record_is_read():
    assert handed_on(ColumnMasks(CAPTURE), b"\0\0\0\7", b"x" * MOST, b"\1")[:2] == (7, "x" * MOST)
