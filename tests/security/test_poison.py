"""One poisoned record of an own topic is refused by itself: it ends no thread, hides nothing else, and changes no meaning."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from cdcworker.coordinator.kafka import leadership
from cdcworker.coordinator.kafka.compacted_log import KafkaCompactedLog, record_of, to_json
from cdcworker.coordinator.log.config_fold import current_record, fold_all
from cdcworker.coordinator.log.offset_records import offset_key
from cdcworker.coordinator.model import ClusterState, TaskId
from cdcworker.schemas import avro
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, encode_record, plan_all
from cdcworker.schemas.threads import SupervisedThread, ThreadDeaths, start_thread, supervised_task
from cdcworker.schemas.untrusted.json_text import DEPTH_MAX, JsonLimits, JsonRefused, parse_json
from cdcworker.schemas.untrusted.refusals import LINES_MAX, REFUSALS, Refusals
from cdcworker.worker.children.call import ChildAnswer
from cdcworker.worker.dead_letters import service as dead_letters
from cdcworker.worker.diagnostics import doctor_child, explain
from cdcworker.worker.offsets import sink as sink_offsets
from cdcworker.worker.processes.fork_client import ForkClient, SpawnRequest
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.resources import loggers
from cdcworker.worker.rest.resources.loggers import LogLevelFollower
from cdcworker.worker.schema_registry.tail import SchemaTail

from .poison import (
    BAD_TEXTS,
    CORPUS,
    DEEP,
    GOOD_LINES,
    GOOD_ROWS,
    GROUP,
    KEY,
    LONG_WAIT,
    READERS,
    SINKS,
    VALUES,
    Poison,
    followed,
    message,
    read_configs,
    read_group,
    read_line,
    read_offsets,
    read_rows,
    read_schemas,
    read_status,
    view_of,
)

FUZZED = int(os.environ.get("CDC_FUZZ_INPUTS", "0"))
FUZZED_CI, FUZZED_LONG = 20_000, 1_000_000


def test_the_corpus_is_large_and_reaches_every_log() -> None:
    assert len(CORPUS) >= 60
    assert {poison.topic for poison in CORPUS} == set(READERS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poison", CORPUS, ids=lambda poison: poison.name)
def test_no_record_ends_whoever_reads_it(poison: Poison) -> None:
    READERS[poison.topic](poison)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poison", [one for one in CORPUS if one.topic == "configs"], ids=lambda poison: poison.name)
def test_no_record_hides_another_connector(poison: Poison) -> None:
    state = read_configs(poison)
    if poison.key != b"leader":
        assert not state.connectors["good"].refused
    assert state.connectors["good"].config == {"connector.class": "datagen"}


SETTINGS_POISON = [one for one in CORPUS if (one.key or b"").startswith((b"logger/", b"verify/"))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poison", SETTINGS_POISON, ids=lambda poison: poison.name)
def test_a_refused_setting_is_counted_and_the_services_that_follow_settings_go_on(poison: Poison) -> None:
    before, after_it = REFUSALS.counts().get("configs", 0), Poison("configs", b"logger/a", b'{"level":"DEBUG","ts":5}')
    view = view_of(read_configs(poison, after_it))
    assert REFUSALS.counts()["configs"] == before + 1
    assert SINKS[-1].name in followed(view)
    follower = LogLevelFollower()
    follower.apply_changes({})
    with patch.object(loggers.levels, "change") as change, patch.dict(loggers._modified_ms):
        follower.apply_changes(view.state.settings)
    change.assert_called_once_with({"a": logging.DEBUG})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poison", [one for one in CORPUS if one.topic == "schemas"], ids=lambda poison: poison.name)
def test_no_record_hides_another_schema(poison: Poison) -> None:
    log = read_schemas(poison)
    (first, *_) = log.versions("s-value")
    assert first.version == 1
    assert log.by_fingerprint(first.fingerprint) is not None


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"a list", "a number", "null", "a text"}))
def test_text_out_of_bounds_is_refused_without_quoting_it(name: str) -> None:
    with pytest.raises(JsonRefused) as refused:
        parse_json(VALUES[name])
    assert len(str(refused.value)) < 40


def test_brackets_in_strings_are_no_depth() -> None:
    text = json.dumps({"a": "[" * 1_000 + '"' + "\\", "b": [[]] * 200})
    assert parse_json(text) == json.loads(text)


def test_the_bound_on_depth_is_exact() -> None:
    parse_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(JsonRefused):
        parse_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))


def test_too_long_a_text_is_not_parsed() -> None:
    with pytest.raises(JsonRefused, match="too long"):
        parse_json(b"[1,2,3]", JsonLimits(bytes_max=6))


def test_the_scan_reads_text_once() -> None:
    """Escapes in a string without an end are where a scan that goes back would take the square of its length."""

    def cpu_s(size: int) -> float:
        began = time.process_time()
        with pytest.raises(JsonRefused):
            parse_json("[" * DEPTH_MAX + "]" * DEPTH_MAX + ',["' + '\\"' * size)
        return time.process_time() - began

    cpu_s(1_000)
    assert cpu_s(1_600_000) < 64 * max(cpu_s(100_000), 0.005)


def test_numbers_that_are_no_json_are_written_as_null() -> None:
    assert json.loads(to_json({"lag": float("nan"), "a": [float("inf"), 1.5]})) == {"lag": None, "a": [None, 1.5]}


# --- what a refused record means ------------------------------------------------------------------------------------

CONNECTOR_POISON = [one for one in CORPUS if one.key == b"connector/c" and one.topic == "configs"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("poison", CONNECTOR_POISON, ids=lambda poison: poison.name)
def test_a_connector_whose_record_is_refused_is_failed_and_not_deleted(poison: Poison) -> None:
    state = read_configs(poison)
    assert state.connectors["c"].target_state == "STOPPED"
    shown = connect_json.connector_state(view_of(state), state.connectors["c"])
    assert shown["connector"]["state"] == "FAILED"
    assert shown["connector"]["error"]["code"] == "coordinator.record_refused"


def test_the_raw_value_of_a_refused_record_is_what_is_written_again() -> None:
    poison = next(one for one in CONNECTOR_POISON if b'"GONE"' in (one.value or b""))
    assert current_record(read_configs(poison), "connector/c").value == json.loads(poison.value or b"")


def test_a_log_that_was_thinned_folds_to_the_same_connectors() -> None:
    good = Poison("configs", b"connector/c", b'{"incarnation":"i","version":1,"config":{},"target_state":"RUNNING"}')
    bad = Poison("configs", b"connector/c", DEEP)
    records = [record_of(message(one), "g.configs") for one in (good, bad)]
    assert records[0] is not None
    assert records[1] is not None
    whole, thinned = fold_all(ClusterState(), filter(None, records)), fold_all(ClusterState(), (records[1],))
    assert whole.connectors == thinned.connectors


def test_a_refused_record_of_an_older_epoch_is_stale_and_so_rewritten() -> None:
    state = read_configs(Poison("configs", b"connector/good", DEEP, ()))
    assert not state.connectors["good"].refused
    assert "connector/good" in state.stale_keys


@pytest.mark.parametrize("value", sorted(VALUES))
def test_a_position_that_cannot_be_read_halts_and_is_not_taken_for_none(value: str) -> None:
    found = read_offsets(Poison("offsets", KEY.encode(), VALUES[value]))
    assert isinstance(found, CdcError)
    assert found.code in ("kafka.malformed_record", "coordinator.offsets_format")


def test_a_tombstone_is_none_and_a_refused_record_is_no_tombstone() -> None:
    assert read_offsets(Poison("offsets", KEY.encode(), None)) is None
    refused = record_of(message(Poison("status", b"task/good/0", DEEP)), "g.configs")
    assert refused is not None
    assert refused.value is not None
    assert refused.refused


@pytest.mark.parametrize("key", ['["good",{"server":"s","task":0}]', offset_key("good", {"server": "s", "task": 0})])
def test_a_deep_key_beside_it_keeps_no_position_from_being_read(key: str) -> None:
    assert read_offsets(Poison("offsets", DEEP, b"{}")) is None
    assert isinstance(read_offsets(Poison("offsets", key.encode(), DEEP)), CdcError)


@pytest.mark.parametrize("value", [DEEP, b'{"sha":"x","table":[1]}'])
def test_a_refused_status_leaves_the_status_as_it_was(value: bytes) -> None:
    state = read_status(Poison("status", b"task/good/0", value), Poison("status", b"worker/w", value))
    assert state.tasks[TaskId("good", 0)].state == "RUNNING"
    assert "w" in state.presence


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_a_schema_that_cannot_be_parsed_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(CdcError, match=r"schema\.invalid"):
        avro.check(avro.parse(text))


def test_the_number_of_a_refused_version_is_given_to_no_other() -> None:
    log = read_schemas(Poison("schemas", b"use/s-value/2", b'{"sha":[]}'))
    wider = {"type": "record", "name": "r", "fields": [{"name": "b", "type": "long"}]}
    (_, records) = plan_all(log, [Registration("s-value", wider, RegistrationMeta())])
    assert [record.key for record in records if record.key.startswith("use/")] == ["use/s-value/3"]


# --- counted and told -----------------------------------------------------------------------------------------------


def test_each_refused_record_is_counted_once_and_told_without_its_content(caplog: pytest.LogCaptureFixture) -> None:
    before = REFUSALS.counts().get("configs", 0)
    poisoned = message(Poison("configs", b"connector/c\nFAKE", b'{"password":"hunter2"'))
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            record_of(poisoned, "g.configs")
    assert REFUSALS.counts()["configs"] == before + 1
    assert "hunter2" not in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_lines_are_bounded_and_counts_are_not(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    with caplog.at_level(logging.ERROR):
        for offset in range(1_000):
            refusals.add("status", "no JSON", offset=offset)
    assert refusals.counts() == {"status": 1_000}
    assert len(caplog.records) == LINES_MAX


# --- threads --------------------------------------------------------------------------------------------------------


def _boom(*_: object) -> None:
    raise RuntimeError("a value that nobody may see")


def test_a_thread_that_dies_is_known_by_its_name_and_told_without_a_value(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deaths = ThreadDeaths()
    monkeypatch.setattr("cdcworker.schemas.threads.THREAD_DEATHS", deaths)
    start_thread(_boom, name="poisoned-1", kind="poisoned").join()
    assert deaths.dead() == ("poisoned",)
    assert deaths.counts() == {"poisoned": 1}
    assert "poisoned-1" in caplog.text
    assert "nobody may see" not in caplog.text
    start_thread(lambda: None, name="poisoned-2", kind="poisoned").join()
    assert deaths.dead() == ()


def test_a_thread_of_service_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths, ended, runs = ThreadDeaths(), threading.Event(), []
    monkeypatch.setattr("cdcworker.schemas.threads.THREAD_DEATHS", deaths)
    monkeypatch.setattr("cdcworker.schemas.threads.BACKOFF_S", (0.0, 0.0))

    def work() -> None:
        runs.append(deaths.dead())
        if len(runs) < 3:
            _boom()

    thread = SupervisedThread(work, name="service", restart_until=ended)
    thread.start()
    thread.join(10.0)
    assert runs == [(), ("service",), ("service",)]
    assert deaths.dead() == ()
    assert deaths.counts() == {"service": 2}


def test_the_schema_tail_outlives_what_it_did_not_foresee(
    monkeypatch: pytest.MonkeyPatch, until: Callable[..., Any]
) -> None:
    deaths = ThreadDeaths()
    monkeypatch.setattr("cdcworker.schemas.threads.THREAD_DEATHS", deaths)
    monkeypatch.setattr("cdcworker.schemas.threads.BACKOFF_S", (0.01, 0.01))
    opened: list[object] = []

    class Reader:
        def __init__(self, *_: object, **__: object) -> None:
            opened.append(self)

        def read_to_end(self, _: float) -> list[object]:
            if len(opened) == 1:
                raise ZeroDivisionError
            return []

        def poll(self, timeout_s: float) -> list[object]:
            threading.Event().wait(timeout_s)
            return []

        def close(self) -> None: ...

    monkeypatch.setattr("cdcworker.coordinator.kafka.compacted_log.KafkaCompactedLog", Reader)
    tail = SchemaTail("topic", {}, "id")
    tail.start()
    try:
        until(lambda: len(opened) == 2 and deaths.dead() == ())
        assert deaths.counts() == {"schema-tail": 1}
    finally:
        tail.stop()
    assert KafkaCompactedLog is not Reader


# --- tasks of the event loop ----------------------------------------------------------------------------------------


def test_a_task_of_the_event_loop_that_dies_is_known_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deaths, seen = ThreadDeaths(), []
    monkeypatch.setattr("cdcworker.schemas.threads.THREAD_DEATHS", deaths)
    monkeypatch.setattr("cdcworker.schemas.threads.BACKOFF_S", (0.0, 0.0))

    async def step() -> None:
        seen.append(deaths.dead())
        if len(seen) < 3:
            _boom()

    async def serve() -> None:
        await supervised_task(step, 0.0, name="poisoned", goes_on=lambda: len(seen) < 4)

    asyncio.run(serve())
    assert seen == [(), ("poisoned",), ("poisoned",), ()]
    assert deaths.counts() == {"poisoned": 2}
    assert "nobody may see" not in caplog.text


def test_the_health_tells_of_a_service_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower of settings that fails is one of the threads that health and metrics know."""
    deaths = ThreadDeaths()
    monkeypatch.setattr("cdcworker.schemas.threads.THREAD_DEATHS", deaths)
    api: Any = SimpleNamespace(view=_boom)

    async def serve() -> None:
        async with loggers.following_log_levels(api):
            while not deaths.dead():
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(serve(), 10.0))
    assert deaths.dead() == ("log-levels",)


