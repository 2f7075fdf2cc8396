"""Expressions of users freeze nothing: neither a worker, nor the leader's turn, nor the cluster after a restart."""

from __future__ import annotations

import contextlib
import json
import signal
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from cdcworker.connectors.capture.config.column_masks import MaskRule
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.capture.config.table_names import matching, rows_wanted
from cdcworker.connectors.config.definition import ConfigDef
from cdcworker.connectors.postgres.config.replica_identity_key import ReplicaIdentities
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.snapshot_jobs import pattern_problem
from cdcworker.connectors.transform_chain.config import format_of
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import Connector, PutConnector, TaskId
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.patterns import COSTLY, INVALID, matches, matches_any, required
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.app import plan
from cdcworker.worker.diagnostics.change_view import is_named
from cdcworker.worker.diagnostics.explain_child import _reads
from cdcworker.worker.diagnostics.tail import check_filter
from cdcworker.worker.diagnostics.tail_child import places
from cdcworker.worker.herder import herder as herder_module
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.herder.planner import matching_topics
from cdcworker.worker.validation.validate import ConnectorCatalog

from tests.unit.worker.herder.test_herder import LoopKafka, Tasks, eventually

CPU_S = 3.0
"""Processor time for what takes milliseconds; a catastrophic match takes years."""
HOSTILE = "b" * 249
CATASTROPHIC = (
    "(b+)+c",
    "(b*)*c",
    "(b|b)*c",
    "(b|bb)+c",
    "(?:b|(?:b|b)+)+c",
    "(b+b+)+c",
    "(?i:(B+)+)c",
    r"(\w+\s?)+c",
    ".*.*.*.*.*.*.*.*c",
    "b{0,100}b{0,100}b{0,100}b{0,100}c",
    "((b{1,20}){1,20}){1,20}c",
    "(b?){200}b{200}c",
    "(?=(b+)+c).*",
    "(?!(b+)+c)(b+)+d",
    "(?:(?=(b+)+c)b)*",
    "(?:(?!(b*)*c)b)*c",
    "(?>(b+)+)c",
    "(b+)++c",
    r"(b+)\1+c",
    r"(b*)*\1c",
    "(" * 3000 + ")" * 3000,
    "(?:" * 3000 + ")" * 3000,
    "(((b{1000}){1000}){1000}){1000}",
    "(((b{0}){1000}){1000}){1000}",
)


@contextlib.contextmanager
def within(seconds: float = CPU_S) -> Iterator[None]:
    """Fails when more processor time is taken: by a signal, so that a frozen match ends too."""

    def late(number: int, frame: Any) -> None:
        raise AssertionError(f"took more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# -- every key of every connector -------------------------------------------------------------------------------------

FORMS = ("{}", "{}:a", "{}:FULL")
"""An expression by itself, before columns, before a replica identity."""
DYNAMIC = {
    "column.mask.with.3.chars": {},
    "column.truncate.to.3.chars": {},
    "column.mask.hash.SHA-256.with.salt.s": {},
    "transforms.r.regex": {"transforms": "r", "transforms.r.type": "RegexRouter", "transforms.r.replacement": "$1"},
}
"""Keys whose names follow from a config, and what else it holds."""


def definitions() -> Iterator[tuple[str, ConfigDef]]:
    catalog = ConnectorCatalog()
    for plugin in registry.plugins():
        yield plugin.name, catalog.definition(plugin)


def complaints(definition: ConfigDef, key: str, config: Mapping[str, str]) -> list[str]:
    return [error for value in definition.validate(config) if value.name == key for error in value.errors]


def pattern_keys() -> list[tuple[str, str, str]]:
    """(connector, key, form) of every key that takes expressions, told by its complaint about one that is none."""
    found = []
    for connector, definition in definitions():
        for name in (*definition.keys, *DYNAMIC):
            given = {**DYNAMIC.get(name, {}), name: "b"}
            if (key := definition.of(given).keys.get(name)) is None:
                continue
            alone = ConfigDef([key])
            for form in FORMS:
                if any("regular expression:" in text for text in complaints(alone, name, {name: form.format("(b")})):
                    found.append((connector, name, form))
    return found


KEYS = pattern_keys()


def first_of_each_key() -> Iterator[Any]:
    """All of them; where several connectors have a key and its form, those behind the first are left to the long tier."""
    seen = set()
    for connector, key, form in KEYS:
        yield pytest.param(connector, key, form, marks=[pytest.mark.long] if (key, form) in seen else [])
        seen.add((key, form))


def test_the_keys_that_take_expressions_are_found():
    names = {(connector, key) for connector, key, _ in KEYS}
    assert {
        ("postgres", "table.include.list"),
        ("postgres", "column.exclude.list"),
        ("postgres", "message.key.columns"),
        ("postgres", "message.prefix.include.list"),
        ("postgres", "replica.identity.autoset.values"),
        ("postgres", "snapshot.include.collection.list"),
        ("postgres", "column.mask.with.3.chars"),
        ("postgres", "transforms.r.regex"),
        ("spark", "topics.regex"),
        ("file-sink", "topics.regex"),
    } <= names


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("connector", "key", "form"), [*first_of_each_key()])
def test_every_key_that_takes_expressions_judges_each_of_them_in_time(connector, key, form):
    definition = dict(definitions())[connector]
    for expression in CATASTROPHIC:
        with within():
            problems = complaints(definition, key, {**DYNAMIC.get(key, {}), key: form.format(expression)})
        refused = any(sign in expression for sign in ("\\1", "{1000}", "(" * 60, "(?:" * 60))
        if "," not in expression:  # which ends an item of a list
            assert bool(problems) is refused, problems
        assert not any(expression in problem for problem in problems)


