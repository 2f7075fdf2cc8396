"""Verify on two real databases whose warehouse is written by SQL: planted differences are found, a moving source has none."""

from __future__ import annotations

import random
import threading
import time

import psycopg
import pytest
from cdcworker.connectors.comparison.opening import ComparedConnectors, opened
from cdcworker.connectors.comparison.repair import repair_json, repaired_kinds_of
from cdcworker.connectors.comparison.transformed_tables import SHARED
from cdcworker.connectors.verify import report
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.verify.databases import VerifyLimits
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topic_access import TopicAccess
from psycopg.conninfo import conninfo_to_dict

pytestmark = pytest.mark.postgres
TABLES = {
    "people": "id bigint primary key, name text, note text, born timestamptz, amount numeric(12,2)",
    "lines": "doc uuid, line int, a text, b text, w double precision, primary key (doc, line)",
    # The order of text depends on a collation: compared by hashes of its key.
    "words": "word text primary key, n int, j jsonb, raw bytea",
}
ROWS = {
    "people": "select g, 'name ' || g, case when g % 3 = 0 then null else 'note' end, "
    "'2024-01-01'::timestamptz + g * interval '1 second', g * 1.5 from generate_series(1, 400) g",
    "lines": "select md5((g / 3)::text)::uuid, g % 3, 'a' || g, 'b' || g, g / 3.0 from generate_series(1, 300) g",
    "words": "select 'wörd ' || g, g, jsonb_build_object('b', g, 'a', 1.50), '\\x00ff' from generate_series(1, 300) g",
}
LIMITS = VerifyLimits(range_rows=50, rows_per_s=0)


class Reached:
    """The offset in the ledger of these tests is the position itself."""

    def __init__(self, position):
        self.position = position

    def reached(self, ledger):
        return ledger.get(("p", 0), 0) >= self.position

    def lagging(self, ledger):
        return "behind"


class Now:
    """A warehouse that is not fed any more is at every position."""

    def reached(self, ledger):
        return True

    def lagging(self, ledger):
        return ""


def config(dsn, prefix):
    parts = conninfo_to_dict(dsn)
    names = {"host": "hostname", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
    return {f"{prefix}.{names[key]}": str(value) for key, value in parts.items() if key in names}


def wanted(dsns, **more):
    sink = {"connector.class": "spark", "topics.regex": r"p\..*", **config(dsns[1], "warehouse")}
    source = {"connector.class": "postgres", "topic.prefix": "p", **config(dsns[0], "database")}
    topics = tuple(f"p.public.{name}" for name in more.pop("topics", TABLES))
    return ComparedConnectors(
        "sink", {**sink, **more.pop("sink", {})}, {**source, **more.pop("source", {})}, topics, **more
    )


def verified(dsns, goal=lambda position, deadline: Now(), limits=LIMITS, rounds=12, **more):
    with opened(wanted(dsns, **more), limits) as both:
        comparison = Comparison(both.source, both.target, goal, CompareSettings(limits, rounds=rounds))
        comparison.tally.notes += both.notes
        return comparison.run(both.plans)


def summary(tally):
    """{table: {kind: count}} of what differs."""
    return {state.plan.source.name: dict(state.counts) for state in tally.tables if state.verdict != "equal"}


@pytest.fixture
def dsns(postgres):
    names = postgres.create_database(), postgres.create_database()
    yield [postgres.dsn(name) for name in names]
    for name in names:
        postgres.drop_database(name)


@pytest.fixture(scope="module")
def pair(postgres):
    """A source and its warehouse; each test undoes what it plants."""
    names = postgres.create_database(), postgres.create_database()
    found = [postgres.dsn(name) for name in names]
    for dsn in found:
        with psycopg.connect(dsn, autocommit=True) as db:
            for name, columns in TABLES.items():
                db.execute(f"create table {name} ({columns})")
                db.execute(f"insert into {name} {ROWS[name]}")
                if dsn == found[1]:
                    db.execute(f"alter table {name} add _cdc_position bytea default '\\x00', add _loaded_at date")
            db.execute("analyze")
    yield found
    for name in names:
        postgres.drop_database(name)


def test_of_a_history_of_versions_the_current_ones_are_compared(dsns):
    with psycopg.connect(dsns[0], autocommit=True) as db:
        db.execute("create table t (id int primary key, a text)")
        db.execute("insert into t values (1, 'new'), (2, 'new'), (3, 'new')")
    with psycopg.connect(dsns[1], autocommit=True) as db:
        db.execute(
            "create table t (id int, a text, _cdc_position bytea, _cdc_is_current boolean, primary key (id, _cdc_position))"
        )
        db.execute(
            """insert into t values (1, 'old', '1', false), (1, 'new', '2', true), (2, 'new', '1', true),
                 (3, 'new', '1', false), (4, 'new', '1', true)"""
        )
    tally = verified(dsns, topics=["t"], sink={"output.mode": "scd2"})
    assert summary(tally) == {"t": {"missing": 1, "extra": 1}}


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ({"held": {"p.public.held": "a column cannot become another"}}, "the sink holds it back: a column cannot become another"),
        ({"held_by_source": {"public.held": "postgres.table_closed"}}, "the source holds it back: postgres.table_closed"),
    ],
    ids=["the sink", "the source"],
)  # fmt: skip
def test_nobody_waits_for_a_table_that_is_held_back_nor_calls_it_different(dsns, held, reason):
    """The others are compared; it is told with what stopped it."""
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as db:
            for name in ("t", "held"):
                db.execute(f"create table {name} (id int primary key, a text)")
                db.execute(
                    f"insert into {name} values (1, %s)", ("old" if name == "held" and dsn == dsns[1] else "new",)
                )
    waited_for = []
    asked = wanted(dsns, topics=["t", "held"], **held)
    with opened(asked, LIMITS, lambda topics, *_: waited_for.append(list(topics))) as both:
        tally = Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(LIMITS)).run(both.plans)
    found = {state.plan.source.name: (state.verdict, state.reason) for state in tally.tables}
    assert found == {"t": ("equal", ""), "held": ("impossible", reason)}
    assert waited_for == [["p.public.t"]]
    assert tally.verdict == "impossible"


