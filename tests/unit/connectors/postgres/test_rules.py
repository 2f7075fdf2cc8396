"""Slot and position rules, keys, defaults, configuration and error translation: all without a server."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import psycopg
import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, SnapshotProgress, TableLoad
from cdcworker.connectors.capture.tables.last_known_keys import TABLES_MAX, LastKnownKeys
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF, SYSTEM_SCHEMAS, parse
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, key_of, numbers_of
from cdcworker.connectors.postgres.doctor.position_checks import check
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn, format_lsn, parse_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import slot as slots
from cdcworker.connectors.postgres.server.catalog import ColumnInfo, TableInfo, TypeNames, _choose_key, constant_default
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.server.slot import verify, verify_timeline
from cdcworker.connectors.postgres.server.slot_lag import LogLook, forecast, reaches
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.connectors.postgres.source.lag_monitor import LagMonitor
from cdcworker.connectors.postgres.source.session import Connections, Scope, Session, StreamState
from cdcworker.connectors.postgres.source.task import PostgresTask
from cdcworker.connectors.postgres.transport.libpq_stream import SystemIdentity
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.errors import CdcError

CONFIG = {
    "name": "orders",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "database.user": "cdc",
    "database.password": "hush",
    "database.dbname": "shop",
    "topic.prefix": "shop",
}
POSITION = StoredPosition("42", 1, "debezium", 90, 100, 108)
IDENTITY = SystemIdentity("42", 1, 200)
SLOT = ReplicationSlot("debezium", "pgoutput", "logical", "shop", None, 50, 108, "reserved", None)


def code_of(position=POSITION, identity=IDENTITY, slot: ReplicationSlot | None = SLOT) -> str | None:
    try:
        verify(position, identity, slot, parse(CONFIG))
    except CdcError as error:
        return error.code
    return None


def test_a_position_and_a_slot_that_belong_together_pass():
    assert code_of() is None
    assert code_of(slot=replace(SLOT, confirmed_lsn=60)) is None


@pytest.mark.parametrize(
    ("slot", "code"),
    [
        (None, e.SLOT_MISSING),
        (replace(SLOT, wal_status="lost"), e.SLOT_LOST),
        (replace(SLOT, restart_lsn=None), e.SLOT_LOST),
        (replace(SLOT, confirmed_lsn=109), e.SLOT_ADVANCED),
        (replace(SLOT, confirmed_lsn=150, restart_lsn=140), e.SLOT_RECREATED),
        (replace(SLOT, plugin="test_decoding"), e.SLOT_UNFIT),
        (replace(SLOT, two_phase=True), e.SLOT_UNFIT),
        (replace(SLOT, kind="physical", plugin=None), e.SLOT_UNFIT),
        (replace(SLOT, database="other"), e.SLOT_UNFIT),
    ],
)
def test_each_violation_has_a_code(slot, code):
    assert code_of(slot=slot) == code


def test_another_server_or_slot_name_is_refused():
    assert code_of(identity=replace(IDENTITY, system_id="43")) == e.OTHER_SERVER
    assert code_of(position=replace(POSITION, slot="before")) == e.SLOT_MISSING


@pytest.mark.parametrize(
    ("identity", "slot", "code"),
    [
        (IDENTITY, SLOT, None),
        (replace(IDENTITY, flush_lsn=107), SLOT, e.RESTORED),
        # The server comes first: a slot of another one says nothing about this connector's.
        (replace(IDENTITY, flush_lsn=107), None, e.RESTORED),
        (replace(IDENTITY, system_id="43"), None, e.OTHER_SERVER),
        (replace(IDENTITY, timeline=2), None, e.DIVERGED),
        (IDENTITY, None, e.SLOT_MISSING),
    ],
)
def test_the_server_is_checked_before_its_slot(identity, slot, code):
    found = None
    try:
        check(POSITION, identity, slot, parse(CONFIG), lambda _: "1\t0/10\tx\n")
    except CdcError as error:
        found = error.code
    assert found == code


@pytest.mark.parametrize(
    ("restarts", "safes", "expected"),
    [
        # The log grows by 100 a second; the slot stays where it is.
        ((0, 0), (1000, 900), 9.0),
        # It follows at half the pace.
        ((0, 500), (1000, 950), 19.0),
        ((0, 1000), (1000, 1000), None),
        ((0, 2000), (1000, 2000), None),
    ],
)
def test_the_end_of_a_slot_is_foreseen_from_its_last_two_looks(restarts, safes, expected):
    first = LogLook(5000, restarts[0], 100.0)
    assert forecast(LogLook(), first, safes[0]) is None
    assert forecast(first, LogLook(6000, restarts[1], 110.0), safes[1]) == expected


@pytest.mark.parametrize(
    ("lsn", "written", "reached"),
    [
        (8_000, 8_000, True),
        (8_000, 8_040, False),
        (8_192, 8_192 + 24, True),
        (8_192, 8_192 + 64, False),
        (8_184, 8_192 + 24, False),
    ],
)
def test_the_header_of_a_page_is_nothing_that_was_written(lsn, written, reached):
    assert reaches(lsn, written) is reached


@pytest.mark.parametrize(
    ("bound", "wal_status", "is_told"),
    [
        ("49", "reserved", True),
        ("50", "reserved", False),
        ("0", "reserved", False),
        ("0", "extended", True),
        ("50", "unreserved", True),
    ],
)
def test_a_slot_that_keeps_more_than_it_should_is_warned_of(monkeypatch, caplog, bound, wal_status, is_told):
    monkeypatch.setattr(slots, "find_slot", lambda _catalog, _name: replace(SLOT, wal_status=wal_status))
    rows = SimpleNamespace(fetchone=lambda: (format_lsn(SLOT.restart_lsn + 50),))
    session = SimpleNamespace(
        catalog=SimpleNamespace(execute=lambda _statement: rows),
        position=POSITION,
        settings=parse({**CONFIG, "slot.retained.warn.bytes": bound}),
    )
    monitor = LagMonitor(TaskContext("c", 0, 1, "i", ""))
    with caplog.at_level("WARNING", "cdcworker.connectors.postgres.source.lag_monitor"):
        monitor._look_at_slot(session)
    assert ("slot is in danger slot=debezium" in caplog.text) is is_told
    assert ("retained_bytes=50" in caplog.text) is is_told
    assert monitor._slot["slot_retained_bytes"] == 50


def test_rows_of_moved_keys_that_are_read_again_make_no_table_one_that_is_left():
    told: list[dict] = []
    monitor = LagMonitor(TaskContext("c", 0, 1, "i", "", report=told.append))
    loads = [
        SnapshotLoad("initial", "initial", [TableLoad(1, "public", "t")]),
        SnapshotLoad("moved", "moved", [TableLoad(2, "public", "u")]),
    ]
    session = SimpleNamespace(
        position=POSITION, connections=SimpleNamespace(stream=None), scope=Scope(parse(CONFIG)),
        snapshot=SimpleNamespace(progress=SnapshotProgress(loads, loaded=[2]), waits_for=""),
    )  # fmt: skip
    monitor._slot_at = 0.0
    monitor.tick(session, 1.0)
    assert (told[0]["snapshot_tables_left"], told[0]["snapshot_tables_loaded"]) == (1, 1)


@pytest.mark.parametrize(
    ("timeline", "history", "passes"),
    [
        (1, "", True),
        (2, "1\t0/6C\tno recovery target specified\n", True),
        (3, "1\t0/FF\tx\n2\t0/FFF\ty\n", True),
        (2, "1\t0/6B\tno recovery target specified\n", False),
        (2, "9\t0/FF\tx\n", False),
    ],
)
def test_a_failover_is_followed_only_when_the_new_timeline_holds_the_position(timeline, history, passes):
    identity = replace(IDENTITY, timeline=timeline)
    if passes:
        verify_timeline(POSITION, identity, lambda _: history)
    else:
        with pytest.raises(CdcError) as caught:
            verify_timeline(POSITION, identity, lambda _: history)
        assert caught.value.code == e.DIVERGED


@pytest.mark.parametrize(
    ("stored", "config", "written"),
    [
        ("number", {}, "number"), (None, {}, "empty"), ("empty", {}, "empty"),
        (None, {"key.nan.handling.mode": "number"}, "number"), ("number", {"key.nan.handling.mode": "empty"}, "empty"),
        ("number", {"out.of.range.handling.mode": "exact"}, "empty"),
    ],
)  # fmt: skip
def test_a_position_says_how_nan_is_written_in_keys(stored, config, written):
    position = {name: value for name, value in POSITION.to_json().items() if name != "key_nan"}
    found = StoredPosition.from_json(position | ({"key_nan": stored} if stored else {}))
    settings = parse({**CONFIG, **config}).going_on(found.timestamptz, found.key_nan)
    assert (settings.modes.key_nan, settings.modes.timestamptz) == (written, "padded")
    assert POSITION.to_json()["key_nan"] == parse(CONFIG).modes.key_nan == "number"


def test_a_stored_position_comes_back_and_ignores_what_it_does_not_know():
    assert StoredPosition.from_json({**POSITION.to_json(), "later": 1}) == POSITION
    assert StoredPosition.from_json(replace(POSITION, keys={"7": ["a"]}).to_json()).keys == {"7": ["a"]}
    for wrong in (
        {},
        {"v": 2},
        {**POSITION.to_json(), "keys": {"x": []}},
        {**POSITION.to_json(), "safe_lsn": "x"},
        {**POSITION.to_json(), "safe_lsn": -1},
    ):
        with pytest.raises(CdcError):
            StoredPosition.from_json(wrong)


def test_lsns_are_written_as_the_server_writes_them():
    assert parse_lsn(format_lsn(0x16_B374D848)) == 0x16_B374D848
    assert format_lsn(0x16_B374D848) == "16/B374D848"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("5", b"5"), ("(-5)", b"-5"), ("'-5'::integer", b"-5"), ("1.50", b"1.50"), ("true", b"t"),
        ("'it''s'::text", b"it's"), ("'x'::character varying(10)", b"x"), ("'{}'::text[]", b"{}"),
        ("'a'::public.\"My Type\"", b"a"), ("now()", None), ("nextval('s'::regclass)", None), ("NULL::text", None),
        ("('a'::text || 'b'::text)", None), (None, None), ("CURRENT_DATE", None),
    ],
)  # fmt: skip
def test_only_constants_are_defaults(expression, text):
    assert constant_default(expression) == text


def test_the_key_is_the_primary_key_else_the_identity_index_else_under_full_identity_a_unique_one():
    primary, identity, unique = (True, False, ["a", "b"]), (False, True, ["c"]), (False, False, ["d"])
    assert _choose_key("d", [primary, unique]) == (("a", "b"), ("a", "b"))
    assert _choose_key("i", [primary, identity]) == (("c",), ("c",))
    assert _choose_key("f", [unique]) == (("d",), ())
    assert _choose_key("d", [unique]) == ((), ())


def test_the_stream_decides_the_key_and_the_catalog_its_order():
    columns = tuple(RelationColumn(name, 23, -1, name in "ab") for name in "abc")
    relation = Relation(1, "s", "t", "d", columns)
    info = table_info("abc", ("b", "a"))
    assert key_of(relation, info) == ("b", "a")
    assert key_of(relation, replace(info, key=("c",))) == ("a", "b")
    assert key_of(relation, None) == ("a", "b")
    assert key_of(relation, table_info("xbc", ("b", "x"))) == ("b", "a"), "a column of it was renamed meanwhile"
    # The first column was dropped and added anew, which leaves no number certain.
    flagged = Relation(1, "s", "t", "d", tuple(RelationColumn(name, 23, -1, name != "a") for name in "abc"))
    assert numbers_of(flagged, table_info("-bca", ("c", "b"))) == {}
    assert key_of(flagged, table_info("-bca", ("c", "b"))) == ("c", "b")


def table_info(names: str, key: tuple[str, ...], oids: dict[str, int] | None = None) -> TableInfo:
    columns = {
        name: ColumnInfo(i, name, (oids or {}).get(name, 23), -1, False, None) for i, name in enumerate(names, 1)
    }
    return TableInfo(1, "s", "t", "f", columns, key)


def full(names: str) -> Relation:
    return Relation(1, "s", "t", "f", tuple(RelationColumn(name, 23, -1, True) for name in names))


@pytest.mark.parametrize(
    ("info", "last", "key"),
    [
        (table_info("abc", ("b", "a")), ("c",), ("b", "a")),
        (table_info("xbc", ("x",)), (), ("a",)),
        (table_info("bac", ("b",)), ("a",), ("a",)),
        (table_info("bac", ("b",)), (), ("b",)),
        (table_info("abc", ()), ("a",), ("a",)),
        (table_info("abc", ()), (), ()),
        (table_info("abcx", ("x",)), ("a",), ("a",)),
        (table_info("abcx", ("x",)), (), ()),
        (None, ("a",), ("a",)),
        (None, (), ()),
    ],
)
def test_under_a_full_identity_the_key_is_the_catalogs_by_the_streams_names_else_the_last_one(info, last, key):
    assert key_of(full("abc"), info, last) == key


def test_a_last_key_is_stored_and_forgotten_where_the_stream_has_come_to_the_look_that_missed_it():
    keys = LastKnownKeys(None, lambda: 100)
    keys.note(1, ("a",), unmarked=True, dropped=False)
    keys.note(2, ("a",), unmarked=False, dropped=False)
    assert keys.to_json() == {"1": ["a"]}
    again = LastKnownKeys(keys.to_json(), lambda: 100)
    assert (again.of(1, "ab"), again.of(1, "bc")) == (("a",), ())
    again.note(1, ("a",), unmarked=True, dropped=True)
    again.note(1, ("a",), unmarked=True, dropped=True)
    assert (again.expired(100), again.expired(101), again.expired(102)) == ([], [1], [])
    assert (again.of(1, "ab"), again.to_json()) == ((), None)
    gone = LastKnownKeys({"1": ["a"]}, lambda: 100)
    gone.note(1, ("a",), unmarked=True, dropped=False)
    assert (gone.expired(101), gone.to_json()) == ([], {"1": ["a"]})
    gone.seen(1, ("b",), unmarked=True)
    gone.seen(3, ("b",), unmarked=True)
    gone.seen(4, ("b",), unmarked=False)
    assert gone.to_json() == {"1": ["a"], "3": ["b"]}


def test_the_key_of_a_full_identity_is_remembered_and_used_once_the_catalog_has_it_no_more():
    keys = LastKnownKeys(None, lambda: 100)
    planner = TableDecodePlanner(LookedUp(table_info("ab", ("a",))), HandlingModes(), TableFilters(), last=keys)  # type: ignore[arg-type]
    assert planner.plan(full("ab")).table.key == (0,)
    assert planner.plan(full("ab")._replace(oid=2, identity="d")).table.key == (0, 1)
    assert keys.to_json() == {"1": ["a"]}
    assert planner.plan(full("ab"), table_info("ab", ())).table.key == (0,)
    assert keys.expired(101) == [1]
    assert planner.plan(full("ab"), table_info("ab", ())).table.key == ()


class LookedUp:
    """A catalog that knows one table, and int4."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info

    def table(self, _oid: int) -> TableInfo:
        return self.info

    def types(self, _wanted: object) -> TypeNames:
        return TypeNames({23: PgType(23, "int4")}, {})


