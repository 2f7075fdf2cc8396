"""What a herd does for many connectors: no step takes more than its share, and who asks does not wait for the others' work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import pytest
from cdcworker.coordinator.core import events, leader
from cdcworker.coordinator.core.herd_state import HerdSettings
from cdcworker.coordinator.log.config_records import assignment_record
from cdcworker.coordinator.log.status_fold import lease_record, presence_record
from cdcworker.coordinator.model import PutConnector, TaskId

from .call_count import calls
from .leader_herd import OTHER, Driver, keys, of

FEW, MANY = 30, 300
LINEAR = 1.15
"""Calls for ten times as many may be so much more than tenfold: sorting, and trees of that depth."""


def large(**settings) -> Driver:
    """A leader whose rounds are far apart."""
    driver = Driver()
    settings = {"small_cluster": 0, "burst_rounds": 0, "round_s_per_task": 1.0, **settings}
    driver.state = replace(driver.state, settings=replace(driver.state.settings, **settings))
    driver.lead()
    driver.feed(events.LeaseAcked(driver.now))
    return driver


def ask(driver: Driver, names: Iterable[str], config: dict | None = None) -> list:
    commands = []
    for name in names:
        commands += driver.feed(
            events.RequestArrived(f"{name}-{driver.topic.end}", PutConnector(name, config or {}, "source"))
        )
    return commands


def serve(driver: Driver, commands: list, deaf: Collection = ()) -> list:
    """Carry out what the leader asks for until it asks for nothing more; all tasks are its own. Those that are deaf end
    only when they are killed."""
    out = []
    while commands:
        out += commands
        told: list = []
        for command in commands:
            if isinstance(command, events.WriteLog):
                told += driver.commit(command)
            elif isinstance(command, events.PlanTasks):
                connector = command.connector
                shares = ({"n": "0"}, {"n": "1"}, {"n": "2"})
                told += driver.feed(
                    events.TasksPlanned(connector.name, connector.incarnation, command.config_version, shares)
                )
            elif isinstance(command, events.StartTask):
                told += driver.feed(events.TaskReport(command.task, "RUNNING"))
            elif isinstance(command, events.StopTask) and command.task not in deaf:
                told += driver.feed(events.TaskExited(command.task, 0))
            elif isinstance(command, events.KillTask):
                told += driver.feed(events.TaskExited(command.task, -9))
        said = [record for append in of(commands, events.AppendStatus) for record in append.records]
        commands = told + (driver.status(*said) if said else [])
    return out


# --- growth -----------------------------------------------------------------------------------------------------------


def until(driver: Driver, done: Callable[[list], bool]) -> None:
    """Time passes, the own lease is renewed, and what the leader asks for is carried out."""
    for _ in range(60):
        driver.now += 0.1
        commands = driver.feed(events.LeaseAcked(driver.now)) + driver.feed(events.Tick())
        commands += driver.status(lease_record("me", "b1", round(driver.now * 10)))
        if done(serve(driver, commands)):
            return
    raise AssertionError("it does not come about")


def started(count: int) -> Driver:
    driver = large(round_s_per_task=HerdSettings().round_s_per_task)
    serve(driver, ask(driver, [f"c{n}" for n in range(count)]))
    until(driver, lambda _: len(driver.state.work.local) == 3 * count)
    return driver


def change_one(count: int) -> Callable[[], None]:
    driver, first = started(count), TaskId("c0", 0)
    before = driver.state.work.local[first].task

    def change() -> None:
        serve(driver, ask(driver, ["c0"], {"changed": "1"}))
        until(driver, lambda _: driver.state.work.local[first].task != before)

    return change


def lose_one(count: int) -> Callable[[], None]:
    """Half of the tasks are another worker's, which dies."""
    driver = started(count)
    serve(driver, driver.status(presence_record(OTHER), lease_record("other", "b2", 1)))
    until(driver, lambda _: len(driver.state.work.local) < 2 * count)
    until(driver, lambda commands: bool(of(commands, events.ProbeWorker)))

    def lose() -> None:
        serve(driver, driver.feed(events.WorkerProbed("other", "b2", "gone")))
        until(driver, lambda _: len(driver.state.work.local) == 3 * count)

    return lose


def end_all(count: int) -> Callable[[], None]:
    """All tasks of a worker end at the same moment, each by an event of its own: its database is gone."""
    driver = started(count)
    tasks = [local.task for local in driver.state.work.local.values()]

    def end() -> None:
        for task in tasks:
            driver.feed(events.TaskExited(task, 1))

    return end


def stop_all(count: int) -> Callable[[], None]:
    driver = started(count)
    tasks = [local.task for local in driver.state.work.local.values()]
    driver.feed(events.DrainRequested())
    driver.now += 60

    def end() -> None:
        for task in tasks:
            driver.feed(events.TaskExited(task, 0))

    driver.feed(events.Tick())
    return end


