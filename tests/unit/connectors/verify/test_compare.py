"""The core of verify without databases: texts of types, statements, verdicts on keys, and the way from ranges to keys."""

from __future__ import annotations

import hashlib

import pytest
from cdcworker.connectors.comparison.opening import planned_table
from cdcworker.connectors.comparison.source_tables import SentTable
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor.compared_source import modes_of
from cdcworker.connectors.verify import compare, plan, report
from cdcworker.connectors.verify import lake_texts as laketexts
from cdcworker.connectors.verify.canonical_text import SourceModes, TextPair, VerifiedColumn, pair
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.convergence import SuspectKey, differing_columns
from cdcworker.connectors.verify.databases import KeyState, SpanSum, TableFailed, VerifyLimits
from cdcworker.connectors.verify.sql import FINE, KeySpan, StatementBuilder, cast_of
from cdcworker.schemas.errors import CdcError

INT, TEXT = VerifiedColumn("id", "int8", declared="bigint"), VerifiedColumn("v", "text", declared="text")


def table(name="t", key=("id",), columns=(INT, TEXT), **more):
    return plan.SideTable("public", name, columns, key, more.pop("rows", 10), **more)


def planned(name="t", **more):
    return plan.plan(f"p.public.{name}", table(name, **more), table(name, **more), SourceModes())


# -- texts and plans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "modes", "expected"),
    [
        ("int4", "int8", {}, ("({0})::bigint::text",) * 2),
        ("int4", "numeric", {}, ("trim_scale(({0})::numeric)::text",) * 2),
        ("float4", "float8", {}, ("({0})::real::text",) * 2),
        ("numeric", "float8", {}, ("({0})::double precision::text",) * 2),
        ("bit", "bool", {}, ("(({0}) = B'1')::text", "({0})::boolean::text")),
        ("varbit", "bool", {}, ("(({0}) = B'1')::text", "({0})::boolean::text")),
        ("varbit", "varbit", {}, ("ltrim(({0})::text, '0')",) * 2),
        ("varbit", "text", {}, ("({0})::text",) * 2),
        ("hstore", "jsonb", {}, ("({0})::jsonb::text",) * 2),
        ("interval", "interval", {"interval": "string"}, ("({0})::interval::text",) * 2),
        ("bytea", "text", {"binary": "hex"}, ("encode(({0})::bytea, 'hex')", "({0})::text")),
        ("time", "time", {"time": "connect"}, ("date_trunc('milliseconds', ({0})::time)::text",) * 2),
        ("xml", "text", {}, ("({0})::text",) * 2),
    ],
)
def test_equal_values_have_one_text_whatever_holds_them(source, target, modes, expected):
    assert pair(VerifiedColumn("c", source), VerifiedColumn("c", target), SourceModes(**modes)) == TextPair(*expected)


@pytest.mark.parametrize(
    ("mode", "expected"), [("bits", ("ltrim(({0})::text, '0')", "bits")), ("text", ("({0})::text", "plain"))]
)
def test_leading_zeros_of_bit_varying_count_in_a_lake_where_the_source_sends_them(mode, expected):
    held = VerifiedColumn("c", "string", laketexts.LAKE)
    assert laketexts.pair(VerifiedColumn("c", "varbit"), held, SourceModes(varbit=mode)) == TextPair(*expected)


@pytest.mark.parametrize(("mode", "text"), [("bits", "bits"), ("text", "plain")])
def test_the_mode_is_that_of_the_sources_config(mode, text):
    config = {"name": "s", "topic.prefix": "p", "bit.varying.handling.mode": mode}
    config |= {f"database.{name}": "x" for name in ("hostname", "user", "password", "dbname")}

    class Target:
        def table(self, schema, name):
            return table(columns=(INT, VerifiedColumn("v", "string", laketexts.LAKE)))

    sent = SentTable("p.public.t", table(columns=(INT, VerifiedColumn("v", "varbit"))))
    sink = {"warehouse.schema": "", "delete.mode": "hard"}
    settings = parse(config)
    assert planned_table(sent, settings, sink, Target(), modes_of(settings)).columns[1].text.target == text


def test_lists_of_bit_varying_are_compared_where_they_have_their_leading_zeros():
    source, digits, bits = (VerifiedColumn("c", f"_{name}", element=name) for name in ("varbit", "text", "varbit"))
    assert pair(source, digits) == TextPair.same("({0})::text")
    assert "no common text" in pair(source, bits)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (VerifiedColumn("c", "geometry"), VerifiedColumn("c", "jsonb")),
        (VerifiedColumn("c", "row", "c"), VerifiedColumn("c", "jsonb")),
        (VerifiedColumn("c", "_interval", element="interval"), VerifiedColumn("c", "_interval", element="interval")),
        (VerifiedColumn("c", "_numeric", element="numeric"), VerifiedColumn("c", "jsonb")),
        (VerifiedColumn("c", "int4"), VerifiedColumn("c", "jsonb")),
    ],
)
def test_what_has_no_common_text_says_so(source, target):
    assert "no common text" in pair(source, target)


