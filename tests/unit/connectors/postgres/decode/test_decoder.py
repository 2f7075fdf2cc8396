"""The decoder on bytes: what becomes of each message, and that no bytes make it crash."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.postgres.decode.decoder import DecoderOptions, PgoutputDecoder
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, key_of, source_template
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.errors import CdcError
from hypothesis import given, settings
from hypothesis import strategies as st

from .. import messages as m

KNOWN = TypeNames({23: PgType(23, "int4"), 25: PgType(25, "text")}, {})
COLUMNS = [("id", 23, True), ("v", 25, False), ("n", 23, False)]


def planner(filters: TableFilters | None = None) -> TableDecodePlanner:
    return TableDecodePlanner(None, HandlingModes(), filters or TableFilters())  # type: ignore[arg-type]


def decoder(skipped: frozenset[str] = frozenset(), filters: TableFilters | None = None) -> PgoutputDecoder:
    def resolve(relation):
        if relation.table == "other":
            return None
        return build_plan(relation, None, KNOWN, key_of(relation, None), planner(filters))

    return PgoutputDecoder(resolve, source_template("shop", "db"), DecoderOptions(skipped=skipped))


def fed(*messages: bytes, **kwargs) -> PgoutputDecoder:
    changes = decoder(**kwargs)
    for data in messages:
        changes.feed(data)
    return changes


def test_a_transaction_gives_each_message_its_position():
    found = fed(
        m.begin(1000, us=m.PG_EPOCH_US + 5_000_000),
        m.relation(1, COLUMNS),
        m.insert(1, b"1", b"a", None),
        m.relation(2, COLUMNS, name="other"),
        m.insert(2, b"1", b"a", None),
        m.delete(1, [b"1", None, None]),
        m.commit(1000),
    )
    created, deleted = found.out
    assert (created.op, created.position, created.after) == ("c", (1000, 0, 0), (1, "a", None))
    assert (deleted.op, deleted.position, deleted.before) == ("d", (1000, 2, 0), (1, None, None))
    assert created.source["ts_us"] == m.PG_EPOCH_US + 5_000_000
    assert created.source["txId"] == 7
    assert not found.in_transaction


def test_an_update_without_an_old_row_keeps_what_was_not_sent_marked():
    (change,) = fed(m.begin(1), m.relation(1, COLUMNS), m.update(1, [b"1", "u", b"2"])).out
    assert (change.op, change.before, change.after, change.unchanged) == ("u", None, (1, None, 2), (1,))


def test_a_full_old_row_fills_what_was_not_sent():
    old = [b"1", b"long", b"1"]
    (change,) = fed(m.begin(1), m.relation(1, COLUMNS), m.update(1, [b"1", "u", b"2"], old, b"O")).out
    assert (change.before, change.after, change.unchanged) == ((1, "long", 1), (1, "long", 2), ())


def test_an_old_key_that_did_not_change_is_an_update_and_fills_only_the_key():
    columns = [("id", 25, True), ("v", 25, False)]
    (change,) = fed(m.begin(1), m.relation(1, columns), m.update(1, ["u", "u"], [b"k", None])).out
    assert (change.op, change.after, change.unchanged) == ("u", ("k", None), (1,))


def test_a_key_change_becomes_two_changes_of_one_message():
    gone, come = fed(m.begin(1), m.relation(1, COLUMNS), m.update(1, [b"2", "u", b"3"], [b"1", None, None])).out
    assert (gone.op, gone.before, gone.other_key, gone.position) == ("d", (1, None, None), (2,), (1, 0, 0))
    assert (come.op, come.after, come.other_key, come.position) == ("c", (2, None, 3), (1,), (1, 0, 1))
    assert come.unchanged == (1,)


def test_a_truncate_of_several_tables_numbers_them():
    second = m.relation(2, COLUMNS, name="u")
    changes = fed(m.begin(1), m.relation(1, COLUMNS), second, m.truncate(1, 2)).out
    assert [(change.op, change.position.part, change.table.path[1]) for change in changes] == [
        ("t", 0, "t"),
        ("t", 1, "u"),
    ]


def test_skipped_operations_still_count():
    changes = fed(
        m.begin(1), m.relation(1, COLUMNS), m.insert(1, b"1", None, None), m.delete(1, [b"1", None, None]),
        skipped=frozenset("c"),
    ).out  # fmt: skip
    assert [(change.op, change.position.event) for change in changes] == [("d", 1)]


@pytest.mark.parametrize(("also", "expected"), [("", "dc"), ("d", "c"), ("c", "d"), ("cd", "")])
@pytest.mark.parametrize("mark", [b"K", b"O"])
def test_a_key_change_is_no_update_that_could_be_skipped(also, expected, mark):
    """Its readers would keep the row under the old key."""
    changes = fed(
        m.begin(1), m.relation(1, COLUMNS),
        m.update(1, [b"2", b"x", b"3"], [b"1", None, None], mark),
        m.update(1, [b"2", b"x", b"4"], [b"2", None, None], mark),
        m.update(1, [b"2", b"x", b"5"]),
        skipped=frozenset("u" + also),
    ).out  # fmt: skip
    assert "".join(change.op for change in changes) == expected


def test_transactions_that_were_handed_on_are_dropped_whole():
    changes = decoder()
    changes.resume_lsn = 1000
    for data in (
        m.begin(1000), m.relation(1, COLUMNS), m.insert(1, b"1", None, None), m.commit(1000),
        m.message("p", b"x", 900, transactional=False), m.message("p", b"y", 1500, transactional=False),
        m.begin(2000), m.insert(1, b"2", None, None), m.message("p", b"z", 1990), m.commit(2000),
    ):  # fmt: skip
        changes.feed(data)
    assert [(change.op, change.position) for change in changes.out] == [
        ("m", (1499, 0, 0)),
        ("c", (2000, 0, 0)),
        ("m", (2000, 1, 0)),
    ]


def test_a_message_is_not_taken_for_the_commit_that_begins_where_it_ends():
    changes = decoder()
    changes.feed(m.message("p", b"x", 1000, transactional=False))
    again = decoder()
    again.resume_lsn = changes.message_lsn
    for one in (changes, again):
        for data in (m.begin(1000), m.relation(1, COLUMNS), m.insert(1, b"1", None, None), m.commit(1000)):
            one.feed(data)
    assert [change.position for change in changes.out] == [(999, 0, 0), (1000, 0, 0)]
    again.feed(m.message("p", b"x", 1000, transactional=False))
    assert [change.op for change in again.out] == ["c"]


def test_transactions_of_another_origin_are_left_out_where_that_is_wanted():
    origin = m.frame(b"O" + (5).to_bytes(8, "big") + b"elsewhere\0")
    messages = [
        m.begin(1000), origin, m.relation(1, COLUMNS), m.insert(1, b"1", None, None), m.message("p", b"x", 9),
        m.commit(1000), m.begin(2000), m.insert(1, b"2", None, None), m.commit(2000),
    ]  # fmt: skip
    for wanted, expected in ((True, [(1000, 0, 0), (1000, 1, 0), (2000, 0, 0)]), (False, [(2000, 0, 0)])):
        changes = decoder()
        changes.want_origin = lambda name, wanted=wanted: wanted
        # Also where a part of it has been handed on before it was not wanted any more.
        changes.resume_part = None if wanted else (1000, 1)
        for data in messages:
            changes.feed(data)
        assert [change.position for change in changes.out] == expected


def unreadable(plan, data):
    """A transcoder to which no row has a form."""
    raise CdcError("postgres.type_without_binary_form", "no form", where={"table": ".".join(plan.table.path)})


ROWS_OF_ALL_KINDS = [m.insert(1, b"1", None, None), m.update(1, [b"1", None, None]), m.delete(1, [b"1", None, None])]


@pytest.mark.parametrize("row", ROWS_OF_ALL_KINDS, ids=["insert", "update", "delete"])
@pytest.mark.parametrize("why", ["handed on", "a part of it handed on", "unwanted origin", "skipped", None])
def test_what_is_not_handed_on_needs_no_text_form(row, why):
    changes = decoder(frozenset("cud") if why == "skipped" else frozenset())
    changes.transcode = unreadable
    changes.resume_lsn = 1000 if why == "handed on" else 0
    changes.resume_part = (1000, 2) if why == "a part of it handed on" else None
    changes.want_origin = lambda name: why != "unwanted origin"
    origin = m.frame(b"O" + (5).to_bytes(8, "big") + b"elsewhere\0")
    for data in (m.begin(1000), origin, m.relation(1, COLUMNS)):
        changes.feed(data)
    if why is None:
        with pytest.raises(CdcError):
            changes.feed(row)
        return
    changes.feed(row)
    changes.feed(row)
    assert changes.index == 2
    assert changes.out == []
    if why == "a part of it handed on":
        with pytest.raises(CdcError):
            changes.feed(row)


@pytest.mark.parametrize("seen", ["by a listener", "by an observer"])
def test_a_skipped_row_that_someone_looks_at_is_read(seen):
    changes, rows = decoder(frozenset("c")), []
    changes.transcode = lambda plan, data: m.insert(1, b"2", None, None)
    if seen == "by a listener":
        changes.listeners[1] = lambda plan, row: rows.append(row)
    else:
        changes.observer = SimpleNamespace(
            began=lambda xid: None, reshaped=lambda plan: None, event=lambda plan, event: rows.append(event.after)
        )
    for data in (m.begin(1000), m.relation(1, COLUMNS), m.insert(1, b"1", None, None)):
        changes.feed(data)
    assert rows == [(2, None, None)]
    assert changes.out == []


@pytest.mark.parametrize("done", range(1, 7))
def test_a_transaction_is_resumed_by_the_number_of_its_messages(done):
    messages = [
        m.begin(1000), m.relation(1, COLUMNS), m.insert(1, b"1", None, None), m.message("p", b"x", 1),
        m.update(1, [b"2", b"", None], [b"1", None, None]), m.truncate(1), m.delete(1, [b"1", None, None]),
        m.insert(1, b"5", None, None), m.commit(1000), m.begin(2000), m.insert(1, b"6", None, None), m.commit(2000),
    ]  # fmt: skip
    whole, rest = decoder(), decoder()
    rest.resume_part = (1000, done)
    parts = []
    for data in messages:
        whole.feed(data)
        rest.feed(data)
        parts.append(whole.part)
    assert (1000, done) in parts
    expected = [change.position for change in whole.out if change.position >= (1000, done, 0)]
    assert [change.position for change in rest.out] == expected


def test_a_null_where_the_plan_allows_none_makes_the_column_optional_from_then_on():
    changes = decoder()
    for data in (m.begin(1), m.relation(1, COLUMNS), m.insert(1, b"1", b"a", b"1"), m.insert(1, None, b"a", b"1")):
        changes.feed(data)
    assert [change.table.columns[0].optional for change in changes.out] == [False, True]


def test_excluded_columns_are_not_read_but_the_key_always_is():
    filters = TableFilters(column_exclude=("public.t.v", "public.t.id"))
    (change,) = fed(m.begin(1), m.relation(1, COLUMNS), m.update(1, [b"1", "u", b"2"]), filters=filters).out
    assert [column.name for column in change.table.columns] == ["id", "n"]
    assert (change.after, change.unchanged) == ((1, 2), ())


def test_a_value_that_cannot_be_read_names_table_and_lsn_but_not_the_value():
    with pytest.raises(CdcError) as caught:
        fed(m.begin(1), m.relation(1, COLUMNS), m.insert(1, b"secret", None, None))
    assert caught.value.code == "postgres.value_unsupported"
    assert caught.value.where == {"lsn": "0/100", "table": "public.t"}
    assert "secret" not in str(caught.value)


def test_a_change_of_an_undescribed_table_halts():
    with pytest.raises(CdcError) as caught:
        fed(m.begin(1), m.insert(9, b"1"))
    assert caught.value.code == "postgres.schema_unknown"


MESSAGES = [
    m.begin(1), m.relation(1, COLUMNS), m.insert(1, b"1", b"abc", b"3"), m.update(1, [b"2", "u", b"3"], [b"1", None, None]),
    m.delete(1, [b"1", None, None]), m.truncate(1), m.message("p", b"c", 5), m.commit(1),
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(MESSAGES) - 1), st.integers(0, 200), st.binary(max_size=4), st.booleans())
def test_damaged_bytes_are_an_error_and_never_a_crash(which, at, patch, cut):
    damaged = MESSAGES[which]
    at = 25 + at % (len(damaged) - 25)
    damaged = damaged[:at] if cut else damaged[:at] + patch + damaged[at + len(patch) :]
    if len(damaged) < 26:
        return
    changes = fed(MESSAGES[0], MESSAGES[1])
    with contextlib.suppress(CdcError):
        changes.feed(damaged)


def test_every_cut_of_every_row_message_is_refused():
    rng = random.Random(1)
    for data in MESSAGES[2:5]:
        for size in rng.sample(range(26, len(data)), 8):
            with pytest.raises(CdcError):
                fed(MESSAGES[0], MESSAGES[1], data[:size])


def typed(
    types: dict[int, PgType], columns, identity: str = "d", later: dict[int, PgType] | None = None
) -> PgoutputDecoder:
    """`later`: what the catalog says when it is asked again."""
    answers = iter([types, later or types, later or types])
    key = tuple(name for name, _, in_key in columns if in_key)[: None if identity == "d" else 1]

    def resolve(relation):
        made = TableDecodePlanner(None, HandlingModes(composite="record"), TableFilters())  # type: ignore[arg-type]
        return build_plan(relation, None, TypeNames(next(answers), {}), key, made)

    changes = PgoutputDecoder(resolve, source_template("shop", "db"))
    changes.feed(m.begin(1))
    changes.feed(m.relation(1, columns, identity))
    return changes


@pytest.mark.parametrize(("new", "ops"), [(b"NaN", "u"), (b"1", "dc")])
def test_a_key_that_is_not_a_number_is_the_same_key(new, ops):
    changes = typed({701: PgType(701, "float8"), 23: PgType(23, "int4")}, [("id", 701, True), ("n", 23, True)], "f")
    changes.feed(m.update(1, [new, b"2"], [b"NaN", b"1"], b"O"))
    assert "".join(change.op for change in changes.out) == ops


def pair(*names: str, dropped: bool = False) -> dict[int, PgType]:
    attributes = tuple((name, 23, -1) for name in names)
    return {23: PgType(23, "int4"), 9: PgType(9, "pair", "c", attributes=attributes, dropped=dropped)}


@pytest.mark.parametrize(
    ("later", "value", "expected"),
    [
        (pair("a", "b", "c"), b"(1,2,3)", {"a": 1, "b": 2, "c": 3}),
        (pair("a", "b", "c"), b"(1)", {"a": 1, "b": None, "c": None}),
        (pair("b", "c", "d", dropped=True), b"(1)", None),
        (pair("b", dropped=True), b"(1,2,3)", None),
        (pair("b", dropped=True), b"(1)", {"b": 1}),
    ],
)
def test_a_composite_has_its_types_fields_or_is_refused(later, value, expected):
    changes = typed(pair("a", "b"), [("id", 23, True), ("v", 9, False)], later=later)
    if expected is None:
        with pytest.raises(CdcError) as caught:
            changes.feed(m.insert(1, b"1", value))
        assert (caught.value.kind, caught.value.where["table"]) == ("data", "public.t")
    else:
        changes.feed(m.insert(1, b"1", value))
        assert [change.after for change in changes.out] == [(1, expected)]


def test_tables_whose_key_was_kept_are_planned_anew_with_the_first_transaction_behind_it():
    keys = [("id",), ()]

    def resolve(relation):
        return build_plan(relation, None, KNOWN, keys.pop(0), planner())

    changes = PgoutputDecoder(resolve, source_template("shop", "db"))
    changes.expired = lambda lsn: [1, 2] if lsn == 9 else []
    for data in (m.begin(1), m.relation(1, COLUMNS, "f"), m.insert(1, b"1", b"a", None), m.commit(1)):
        changes.feed(data)
    for data in (m.begin(9), m.insert(1, b"1", b"a", None), m.commit(9)):
        changes.feed(data)
    assert [change.table.key for change in changes.out] == [(0,), ()]


@pytest.mark.parametrize("typmods", [(5, -1), (40_000, 5)])
def test_sparse_vectors_of_one_table_have_one_form(typmods):
    known = TypeNames({9: PgType(9, "sparsevec")}, {})
    columns = tuple(RelationColumn(f"c{i}", 9, typmod, False) for i, typmod in enumerate(typmods))
    plan = build_plan(Relation(1, "public", "t", "d", columns), None, known, (), planner())
    first, second = (column.type for column in plan.table.columns)
    assert first == second
    assert first["fields"][0]["type"] == "int"