def test_last_keys_of_very_many_tables_are_not_all_stored():
    keys = LastKnownKeys(None, lambda: 0)
    for table in range(TABLES_MAX + 2):
        keys.note(table, ("a",), unmarked=True, dropped=False)
        keys.note(0, ("a",), unmarked=True, dropped=False)
    assert len(keys.to_json()) == TABLES_MAX
    assert "0" in keys.to_json()
    assert "1" not in keys.to_json()
    for table in range(TABLES_MAX):
        keys.seen(-table, ("a",), unmarked=True)
    assert len(keys.to_json()) == TABLES_MAX


def test_earlier_versions_do_not_take_new_fingerprints_for_theirs():
    position = StoredPosition("1", 1, "s", 0, 0, 0, shapes={"public.t": "2:a"}).to_json()
    assert "shapes" not in position
    assert StoredPosition.from_json(position).shapes == {"public.t": "2:a"}
    former = {**position, "shapes": {"public.t": "b"}}
    del former["forms"]
    assert StoredPosition.from_json(former).shapes == {"public.t": "b"}


@pytest.mark.parametrize(
    ("now", "numbers"),
    [
        ("abc", {"a": 1, "b": 2, "c": 3}),
        ("axc", {"a": 1, "b": 2, "c": 3}),
        ("acb", {"a": 1}),
        ("-bca", {}),
        ("ab-", {"a": 1, "b": 2}),
        ("ab-c", {"a": 1, "b": 2, "c": 4}),
    ],
)
def test_a_number_that_is_out_of_order_is_another_columns(now, numbers):
    info = table_info(now, (), {"-": 25})
    assert numbers_of(full("abc"), info) == numbers