def test_a_plan_leaves_nothing_out_in_silence():
    columns = (
        INT,
        TEXT,
        VerifiedColumn("secret", "text"),
        VerifiedColumn("made", "int4", generated=True),
        VerifiedColumn("new", "text"),
    )
    found = plan.plan(
        "p.public.t", table(columns=columns), table(columns=(INT, TEXT)), SourceModes(), {"secret": False}
    )
    assert [item.name for item in found.columns] == ["id", "v"]
    assert dict(found.left_out) == {"secret": plan.NOT_SENT, "made": plan.GENERATED, "new": plan.ABSENT}
    assert (found.reason, found.is_ordered) == ("", True)


def test_tables_that_cannot_be_compared_say_why():
    modes = SourceModes()
    assert "no key" in plan.plan("t", table(key=()), table(), modes).reason
    assert "may be NULL" in plan.plan("t", table(), table(nullable=frozenset({"id"})), modes).reason
    assert "key column id cannot be compared" in plan.plan("t", table(), table(columns=(TEXT,)), modes).reason
    assert "not in the warehouse" in plan.plan("t", table(), None, modes).reason
    interval = (VerifiedColumn("id", "interval"),)
    assert "not found by their text" in plan.plan("t", table(columns=interval), table(columns=interval), modes).reason
    single, truth = (VerifiedColumn("id", "varbit"),), (VerifiedColumn("id", "bool"),)
    assert "not found by their text" in plan.plan("t", table(columns=single), table(columns=truth), modes).reason
    assert not plan.plan("t", table(key=("v",)), table(), modes).is_ordered


def test_statements_take_every_value_as_a_parameter_and_survive_hostile_names():
    columns = (
        VerifiedColumn('a%s"; drop', "int8", declared="bigint"),
        VerifiedColumn("b}{0}", "text", declared="text"),
    )
    writer = StatementBuilder(planned(key=(columns[0].name,), columns=columns, only=True, hides="x"), "target")
    statement = writer.sums(KeySpan(("1",), ("9",), 3), [2])
    assert statement.parameters == ("1", "9", [2])
    assert statement.text.count("%s") == statement.text.count("a%%s") + 3
    assert '"a%%s""; drop"' in statement.text
    assert '"b}{0}"' in statement.text
    assert "ONLY" in statement.text
    assert 't."x" IS NOT TRUE' in statement.text
    assert writer.rows_of([("1",), ("2",)]).parameters == (["1", "2"],)


def test_a_value_is_looked_for_without_the_limits_of_its_type():
    assert [
        cast_of(name) for name in ("character varying(3)", "character(5)", "numeric(4,2)", "time(3) with time zone")
    ] == [
        "varchar",
        "bpchar",
        "numeric",
        "time with time zone",
    ]


# -- keys -----------------------------------------------------------------------------------------------------------------


def row(value, version="1"):
    return KeyState(1, value, version)


def test_a_key_is_reported_when_neither_side_moved_through_two_rounds():
    suspect = SuspectKey(row(1), row(2))
    assert not suspect.see_source(row(1))
    assert not suspect.see_target(row(2))
    assert suspect.see_source(row(1))


@pytest.mark.parametrize("first", [None, row(1)])
def test_a_row_that_came_and_went_between_two_reads_is_not_reported(first):
    """Absent, absent: and the warehouse showed what was there in between."""
    suspect = SuspectKey(None, row(5))
    assert not suspect.see_source(None)
    assert suspect.see_target(None)
    suspect = SuspectKey(first, row(2))
    assert not suspect.see_source(row(1, "2"))
    assert not suspect.see_target(row(3))
    assert not suspect.see_source(row(1, "2"))


def test_the_same_content_in_another_version_is_no_rest():
    suspect = SuspectKey(row(1, "7"), row(2))
    assert not suspect.see_source(row(1, "8"))
    assert suspect.still == 0
    assert SuspectKey(row(1, "7"), row(1, "x")).is_equal


def test_kinds_and_columns():
    assert [
        SuspectKey(*sides).kind
        for sides in ((row(1), None), (None, row(1)), (row(1), row(2)), (row(1), KeyState(2, 2, "")))
    ] == [
        "missing",
        "extra",
        "different",
        "duplicate",
    ]
    assert differing_columns(KeyState(1, 1, "", ("a", "b")), KeyState(1, 2, "", ("a", "c")), ("x", "y")) == ("y",)


# -- the way down -----------------------------------------------------------------------------------------------------------


def number(text, digits=slice(0, 16)):
    return int(hashlib.md5(text.encode()).hexdigest()[digits], 16)


