"""Slots that standbys keep: which are, what of the standbys a primary can tell, and what the doctor says."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.doctor import slots as doctor_slots
from cdcworker.connectors.postgres.server import failover_slots as failover
from cdcworker.connectors.postgres.server import slot
from cdcworker.schemas.errors import CdcError

from ..test_rules import CONFIG

MADE, SYNCHRONISED, STANDBYS = (
    next(check for check in doctor_slots.CHECKS if check.name == f"decoding.{name}")
    for name in ("failover", "synchronised", "standbys")
)
KEPT, PLAIN = SimpleNamespace(name="s", failover=True), SimpleNamespace(name="s", failover=False)


def examined(wanted, version, *, slot=None, named=None, physical=(), standby=False):
    given = {} if wanted is None else {failover.KEY: wanted}
    return SimpleNamespace(
        settings=parse({**CONFIG, **given}),
        version=version,
        slot=slot,
        server={} if named is None else {"synchronized_standby_slots": named},
        rows=lambda _statement: list(physical),
        flavour="self-managed",
        connection=connection(version, standby=standby),
    )


def connection(version, *, standby=False):
    answer = SimpleNamespace(fetchone=lambda: (standby,))
    return SimpleNamespace(info=SimpleNamespace(server_version=version), execute=lambda _statement: answer)


@pytest.mark.parametrize(
    ("wanted", "version", "standby", "made", "told"),
    [
        (None, 170000, False, True, False),
        (None, 160000, False, False, False),
        (None, 180000, True, False, False),
        ("false", 180000, False, False, False),
        ("true", 180000, False, True, False),
        ("true", 160000, False, False, True),
        ("true", 180000, True, False, True),
    ],
)
def test_a_new_slot_is_kept_on_standbys_wherever_that_can_be(caplog, wanted, version, standby, made, told):
    settings = examined(wanted, version).settings
    assert failover.of_new(connection(version, standby=standby), settings) is made
    assert ("slot.failover has no effect here" in caplog.text) is told


def refusing(error, *, closed=False):
    """A server of version 17 that refuses to make a failover slot; it keeps what slots it was asked for."""
    asked = []

    def execute(statement, args=()):
        if "pg_create_logical_replication_slot" in statement:
            asked.append(args[1:])
            if len(args) == 5:
                raise error
            return SimpleNamespace(fetchone=lambda: ("0/10",))
        return SimpleNamespace(fetchone=lambda: (False,), fetchall=list)

    return SimpleNamespace(info=SimpleNamespace(server_version=170000), execute=execute, closed=closed), asked


PLAINLY, KEPT_TOO = ["pgoutput", False, False], ["pgoutput", False, False, True]


def test_a_slot_is_made_without_failover_where_the_server_refuses_that(caplog):
    server, asked = refusing(psycopg.errors.FeatureNotSupported("failover slots are not offered here"))
    assert slot.create(server, parse(CONFIG)) == 0x10
    assert asked == [KEPT_TOO, PLAINLY]
    assert "slot made without failover" in caplog.text


@pytest.mark.parametrize(
    ("error", "given", "closed"),
    [
        (psycopg.errors.FeatureNotSupported("no"), {failover.KEY: "true"}, False),
        (psycopg.errors.InsufficientPrivilege("no"), {}, False),
        (psycopg.OperationalError("gone"), {}, True),
        (psycopg.errors.QueryCanceled("late"), {}, False),
    ],
    ids=["asked for", "no right", "connection lost", "timed out"],
)
def test_no_other_slot_is_made_where_failover_is_asked_for_or_is_not_what_is_refused(caplog, error, given, closed):
    server, asked = refusing(error, closed=closed)
    with pytest.raises((type(error), CdcError)):
        slot.create(server, parse({**CONFIG, **given}))
    assert asked == [KEPT_TOO]
    assert "without failover" not in caplog.text


@pytest.mark.parametrize(
    ("wanted", "version", "slot", "standby", "status", "says"),
    [
        (None, 170000, None, False, "ok", ""),
        (None, 170000, KEPT, False, "ok", ""),
        (None, 170000, PLAIN, False, "note", "made without failover"),
        (None, 160000, PLAIN, False, "ok", ""),
        (None, 170000, PLAIN, True, "ok", ""),
        ("false", 170000, PLAIN, False, "ok", ""),
        ("true", 170000, PLAIN, False, "ok", ""),
        ("true", 160000, None, False, "note", "no effect"),
        ("true", 170000, None, True, "note", "no effect"),
    ],
)
def test_a_slot_that_was_made_without_is_told_of_with_the_command_that_alters_it(
    wanted, version, slot, standby, status, says
):
    (result,) = MADE.run(examined(wanted, version, slot=slot, standby=standby))
    assert result.status == status
    assert says in result.message
    if "made without" in says:
        assert 'ALTER_REPLICATION_SLOT "s" (FAILOVER true)' in result.hint


@pytest.mark.parametrize(
    ("wanted", "version", "slot", "named", "physical", "status", "says"),
    [
        ("false", 170000, PLAIN, "", [], "ok", ""),
        ("true", 160000, None, None, [], "ok", ""),
        (None, 170000, None, "", [], "ok", ""),
        (None, 170000, PLAIN, "gone", [], "ok", ""),
        (None, 170000, KEPT, "", [("a", True)], "warning", "empty"),
        ("true", 170000, PLAIN, "", [("a", True)], "warning", "empty"),
        ("true", 170000, None, 'a, "b"', [("a", True), ("b", True)], "ok", ""),
        ("true", 180000, None, "a,b", [("a", True), ("b", False)], "warning", "read by no standby: b"),
        (None, 180000, None, "a,b", [("a", True), ("b", False)], "warning", "read by no standby: b"),
        ("true", 170000, None, "a,gone", [("a", True)], "error", "do not exist: gone"),
    ],
)
def test_a_failover_slot_must_wait_for_its_standbys_and_for_none_that_is_not_there(
    wanted, version, slot, named, physical, status, says
):
    (result,) = SYNCHRONISED.run(examined(wanted, version, slot=slot, named=named, physical=physical))
    assert result.status == status
    assert says in result.message
    if says == "empty":
        assert "a" in result.fix.statements[0]


@pytest.mark.parametrize(
    ("wanted", "slot", "status"), [(None, None, "ok"), (None, PLAIN, "note"), ("false", None, "note")]
)
def test_a_server_with_standbys_and_a_slot_that_stays_behind_is_told_of(wanted, slot, status):
    (result,) = STANDBYS.run(examined(wanted, 170000, slot=slot, physical=[("a",)]))
    assert result.status == status


@pytest.mark.parametrize(
    ("named", "physical", "waited"),
    [
        ("", {"a": True}, False),
        ("a", {"a": True, "other": False}, True),
        ("a, b", {"a": True, "b": False}, False),
        ("a,gone", {"a": True}, False),
    ],
)
def test_changes_wait_for_standbys_when_all_that_are_named_are_connected(named, physical, waited):
    assert failover.standbys_of(named, physical).are_waited_for is waited
