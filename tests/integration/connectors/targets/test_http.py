"""The sink into a web service, with a real Kafka and a real server that takes each id once."""

from __future__ import annotations

import json
import signal

import pytest

from tests.contract.letters.of_records import *  # noqa: F403 - the suite of their dead letters
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK, holds
from tests.record_sinks import POISON, TaskProcess, Topics, Webhook, Workload, has_poison, seed, wait

pytestmark = pytest.mark.kafka


class Receiver(Webhook):
    @property
    def config(self):
        return {"connector.class": "http-sink", "http.url": self.url}


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def topics(kafka):
    return Topics(kafka)


@pytest.fixture
def start(topics, tmp_path):
    made = []

    def started(config, epoch=(1, 0)):
        made.append(TaskProcess(topics, {**QUICK, **config}, epoch, tmp_path))
        return made[-1]

    yield started
    for task in made:
        task.kill()


def test_cut_connections_and_503_and_429_lose_nothing_and_retry_after_is_kept(topics, receiver, start):
    kinds = {2: (503, 1), 4: "cut", 5: "lost", 7: (429, None), 9: 500, 11: "lost", 12: (503, None)}
    receiver.trouble = lambda number, events: kinds.get(number)
    workload = Workload(topics, seed())
    workload.run(400)
    task = start(receiver.config)
    holds(receiver, workload, task)
    task.stop()
    assert receiver.numbers > max(kinds)
    assert receiver.ledger.twice > 0, "what was taken before the connection was cut came again, with the same id"


def test_ten_poison_records_of_a_thousand_are_dead_letters(topics, receiver, start):
    receiver.trouble = lambda number, events: 422 if has_poison(events) else None
    stream, poisoned = topics.stream, set(range(50, 1_000, 100))
    workload = Workload(topics, 1)
    for number in range(1_000):
        row = (number, number, POISON if number in poisoned else "fine")
        stream.insert(workload.table, row)
        if number not in poisoned:
            workload.rows[number] = {"id": number, "n": number, "a": "fine"}
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    task = start(receiver.config | letters | {"errors.deadletterqueue.context.headers.enable": "true"})
    holds(receiver, workload, task)
    wait(lambda: task.numbers.get("dead_letters") == 10, "the dead letters")
    task.stop()
    found = topics.read(topics.letters)
    wanted = {
        (r["partition"], r["value"]) for r in topics.stream.records if r["value"] and POISON.encode() in r["value"]
    }
    told = [dict(message.headers()) for message in found]
    assert len(found) == 10
    assert {(int(h["__connect.errors.partition"]), m.value()) for h, m in zip(told, found, strict=True)} == wanted
    assert {h["__connect.errors.topic"] for h in told} == {topics.topic.encode()}
    assert {h["__connect.errors.stage"] for h in told} == {b"TASK_PUT"}
    assert {h["__connect.errors.exception.class.name"] for h in told} == {b"sink.record_refused"}
    assert all(POISON.encode() not in value for h in told for value in h.values())
    assert POISON not in task.log.read_text()
    offsets = {(m.partition(), m.offset()) for m in topics.read(topics.topic)}
    assert {(int(h["__connect.errors.partition"]), int(h["__connect.errors.offset"])) for h in told} <= offsets


def test_a_poison_record_halts_the_task_behind_all_before_it_where_nothing_is_tolerated(topics, receiver, start):
    receiver.trouble = lambda number, events: 400 if has_poison(events) else None
    stream, workload = topics.stream, Workload(topics, 1)
    for number in range(20):
        stream.insert(workload.table, (7, number, POISON if number == 13 else "fine"))
    topics.flush()
    task = start(receiver.config)
    assert task.ended() == 1
    assert task.error["code"] == "sink.record_refused"
    assert task.error["where"]["status"] == 400
    assert receiver.ledger.held()[7]["n"] == 12
    assert POISON not in task.told()


def test_unreadable_records_are_dead_letters_with_the_stage_of_the_converter(topics, receiver, start):
    topics.produce((None, b"no frame", 0), (b"\0\0\0\0", b"\0\7\7\7\7x", 1))
    workload = Workload(topics, seed())
    workload.run(50)
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    task = start(receiver.config | letters | {"errors.deadletterqueue.context.headers.enable": "true"})
    holds(receiver, workload, task)
    wait(lambda: len(topics.committed(topics.name)) and task.numbers.get("lag_records") == 0, "that nothing waits")
    task.stop()
    found = topics.read(topics.letters)
    assert sorted(message.value() for message in found) == [b"\0\7\7\7\7x", b"no frame"]
    assert {dict(m.headers())["__connect.errors.stage"] for m in found} == {b"VALUE_CONVERTER"}