class FakeSide:
    """Rows in memory: {table: {id: text}}; what each read saw is noted."""

    keys_at_once = 7

    def __init__(self, tables, failing=()):
        self.tables = tables
        self.failing = failing
        self.reads = []

    def _within(self, plan, span):
        low, high = (None if bound is None else int(bound[0]) for bound in (span.low, span.high))
        for key, value in sorted(self.tables[plan.source.name].items()):
            if (low is None or key > low) and (high is None or key <= high):
                coarse = number(str(key), slice(0, 8)) % span.coarse
                yield key, value, coarse, coarse * FINE + number(str(key), slice(8, 16)) % FINE

    def sums(self, plan, span, chosen=None):
        self.reads.append((plan.source.name, span, chosen))
        if plan.source.name in self.failing:
            raise TableFailed("not readable")
        out = {}
        for key, value, coarse, fine in self._within(plan, span):
            if chosen is None or coarse in chosen:
                part = coarse if chosen is None else fine
                known = out.get(part, SpanSum(0, 0))
                out[part] = SpanSum(known.rows + 1, known.hash + number(f"{key}:{value}"))
        return out

    def rows(self, plan, span, chosen):
        found = self._within(plan, span)
        return {(str(key),): self._row(key, value) for key, value, _, fine in found if fine in chosen}

    def rows_of(self, plan, keys):
        assert len(keys) <= self.keys_at_once
        table = self.tables[plan.source.name]
        return {key: self._row(int(key[0]), table[int(key[0])]) for key in keys if int(key[0]) in table}

    def _row(self, key, value):
        return KeyState(1, number(f"{key}:{value}"), "1", ("", value))

    def bound(self, plan, after, rows):
        keys = [key for key in sorted(self.tables[plan.source.name]) if after is None or key > int(after[0])]
        return (str(keys[rows - 1]),) if len(keys) >= rows else None

    def end(self):
        pass


class FakeSource(FakeSide):
    position = 100

    def begin(self):
        return self.position


class FakeTarget(FakeSide):
    def begin(self, goal, deadline):
        assert goal == 100


def compared(left, right, plans=None, limits=None, clock=None, **more):
    source, target = FakeSource(left, more.pop("failing", ())), FakeTarget(right)
    slept = []
    settings = CompareSettings(limits or VerifyLimits(10, 0), clock=clock or (lambda: 0.0), sleep=slept.append, **more)
    comparison = Comparison(source, target, lambda position, _: position, settings)
    return comparison.run(plans or [planned(name) for name in left]), source, target, slept


def test_ranges_cover_every_key_once_and_the_rows_behind_the_last_one():
    rows = dict.fromkeys(range(0, 95, 3), "v")
    tally, source, target, _ = compared({"t": rows}, {"t": {**rows, 1000: "extra"}})
    assert (tally.tables[0].source_rows, tally.tables[0].target_rows) == (32, 33)
    assert [(found.key, found.kind) for found in tally.tables[0].found] == [(("1000",), "extra")]
    spans = [span for _, span, chosen in source.reads if chosen is None]
    assert [span.low for span in spans] == [None, *(span.high for span in spans[:-1])]
    assert spans[-1].high is None
    # Only the range that differs is read again.
    assert [span for _, span, chosen in target.reads if chosen is not None] == [spans[-1]]


def test_keys_without_an_order_are_compared_by_their_hashes():
    rows = dict.fromkeys(range(200), "v")
    columns = (VerifiedColumn("id", "text", declared="text"), TEXT)
    plans = [planned("t", columns=columns, rows=200)]
    tally, source, _, _ = compared({"t": rows}, {"t": {**rows, 7: "w"}}, plans)
    assert [span.coarse for _, span, chosen in source.reads if chosen is None] == [20]
    assert [(found.key, found.columns) for found in tally.tables[0].found] == [(("7",), ("v",))]


def test_a_table_that_fails_takes_no_other_with_it():
    rows = {1: "a"}
    tally = compared({"a": rows, "b": rows}, {"a": rows, "b": rows}, failing=("a",))[0]
    assert [(state.verdict, state.reason) for state in tally.tables] == [("impossible", "not readable"), ("equal", "")]
    assert tally.verdict == "impossible"


def test_a_warehouse_that_has_come_along_is_not_waited_for_once_more(monkeypatch):
    rows, begun = {1: "a", 2: "b"}, []

    def begin(self, _goal, _deadline):
        begun.append(self)
        if len(begun) > 1:
            self.tables = {"t": rows}

    monkeypatch.setattr(FakeTarget, "begin", begin)
    assert compared({"t": rows}, {"t": {1: "a"}})[0].verdict == "equal"
    assert len(begun) == 2