def test_a_debezium_config_is_accepted_and_what_is_not_needed_is_noted():
    config = {
        **CONFIG, "max.batch.size": "2048", "plugin.name": "pgoutput", "max.queue.size": "8192",
        "key.converter": "io.confluent.connect.avro.AvroConverter", "errors.tolerance": "none",
        "signal.data.collection": "public.signals", "batch.commit.ms.max": "100",
    }  # fmt: skip
    assert parse(config).hosts == "db"
    assert {"max.batch.size", "max.queue.size"} <= {name for name, _ in CONFIG_DEF.notes(config)}
    assert not [value for value in CONFIG_DEF.validate(config) if value.errors]


@pytest.mark.parametrize(
    ("value", "is_noted"), [("auto", False), ("never", False), ("public.t.data", True), ("", True)]
)
def test_a_value_that_means_nothing_here_is_taken_with_a_remark(value, is_noted):
    config = {**CONFIG, "binary.columns": value}
    assert parse(config).raw["binary.columns"] == value
    assert [note for name, note in CONFIG_DEF.notes(config) if name == "binary.columns"] == (
        ["The value means nothing here: auto is used."] if is_noted else []
    )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("snapshot.mode", "custom", "not available"),
        ("snapshot.mode", "sometimes", "expects one of"),
        ("plugin.name", "wal2json", "pgoutput"),
        ("transforms", "unwrap", 'Missing required configuration "transforms.unwrap.type"'),
        ("predicates", "x", '"predicates.x.type" which has no default value'),
        ("message.key.columns", "t", "expects schema.table:column"),
        ("table.inclde.list", "public.t", "did you mean table.include.list"),
        ("slot.name", "No-Good", "lower-case"),
        ("table.include.list", "(", "regular expression"),
        ("database.port", "http", "port"),
        *(("database.port", port, "between 1 and 65535") for port in ("99999", "0", "", "5432,5433", "٣", "1" * 5000)),
        ("errors.tolerance", "all", "String must be one of: none"),
        ("batch.commit.ms.max", "soon", "Not a number of type INT"),
        ("batch.comit.ms.max", "1", "did you mean batch.commit.ms.max"),
        ("skipped.operations", "x", "c, u, d, t"),
    ],
)
def test_a_wrong_key_is_named(key, value, says):
    with pytest.raises(CdcError) as caught:
        CONFIG_DEF.require_valid({**CONFIG, key: value})
    assert key in caught.value.message
    assert says in caught.value.message