def test_a_table_whose_topic_the_sink_may_not_read_is_not_compared(dsns):
    """Nobody asks the warehouse even for its name, although the pattern matches and the source sends it."""
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("create table shop_orders (id int primary key); create table invoices (id int primary key)")
    with psycopg.connect(dsns[0], autocommit=True) as db:
        db.execute("create publication dbz_publication for all tables")
    access = TopicAccess(prefixes=("p.public.shop_",))
    with opened(wanted(dsns, topics=["shop_orders"], access=access), LIMITS) as both:
        assert [one.source.name for one in both.plans] == ["shop_orders"]
    foreign = wanted(dsns, topics=["shop_orders"], access=TopicAccess(prefixes=("shop-",)))
    with pytest.raises(CdcError, match="no table of the sink comes from this source"), opened(foreign, LIMITS):
        pass


@pytest.mark.parametrize("source", [{"table.exclude.list": "public.salaries"}, {}], ids=["excluded", "not published"])
def test_no_key_of_a_table_that_the_source_does_not_hand_on_reaches_the_warehouse(dsns, source):
    """The source's login reads the table, and whoever owns the sink names its topic."""
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as db:
            for name in ("t", "salaries"):
                db.execute(f"create table {name} (id int primary key)")
                db.execute(f"insert into {name} values (4711)")
    with psycopg.connect(dsns[0], autocommit=True) as db:
        db.execute(f"create publication dbz_publication for {'all tables' if source else 'table t'}")
    waited_for, named = [], {"topics.regex": "", "topics": "p.public.t,p.public.salaries"}
    asked = wanted(dsns, topics=["t"], sink=named, source=source)
    with opened(asked, LIMITS, lambda topics, *_: waited_for.append(list(topics))) as both:
        tally = Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(LIMITS)).run(both.plans)
    found = {state.plan.source.name: (state.verdict, state.reason, state.source_rows) for state in tally.tables}
    reason = "the source's configuration or its publication leaves the table out"
    assert found == {"t": ("equal", "", 1), "salaries": ("impossible", reason, 0)}
    assert waited_for == [["p.public.t"]]