def test_what_never_stands_still_is_undecided(monkeypatch):
    versions = iter(range(1000))
    monkeypatch.setattr(FakeSource, "_row", lambda *_: KeyState(1, 1, str(next(versions))))
    tally = compared({"t": {1: "a", 2: "b"}}, {"t": {1: "x", 2: "b"}}, rounds=4)[0]
    assert (tally.verdict, tally.tables[0].undecided, tally.tables[0].differences) == ("undecided", 1, 0)


def test_whoever_reads_faster_than_allowed_waits():
    rows = dict.fromkeys(range(100), "v")
    tally, _, _, slept = compared({"t": rows}, {"t": rows}, limits=VerifyLimits(50, 10))
    assert tally.rows_read == 200
    assert sum(slept) == pytest.approx(20.0)


def test_a_comparison_ends_with_its_time():
    now = iter(range(0, 10_000, 7))
    rows = dict.fromkeys(range(100), "v")
    with pytest.raises(CdcError, match="not compared within 20 s"):
        compared({"t": rows}, {"t": rows}, clock=lambda: next(now), timeout_s=20.0)


def test_a_table_so_different_that_looking_at_each_row_is_useless_ends_early(monkeypatch):
    monkeypatch.setattr(compare, "SUSPECTS_MAX", 20)
    rows = dict.fromkeys(range(1000), "v")
    tally = compared({"t": rows}, {"t": {}})[0]
    (state,) = tally.tables
    assert (state.verdict, state.is_full, state.source_rows, state.target_rows) == ("different", True, 1000, 0)
    assert 20 <= state.differences <= 200


def test_spans_that_only_moved_use_up_no_budget(monkeypatch):
    """Each differs when its sum is read and is equal when its keys are: as behind a busy source."""
    monkeypatch.setattr(compare, "SUSPECTS_MAX", 2)
    sums = FakeTarget.sums
    monkeypatch.setattr(
        FakeTarget, "sums", lambda *args: {part: SpanSum(item.rows, 0) for part, item in sums(*args).items()}
    )
    rows = dict.fromkeys(range(500), "v")
    tally = compared({"t": rows}, {"t": rows})[0]
    assert (tally.verdict, tally.tables[0].is_full) == ("equal", False)


def test_a_result_names_hashes_only_and_a_table_that_is_not_there_differs_when_it_has_rows():
    plans = [planned("t"), plan.plan("p.public.u", table("u"), None, SourceModes())]
    tally = compared({"t": {4711: "a"}, "u": {}}, {"t": {}, "u": {}}, plans)[0]
    found = report.result(tally, b"salt")
    assert "4711" not in str(found)
    (item,) = found["tables"][0]["found"]
    assert report.keys(tally, b"salt") == {item["key"]: ["4711"]}
    assert report.keys(tally, b"other") != {item["key"]: ["4711"]}
    assert [entry["verdict"] for entry in found["tables"]] == ["different", "different"]
    assert report.TableVerdict(plan.plan("p.public.u", table("u", rows=0), None, SourceModes()), "x").verdict == "equal"


def test_columns_of_a_key_are_compared_as_the_source_has_them_and_others_as_readers_hold_them():
    columns = (INT, *(VerifiedColumn(name, "timestamp", declared="timestamp") for name in ("at", "until")))
    modes = SourceModes(out_of_range="clamp")
    sides = table(columns=columns).keyed(("id",), ("at",)), table(columns=columns)
    found = {one.name: one.text.source for one in plan.plan("p.public.t", *sides, modes).columns}
    assert "least(" not in found["at"]
    assert "least(" in found["until"]


AT = VerifiedColumn("at", "timestamp", declared="timestamp")


def test_rows_are_found_by_the_columns_that_the_warehouse_has_as_the_source():
    modes, columns = SourceModes(out_of_range="clamp"), (INT, TEXT, AT)

    def found(key, record_key, **more):
        sides = table(columns=columns, **more).keyed(key, record_key), table(columns=columns)
        return plan.plan("p.public.t", *sides, modes)

    def named(made):
        return [item.name for item in made.key], made.reason, made.is_ordered

    assert named(found(("at",), ())) == (["at"], "", True)
    # The warehouse has the primary key as readers hold it, and the records' key as it is.
    chosen = found(("at",), ("id",))
    assert named(chosen) == (["id"], "", False)
    assert ["least(" in item.text.source for item in chosen.columns] == [False, False, True]
    assert named(found(("at",), ("at", "id"))) == (["at"], "", True)
    assert named(found((), ("id",))) == (["id"], "", False)
    # NULL is not found by its text.
    assert named(found(("id",), ("v",), nullable=frozenset({"v"}))) == (["id"], "", True)
    assert "may be NULL" in found((), ("v",), nullable=frozenset({"v"})).reason
    assert "not in the key of the records" in found(("at",), ("v",), nullable=frozenset({"v"})).reason