def test_dead_letters_and_offsets_are_one_step_over_kills(topics, receiver, start):
    receiver.trouble = lambda number, events: 422 if has_poison(events) else None
    table = Workload(topics, 1).table
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters, "batch.max.size": "5"}
    for epoch in range(1, 4):
        for number in range(100 * epoch, 100 * epoch + 100):
            topics.stream.insert(table, (number, number, POISON if number % 10 == 0 else "fine"))
        topics.flush()
        before = len(receiver.ledger.ids)
        task = start(receiver.config | letters, (epoch, 0))
        wait(lambda before=before: len(receiver.ledger.ids) > before + 30, "progress")
        if epoch < 3:
            task.signal(signal.SIGKILL)
            task.ended()
    wait(lambda: task.numbers.get("lag_records") == 0 and len(receiver.ledger.ids) == 270, "the rest")
    task.stop()
    values = [message.value() for message in topics.read(topics.letters)]
    assert len(values) == len(set(values)) == 30, "each dead letter is there once"


def test_a_server_that_hangs_is_broken_off_and_tried_again(topics, receiver, start):
    receiver.trouble = lambda number, events: "hang" if number == 1 else None
    workload = Workload(topics, seed())
    workload.run(100)
    task = start(receiver.config | {"target.timeout.ms": "300"})
    holds(receiver, workload, task)
    task.stop()


def test_a_target_that_refuses_everything_does_not_turn_a_topic_into_dead_letters(topics, receiver, start):
    receiver.trouble = lambda number, events: 400
    workload = Workload(topics, seed())
    workload.run(100)
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    task = start(receiver.config | letters | {"errors.deadletterqueue.consecutive.max": "30"})
    assert task.ended() == 1
    assert task.error["code"] == "sink.dead_letters_many"


def test_rows_in_the_place_of_envelopes_go_to_an_address_of_their_own(topics, receiver, start):
    workload = Workload(topics, 1)
    topics.stream.insert(workload.table, (1, 10, "a/b?c"))
    topics.stream.update(workload.table, (1, 11, "a"))
    topics.stream.delete(workload.table, (1,))
    topics.flush()
    config = {
        "connector.class": "io.confluent.connect.http.HttpSinkConnector",
        "http.api.url": receiver.url + "/${topic}/${key}?a=${value.a}",
        "request.method": "PUT",
        "batch.max.size": "1",
        "transforms": "unwrap,route",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": "op,source.commit_lsn",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": r".*\.([a-z]+)",
        "transforms.route.replacement": "$1",
        "errors.tolerance": "all",
    }
    task = start(config)
    wait(lambda: task.numbers.get("lag_records") == 0 or task.error, "that nothing waits")
    assert not task.error, task.told()
    wait(lambda: len(receiver.requests) == 2, "the requests")
    task.stop()
    paths = [(method, path) for method, path, *_ in receiver.requests]
    assert paths == [("PUT", "/hook/orders/1?a=a%2Fb%3Fc"), ("PUT", "/hook/orders/1?a=a")]
    rows = [json.loads(body) for *_, body in receiver.requests]
    assert [(row["id"], row["n"], row["__op"], row["__deleted"]) for row in rows] == [
        (1, 10, "c", "false"),
        (1, 11, "u", "false"),
    ]
    assert task.numbers["dead_letters"] == 1, (
        "the address of the deletion has no value of a, which only the key is known of"
    )


@pytest.mark.long
@pytest.mark.parametrize("number", range(2, 8))
def test_the_ledger_holds_for_other_seeds_with_trouble_at_random(topics, receiver, start, number):
    workload = Workload(topics, number)
    kinds = [None] * 12 + ["cut", "lost", 500, (503, None), (429, 1)]
    receiver.trouble = lambda _number, _events: workload.dice.choice(kinds)
    task = start(receiver.config)
    for epoch in range(2, 7):
        workload.run(500)
        before = len(receiver.ledger.ids)
        wait(lambda before=before: len(receiver.ledger.ids) > before + 100, "progress")
        task.signal(signal.SIGKILL)
        task.ended()
        if epoch == 4:
            workload.evolve()
        task = start(receiver.config, (epoch, 0))
    holds(receiver, workload, task)
    task.stop()