# --- fuzz -----------------------------------------------------------------------------------------------------------

TOKENS = (b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"1e400", b"NaN", b"null", b"true", b"-1", b"9" * 30, b"\xff", b"[]", b"{}", b'"x"', b"1.5")  # fmt: skip


def _json_values(random_: random.Random) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: True,
        lambda: random_.choice((-1, 0, 1, 1 << 31, 1 << 53, 1 << 63, 1 << 100)),
        lambda: random_.random() * 1e308,
        lambda: random_.choice(("", "x", "9", "RUNNING", "\ud800", "a/b")),
        lambda: [_json_values(random_) for _ in range(random_.randrange(3))],
        lambda: {random_.choice(("id", "table", "x", "v")): _json_values(random_)},
    )
    return random_.choice(kinds)()


def _mutated(random_: random.Random, seeds: list[Poison]) -> Poison:
    """A record of the corpus or a good one with a field, a byte or a token changed, of its value, key or headers."""
    seed = random_.choice(seeds)
    part = random_.random()
    if part < 0.1:
        key = seed.key or b""
        return seed._replace(key=random_.choice((_bytes_changed(random_, key), random_.choice(seeds).key)))
    if part < 0.2:
        name, value = random_.choice((*seed.headers, ("e", b"5"), ("v", b"1")))
        header = (random_.choice((name, "", "x")), random_.choice((_bytes_changed(random_, value or b""), None)))
        return seed._replace(headers=random_.choice(((header,), (*seed.headers, header), (header, header))))
    return _value_changed(random_, seed)


