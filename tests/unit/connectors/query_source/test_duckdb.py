"""The source of a query over DuckDB: the suite of all databases, its types, its file."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest
from cdcworker.schemas.placeholders import unscaled

from tests.contract.query_source.databases import *  # noqa: F403 - what every database has to do
from tests.contract.query_source.databases import TIMES, code_of, ids, name_of, opened, read_all, values
from tests.contract.query_source.outside import Outside

TIME = "io.debezium.time."
DATA = "io.debezium.data."
DAY_US = 86_400_000_000


class DuckFile(Outside):
    """A file. While it is stopped it has another name."""

    unplaced = ("null", "'-infinity'")
    other_type = "alter table orders alter column customer type blob"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "orders.duckdb"
        self.roots = (str(folder),)
        self._away = folder / "away.duckdb"
        self._file = self.path
        super().__init__()

    @property
    def database_config(self) -> Mapping[str, str]:
        return {"connection.url": f"jdbc:duckdb:{self.path}"}

    def run(self, text: str, *parameters: object) -> None:
        with duckdb.connect(str(self._file)) as session:
            session.execute(text, list(parameters))

    def write(self, count: int) -> None:
        if not count:
            return
        # One file that is opened and one commit, however many rows there are.
        with duckdb.connect(str(self._file)) as session:
            session.begin()
            session.executemany("insert into orders (id, customer) values (?, ?)", self.further(count))
            session.commit()

    def write_text(self, text: str) -> None:
        self.texts.append(text)
        self.run("insert into orders (id, customer) values (?, ?)", len(self.texts), text)

    def stop(self) -> None:
        self._file = self.path.rename(self._away)

    def start(self) -> None:
        self._file = self._away.rename(self.path)


@pytest.fixture
def outside(tmp_path):
    return DuckFile(tmp_path)


@pytest.mark.parametrize(
    ("declared", "expressions", "expected", "avro"),
    [
        ("utinyint", ["255"], [255], "int"),
        ("uinteger", ["4294967295"], [2**32 - 1], "long"),
        ("bigint", ["9223372036854775807", "null"], [2**63 - 1, None], "long"),
        ("ubigint", ["18446744073709551615"], [unscaled(2**64 - 1)], "Decimal"),
        ("hugeint", ["-170141183460469231731687303715884105728"], [unscaled(-(2**127))], "Decimal"),
        ("float", ["0.1", "'nan'"], [0.1, math.nan], "float"),
        ("double", ["'-infinity'", "1e308"], [-math.inf, 1e308], "double"),
        ("decimal(20,2)", ["'123456789012345678.25'"], [unscaled(12345678901234567825)], "Decimal"),
        ("boolean", ["true", "false"], [True, False], "boolean"),
        ("blob", [r"'\x00\xff'"], [b"\0\xff"], "bytes"),
        ("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"], ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], DATA + "Uuid"),
        ("json", ["'{\"b\": [1, null]}'"], ['{"b": [1, null]}'], DATA + "Json"),
        ("date", ["'1969-12-31'", "'0001-01-01 (BC)'"], [-1, -719528], TIME + "Date"),
        ("time", ["'04:05:06.789'"], [14706789000], TIME + "MicroTime"),
        ("timestamp", ["'1970-01-02 00:00:00.000001'"], [DAY_US + 1], TIME + "MicroTimestamp"),
        ("timestamp_ms", ["'1970-01-01 00:00:01.5'"], [1500], TIME + "Timestamp"),
        ("timestamp_ns", ["'1970-01-01 00:00:01.123456789'"], [1_123_456_789], TIME + "NanoTimestamp"),
        ("timestamptz", ["'2024-03-31 02:30:00+02'", "'infinity'"], ["2024-03-31T00:30:00.000000Z", "infinity"], TIME + "ZonedTimestamp"),
        ("interval", ["interval '14 months 1 day'"], [14 * 2_629_800_000_000 + DAY_US], TIME + "MicroDuration"),
        ("int[]", ["[1, null, 3]"], ["[1, NULL, 3]"], "string"),
        ("enum('a', 'b')", ["'b'"], ["b"], "string"),
    ],
)  # fmt: skip
def test_values_have_the_types_that_other_sources_write(outside, declared, expressions, expected, avro):
    found, kind = values(outside, declared, *expressions)
    assert [repr(each) for each in found] == [repr(each) for each in expected]
    assert name_of(kind).endswith(avro)


@pytest.mark.parametrize("kind", ["timestamp_s", "timestamp_ms", "timestamp_ns", "timestamptz"])
def test_a_time_of_any_precision_may_be_the_cursor(outside, kind):
    outside.run(f"create table stamps (id bigint, changed {kind})")
    outside.run("insert into stamps values (1, '2024-01-01 10:00:00')")
    source = opened(outside, **{**TIMES, "query": "select * from stamps"})
    _, cursor = read_all(source)
    outside.run(
        "insert into stamps values (2, '2024-01-01 10:00:00'), (3, '2024-01-01 10:00:01'), (4, '2024-01-01 09:59:59')"
    )
    found, cursor = read_all(source, cursor)
    assert (ids(found), read_all(source, cursor)[0]) == ([2, 3], [])


def test_an_infinite_time_halts_the_task(outside):
    outside.add(1, "'infinity'")
    assert code_of(lambda: read_all(opened(outside, **TIMES))).code == "plugin.record_refused"


def test_a_file_that_another_process_writes_is_tried_again(outside):
    outside.write(1)
    source = opened(outside)
    holder = "import duckdb, sys; s = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(outside.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        error = code_of(lambda: source.read(None))
        assert (error.code, error.kind) == ("plugin.unavailable", "transient")
        child.communicate()
    assert read_all(source)[0] == [("u", 1)]


def test_the_query_reads_no_other_file(outside, tmp_path):
    outside.write(1)
    (tmp_path / "other.csv").write_text("id\n1\n")
    for query in (f"select * from read_csv('{tmp_path}/other.csv')", f"select * from '{tmp_path}/other.csv'"):
        assert code_of(lambda query=query: opened(outside, query=query)).code == "query.refused"


def test_without_the_library_the_error_says_what_to_install(outside, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    error = code_of(lambda: opened(outside))
    assert (error.code, error.kind) == ("query.driver_missing", "environment")


def test_a_file_that_is_no_database_is_told(outside, tmp_path):
    (tmp_path / "other").write_text("x" * 10_000)
    error = code_of(lambda: opened(outside, **{"connection.url": f"jdbc:duckdb:{tmp_path}/other"}))
    assert error.code in ("plugin.unavailable", "query.refused")
