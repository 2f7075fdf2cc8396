"""What a comparison of two real databases has the source repair: keys as the source writes them, and what is refused."""

from __future__ import annotations

import psycopg
import pytest
from cdcworker.connectors.comparison.opening import opened
from cdcworker.connectors.comparison.repair import NO_VALUE, repair_json, repaired_kinds_of
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.repair import NO_DELETIONS

from .test_compare import LIMITS, Now, wanted

pytestmark = pytest.mark.postgres
TABLES = {
    "people": ("id bigint primary key, v text", "id bigint primary key, v text"),
    "lines": ("doc uuid, line numeric(10, 2), v text, primary key (doc, line)",) * 2,
    "words": ("word text, at timestamptz, v text, primary key (word, at)",) * 2,
    # The warehouse holds keys that the source's types cannot.
    "codes": (
        "code varchar(3), raw bytea, m mood, v text, primary key (code, raw, m)",
        "code text, raw bytea, m text, v text, primary key (code, raw, m)",
    ),
    "loose": ("n numeric primary key, v text",) * 2,
}
UUID = "00000000-0000-0000-0000-00000000000{}"


@pytest.fixture
def dsns(postgres):
    """Source and warehouse with equal rows."""
    names = postgres.create_database(), postgres.create_database()
    found = [postgres.dsn(name) for name in names]
    for at, dsn in enumerate(found):
        with psycopg.connect(dsn, autocommit=True) as db:
            if not at:
                db.execute("create type mood as enum ('good', 'bad')")
            for name, columns in TABLES.items():
                db.execute(f"create table {name} ({columns[at]})")
            db.execute("insert into people select g, 'v' from generate_series(1, 200) g")
            db.execute(f"insert into lines select '{UUID.format(1)}', g * 1.5, 'v' from generate_series(1, 20) g")
            db.execute("insert into words values (E'tab\\tü', '2024-01-01 00:00:00+02', 'v')")
            db.execute(r"insert into codes values ('abc', '\x00ff', 'good', 'v')")
            db.execute("insert into loose values (1.50, 'v')")
    yield found
    for name in names:
        postgres.drop_database(name)


@pytest.fixture
def warehouse(dsns):
    with psycopg.connect(dsns[1], autocommit=True) as db:
        yield db


def repaired(dsns, **more):
    """By table the keys, the numbers and the refusals."""
    with opened(wanted(dsns, topics=TABLES, **more), LIMITS) as both:
        settings = CompareSettings(LIMITS, kept=repaired_kinds_of(both))
        tally = Comparison(both.source, both.target, lambda position, deadline: Now(), settings).run(both.plans)
        tables = repair_json(both, tally)["tables"]
    return {item.pop("table").removeprefix("public."): item for item in tables}


def numbers(item):
    return tuple(item["counts"].values()), {each["why"]: each["rows"] for each in item["refused"]}


def test_keys_are_as_the_source_writes_them_whatever_their_types_are(dsns, warehouse):
    assert repaired(dsns) == {}
    warehouse.execute("delete from people where id = 7; update people set v = 'x' where id = 8")
    warehouse.execute("insert into people values (-1, 'v')")
    warehouse.execute("update lines set v = 'x' where line = 3")
    warehouse.execute(f"insert into lines values ('{UUID.format(2)}', 0.10, 'v')")
    warehouse.execute("delete from words; insert into words values ('', '2024-01-01 00:00:00+00', 'v')")
    warehouse.execute(r"insert into codes values ('a', '\x', 'bad', 'v'); update codes set v = null where m = 'good'")
    found = repaired(dsns)
    assert sorted(found["people"]["rows"]) == [["-1"], ["7"], ["8"]]
    assert (found["people"]["key"], numbers(found["people"])) == (["id"], ((1, 1, 1), {}))
    assert sorted(found["lines"]["rows"]) == [[UUID.format(1), "3.00"], [UUID.format(2), "0.10"]]
    assert sorted(found["words"]["rows"]) == [["", "2024-01-01 00:00:00+00"], ["tab\tü", "2023-12-31 22:00:00+00"]]
    assert sorted(found["codes"]["rows"]) == [["a", r"\x", "bad"], ["abc", r"\x00ff", "good"]]
    assert all(item["complete"] and not item["refused"] for item in found.values())


def test_a_key_that_is_no_value_of_the_sources_types_is_refused_and_none_is_cut_to_one(dsns, warehouse):
    # Cut to three characters the first one is the key of a row that is there.
    warehouse.execute(r"insert into codes values ('abcd', '\x00ff', 'good', 'v'), ('b', '\x', 'bad', 'v')")
    found = repaired(dsns)["codes"]
    assert (found["rows"], numbers(found)) == ([["b", r"\x", "bad"]], ((0, 0, 1), {NO_VALUE: 1}))
    # A key that the source cannot even read keeps the table from being compared.
    warehouse.execute(r"insert into codes values ('c', '\x', 'none', 'v')")
    found = repaired(dsns)["codes"]
    assert (found["rows"], numbers(found)[1]) == ([], {"not readable in the source (InvalidTextRepresentation)": 0})


def test_rows_of_the_warehouse_alone_are_refused_where_they_cannot_be_deleted_for_certain(dsns, warehouse):
    warehouse.execute("insert into loose values (2, 'v'); update loose set v = 'x' where n = 1.5")
    found = repaired(dsns)["loose"]
    why = "equal values of the key column n may have different texts"
    assert (found["rows"], numbers(found), found["deletes"]) == ([["1.5"]], ((0, 1, 0), {why: 1}), False)
    warehouse.execute("delete from loose where n = 2; insert into people values (-1, 'v')")
    found = repaired(dsns, source={"skipped.operations": "d"})
    assert (numbers(found["people"]), found["people"]["deletes"]) == (((0, 0, 0), {NO_DELETIONS: 1}), False)
    assert repaired(dsns)["people"]["deletes"]
    with psycopg.connect(dsns[0], autocommit=True) as db:
        db.execute("create publication dbz_publication for all tables with (publish = 'insert, update')")
    assert numbers(repaired(dsns)["people"]) == ((0, 0, 0), {NO_DELETIONS: 1})
