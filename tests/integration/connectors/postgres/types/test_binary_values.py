"""Binary forms as text, with the server as the oracle: the same bytes as its own output functions give."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.types.binary_values import form_of
from cdcworker.connectors.postgres.types.text_values import SESSION_OPTIONS

from .test_types import EXTENSIONS, FAMILIES, SETUP, Kind, fitting, generated, is_known

pytestmark = pytest.mark.postgres

MORE = {
    "numbers": [
        ("real", ["0.0001", "0.00009999", "1e5", "999999", "1e6", "1234567", "1e-45", "3.4028235e38", "-0", "0.1", "33554434", "67108868", "-1.1754944e-38"]),
        ("double precision", ["1e14", "1e15", "123456789012345678", "0.0001", "1e-5", "5e-324", "-0", "1.7976931348623157e308", "-3.8819528995099376e16",
                              "27248752767134512", "9007199254740993", "2.2250738585072014e-308"]),
        ("numeric", ["0", "0.000", "-0.0001", "10000", "99990000", "1e-20", "12345678.00012", "1e300", "-1e-300"]),
        ("numeric", ["9" * 3000 + "." + "7" * 2000, "9" * 131072]),
        ("money", ["-0.01", "0", "1234567.89", "-92233720368547758.08"]),
    ],
    "dates": [
        ("date", ["0001-01-01", "0001-12-31 BC", "4713-01-01 BC", "2000-02-29", "1900-03-01", "5874897-12-31"]),
        ("timestamp", ["4713-01-01 00:00:00.000001 BC", "294276-12-31 23:59:59.999999", "1999-12-31 23:59:59.5"]),
        ("timetz", ["00:00:00+15:59:59", "24:00:00-15:59", "01:02:03.4+00:00:01", "01:00:00-00:30"]),
        ("interval", ["-1 year +2 mons -3 days 04:05:06.7", "1 mon -1 day", "-1 mons 1 days -00:00:00.000001",
                      "178000000 years", "-13 mons", "0", "1000000:00:00"]),
    ],
    "others": [
        ("inet", ["::ffff:1.2.3.4", "::1.2.3.4", "::", "1::", "1:0:0:2:0:0:0:3", "10.0.0.0/8", "fe80::1/64", "10.1.2.3/32"]),
        ("cidr", ["10.0.0.0/8", "fe80::/64", "1.2.3.4/32", "::1/128"]),
        ("tsvector", ["'a b':1A,2B 'it''s':3,16383C 'back\\\\slash' plain:4D", ""]),
        ("text[]", ['{NULL,"null","","a b","{",",",\\\\}', "{{a,b},{c,d}}", "[0:1][2:2]={{a},{b}}"]),
        ("int4multirange", ["{}", "{[1,2),(,)}"]), ("tsrange", ['["2020-01-01 00:00:00",infinity]', "empty", "(,)"]),
        ("pair", ['(1,"a ""b"" \\\\ (c)")', "(,)", '(,"")']), ("pair[]", ['{"(1,\\"x y\\")",NULL}']),
        ("jsonpath", ["$.a ? (@ > 1)"]), ("xid", ["4294967295"]), ("bit(9)", ["101010101"]), ("varbit", ["", "1", "00000000"]),
        ("path", ["((0,0),(1e20,-1.5))", "[(0,0)]"]), ("feeling", ["sad"]), ("price[]", ["{1.5,NULL}"]),
    ],
}  # fmt: skip
"""Values at which forms change, beside the generated ones."""
WITHOUT = {
    "tsquery", "int2vector", "public.cube", "public.vector(3)", "public.vector", "public.halfvec(3)",
    "public.sparsevec(9)", "floatrange", "floatmultirange",
}  # fmt: skip
"""Types without a form."""


@pytest.fixture(scope="module")
def typed(postgres):
    name = postgres.create_database()
    options = " ".join(f"-c {key}={value}" for key, value in SESSION_OPTIONS.items() if key != "search_path")
    with psycopg.connect(postgres.dsn(name), autocommit=True, options=options) as db:
        for extension in EXTENSIONS:
            with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
                db.execute(f"create extension {extension}")
        db.execute(SETUP)
        yield db
    postgres.drop_database(name)


def told(db, kind: str, values: list[str]) -> tuple[int, list[bytes | None], list[bytes | None]]:
    """The type, and the values in binary and in text."""
    statement = f"select x::{kind} from unnest($1::text[]) with ordinality o(x, n) order by n".encode()
    literal = db.execute("select %s::text[]::text", (values,)).fetchone()[0].encode()
    results = [db.pgconn.exec_params(statement, [literal], result_format=form) for form in (1, 0)]
    assert all(result.ntuples == len(values) for result in results), results[0].error_message
    binary, text = ([result.get_value(i, 0) for i in range(len(values))] for result in results)
    (oid,) = db.execute("select coalesce(nullif(%s::regtype, 0), 0)::oid", (kind,)).fetchone()
    return oid, binary, text


def agrees(db, kind: str, values: list[str]) -> None:
    oid, binary, text = told(db, kind, values)
    form = form_of(oid, SourceCatalog(db).types([(oid, -1)]).types)
    assert (form is None) is (kind in WITHOUT), kind
    if form is not None:
        assert [None if value is None else form(value) for value in binary] == text, kind


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_values_read_as_the_server_writes_them(typed, family):
    for kind in FAMILIES[family]:
        values = fitting(typed, kind, generated(kind.values))
        if is_known(typed, kind, values):
            agrees(typed, kind.type, values)


@pytest.mark.parametrize("family", MORE)
def test_so_do_values_at_which_a_form_changes(typed, family):
    for kind, values in MORE[family]:
        if is_known(typed, Kind(kind, None), values):
            agrees(typed, kind, values)


@pytest.mark.parametrize(("kind", "powers"), [("double precision", range(-1074, 1024)), ("real", range(-149, 128))])
def test_so_do_all_powers_of_two_whose_neighbours_are_unlike(typed, kind, powers):
    agrees(typed, kind, [f"{sign}{2.0**power!r}" for power in powers for sign in ("", "-")])