STEPS = {
    "the end of all tasks": end_all,
    "the stop of all tasks": stop_all,
    "start": lambda count: lambda: started(count),
    "a change of one": change_one,
    "the loss of a worker": lose_one,
    "a moment in which nothing happens": lambda count: (lambda driver: lambda: driver.feed(events.Tick()))(
        started(count)
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_step_grows_faster_than_the_number_of_connectors(step):
    few, many = (calls(STEPS[step](count)) for count in (FEW, MANY))
    assert many <= LINEAR * few * MANY / FEW, f"{many / few:.1f}-fold"


# --- drain ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", [0, 1, 300])
def test_a_drain_of_many_tasks_ends_in_time_although_some_do_not_stop(stuck):
    """All are told at once, and those that do not obey are killed while there still is time to leave."""
    driver = started(100)
    driver.state = replace(driver.state, settings=replace(driver.state.settings, drain_timeout_s=13.0))
    deaf = {local.task for local in list(driver.state.work.local.values())[:stuck]}
    began, told = driver.now, set()
    commands = driver.feed(events.DrainRequested()) + driver.status(presence_record(driver.state.me))
    while not of(commands, events.Leave):
        assert driver.now - began <= 15.0
        driver.now += 0.1
        commands = driver.feed(events.LeaseAcked(driver.now)) + driver.feed(events.Tick())
        commands += driver.status(lease_record("me", "b1", round(driver.now * 10)))
        commands = serve(driver, commands, deaf)
        told |= {stop.task for stop in of(commands, events.StopTask)}
        assert len(told) == 300 or driver.now - began < 1.0
    assert not driver.state.work.local


# --- who asks ---------------------------------------------------------------------------------------------------------


def test_an_answer_does_not_wait_for_a_round_over_all_tasks():
    driver = large()
    serve(driver, ask(driver, ["a"]))
    commands = ask(driver, ["b"])
    (write,) = of(commands, events.WriteLog)
    assert keys(write) == ["connector/b"]
    commands = driver.commit(write)
    assert [answer.reply.outcome for answer in of(commands, events.AnswerRequest)] == ["ok"]
    assert not of(commands, events.PlanTasks)
    driver.now += 60
    assert of(driver.feed(events.Tick()), events.PlanTasks)


def test_a_calm_pays_for_the_rounds_of_one_change():
    driver = large(round_s_per_task=0.05, burst_rounds=3)
    serve(driver, ask(driver, ["a", "b", "c"]))
    driver.now += 4
    serve(driver, ask(driver, ["d"]))
    assert TaskId("d", 2) in driver.state.work.local, "all of it came about without any time"


def test_a_queue_is_written_down_before_anything_is_placed(monkeypatch):
    monkeypatch.setattr(leader, "REQUESTS_PER_WRITE_MAX", 4)
    driver = large(round_s_per_task=0.0)
    (first,) = of(ask(driver, [f"c{n}" for n in range(13)]), events.WriteLog)
    commands, writes = driver.commit(first), []
    while not of(commands, events.PlanTasks):
        (write,) = of(commands, events.WriteLog)
        writes.append(len(write.records))
        commands = driver.commit(write)
    assert writes == [4, 4], "and the last four in the write of the round"


def test_a_queue_that_never_ends_holds_up_nothing_for_ever(monkeypatch):
    monkeypatch.setattr(leader, "REQUESTS_PER_WRITE_MAX", 1)
    driver = large(round_s_per_task=0.0)
    commands = ask(driver, ["c0", "c1", "c2"])
    for n in range(3, 60):
        (write,) = of(commands, events.WriteLog)
        ask(driver, [f"c{n}"])
        driver.now += 0.1
        commands = driver.commit(write)
        if of(commands, events.PlanTasks) and n > 3:
            assert driver.state.lead.queue
            return
    raise AssertionError("nothing was ever planned")


def test_requests_fall_due_in_the_order_in_which_they_came():
    driver = large()
    (write,) = of(ask(driver, ["a"]), events.WriteLog)
    driver.now += 10
    ask(driver, ["b"])
    driver.now += 10
    ask(driver, ["c"])
    driver.now += 10
    assert [a.request_id[0] for a in of(driver.feed(events.Tick()), events.AnswerRequest)] == ["a"]
    driver.now += 10
    assert [a.request_id[0] for a in of(driver.feed(events.Tick()), events.AnswerRequest)] == ["b"]
    assert keys(of(driver.commit(write), events.WriteLog)[0]) == ["connector/c"]


def test_a_worker_gets_no_more_tasks_than_its_record_has_room_for(caplog):
    driver = large(round_s_per_task=HerdSettings().round_s_per_task, record_bytes_max=2000)
    serve(driver, ask(driver, [f"c{n}" for n in range(10)]))
    until(driver, lambda _: "task stays unassigned, its worker's assignment record is full task=c9-2" in caplog.text)
    written = driver.state.cluster.assignments["me"]
    assert 3 < len(written.tasks) < 30
    assert leader.record_size(assignment_record("me", written)) < 2000