def test_a_topic_that_holds_several_tables_is_neither_compared_nor_repaired(dsns):
    """What the warehouse has of the other tables is not in the table of this name: a repair would delete it."""
    names = ("orders", "orders_1", "orders_2", "people")
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as db:
            for number, name in enumerate(names):
                db.execute(f"create table {name} (id int primary key)")
                if dsn == dsns[0] and name != "orders":
                    db.execute(f"insert into {name} values ({number})")
    with psycopg.connect(dsns[0], autocommit=True) as db:
        db.execute("create publication dbz_publication for all tables")
    with psycopg.connect(dsns[1], autocommit=True) as db:
        db.execute("insert into orders values (1), (2)")
    route = {"type": "RegexRouter", "regex": r"(.*)_\d+", "replacement": "$1"}
    source = {"transforms": "one", **{f"transforms.one.{key}": value for key, value in route.items()}}
    with opened(wanted(dsns, topics=["orders", "people"], source=source), LIMITS) as both:
        settings = CompareSettings(LIMITS, kept=repaired_kinds_of(both))
        tally = Comparison(both.source, both.target, lambda *_: Now(), settings).run(both.plans)
        repair = repair_json(both, tally)["tables"]
    routed = "transforms.one gives its records another topic"
    reasons = {"public.orders": SHARED, "public.orders_1": routed, "public.orders_2": routed}
    assert {state.plan.name: state.reason for state in tally.tables} == {**reasons, "public.people": ""}
    assert {one["table"]: one["refused"] for one in repair if not one["rows"]} == {
        name: [{"rows": 0, "why": why}] for name, why in reasons.items()
    }
    assert [one["table"] for one in repair if one["rows"]] == ["public.people"]


def test_a_source_of_another_class_is_refused_by_its_name(dsns):
    with (
        pytest.raises(CdcError, match="class datagen") as refused,
        opened(wanted(dsns, source={"connector.class": "datagen"}), LIMITS),
    ):
        pass
    assert refused.value.code == "verify.unfit"


@pytest.fixture
def plant(pair):
    """Runs statements in the warehouse; afterwards it is again what it was."""
    with psycopg.connect(pair[1], autocommit=True) as db:
        yield lambda *statements: [db.execute(statement) for statement in statements]
        for name in TABLES:
            columns = ", ".join(part.split()[0] for part in TABLES[name].split(", primary")[0].split(", "))
            db.execute(f"delete from {name}")
            db.execute(f"insert into {name} ({columns}) {ROWS[name]}")


def test_equal_tables_are_equal_whatever_the_warehouse_adds(pair):
    tally = verified(pair)
    assert (tally.verdict, summary(tally)) == ("equal", {})
    rows = {state.plan.source.name: (state.source_rows, state.target_rows) for state in tally.tables}
    assert rows == {"people": (400, 400), "lines": (300, 300), "words": (300, 300)}
    assert all(state.source_sum == state.target_sum != 0 for state in tally.tables)


@pytest.mark.parametrize(
    ("statement", "expected", "columns"),
    [
        ("update people set name = 'nbme 77' where id = 77", {"people": {"different": 1}}, ("name",)),
        ("update words set raw = '\\x00fe' where n = 7", {"words": {"different": 1}}, ("raw",)),
        ("delete from people where id = 400", {"people": {"missing": 1}}, ()),
        ("delete from words where n = 1", {"words": {"missing": 1}}, ()),
        ("insert into people (id) values (100000)", {"people": {"extra": 1}}, ()),
        ("insert into words values ('a deleted row', 1)", {"words": {"extra": 1}}, ()),
        ("update people set note = '' where id = 3", {"people": {"different": 1}}, ("note",)),
        ("update people set note = null where id = 4", {"people": {"different": 1}}, ("note",)),
        ("update lines set a = b, b = a where line = 1 and a = 'a1'", {"lines": {"different": 1}}, ("a", "b")),
        ("update people set born = born + interval '1 microsecond' where id = 9", {"people": {"different": 1}}, ("born",)),
        ("update lines set w = w + 1e-13 where a = 'a100'", {"lines": {"different": 1}}, ("w",)),
    ],
)  # fmt: skip
def test_every_planted_difference_is_found_with_its_key_and_its_columns(pair, plant, statement, expected, columns):
    plant(statement)
    tally = verified(pair)
    assert (tally.verdict, summary(tally)) == ("different", expected)
    (found,) = [found for state in tally.tables for found in state.found]
    assert found.columns == columns
    assert tally.progress["tables_done"] == 3


def test_two_errors_that_cancel_in_the_count_are_both_found_and_named(pair, plant):
    plant("delete from people where id = 42", "insert into people (id, name) values (1042, 'new')")
    (state,) = [state for state in verified(pair).tables if state.verdict == "different"]
    assert (state.source_rows, state.target_rows) == (400, 400)
    assert sorted((found.kind, found.key) for found in state.found) == [("extra", ("1042",)), ("missing", ("42",))]