def _value_changed(random_: random.Random, seed: Poison) -> Poison:
    value = seed.value or b"{}"
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict) and random_.random() < 0.7:
        name = random_.choice([*fields, "x"])
        return seed._replace(value=json.dumps({**fields, name: _json_values(random_)}).encode())
    return seed._replace(value=_bytes_changed(random_, value))


def _bytes_changed(random_: random.Random, value: bytes) -> bytes:
    at = random_.randrange(len(value) + 1)
    if random_.random() < 0.5:
        return value[:at] + random_.choice(TOKENS) + value[at:]
    return value[:at] + bytes((random_.randrange(256),)) + value[at + 1 :]


LINES = (*GOOD_LINES, LONG_WAIT, *VALUES.values())
READ_BESIDE: Mapping[str, tuple[Callable[..., object], list[Poison]]] = {
    "rows": (read_rows, [*GOOD_ROWS * 8, *(Poison("rows", b'{"id":1}', value) for value in VALUES.values())]),
    "lines": (
        lambda *poisons: [read_line(one.value or b"") for one in poisons],
        [Poison("lines", None, line) for line in LINES],
    ),
    "groups": (
        lambda *poisons: [read_group(one.value or b"") for one in poisons],
        [Poison("groups", None, GROUP), Poison("groups", None, b"")],
    ),
}
"""What is read beside the own topics: rows by who looks at them, lines of children, and the metadata of the group."""