def test_include_and_exclude_together_are_refused():
    with pytest.raises(CdcError):
        parse({**CONFIG, "table.include.list": "a.b", "table.exclude.list": "a.c"})


def test_filters_match_whole_names():
    filters = TableFilters(table_include=(r"public\.orders", r"sales\..*"))
    assert filters.table("public", "orders")
    assert filters.table("PUBLIC", "Orders")
    assert filters.table("sales", "x")
    assert not filters.table("public", "orders_old")
    own = TableFilters(system_schemas=SYSTEM_SCHEMAS)
    for schema in ("pg_catalog", "information_schema", "pg_toast", "pg_toast_temp_3", "pg_temp_3"):
        assert not own.table(schema, "pg_class")
    assert own.table("pg", "pg_class")


def test_the_password_is_in_no_text_of_the_settings():
    settings = parse(CONFIG)
    assert "hush" not in repr(settings)
    assert settings.password is not None
    assert settings.password.reveal() == "hush"


def test_one_slot_is_one_task():
    assert len(PostgresSource(CONFIG).split(8)) == 1


@pytest.mark.parametrize(
    ("text", "state", "code", "retriable"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', None, e.AUTHENTICATION, False),
        ('FATAL:  database "x" does not exist', None, e.DATABASE_MISSING, False),
        ("connection failed: Connection refused", None, e.UNREACHABLE, True),
        ("terminating connection due to administrator command", "57P01", e.CONNECTION_LOST, True),
        ('could not translate host name "db" to address: unknown', None, e.UNREACHABLE, True),
        ('can no longer get changes from replication slot "s"', "55000", e.SLOT_LOST, False),
        ('replication slot "s" is active for PID 1', "55006", e.SLOT_BUSY, True),
        ('publication "p" does not exist', "42704", e.PUBLICATION, False),
        ("something new", "XX000", e.QUERY, False),
        ("sorry, too many clients already", "53300", e.TOO_MANY_CONNECTIONS, True),
        ("all replication slots are in use", "53400", e.NO_FREE_SLOT, False),
    ],
)
def test_foreign_errors_are_translated_once(text, state, code, retriable):
    error = e.translate_text(text, None, state) if state else e.translate(psycopg.OperationalError(text))
    assert (error.code, error.retriable) == (code, retriable)


