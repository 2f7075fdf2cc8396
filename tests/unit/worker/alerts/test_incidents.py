"""Incidents begin when a condition lasts and end when it is gone for long enough; each receiver is told once of either."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.worker.alerts.conditions import Condition
from cdcworker.worker.alerts.incidents import (
    KEPT_MAX,
    KEPT_MS,
    WANTED,
    Incident,
    Moment,
    Watch,
    from_json,
    look,
    outdated,
    to_json,
)
from cdcworker.worker.alerts.settings import AlertSettings, Receiver
from hypothesis import given
from hypothesis import strategies as st

OPS = Receiver("ops", "webhook", "https://x/")
SETTINGS = AlertSettings((OPS,), hold_s=30.0, resolve_s=60.0)
FAILED = Condition("shop", "failed", "critical", "1 of 1 task FAILED", "postgres.slot_lost", (0,))
KEY = ("shop", "failed")


def at(seconds: float) -> Moment:
    return Moment(seconds, 1_000_000 + round(seconds * 1000))


def after(*looks, watch=None):
    """What follows when each of these (seconds, whether the condition is there) is looked at: the watch and all changes."""
    watch, changes = watch or Watch(), []
    for seconds, there in looks:
        watch, changed = look(watch, {KEY: FAILED} if there else {}, SETTINGS, at(seconds))
        changes += changed
    return watch, changes


def test_what_lasts_becomes_an_incident_and_once_it_is_gone_for_long_enough_it_is_over():
    watch, changes = after((0, True), (29.9, True))
    assert changes == []
    watch, (opened,) = after((30, True), (31, True), (100, True), watch=watch)
    assert (opened.key, opened.opened_ms, opened.is_open, opened.told) == (KEY, 1_030_000, True, {"ops": WANTED})
    watch, changes = after((101, False), (160, False), watch=watch)
    assert changes == []
    watch, (over,) = after((161, False), (200, False), watch=watch)
    assert (over.id, over.resolved_ms) == (opened.id, 1_161_000)
    assert watch == Watch()


def test_what_comes_and_goes_is_none_and_does_not_end_one():
    _, changes = after((0, True), (29, True), (29.5, False), (30, True), (59, True))
    assert changes == []
    watch, _ = after((0, True), (30, True))
    _, changes = after((40, False), (99, False), (99.5, True), (100, False), (159, False), watch=watch)
    assert changes == []


def test_the_same_trouble_later_is_another_incident():
    _, changes = after((0, True), (30, True), (31, False), (91, False), (92, True), (122, True))
    opened, over, again = changes
    assert (opened.id, over.id) == (opened.id, opened.id)
    assert again.id != opened.id


def test_another_error_of_an_open_incident_is_kept_and_told_to_nobody_again():
    watch, (opened,) = after((0, True), (30, True))
    told = opened.tell("ops", "opened")
    watch = replace(watch, open={KEY: told})
    other = replace(FAILED, code="postgres.unreachable", tasks=(0, 1))
    watch, (changed,) = look(watch, {KEY: other}, SETTINGS, at(40))
    assert (changed.id, changed.condition, changed.due(OPS)) == (opened.id, other, None)
    _, unchanged = look(watch, {KEY: replace(other, summary="another number")}, SETTINGS, at(41))
    assert unchanged == ()


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=40))
def test_whatever_happens_each_incident_begins_once_ends_once_and_they_take_turns(steps):
    watch, seconds, changes = Watch(), 0.0, []
    for pause, there in steps:
        seconds += pause
        watch, changed = look(watch, {KEY: FAILED} if there else {}, SETTINGS, at(seconds))
        changes += changed
    assert [one.is_open for one in changes] == [number % 2 == 0 for number in range(len(changes))]
    for begun, over in zip(changes[::2], changes[1::2], strict=False):
        assert begun.id == over.id
    assert set(watch.open) == ({KEY} if len(changes) % 2 else set())


def incident(told=None, resolved=None, condition=FAILED):
    return Incident("1", condition, 1_000, resolved, told or {})


@pytest.mark.parametrize(
    ("told", "resolved", "due"),
    [
        ({}, None, "opened"),
        ({"ops": WANTED}, None, "opened"),
        ({"ops": "opened"}, None, None),
        ({"ops": "opened"}, 2_000, "resolved"),
        ({"ops": WANTED}, 2_000, "resolved"),
        ({"ops": "resolved"}, 2_000, None),
        ({}, 2_000, None),
        ({"other": "opened"}, 2_000, None),
    ],
)
def test_a_receiver_is_told_once_of_each(told, resolved, due):
    assert incident(told, resolved).due(OPS) == due


def test_a_receiver_is_not_told_of_what_it_does_not_want():
    assert incident().due(replace(OPS, connectors=("x*",))) is None
    warning = replace(FAILED, severity="warning")
    assert incident(condition=warning).due(replace(OPS, severity="critical")) is None


def test_who_was_told_that_it_began_is_told_that_it_is_over_also_when_it_is_not_wanted_any_more():
    milder = replace(FAILED, severity="warning")
    over = incident({"ops": "opened"}, 2_000, milder)
    assert over.due(replace(OPS, severity="critical")) == "resolved"
    assert over.due(replace(OPS, connectors=("other",))) == "resolved"
    assert incident({"ops": WANTED}, 2_000, milder).due(replace(OPS, severity="critical")) is None
    assert incident({"ops": "opened"}, None, milder).due(replace(OPS, severity="critical")) is None


def test_a_record_reads_back_as_it_was_written():
    for one in (
        incident({"ops": "opened"}),
        incident(resolved=5),
        incident(condition=replace(FAILED, tables=("a.b",))),
    ):
        assert from_json(to_json(one)) == one


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"id": 1},
        {**to_json(incident()), "tasks": 5},
        {**to_json(incident()), "told": [1]},
        {**to_json(incident()), "opened": 10**30},
        {**to_json(incident()), "resolved": -(10**30)},
    ],
)
def test_what_is_no_record_is_an_error(value):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(value)


def test_old_and_too_many_incidents_are_forgotten():
    now = 10 * KEPT_MS
    resolved = [replace(incident(resolved=now - number), id=str(number)) for number in range(KEPT_MAX + 2)]
    old = replace(incident(resolved=now - KEPT_MS - 1), id="old")
    assert {one.id for one in outdated(resolved[:5], now)} == set()
    assert {one.id for one in outdated([*resolved[:5], old], now)} == {"old"}
    assert {one.id for one in outdated(resolved, now)} == {str(KEPT_MAX), str(KEPT_MAX + 1)}


def test_however_many_are_over_none_is_forgotten_of_which_a_receiver_is_still_to_hear():
    now = 10 * KEPT_MS
    told = {"ops": "opened"}
    resolved = [replace(incident(told, now - number), id=str(number)) for number in range(KEPT_MAX + 2)]
    assert outdated(resolved, now, (OPS,)) == []
    assert {one.id for one in outdated(resolved, now, (replace(OPS, name="other"),))} == {"1000", "1001"}
    assert len(outdated(resolved, now + KEPT_MS + KEPT_MAX, (OPS,))) > KEPT_MAX