@pytest.mark.parametrize("what", sorted(READ_BESIDE))
def test_nothing_that_is_read_beside_the_logs_ends_its_reader(what: str) -> None:
    read, seeds = READ_BESIDE[what]
    for seed in seeds:
        read(seed)
    _fuzz_seeds(read, seeds, min(FUZZED or FUZZED_CI, FUZZED_CI), random.getrandbits(32))


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("what", sorted(READ_BESIDE))
def test_nothing_of_a_million_that_is_read_beside_the_logs_ends_its_reader(what: str) -> None:
    _fuzz_seeds(*READ_BESIDE[what], FUZZED or FUZZED_LONG, random.getrandbits(32))


def test_a_broken_answer_is_an_error_of_its_child_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in VALUES.values():
        answer = ChildAnswer(value, 0)
        for module in (dead_letters, sink_offsets, explain):
            monkeypatch.setattr(module, "call_child", lambda *_, found=answer: found)
        monkeypatch.setattr(doctor_child, "call_child", lambda *_, found=answer: found)
        for run_child in (dead_letters.run_child, sink_offsets.run_child):
            with contextlib.suppress(CdcError):
                assert isinstance(run_child({}), dict)
        assert doctor_child.run_child({}, 1.0)[-1]["check"] == "doctor.time"