@pytest.mark.parametrize("state", ["22P02", "22003", "23505", "P0001", "22ZZZ"])
def test_a_text_of_the_server_that_may_quote_a_value_is_left_out(state):
    class Quoting(psycopg.Error):
        sqlstate = state

    text = 'invalid input syntax for type uuid: "4711-hush"'
    for error in (e.translate(Quoting(text)), e.translate_text(text, None, state)):
        assert "hush" not in str(error.to_dict())
        assert error.where["sqlstate"] == state


@pytest.mark.parametrize(
    ("text", "state", "context"),
    [
        ("no heartbeat for 4711-hush", "C0815", None),
        ("4711-hush is none of yours", "42501", "PL/pgSQL function f() line 3 at RAISE"),
        (
            'relation "part_4711-hush" does not exist',
            "42P01",
            'SQL statement "insert into …"\nPL/pgSQL-Funktion f() Zeile 1',
        ),
        ("division of 4711-hush", "XX000", 'SQL function "f" statement 1'),
    ],
)
def test_a_text_of_a_function_s_author_is_left_out_whatever_its_state(text, state, context):
    error = e.translate_text(text, None, state, context)
    assert "hush" not in str(error.to_dict())
    assert error.where["sqlstate"] == state


def test_a_text_of_the_server_s_own_stays_with_its_context():
    context = 'slot "s", output plugin "pgoutput", in the begin callback, associated LSN 0/1'
    assert e.translate_text('publication "p" does not exist', None, "42704", context).message.startswith("publication")


