"""What a task says, and how much of it is heard: pipes without a process behind them."""

from __future__ import annotations

import json
import logging
import os
import selectors

import pytest
from cdcworker.coordinator.core.events import TaskReport
from cdcworker.coordinator.model import AssignedTask
from cdcworker.worker.processes import output_reader as module
from cdcworker.worker.processes.child import CLOSED, TaskChild
from cdcworker.worker.processes.output_reader import LOG_LINES_BURST, MESSAGES_BURST, SUMMARY_EVERY_S, OutputReader
from cdcworker.worker.protocol.messages import LINE_BYTES_MAX, LineSplitter, RateBudget
from cdcworker.worker.protocol.task_limits import TaskLimits

TASK = AssignedTask("shop", "i1", 0, 7)


class Spoken:
    """A child whose pipes the test writes to, and a clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list = []
        self.child = TaskChild(TASK, "f" * 16, TaskLimits())
        _, self.out, self.err = self.child.open_pipes()
        self.child.child_ends = []
        for end in (self.out, self.err):
            os.set_blocking(end, False)
        self.selector = selectors.DefaultSelector()
        self.reader = OutputReader(self.selector, self.events.append, clock=lambda: self.now)
        self.reader.open(self.child)

    def say(self, data: bytes, end: int | None = None) -> None:
        """Write it all, reading whenever the pipe is full and the reader has not paused."""
        end = self.out if end is None else end
        while data:
            try:
                data = data[os.write(end, data) :]
            except BlockingIOError:
                if not self.listen():
                    deadline = self.reader.deadline()
                    assert deadline is not None
                    self.pass_s(deadline - self.now)
        self.listen()

    def listen(self) -> int:
        ready = self.selector.select(0)
        for key, mask in ready:
            key.data(mask)
        return len(ready)

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.reader.tick(self.now)

    def close(self) -> None:
        for end in (self.out, self.err):
            os.close(end)
        self.reader.close(self.child)
        self.child.close_pipes()
        self.selector.close()


@pytest.fixture
def spoken(caplog):
    caplog.set_level(logging.INFO)
    made = Spoken()
    yield made
    if made.child.stdout != CLOSED:
        made.close()


def line(**message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def test_a_budget_refills_with_time_up_to_its_burst():
    budget = RateBudget(10, 20, 0.0)
    assert budget.take(20, 0.0)
    assert not budget.take(1, 0.0)
    assert budget.take(10, 1.0)
    assert budget.spend(30, 100.0) == 1.0
    assert budget.spend(0, 101.0) == 0.0


def test_a_giant_line_is_cut_and_costs_its_size_once():
    lines = LineSplitter(bytes_max=1_000)
    pieces = []
    for _ in range(100):
        pieces += lines.feed(b"x" * 100)
    assert sum(map(len, pieces)) + len(b"".join(lines.close())) == 10_000
    assert max(map(len, pieces)) <= 1_100


def test_numbers_are_heard_at_once_and_then_only_the_newest(spoken):
    for number in range(50):
        spoken.say(line(type="metrics", records=number))
    assert spoken.events == [TaskReport(TASK, metrics={"records": 0})]
    spoken.pass_s(1.0)
    assert spoken.events[1:] == [TaskReport(TASK, metrics={"records": 49})]


def test_what_the_worker_measured_goes_with_the_tasks_numbers(spoken):
    spoken.reader.report(spoken.child, {"rss_bytes": 7})
    spoken.say(line(type="metrics", records=1))
    assert spoken.events == [TaskReport(TASK, metrics={"records": 1, "rss_bytes": 7})]


def test_what_the_worker_measured_goes_alone_when_a_task_that_stands_says_nothing(spoken):
    spoken.pass_s(10.0)
    spoken.reader.report(spoken.child, {"rss_bytes": 7})
    spoken.pass_s(1.0)
    assert spoken.events == []
    spoken.say(line(type="status", state="RUNNING"))
    spoken.reader.report(spoken.child, {"rss_bytes": 8})
    spoken.pass_s(1.0)
    assert spoken.events == [TaskReport(TASK, "RUNNING"), TaskReport(TASK, metrics={"rss_bytes": 8})]


def test_states_are_all_heard_but_a_flood_of_them_waits_in_the_pipe(spoken):
    count = MESSAGES_BURST + 500
    text = line(type="status", state="RUNNING") * count
    written = 0
    while written < len(text):
        try:
            written += os.write(spoken.out, text[written : written + 4096])
        except BlockingIOError:
            break
        spoken.listen()
        if spoken.out and not spoken.selector.select(0):
            continue
    heard = len(spoken.events)
    assert heard < count
    spoken.say(text[written:])
    spoken.pass_s(30.0)
    spoken.listen()
    assert len(spoken.events) == count


def test_noise_and_broken_lines_are_counted_and_told_once_in_a_while(spoken, caplog):
    spoken.say(b'{"type": "status"\n' * 100 + b"\xff\xfe\n" + b"[" * 10_000 + b"\n[1]\n")
    spoken.say(line(type="status", state="RUNNING"))
    assert spoken.events == [TaskReport(TASK, "RUNNING")]
    spoken.pass_s(SUMMARY_EVERY_S)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["task wrote lines that are no messages task=shop-0 lines=103"]


def test_a_line_without_an_end_is_dropped_and_the_next_is_heard(spoken):
    spoken.say(b"x" * (3 * LINE_BYTES_MAX) + b"\n" + line(type="status", state="PAUSED"))
    spoken.pass_s(30.0)
    spoken.listen()
    assert spoken.events == [TaskReport(TASK, "PAUSED")]
    assert spoken.child.out.close() == []


def test_log_lines_past_the_share_are_counted_and_the_count_is_told(spoken, caplog):
    spoken.say(b"INFO hello\n" * (LOG_LINES_BURST + 700), spoken.err)
    said = [record for record in caplog.records if record.name == "cdcworker.task"]
    assert len(said) == LOG_LINES_BURST
    spoken.pass_s(SUMMARY_EVERY_S)
    assert caplog.records[-1].getMessage() == "task logs too much task=shop-0 dropped_lines=700"
    spoken.pass_s(SUMMARY_EVERY_S)
    spoken.say(b"INFO later\n", spoken.err)
    assert caplog.records[-1].getMessage() == "[shop-0] INFO later"


def test_last_words_are_heard_even_after_a_flood_and_what_was_dropped_is_told(spoken, caplog):
    spoken.say(b"INFO hello\n" * (LOG_LINES_BURST + 10), spoken.err)
    os.write(spoken.err, b"ERROR the reason")
    os.write(spoken.out, line(type="metrics", records=1) * 2 + line(type="status", state="FAILED", error={"code": "x"}))
    spoken.close()
    assert spoken.events[-2:] == [
        TaskReport(TASK, "FAILED", {"code": "x"}),
        TaskReport(TASK, metrics={"records": 1}),
    ]
    told = [record.getMessage() for record in caplog.records]
    assert "[shop-0] ERROR the reason" in told
    assert told[-1] == "task logs too much task=shop-0 dropped_lines=10"


def test_a_descendant_that_writes_on_for_ever_does_not_keep_the_worker(spoken, monkeypatch):
    reads = []
    monkeypatch.setattr(module.os, "read", lambda _fd, size: reads.append(size) or b"x" * size)
    spoken.reader.close(spoken.child)
    assert sum(reads) <= 2 * (module.FINAL_BYTES_MAX + module.READ_BYTES)


def test_a_closed_pipe_is_watched_no_more(spoken):
    os.close(spoken.out)
    spoken.out = os.open(os.devnull, os.O_WRONLY)
    assert spoken.listen() == 1
    assert spoken.listen() == 0


@pytest.mark.parametrize(
    "said",
    [
        {"type": "status", "state": []},
        {"type": "status", "state": {"a": 1}},
        {"type": [], "state": "RUNNING"},
        {"type": "metrics", "caf\udce9": 1},
        {"type": "metrics", "numbers": "x" * 100_000},
        {"type": "topics", "topics": ["caf\udce9"]},
        {"type": "beat", "at": []},
    ],
)
def test_what_no_report_can_carry_is_not_heard_and_ends_nobody(spoken, said):
    spoken.say(line(**said))
    spoken.pass_s(1.0)
    assert spoken.events == []
    spoken.say(line(type="status", state="RUNNING"))
    assert spoken.events == [TaskReport(TASK, "RUNNING")]


@pytest.mark.parametrize("message", ["no such file: caf\udce9", "no such file: caf" + "x" * 1_000_000])
def test_of_an_error_that_no_log_can_carry_its_code_and_the_begin_of_its_text_are_kept(spoken, message):
    spoken.say(line(type="status", state="FAILED", error={"code": "x.y", "kind": "data", "message": message}))
    (event,) = spoken.events
    assert (event.error["code"], event.error["kind"]) == ("x.y", "data")
    assert event.error["message"].startswith("no such file: caf")
    assert len(json.dumps(event.error, ensure_ascii=False).encode()) < 10_000


def test_what_a_tasks_own_loggers_let_through_is_not_judged_again(spoken, caplog, monkeypatch):
    """A library's text without a level is, and so is everything once the task's output has a level of its own."""
    caplog.handler.setLevel(logging.NOTSET)
    spoken.say(b"2026-01-01 DEBUG cdcworker.x details=1\nlibrary text\n", spoken.err)
    monkeypatch.setattr(logging.root, "level", logging.ERROR)
    logging.root.manager._clear_cache()
    spoken.say(b"2026-01-01 INFO cdcworker.x details=2\nmore library text\n", spoken.err)
    monkeypatch.setattr(module.task_log, "level", logging.ERROR)
    logging.root.manager._clear_cache()
    spoken.say(b"2026-01-01 INFO cdcworker.x details=3\n", spoken.err)
    texts = [record.getMessage() for record in caplog.records]
    assert [text.rpartition(" ")[2] for text in texts] == ["details=1", "text", "details=2"]


def test_a_tasks_lines_are_bound_to_what_it_has_committed_last(spoken, caplog):
    spoken.say(b"INFO before\n", spoken.err)
    spoken.say(line(type="metrics", position={"commit_lsn": 7, "slot": "s", "long": "x" * 200, "keys": {"a": 1}}))
    spoken.say(b"INFO then\n", spoken.err)
    spoken.say(line(type="metrics", records=3))
    spoken.say(b"INFO still\n", spoken.err)
    spoken.say(line(type="metrics", offsets={"p.public.t-0": 12}))
    spoken.say(b"INFO of a sink\n", spoken.err)
    found = [getattr(record, "position", None) for record in caplog.records]
    assert found == [None, {"commit_lsn": 7, "slot": "s"}, {"commit_lsn": 7, "slot": "s"}, {"p.public.t-0": 12}]
    assert {(record.connector, record.task) for record in caplog.records} == {("shop", 0)}
