"""The source runner over a scripted source and a broker that fails at any step."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.kafka import errors as e
from cdcworker.coordinator.log.offset_records import OffsetRecord
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.source.data_topics import LEFT_OPEN
from cdcworker.worker.source.error_policy import RETRIES_MAX
from cdcworker.worker.source.runner import _shown
from cdcworker.worker.source.session import RECORD_TOO_LARGE, TransactionLimits

STEPS = ("init", "schema_init", "assigned", "position", "open", "poll", "register", "topics", "begin", "produce")
STEPS += ("commit", "ack")
SIZES = (1, 3, 0, 2, 5, 1)


def by_transaction(world) -> list[list[str]]:
    """Topics of each committed Kafka transaction, in order."""
    return [[record[0] for record in transaction] for transaction in world.broker.transactions]


def test_everything_arrives_in_order_once(make_world):
    world = make_world(SIZES)
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert world.statuses[0] == ("RUNNING", None)
    assert world.statuses[-1] == ("STOPPED", None)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_one_passing_failure_at_any_step_loses_and_doubles_nothing(make_world, step, idle, split, number):
    world = make_world(SIZES, split=split, idle=idle)
    world.fail(step, number)
    assert world.run() == 0
    assert world.broker.data() == world.expected


@pytest.mark.parametrize("step", ["produce", "commit", "poll"])
@pytest.mark.parametrize("ready", [lambda n: True, lambda n: n % 2 == 0, lambda n: n % 3 == 1])
def test_records_that_the_source_wrote_keep_their_place_and_arrive_once(make_world, ready, step):
    world = make_world(SIZES, split=3)
    world.ready = ready
    world.fail(step, 3)
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert {record[3] for record in world.broker.committed if record[0] == "p.public.t"} == {1, 2, 0}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("split", [0, 1])
def test_a_commit_whose_answer_is_lost_is_not_repeated(make_world, split, number):
    world = make_world(SIZES, split=split, idle=True)
    world.faults.lost_answer = True
    world.fail("commit", number)
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert len(world.producers) == 2
    assert world.producers[0].closed


def test_a_failure_at_every_call_in_turn_still_ends_with_everything_once(make_world):
    for step in STEPS:
        world = make_world((2, 2, 2), split=1, idle=True)
        for number in (1, 3, 5, 7):
            world.fail(step, number)
        assert world.run() == 0
        assert world.broker.data() == world.expected, step


def test_position_is_the_last_record_of_its_transaction_and_watermark_travels_with_it(make_world):
    world = make_world((2, 3), idle=True)
    world.run()
    for topics in by_transaction(world):
        assert topics[-1] == world.place.offsets_topic
        assert topics[-2] == world.place.watermark_topic


def test_a_busy_stream_shares_transactions_and_an_idle_one_commits_at_once(make_world):
    busy, idle = make_world((1,) * 20), make_world((1,) * 20, idle=True)
    busy.run()
    idle.run()
    assert len(busy.broker.transactions) == 1
    assert len(idle.broker.transactions) == 20


@pytest.mark.parametrize(
    "limits",
    [TransactionLimits(records_max=4), TransactionLimits(bytes_max=4 * 4), TransactionLimits(ms_max=4)],
    ids=["records", "bytes", "ms"],
)
def test_each_limit_ends_a_transaction_at_the_next_boundary(make_world, limits):
    world = make_world((2,) * 6, limits=limits)
    if limits.ms_max == 4:
        world.poll_takes_s = 0.0021
    world.run()
    sizes = [sum(topic.startswith("p.public") for topic in topics) for topics in by_transaction(world)]
    assert sizes
    assert all(size % 2 == 0 for size in sizes)
    assert max(sizes) <= 6
    assert len(sizes) >= 2


def test_no_kafka_transaction_ends_inside_a_source_transaction(make_world):
    world = make_world((5, 7, 4), split=1, limits=TransactionLimits(records_max=2))
    world.run()
    for transaction in world.broker.transactions:
        values = [record[2].decode() for record in transaction if record[0].startswith("p.public")]
        lsns = {int(value.partition(".")[0]) for value in values}
        for lsn in lsns:
            assert sum(value.startswith(f"{lsn}.") for value in values) == len(world.source[lsn - 1])


def test_what_is_complete_is_committed_before_a_long_transaction_begins(make_world):
    world = make_world((1, 6), split=2)
    world.run()
    first = [record[2].decode() for record in world.broker.transactions[0] if record[0].startswith("p.public")]
    assert first == ["1.0"]


def test_only_what_is_committed_is_acknowledged(make_world):
    world = make_world(SIZES, idle=True)
    world.fail("commit", 2)
    world.run()  # the scripted task itself refuses an early acknowledgement
    assert world.acked == sorted(world.acked)
    assert world.acked[-1] == len(SIZES)


def test_a_restart_goes_on_at_the_committed_position(make_world):
    world = make_world((1, 1, 1), idle=True)
    world.fail("poll", 3)
    world.run()
    assert world.opened == [None, {"lsn": 2}]


def test_a_start_fences_then_asks_whose_the_task_is_then_reads_its_position_then_opens(make_world):
    """In any other order somebody else can act between what was read and the fence (INV-5)."""
    world = make_world(SIZES)
    world.run()
    assert list(world.faults.counts)[:5] == ["init", "schema_init", "assigned", "position", "open"]


def test_a_paused_start_ends_what_another_process_left_open(make_world):
    """Nothing else would until its time-out: a paused task begins no session, and readers would wait."""
    world = make_world(SIZES)
    world.control.apply({"type": "pause"})
    world.fail("init")
    waits = []

    def wait(_timeout_s, _until=None):
        waits.append(len(world.producers))
        if len(waits) == 3:
            world.control.apply({"type": "stop"})

    world.control.wait = wait
    assert world.run() == 0
    assert world.faults.counts.get("init", 0) == 2
    assert all(producer.closed for producer in world.producers)
    assert "assigned" not in world.faults.counts
    assert [state for state, _ in world.statuses] == ["PAUSED", "STOPPED"]


def test_fenced_but_still_assigned_the_task_initialises_again(make_world):
    world = make_world(SIZES, idle=True)

    def zombie(w):
        if w.polls == 3:
            w.broker.holder = object()

    world.on_poll = zombie
    assert world.run() == 0
    assert world.broker.data() == world.expected


def test_fenced_and_not_assigned_any_more_the_task_ends_quietly(make_world):
    world = make_world(SIZES, idle=True)

    def taken_over(w):
        if w.polls == 3:
            w.broker.holder, w.owner = object(), False

    world.on_poll = taken_over
    assert world.run() == 3
    assert all(state != "FAILED" for state, _ in world.statuses)
    assert world.broker.data() == world.expected[: len(world.broker.data())]


def test_not_assigned_at_the_start_nothing_is_opened(make_world):
    world = make_world(SIZES)
    world.owner = False
    assert world.run() == 3
    assert world.opened == []


def test_a_position_of_a_newer_owner_ends_the_task(make_world):
    world = make_world(SIZES)
    world.position = lambda: OffsetRecord("inc", world.place.task_epoch + 1, {"lsn": 1})
    assert world.run() == 3
    assert world.opened == []


def test_fenced_again_and_again_although_assigned_is_a_failure(make_world):
    world = make_world(SIZES, idle=True)
    for number in range(1, 8):
        world.fail("begin", number, e.FENCED)
    assert world.run() == 1
    state, error = world.statuses[-1]
    assert state == "FAILED"
    assert error.code == "coordinator.task_fenced"
    assert len(world.producers) == 6


def test_without_a_lease_nothing_is_produced_and_with_it_work_goes_on(make_world):
    world = make_world(SIZES, idle=True)
    before: list[int] = []

    def silence(w):
        if w.polls == 3:
            w.control._valid_until = w.now
            before.append(len(w.broker.transactions))
            w.wait_steps = 0

    def wait(timeout_s, until=None):
        world.now += timeout_s
        assert len(world.broker.transactions) == before[0]
        world.control.apply({"type": "lease", "valid_s": 1e9})

    world.on_poll = silence
    world.control.wait = wait
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert len(world.producers) == 2


def test_without_a_lease_the_id_is_not_taken_over(make_world):
    world = make_world(SIZES)
    world.control._valid_until = world.now
    world.control.wait = lambda timeout_s, until=None: world.control.apply({"type": "stop"})
    assert world.run() == 0
    assert world.producers == []


def test_pause_commits_at_a_boundary_and_resume_goes_on_there(make_world):
    world = make_world((4, 4, 4), split=2)
    committed_at_pause: list[str] = []

    def pause(w):
        if w.polls == 3 and not committed_at_pause:
            w.control.apply({"type": "pause"})

    def wait(timeout_s, until=None):
        committed_at_pause.extend(world.broker.data())
        assert world.closed == 1
        assert world.producers[0].closed
        world.control.apply({"type": "resume"})

    world.on_poll = pause
    world.control.wait = wait
    assert world.run() == 0
    assert [state for state, _ in world.statuses] == ["RUNNING", "PAUSED", "RUNNING", "STOPPED"]
    assert committed_at_pause == world.expected[:8]
    assert world.opened == [None, {"lsn": 2}]
    assert world.broker.data() == world.expected


def test_a_stop_inside_a_source_transaction_that_does_not_end_aborts_it(make_world):
    world = make_world((9,), split=1)
    world.poll_takes_s = 2.0
    world.on_poll = lambda w: w.polls == 2 and w.control.apply({"type": "stop"})
    assert world.run() == 0
    assert world.broker.data() == []
    assert world.broker.position() is None


def test_started_paused_the_source_is_not_touched_until_resumed(make_world):
    world = make_world((1,))
    world.control.apply({"type": "pause"})
    opened = []

    def wait(timeout_s, until=None):
        opened.append(len(world.opened))
        world.control.apply({"type": "resume"})

    world.control.wait = wait
    world.run()
    assert opened[0] == 0
    assert [state for state, _ in world.statuses][:2] == ["PAUSED", "RUNNING"]


def test_an_idle_source_writes_a_watermark_a_second_and_no_position(make_world):
    world = make_world((1,), idle=True)
    world.poll_takes_s, world.idle_polls_max = 0.1, 50
    world.idle_watermark = {"commit_lsn": 1, "ts_ms": 1}
    world.run()
    later = by_transaction(world)[1:]
    assert 4 <= len(later) <= 5
    assert all(topics == [world.place.watermark_topic] for topics in later)


@pytest.mark.parametrize(("took_s", "looks"), [(1.0, 0), (3.0, 1)])
def test_after_a_slow_commit_what_the_broker_left_open_is_looked_for(make_world, took_s, looks):
    world = make_world(SIZES)
    world.poll_takes_s, world.idle_polls_max, world.commit_takes_s = 1.0, 60, took_s
    world.fail("check_ended", code=LEFT_OPEN)
    assert world.run() == 0
    assert len(world.checked_at) == looks
    assert len(world.producers) == 1 + looks
    assert world.broker.data() == world.expected
    assert [text for text, _ in world.statuses].count("RUNNING") == 1 + looks


def test_a_watermark_of_aborted_work_is_forgotten(make_world):
    world = make_world((1, 1), idle=True)
    world.fail("commit", 2)
    world.run()
    marks = [record[2] for record in world.broker.committed if record[0] == world.place.watermark_topic]
    assert len(marks) == 2
    assert b'"commit_lsn":1' in marks[0]
    assert b'"commit_lsn":2' in marks[1]


def test_an_old_transaction_is_flushed_before_its_position(make_world):
    world = make_world((6,), split=1)
    world.poll_takes_s = 0.3
    world.run()
    assert world.faults.counts["flush"] == 1


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("step", STEPS)
def test_what_no_kafka_transaction_can_hold_is_committed_in_parts_and_resumed_within(make_world, step, number):
    # Three changes are past the limit, and the next part begins behind them.
    world = make_world((1, 8, 2), split=1, limits=TransactionLimits(split_bytes=3 * len(b"k2.0")))
    world.resumes_within = True
    world.fail(step, number)
    assert world.run() == 0
    assert world.broker.data() == world.expected
    sizes = [sum(name == "p.public.t" for name in topics) for topics in by_transaction(world)]
    assert max(sizes) == 3
    watermarks = [json.loads(record[2])["commit_lsn"] for record in world.broker.committed if "watermark" in record[0]]
    assert watermarks == sorted(watermarks)


def test_half_of_the_time_out_ends_a_part_as_well(make_world):
    world = make_world((50,), split=1, limits=TransactionLimits(transaction_timeout_ms=10_000))
    world.resumes_within = True
    world.poll_takes_s = 1.0
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert len(world.broker.transactions) >= 10


def test_below_the_split_size_nothing_is_split(make_world):
    world = make_world((1, 8), split=1)
    world.resumes_within = True
    world.run()
    assert by_transaction(world)[1].count("p.public.t") == 8


def test_a_transaction_that_nears_its_time_out_fails_with_a_name(make_world):
    world = make_world((50,), split=1, limits=TransactionLimits(transaction_timeout_ms=10_000))
    world.poll_takes_s = 1.0
    assert world.run() == 1
    assert world.statuses[-1][1].code == "source.transaction_too_long"
    assert world.broker.data() == []


def test_a_change_larger_than_its_topic_allows_is_named_by_table_and_position(make_world):
    world = make_world((1, 2), split=1)
    world.record_bytes_max = 50
    assert world.run() == 1
    error = world.statuses[-1][1]
    assert error.code == "source.record_too_large"
    assert error.where["table"] == "public.t"
    assert error.where["commit_lsn"] == 1
    assert error.where["topic"] == "p.public.t"


def test_a_change_behind_a_larger_one_of_a_roomier_topic_is_held_against_its_own(make_world):
    world = make_world((1, 2), split=1)
    encode = world.encoder(lambda _: ()).encode

    def encoded(changes):
        records = encode(changes)
        return [records[0]._replace(topic="p.public.roomy", value=bytes(5000)), *records]

    world.encoder = lambda _: SimpleNamespace(encode=encoded)
    world.record_bytes_max, world.record_bytes_max_of = 50, {"p.public.roomy": 9000}
    assert world.run() == 1
    error = world.statuses[-1][1]
    assert (error.code, error.where["topic"]) == ("source.record_too_large", "p.public.t")


@pytest.mark.parametrize(
    ("size", "limit", "code", "topic"),
    [
        (5000, None, "source.record_too_large", "p.public.t"),
        (1, None, "source.position_too_large", "g.offsets"),
        # The largest record of data fits into its topic.
        (5000, 9000, "source.position_too_large", "g.offsets"),
    ],
)
def test_a_record_that_the_broker_refuses_for_its_size_is_named_by_its_topic(make_world, size, limit, code, topic):
    world = make_world((1,), idle=True)
    encode = world.encoder(lambda _: ()).encode
    padded = SimpleNamespace(encode=lambda changes: [record._replace(value=bytes(size)) for record in encode(changes)])
    world.encoder, world.record_bytes_max = lambda _: padded, limit
    world.fail("commit", 1, e.RECORD_TOO_LARGE)
    assert world.run() == 1
    error = world.statuses[-1][1]
    assert (error.code, error.where["topic"]) == (code, topic)
    assert error.where["bytes"] > 0


@pytest.mark.parametrize("code", [e.AUTHORIZATION, e.CLIENT_CONFIG, e.TOPIC_MISCONFIGURED, e.UNEXPECTED])
def test_an_error_that_does_not_pass_halts_the_task(make_world, code):
    world = make_world((1,))
    world.fail("begin", 1, code)
    assert world.run() == 1
    assert world.statuses[-1][1].code == code
    assert world.producers[0].closed
    assert world.closed == 1


@pytest.mark.parametrize(("can", "ends"), [(True, 0), (False, 1)])
def test_a_table_that_cannot_be_handed_on_is_left_out_where_the_source_can(make_world, can, ends):
    told: list[dict] = []

    class Holding(make_world(()).task().__class__):
        def holds(self, error):
            return can

        def hold(self, troubles):
            told.append(dict(troubles))

    world = make_world((2, 3), idle=True)
    world.task = lambda: Holding(world)
    world.faults.plan["poll", 2] = CdcError(RECORD_TOO_LARGE, "scripted", where={"table": "public.t"})
    assert world.run() == ends
    assert [list(troubles) for troubles in told] == ([["public.t"]] if can else [])
    if can:
        assert world.broker.data() == world.expected


def test_a_table_that_leaving_out_does_not_help_halts_the_task(make_world):
    class Holding(make_world(()).task().__class__):
        holds = hold = lambda self, _: True

    world = make_world((1,))
    world.task = lambda: Holding(world)
    for number in range(1, 40):
        world.faults.plan["open", number] = CdcError(RECORD_TOO_LARGE, "scripted", where={"table": "public.t"})
    assert world.run() == 1
    assert world.statuses[-1][1].code == RECORD_TOO_LARGE


def test_an_error_that_never_passes_ends_in_a_failure_that_the_worker_may_restart(make_world):
    world = make_world((1,))
    for number in range(1, 40):
        world.fail("open", number, e.UNREACHABLE)
    assert world.run() == 1
    assert world.statuses[-1][1].kind == "transient"
    assert world.faults.counts["open"] == RETRIES_MAX + 1


@pytest.mark.parametrize("step", ["poll", "commit", "open"])
def test_tries_in_a_row_are_told_until_one_succeeds(make_world, step):
    """Not when a session stands again: only what is committed tells that it works."""
    world = make_world((1, 2), idle=True)
    world.poll_takes_s = 2.0
    for number in (1, 2, 3):
        world.fail(step, number, e.UNREACHABLE)
    assert world.run() == 0
    told = [numbers["retrying"] for numbers in world.numbers if "retrying" in numbers]
    tries = [found for found in told if found]
    assert list(dict.fromkeys(found["count"] for found in tries)) == [1, 2, 3]
    assert {(found["code"], found["since_ms"]) for found in tries} == {(e.UNREACHABLE, tries[0]["since_ms"])}
    assert told[len(tries) :]
    assert not any(told[len(tries) :])


def test_a_registry_that_is_away_is_waited_for_in_place_and_ever_longer(make_world):
    """Although each session commits its start before it needs a schema."""
    world = make_world((1, 2), idle=True)
    waits, wait = [], world.control.wait

    def waited(seconds, *args):
        waits.append(seconds)
        return wait(seconds, *args)

    world.control.wait = waited
    for number in range(1, 2 * RETRIES_MAX):
        world.fail("poll", number, "registry.unavailable")
    assert world.run() == 0
    tries = waits[: 2 * RETRIES_MAX - 1]
    assert max(tries[:2]) < 1 < min(tries[RETRIES_MAX:])
    assert max(tries) <= 5
    assert len(world.broker.data()) == 3


@pytest.mark.parametrize("step", ["open", "position"])
def test_starts_that_take_long_and_fail_again_and_again_end_in_a_failure_too(make_world, step):
    world = make_world((1,))
    passes = world.faults.pass_

    def slow(name):
        world.now += 70 * (name == step)
        passes(name)

    world.faults.pass_ = slow
    for number in range(1, 40):
        world.fail(step, number, e.TIMEOUT)
    assert world.run() == 1
    assert world.faults.counts[step] == RETRIES_MAX + 1


def test_a_source_that_fails_at_its_close_leaves_no_producer_open(make_world, monkeypatch):
    world = make_world((1, 2))
    make, ends = world.task, []

    def task():
        made = make()

        def close():
            ends.append(1)
            if len(ends) == 1:
                raise CdcError(e.TIMEOUT, "the source does not answer")

        made.close = close
        return made

    world.task = task
    world.fail("poll", 2)
    assert world.run() == 0
    assert world.broker.data() == world.expected
    assert len(world.producers) == 2
    assert all(producer.closed for producer in world.producers)


def test_an_unforeseen_exception_is_named_by_type_and_place_only(make_world):
    world = make_world((1,))

    def boom(w):
        raise ValueError("hunter2")

    world.on_poll = boom
    assert world.run() == 1
    error: CdcError = world.statuses[-1][1]
    assert error.code == INTERNAL
    assert "hunter2" not in str(error.to_dict())
    assert "source.session" in str(error.where["at"])


def test_records_go_to_the_partition_of_their_hash(make_world):
    world = make_world((1, 1, 1, 1, 1), idle=True)
    world.run()
    partitions = [record[3] for record in world.broker.committed if record[0] == "p.public.t"]
    assert partitions == [lsn % 4 for lsn in range(1, 6)]


def test_metrics_name_the_counts(make_world):
    world = make_world(SIZES, idle=True)
    world.poll_takes_s = 0.5
    world.run()
    assert world.numbers[-1]["records"] > 0
    assert world.numbers[-1]["position"] == {"lsn": world.numbers[-1]["position"]["lsn"]}


def test_a_position_is_shown_without_what_may_hold_keys_of_rows():
    position = {"lsn": 7, "slot": "s", "snapshot": {"last": ["hush"]}, "again": [["hush"]]}
    assert _shown(position) == {"lsn": 7, "slot": "s"}