def test_two_rows_that_swap_their_values_are_found(pair, plant):
    plant(
        "update people p set name = q.name from people q where (p.id, q.id) in ((5, 305), (305, 5))",
    )
    (state,) = [state for state in verified(pair).tables if state.verdict == "different"]
    assert {found.key for found in state.found} == {("5",), ("305",)}


def test_rows_that_stand_there_twice_are_found(pair, plant):
    plant("alter table people drop constraint people_pkey", "insert into people select * from people where id = 8")
    try:
        assert summary(verified(pair)) == {"people": {"duplicate": 1}}
    finally:
        plant("delete from people", "alter table people add primary key (id)")


def test_an_emptied_table_counts_and_says_that_it_did_not_look_at_everything(pair, plant, monkeypatch):
    monkeypatch.setattr("cdcworker.connectors.verify.compare.SUSPECTS_MAX", 4)
    plant("delete from people")
    (state,) = [state for state in verified(pair).tables if state.verdict == "different"]
    assert (state.source_rows, state.target_rows, state.is_full) == (400, 0, True)
    assert 4 <= state.differences < 400


def test_columns_and_tables_that_cannot_be_compared_are_named_with_the_reason(dsns):
    for dsn in dsns:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("create table t (id int primary key, a text, b text, c interval[], d int)")
            db.execute("create table nokey (a int)")
            db.execute("insert into t values (1, 'a', 'b', '{}', 1)")
            if dsn == dsns[0]:
                db.execute("create table absent (id int primary key)")
                db.execute("insert into absent values (1)")
            else:
                db.execute("update t set a = 'hidden'")
                db.execute("alter table t drop d")
    more = {"topics": ["t", "nokey", "absent", "gone"], "source": {"column.exclude.list": "public.t.a"}}
    tally = verified(dsns, **more)
    states = {state.plan.source.name: state for state in tally.tables}
    assert tally.notes == ["public.gone is not in the source any more"]
    assert states["absent"].verdict == "different"
    assert (states["nokey"].verdict, "no key" in states["nokey"].reason) == ("impossible", True)
    assert [column.name for column in states["t"].plan.columns] == ["id", "b"]
    # It holds a value that the warehouse has no place for.
    assert (states["t"].verdict, states["t"].plan.lacking) == ("different", ("d",))
    left_out = dict(states["t"].plan.left_out)
    assert set(left_out) == {"a", "c", "d"}
    assert "configuration" in left_out["a"]
    assert "not in the warehouse" in left_out["d"]
    with psycopg.connect(dsns[0]) as db:
        db.execute("update t set d = null")
    assert verified(dsns, tables=[r"public\.t"], **more).verdict == "equal"


def test_a_table_with_a_chosen_key_is_compared_by_what_the_sink_was_given(dsns):
    """The columns of the primary key are in the rows alone: as readers hold them, or hashed."""
    values = [("infinity", "A", 1), ("2024-01-01", "B", 2), ("10000-01-01", "C", 3), ("0044-03-15 BC", "D", 4)]
    for dsn in dsns:
        is_source = dsn == dsns[0]
        with psycopg.connect(dsn, autocommit=True) as db:
            for name in ("bounded", "hashed"):
                key = "primary key (at, code)" if is_source else "primary key (n)"
                db.execute(f"create table {name} (at timestamp, code text, n int not null, {key})")
                db.cursor().executemany(f"insert into {name} values (%s, %s, %s)", values)
            if not is_source:
                nearest = "least(greatest(at, '0001-01-01'), '9999-12-31 23:59:59.999999')"
                for name in ("bounded", "hashed"):
                    db.execute(f"update {name} set at = {nearest}")
                db.execute("update hashed set code = md5(code)")
    more = {"message.key.columns": "public.*:n", "column.mask.hash.SHA-256.with.salt.x": "public.hashed.code"}
    asked = {"topics": ["bounded", "hashed"], "source": more}
    assert verified(dsns, **asked).verdict == "equal"
    with psycopg.connect(dsns[1], autocommit=True) as db:
        db.execute("update bounded set at = '2024-01-02' where n = 2; update hashed set at = '2024-01-02' where n = 1")
        db.execute("delete from bounded where n = 3; insert into bounded values ('2024-01-01', 'E', 5)")
    found = {
        state.plan.source.name: {item.key[0]: (item.kind, item.columns) for item in state.found}
        for state in verified(dsns, **asked).tables
    }
    assert found["bounded"] == {"2": ("different", ("at",)), "3": ("missing", ()), "5": ("extra", ())}
    assert found["hashed"] == {"1": ("different", ("at",))}


