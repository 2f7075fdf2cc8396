"""Jobs: asked for, told to tasks, reported by them, settled by the leader."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import current_record, fold_all
from cdcworker.coordinator.model import (
    ChangeJob,
    ClusterState,
    DeleteConnector,
    PutConnector,
    PutJob,
    TaskId,
    TaskStatus,
)

SPEC = {"tables": ["t"]}


def ask(state, request, request_id="r1", wall_ms=1000):
    decision = decide(state, PendingRequest(request_id, request, wall_ms))
    return decision.reply, fold_all(state, decision.records)


@pytest.fixture
def state():
    return ask(ClusterState(), PutConnector("a/b", {"x": "1"}, "source"))[1]


@pytest.fixture
def asked(state):
    reply, state = ask(state, PutJob("a/b", "snapshot", SPEC), "r2")
    return reply.job, state


def test_a_job_is_told_until_it_has_ended(asked):
    identity, state = asked
    assert jobs.open_jobs(state, "a/b") == (
        {"id": identity, "kind": "snapshot", "wanted": "RUNNING", "spec": SPEC, "own": True},
    )
    (job,) = jobs.of(state, "a/b")
    ended = fold_all(state, [jobs.job_record(jobs.replace(job, outcome={"state": "COMPLETED"}))])
    assert jobs.open_jobs(ended, "a/b") == ()


def test_equal_requests_are_one_job_until_it_has_ended(asked):
    identity, state = asked
    reply, same = ask(state, PutJob("a/b", "snapshot", dict(SPEC)), "r3")
    assert (reply.job, reply.created, same) == (identity, False, state)
    (job,) = jobs.of(state, "a/b")
    ended = fold_all(state, [jobs.job_record(jobs.replace(job, outcome={"state": "COMPLETED"}))])
    assert ask(ended, PutJob("a/b", "snapshot", SPEC), "r4")[0].job != identity


def test_what_is_wanted_changes_until_it_is_cancelled(asked):
    identity, state = asked
    for wanted in ("PAUSED", "RUNNING", "CANCELLED"):
        reply, state = ask(state, ChangeJob("a/b", identity, wanted))
        assert (reply.outcome, jobs.open_jobs(state, "a/b")[0]["wanted"]) == ("ok", wanted)
    assert ask(state, ChangeJob("a/b", identity, "RUNNING"))[0].outcome == "conflict"
    assert ask(state, ChangeJob("a/b", identity, "CANCELLED"))[0].outcome == "ok"


def test_a_job_of_the_tasks_own_gets_a_record_when_something_is_wanted_of_it(state):
    assert ask(state, ChangeJob("a/b", "initial", "PAUSED"))[0].outcome == "not_found"
    reply, after = ask(state, ChangeJob("a/b", "initial", "PAUSED", "snapshot"))
    assert (reply.outcome, jobs.open_jobs(after, "a/b")[0]["own"]) == ("ok", False)


def test_refusals_change_nothing(state):
    for request in (PutJob("x", "snapshot", SPEC), ChangeJob("x", "i", "PAUSED")):
        reply, after = ask(state, request)
        assert (reply.outcome, after) == ("not_found", state)


def test_there_are_so_many_and_no_more(state):
    for number in range(jobs.OPEN_MAX):
        reply, state = ask(state, PutJob("a/b", "snapshot", {"tables": [str(number)]}), f"r{number}")
        assert reply.outcome == "ok"
    assert ask(state, PutJob("a/b", "snapshot", SPEC), "one more")[0].outcome == "conflict"


def test_jobs_go_with_their_connector(asked):
    _, state = asked
    _, after = ask(state, DeleteConnector("a/b"))
    assert after.jobs == {}


def test_a_record_can_be_written_again_and_odd_ones_do_no_harm(asked):
    identity, state = asked
    key = f"job/a/b/{identity}"
    again = fold_all(state, [current_record(state, key)])
    assert again.jobs == state.jobs
    odd = fold_all(
        state, [LogRecord("job/a/b/odd", {"kind": 1}), LogRecord("job/", {}), LogRecord("job/q", {"incarnation": "i"})]
    )
    assert odd.jobs == state.jobs


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "RUNNING"], "RUNNING"),
        (["FAILED", "COMPLETED"], "FAILED"),
        (["PAUSED", "COMPLETED"], "PAUSED"),
    ],
)
def test_several_tasks_have_one_state_together(states, whole):
    found = jobs.merged({"state": state, "rows": 2, "ended_ms": 5} for state in states)
    assert found is not None
    assert (found["state"], found["rows"], found["ended_ms"]) == (whole, 4, 5)


def settled(state, part):
    """What the leader writes when the one task of the connector has reported the job so."""
    status = TaskStatus("a/b", 0, "RUNNING", "w", 1, metrics={jobs.JOBS_METRIC: [part]})
    tasks = {TaskId("a/b", 0): status}
    transition = SimpleNamespace(status=SimpleNamespace(tasks=tasks), now=SimpleNamespace(wall_ms=9))
    written: list[LogRecord] = []
    draft = replace(state, task_sets={"a/b": SimpleNamespace(tasks=tuple(tasks))})
    jobs.record_outcomes(transition, SimpleNamespace(draft=draft, add=written.append))
    return written


def test_how_many_tables_were_read_and_how_many_given_up_is_written_down_with_the_end(asked):
    identity, state = asked
    tables = {"tables_done": 2, "tables_cancelled": 0, "tables_total": 2}
    part = {"id": identity, "state": "COMPLETED", "rows": 5, **tables, "ended_ms": 7}
    (record,) = settled(state, part)
    (job,) = jobs.of(fold_all(state, [record]), "a/b")
    assert job.outcome == {name: value for name, value in part.items() if name != "id"}


def test_the_keys_of_a_repair_go_with_its_end_and_as_soon_as_it_is_cancelled(state):
    spec = {**SPEC, "repair": {"public.t": {"key": ["id"], "rows": [["4711"]]}}}
    state = ask(state, PutJob("a/b", "snapshot", spec), "r2")[1]
    (job,) = jobs.of(state, "a/b")
    assert jobs.open_jobs(state, "a/b")[0]["spec"] == spec
    (record,) = settled(state, {"id": job.id, "state": "COMPLETED", "rows": 1})
    assert (record.value["spec"], record.value["outcome"]["rows"]) == (SPEC, 1)
    # Whatever its tasks do: a source that is stopped has none that would end it.
    paused = ask(state, ChangeJob("a/b", job.id, "PAUSED"), "r3")[1]
    assert jobs.open_jobs(paused, "a/b")[0]["spec"] == spec
    cancelled = ask(paused, ChangeJob("a/b", job.id, "CANCELLED"), "r4")[1]
    assert [(told["wanted"], told["spec"]) for told in jobs.open_jobs(cancelled, "a/b")] == [("CANCELLED", SPEC)]


@pytest.mark.parametrize(
    "over", [{"outcome": {"state": "COMPLETED"}}, {"wanted": "CANCELLED"}], ids=["ended", "cancelled"]
)
def test_keys_that_a_leader_of_an_older_version_has_left_go_too(state, over):
    spec = {**SPEC, "repair": {"public.t": {"key": ["id"], "rows": [["4711"]]}}}
    state = ask(state, PutJob("a/b", "snapshot", spec), "r2")[1]
    (job,) = jobs.of(state, "a/b")
    left = fold_all(state, [jobs.job_record(replace(job, **over))])
    (record,) = settled(left, {"id": "another", "state": "COMPLETED"})
    after = fold_all(left, [record])
    assert jobs.of(after, "a/b") == [replace(job, spec=SPEC, **over)]
    assert settled(after, {"id": "another", "state": "COMPLETED"}) == []