@pytest.mark.parametrize("answer", [*VALUES.values(), b'{"id":[]}', b'{"ready":true}', b'{"id":9,"pid":1}'])
def test_a_fork_server_whose_answer_is_not_understood_is_given_up(answer: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        client = ForkClient(selector, "x", command=("sleep", "60"))
        assert client.open()
        failed: list[str] = []
        client.spawn(SpawnRequest("t", "m", lambda: (), lambda _: None, failed.append))
        client.take(answer[:10_000])
        assert client.pid is None
        assert failed == [failed[0]]


def test_records_in_the_topic_that_elects_are_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that reads them goes on as if they were not there."""

    class Consumer:
        def __init__(self) -> None:
            self.messages = [message(Poison("coordination", b"k", value)) for value in (*VALUES.values(), b"hunter2")]
            self.again = list(self.messages)

        def subscribe(self, *_: object, **__: object) -> None: ...

        def poll(self, _: float) -> Any:
            return self.messages.pop() if self.messages else self.again.pop() if self.again else None

    consumer, before = Consumer(), REFUSALS.counts().get("coordination", 0)
    monkeypatch.setattr(leadership, "make_consumer", lambda _: consumer)
    member, count = (
        leadership.KafkaLeadership({"bootstrap.servers": "x:1"}, topic="c", group_id="g", client_id="w"),
        len(consumer.messages),
    )
    with caplog.at_level(logging.ERROR):
        for _ in range(2 * count):
            member.tick(0.0)
    assert member.term() is None
    assert REFUSALS.counts()["coordination"] == before + count
    assert "hunter2" not in caplog.text
    assert sum("log=coordination" in one.getMessage() for one in caplog.records) <= LINES_MAX


def _good() -> list[Poison]:
    """What a worker writes, as seeds: most of the corpus is refused before a field is looked at."""
    log = SchemaLog()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "long"], "default": None}]}
    registration = Registration("t-value", schema, RegistrationMeta(table_id=1, path=("a",)))
    records = [encode_record(record) for record in plan_all(log, [registration])[1]]
    return [
        *(Poison("schemas", key, value, ()) for key, value in records),
        Poison("offsets", KEY.encode(), b'{"v":1,"incarnation":"i","task_epoch":1,"position":{"v":1,"next":5}}'),
        Poison("status", b"task/good/0", b'{"state":"RUNNING","worker_id":"w","task_epoch":1,"seq":1,"metrics":{"latency":{}}}'),
        Poison("status", b"worker/w2", b'{"boot_id":"b","url":"","capacity":1,"labels":{},"plugins":{},"protocol":3,"floor":1}'),
        Poison("configs", b"fenced/good", b'{"incarnation":"i","count":1,"pending":[0]}'),
        Poison("configs", b"connector/c", b'{"incarnation":"i","version":1,"config":{},"target_state":"RUNNING","labels":{}}'),
        Poison("configs", b"logger/root", b'{"v":1,"level":"INFO","ts":5}'),
        Poison("configs", b"verify/sink", b'{"v":1,"id":"x","incarnation":"i","state":"done","started":1,"ended":5,"result":{}}'),
        Poison("configs", b"session-key", b'{"v":1,"keys":[{"id":"a","key":"' + b"A" * 44 + b'","created_ms":5}]}'),
        Poison("configs", b"setting/cluster", b'{"kafka":"k","group":"g","topics":["t"],"backend":"b","ensemble":""}'),
        Poison("configs", b"claim/5", b'{"ensemble":"","epoch":5,"worker_id":"w","boot_id":"b"}'),
    ]  # fmt: skip


def _fuzz(topic: str, count: int, seed: int) -> None:
    seeds = [one for one in (*CORPUS, *_good() * 8) if one.topic == topic]
    _fuzz_seeds(READERS[topic], seeds, count, seed, 1 if topic == "offsets" else 50)


def _fuzz_seeds(read: Callable[..., object], seeds: list[Poison], count: int, seed: int, at_once: int = 50) -> None:
    random_ = random.Random(seed)
    seeds = [one for one in seeds if len(one.value or b"") < 2_000]
    for _ in range(0, count, at_once):
        poisons = [_mutated(random_, seeds) for _ in range(at_once)]
        try:
            read(*poisons)
        except Exception as exc:  # noqa: BLE001 - whatever a decoder raises is what this looks for
            pytest.fail(f"{type(exc).__name__} by one of {poisons!r}")


@pytest.mark.parametrize("topic", sorted(READERS))
def test_no_mutated_record_ends_its_decoder(topic: str) -> None:
    _fuzz(topic, min(FUZZED or FUZZED_CI, FUZZED_CI), random.getrandbits(32))


@pytest.mark.long
@pytest.mark.parametrize("topic", sorted(READERS))
@pytest.mark.timeout(3_600)
def test_none_of_a_million_mutated_records_ends_its_decoder(topic: str) -> None:
    _fuzz(topic, FUZZED or FUZZED_LONG, random.getrandbits(32))