def test_a_result_holds_no_keys_and_a_warehouse_that_lags_is_an_error(pair, plant):
    plant("update words set n = 0 where word = 'wörd 17'")
    tally = verified(pair)
    assert "17" not in str(report.result(tally, b"salt")["tables"][2]["found"][0])
    assert list(report.keys(tally, b"salt").values()) == [["wörd 17"]]
    with opened(wanted(pair), LIMITS) as both:
        settings = CompareSettings(LIMITS, catch_up_s=0.1)
        comparison = Comparison(both.source, both.target, lambda position, _: Reached(position), settings)
        with pytest.raises(CdcError, match="behind") as caught:
            comparison.run(both.plans)
    assert caught.value.code == "verify.behind"


class Mover(threading.Thread):
    """Changes rows of the source at random and applies each transaction to the warehouse later: as a sink does."""

    def __init__(self, dsns, seed, ids=120):
        super().__init__(daemon=True)
        self.dsns = dsns
        self.ids = ids
        self.random = random.Random(seed)
        self.ending = threading.Event()
        self.error = None
        self.transactions = 0

    def statement(self):
        one, other = self.random.randrange(1, self.ids), self.random.randrange(1, self.ids)
        return self.random.choice(
            [
                f"update t set v = v || 'x' where id = {one}",
                f"update t set v = 'short' where id = {one}",
                f"delete from t where id = {one}",
                f"insert into t values ({one}, 'new', {other}) on conflict do nothing",
                f"update t set id = {one} where id = {other} and not exists (select from t where id = {one})",
            ]
        )

    def run(self):
        try:
            with psycopg.connect(self.dsns[0]) as source, psycopg.connect(self.dsns[1]) as target:
                waiting = []
                while not self.ending.is_set() or waiting:
                    if not self.ending.is_set():
                        statements = [self.statement() for _ in range(self.random.randrange(1, 4))]
                        for statement in statements:
                            source.execute(statement)
                        source.commit()
                        ((position,),) = source.execute(
                            "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
                        ).fetchall()
                        source.commit()
                        waiting.append((statements, position))
                        self.transactions += 1
                    if self.ending.is_set() or len(waiting) > self.random.randrange(0, 8):
                        statements, position = waiting.pop(0)
                        for statement in statements:
                            target.execute(statement)
                        target.execute("update _cdcworker.ledger set next_offset = %s", (position,))
                        target.commit()
                    self.ending.wait(0.002)
        except psycopg.Error as error:
            self.error = error


def test_a_source_that_moves_on_with_deletes_and_key_changes_has_no_differences(dsns):
    for dsn in dsns:
        with psycopg.connect(dsn) as db:
            db.execute("create table t (id int primary key, v text, n int)")
            db.execute("insert into t select g, 'v', g from generate_series(1, 100) g")
            db.execute("create table p (id int primary key, v text)")
            db.execute("insert into p select g, 'v' from generate_series(1, 300) g")
            if dsn == dsns[1]:
                db.execute("create schema _cdcworker")
                db.execute("create table _cdcworker.ledger (sink text, topic text, partition int, next_offset bigint)")
                db.execute("insert into _cdcworker.ledger values ('sink', 'p', 0, 0)")
    mover = Mover(dsns, 7)
    mover.start()
    try:
        for round in range(4):
            if round == 2:
                with psycopg.connect(dsns[1]) as db:
                    db.execute("update p set v = 'wrong' where id = 150")
            limits = VerifyLimits(range_rows=30, rows_per_s=0)
            tally = verified(dsns, lambda position, _: Reached(position), limits, topics=["t", "p"])
            assert summary(tally).get("t", {}) == {}, tally.tables[1].found
            assert summary(tally).get("p", {}) == ({"different": 1} if round >= 2 else {})
            assert mover.is_alive(), mover.error
    finally:
        mover.ending.set()
        mover.join(60)
    assert mover.error is None
    assert mover.transactions > 20
    assert verified(dsns, lambda position, _: Now(), topics=["t", "p"]).verdict == "different"