def test_the_longest_lists_are_judged_in_time():
    definition = dict(definitions())["postgres"]
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 9_000)))
    for value in (
        ",".join([many] * 10),
        ",".join(f"a{number}.b+" for number in range(10_000)),
        ",".join(f"({number}|[^a-z])*" for number in range(10_000)),
        ",".join(["b.{0,3000}"] * 10_000),
    ):
        with within():
            complaints(definition, "table.include.list", {"table.include.list": value})


LONG = 3_000
RUNS = (" ", ":", " :", "a:", ",", ";", "\\", "(", "b", "\n", "a ", "INDEX ", ":INDEX ", "${", "x=", ".")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("connector", [name for name, _ in definitions()])
def test_every_key_judges_long_runs_in_time(connector):
    """What a key makes of its value before it compiles anything is bounded as well."""
    definition = dict(definitions())[connector]
    given = {key: value for name, more in DYNAMIC.items() for key, value in {**more, name: "b"}.items()}
    for key in definition.of(given).keys.values():
        alone = ConfigDef([key])
        for run in RUNS:
            with within():
                alone.validate({key.name: (run * LONG)[:LONG]})


def test_a_spark_sink_hands_on_topics_and_no_expression():
    """Spark's own subscription to an expression would match it in Java, by an engine without limits."""
    catalog = ConnectorCatalog()
    plugin = catalog.plugin_of({"connector.class": "spark"})
    config = {"warehouse": "parquet", "warehouse.path": "/w", "topics.regex": "(b+)+c"}
    for share in plugin.load()(config).split(2, ["b.a", "b.b"]):
        assert share["topics"]
        assert share["topics.regex"] == ""


# -- everywhere that matches ------------------------------------------------------------------------------------------


class Topics:
    """A consumer that knows one topic."""

    def list_topics(self, timeout: float) -> Any:
        topic = types.SimpleNamespace(error=None, partitions={0: None})
        return types.SimpleNamespace(topics={HOSTILE: topic})


def sink(pattern: str) -> Connector:
    return Connector("c", "i", 1, {"topics.regex": pattern}, "RUNNING", "sink")


def routed(pattern: str) -> str:
    more = {"transforms": "r", "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter"}
    config = {**more, "transforms.r.regex": pattern, "transforms.r.replacement": "c"}
    return format_of(config).routes[0].apply(HOSTILE)


MATCHERS: dict[str, Callable[[str], Any]] = {
    "tables": lambda p: TableFilters(table_include=(p,)).table("b", HOSTILE),
    "excluded tables": lambda p: TableFilters(table_exclude=(p,)).table("b", HOSTILE),
    "schemas": lambda p: TableFilters(schema_include=(p,)).table(HOSTILE, "b"),
    "columns": lambda p: TableFilters(column_include=(p,)).column("b", "b", HOSTILE),
    "masks": lambda p: MaskRule("column.mask.with.3.chars", (p,)).chooses(HOSTILE),
    "message keys": lambda p: MessageKeys.parse(f"{p}:a").columns_of("b", HOSTILE),
    "replica identities": lambda p: ReplicaIdentities(((p, "FULL"),)).of("b", HOSTILE),
    "snapshot jobs": lambda p: matching([(1, "b", HOSTILE)], [p]),
    "snapshot requests": pattern_problem,
    "snapshot tables": lambda p: rows_wanted(HOSTILE, mode="initial", patterns=[p], signals=""),
    "routes": routed,
    "topics": lambda p: matching_topics(sink(p), frozenset({HOSTILE})),
    "many topics": lambda p: required(p).matching(f"{HOSTILE[:240]}{number}" for number in range(3)),
    "names of tables in a view": lambda p: is_named(p, f"b.{HOSTILE}"),
    "topics of an explanation": lambda p: _reads({"topics.regex": p}, HOSTILE),
    "topics of a view": lambda p: list(places(Topics(), (), p, TopicAccess())),  # type: ignore[arg-type]
    "tables of a view": lambda p: check_filter(types.SimpleNamespace(tables=(p,), ops=(), where=())),  # type: ignore[arg-type]
    "beyond ASCII": lambda p: matches(p, HOSTILE[:-1] + "é", ignore_case=True),
    "several": lambda p: matches_any(["c", p], HOSTILE),
}