def test_a_position_without_the_keys_of_rows_is_one_from_which_nobody_goes_on():
    source, loads = (
        PostgresSource(CONFIG),
        [TableLoad(3, "public", "c", parts=[KeyRange(["hush"], ["hush2"])], again=[["hush3"]])],
    )
    stored = StoredPosition(
        "7", 1, "s", 1, 1, 1, snapshot=SnapshotProgress([SnapshotLoad("initial", "start", loads)], [1]).to_json()
    )
    position = stored.to_json()
    source.check_position(position)
    for one in (
        position,
        {**position, "snapshot": {"todo": [[3, "public", "c"]], "last": ["hush"], "again": [["hush"]]}},
    ):
        shown = source.without_keys(one)
        assert "hush" in str(one)
        assert "hush" not in str(shown)
        assert {**shown, "snapshot": None} == {**position, "snapshot": None}
        with pytest.raises(CdcError) as caught:
            source.check_position(shown)
        assert caught.value.code == e.POSITION_INVALID
    done = {**position, "snapshot": SnapshotProgress(loaded=[1, 3]).to_json()}
    assert source.without_keys(done) == done
    assert source.without_keys({**position, "snapshot": None})["snapshot"] is None


def test_a_table_that_is_not_captured_any_more_is_read_again_when_it_comes_back():
    left = TableLoad(4, "public", "d", parts=[KeyRange(["8"])])
    progress = SnapshotProgress(
        loaded=[1, 2], loads=[SnapshotLoad("initial", "start", [TableLoad(3, "public", "c"), left])]
    )
    assert progress.forget_all_but({2, 4})
    assert (progress.loaded, progress.loads[0].tables) == ([2], [left])
    assert not progress.forget_all_but({2, 4})
    assert left.parts[0].last == ["8"]
    assert [progress.knows(oid) for oid in (1, 2, 3, 4)] == [False, True, False, True]