def test_a_busy_table_is_found_equal_while_it_is_busy(dsns):
    for dsn in dsns:
        with psycopg.connect(dsn) as db:
            db.execute("create table t (id int primary key, v text, n int)")
            db.execute("insert into t select g, 'v', g from generate_series(1, 3000) g")
            if dsn == dsns[1]:
                db.execute("create schema _cdcworker")
                db.execute("create table _cdcworker.ledger (sink text, topic text, partition int, next_offset bigint)")
                db.execute("insert into _cdcworker.ledger values ('sink', 'p', 0, 0)")
    mover = Mover(dsns, 11, 4000)
    mover.start()
    deadline, verdict = time.monotonic() + 60, ""
    try:
        while verdict != "equal" and time.monotonic() < deadline:
            before = mover.transactions
            limits = VerifyLimits(range_rows=500, rows_per_s=0)
            tally = verified(dsns, lambda position, _: Reached(position), limits, rounds=40, topics=["t"])
            verdict = tally.verdict
            assert verdict != "different", tally.tables[0].found
            assert mover.is_alive(), mover.error
            assert mover.transactions > before
    finally:
        mover.ending.set()
        mover.join(60)
    assert (verdict, mover.error) == ("equal", None)


def test_the_source_is_only_read(pair):
    with opened(wanted(pair), LIMITS) as both:
        both.source.begin()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            both.source.connection.execute("delete from public.people")


def test_a_table_is_missing_only_once_the_warehouse_has_caught_up(dsns):
    """It is created while the comparison waits."""
    with psycopg.connect(dsns[0]) as db:
        db.execute("create table late (id int primary key)")
        db.execute("insert into late values (1)")
    seen = []

    def catch_up(topics, source, target):
        seen.extend(topics)
        with psycopg.connect(dsns[1]) as db:
            db.execute("create table late (id int primary key)")
            db.execute("insert into late values (1)")

    with opened(wanted(dsns, topics=["late"]), LIMITS, catch_up) as both:
        comparison = Comparison(both.source, both.target, lambda *_: Now(), CompareSettings(LIMITS))
        assert comparison.run(both.plans).verdict == "equal"
    assert seen == ["p.public.late"]


@pytest.mark.kafka
def test_a_ledger_has_reached_a_position_when_no_committed_record_lies_between(kafka):
    """Behind the watermark, control records of transactions and what was aborted count for nothing."""
    import time

    from cdcworker.worker.diagnostics.verify_goal import SourceProgress
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = ["goal.data", "goal.empty", "goal.watermark"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "goal"})
    producer.init_transactions(30)

    def write(position, commit=True):
        producer.begin_transaction()
        producer.produce("goal.data", b"x")
        producer.produce("goal.data", b"x")
        key, value = b'{"connector":"s","task":0}', b'{"v":1,"commit_lsn":%d,"ts_ms":1}' % position
        producer.produce("goal.watermark", value, key)
        producer.flush(20)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    write(100)
    write(900, commit=False)
    progress = SourceProgress({"bootstrap.servers": kafka.bootstrap}, "goal", ("s", 1), ["goal.data", "goal.empty"])
    try:
        goal = progress.goal(100, time.monotonic() + 30)
        assert not goal.reached({})
        assert not goal.reached({("goal.data", 0): 1})
        assert goal.lagging({("goal.data", 0): 1}).startswith("the warehouse has applied goal.data/0 at 1 of ")
        assert goal.reached({("goal.data", 0): 2})
        with pytest.raises(CdcError, match="handed on 100 of log position 101"):
            progress.goal(101, time.monotonic() + 0.5)
        write(200)
        assert not progress.goal(101, time.monotonic() + 30).reached({("goal.data", 0): 2})
        # As when the markers of the transaction that the watermark tells of have not come to all partitions yet.
        other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "goal-other"})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce("goal.data", b"x")
        assert not other.flush(20)
        producer.begin_transaction()
        producer.produce("goal.watermark", b'{"v":1,"commit_lsn":300,"ts_ms":1}', b'{"connector":"s","task":0}')
        producer.commit_transaction(30)
        goal, unended = progress.goal(300, time.monotonic() + 30), {("goal.data", 0): 9}
        assert not goal.reached(unended)
        other.commit_transaction(30)
        assert not goal.reached(unended)
        assert goal.reached({("goal.data", 0): 10})
    finally:
        progress.close()