def refusal(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except (CdcError, ValueError) as exc:
        return exc
    return None


@pytest.mark.parametrize("where", MATCHERS)
def test_no_expression_takes_long_anywhere(where):
    for expression in CATASTROPHIC:
        with within(8.0):
            error = refusal(lambda expression=expression: MATCHERS[where](expression))
        if isinstance(error, CdcError):
            assert error.kind == "config"
        assert expression not in str(error)


# -- the leader -------------------------------------------------------------------------------------------------------

POISON: dict[str, dict[str, Any]] = {
    "catastrophic": {"topics.regex": "(b+)+c"},
    "looks": {"topics.regex": "(?:(?!(b*)*(b*)*(b*)*c)b)*c"},
    "no-expression": {"topics.regex": "("},
    "back-reference": {"topics.regex": r"(b)\1*"},
    "nested": {"topics.regex": "(" * 3000 + ")" * 3000},
    "no-class": {"connector.class": None, "topics.regex": "g.*"},
    "other-class": {"connector.class": "nobody.knows.It", "topics.regex": "g.*"},
    "tasks": {"topics.regex": "g.*", "tasks.max": "many"},
}
"""What a config log may hold: an older version may have stored it, or somebody who can write to it."""


class Restarted(LoopKafka):
    """A Kafka that keeps its config log from one herder to the next, with hostile topics."""

    log: list[Any] = []  # noqa: RUF012

    def open(self) -> Any:
        self.offset = len(self.log)
        return list(self.log), []

    def write(self, command: Any) -> None:
        before = len(self.events)
        super().write(command)
        for event in self.events[before:]:
            self.log.extend(getattr(event, "records", ()))

    def topics(self) -> frozenset[str]:
        return frozenset({HOSTILE, "good-1", "good-2"})


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setattr(herder_module, "ClusterIo", Restarted)
    monkeypatch.setattr(Restarted, "log", [])
    started: list[Herder] = []

    def make() -> Herder:
        config = HerderConfig(
            {"bootstrap.servers": "x:1"}, "g", "w1", "http://w1", TopicNames.of_group("g"), state_dir=str(tmp_path)
        )
        made = Herder(config, plan, Tasks())
        started.append(made)
        made.start()
        assert made.wait_started(10)
        eventually(lambda: made.view().is_leader)
        return made

    yield make
    for one in started:
        one.stop()
        assert one.failure is None


def config_of(tmp_path: Any, **more: Any) -> dict[str, Any]:
    base = {"connector.class": "file-sink", "file": str(tmp_path / "out"), "tasks.max": "1", **more}
    return {name: value for name, value in base.items() if value is not None}


def is_running(one: Herder, name: str) -> bool:
    status = one.view().statuses.get(TaskId(name, 0))
    return status is not None and status.state == "RUNNING"


def code_of(one: Herder, name: str) -> str | None:
    tasks = one.view().state.task_sets.get(name)
    return tasks.error["code"] if tasks is not None and tasks.error else None


def test_one_bad_connector_fails_alone_and_the_others_go_on_also_after_a_restart(start, tmp_path):
    one = start()
    for name, more in POISON.items():
        one.submit(PutConnector(name, config_of(tmp_path, **more), kind="sink")).result(60)
    good = config_of(tmp_path, **{"topics.regex": "good-.*"})
    one.submit(PutConnector("good", good, kind="sink")).result(60)
    bad = set(POISON) - {"catastrophic"}
    for _ in range(2):
        eventually(lambda one=one: is_running(one, "good"))
        eventually(lambda one=one: {name for name in POISON if code_of(one, name)} == bad)
        assert code_of(one, "back-reference") == INVALID
        assert code_of(one, "no-class") == INTERNAL
        eventually(lambda one=one: "catastrophic" in one.view().state.task_sets)
        assert code_of(one, "looks") == COSTLY
        late = f"late-{one.boot_id}"
        one.submit(PutConnector(late, good, kind="sink")).result(60)
        eventually(lambda one=one, late=late: is_running(one, late))
        one.stop()
        one = start()


def test_a_stored_connector_that_cannot_be_planned_is_failed_with_code_and_place(start, tmp_path):
    one = start()
    config = config_of(tmp_path, **{"topics.regex": r"(b)\1*"})
    one.submit(PutConnector("bad", config, kind="sink")).result(60)
    eventually(lambda: code_of(one, "bad"))
    error = one.view().state.task_sets["bad"].error
    assert error["where"] == {"connector": "bad", "key": "topics.regex"}
    assert "write" in error["hint"]
    assert "(b)" not in json.dumps(error)