def test_a_table_whose_entry_in_the_publication_is_newer_has_missed_changes():
    progress = SnapshotProgress(loaded=[1, 2, 3])
    assert progress.forget_gaps({1: 50, 2: 51, 3: 40}) == set(), "a position from before entries were counted"
    assert not progress.left
    assert not progress.differs({1: 50, 2: 51, 3: 40})
    assert progress.differs({1: 50, 2: 60, 3: 40})
    assert progress.forget_gaps({1: 50, 2: 60, 4: 61}) == {2}
    assert (progress.loaded, progress.joined, progress.left) == ([1], 61, True)
    assert SnapshotProgress.from_json(progress.to_json()) == progress
    whole = SnapshotProgress(loaded=[1])
    assert whole.forget_gaps({1: 0}) == set(), "a publication of all tables has no entries"
    assert whole.loaded == [1]


def test_a_silence_in_the_middle_of_a_transaction_is_waited_for_and_not_spun_through():
    waits: list[float] = []
    stream = SimpleNamespace(
        receive=lambda take, rows=None: True, wait=lambda s: waits.append(s) or False, keepalive_lsn=0
    )
    changes = SimpleNamespace(in_transaction=True, out=["half of it"], bytes=0)
    task = PostgresTask(parse(CONFIG), TaskContext("c", 0, 1, "i", ""))
    settings, streamed = parse(CONFIG), SimpleNamespace(inside=False, replay=None, turned=False)
    connections = Connections(settings, "", None, stream)  # type: ignore[arg-type]
    state = StreamState(changes, streamed)  # type: ignore[arg-type]
    task._session = Session(POSITION, connections, Scope(settings), state)
    task._first = False
    for waited in ([], [True], [True, True]):
        batch = task.poll()
        assert (list(batch.changes), batch.position, changes.out) == ([], None, ["half of it"])
        assert [wait > 0 for wait in waits] == waited
