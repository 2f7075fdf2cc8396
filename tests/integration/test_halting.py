"""A position that is lost while the task runs: its process halts with the code within ten seconds of the fault."""

from __future__ import annotations

import random
import time

import pytest

from . import test_crash_matrix as crash_matrix
from .test_position_safety import advance, drop_slot, make_slot

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

HALT_S_MAX = 10.0


def advanced(db, name: str) -> None:
    """By somebody who is quicker than the task that comes back."""
    db.execute("select pg_terminate_backend(active_pid, 10000) from pg_replication_slots where slot_name = %s", (name,))
    db.execute("insert into t values (1000000)")
    advance(db, name)


@pytest.mark.parametrize(
    ("faults", "codes"),
    [
        ((drop_slot,), {"postgres.slot_missing"}),
        ((drop_slot, make_slot), {"postgres.slot_recreated", "postgres.slot_missing"}),
        ((advanced,), {"postgres.slot_advanced", "postgres.slot_recreated"}),
    ],
)
def test_a_running_task_halts_soon_and_by_name(kafka, postgres, tmp_path, faults, codes):
    stage = crash_matrix.Stage(kafka, postgres, random.Random(1), tmp_path, crash_matrix.EXACT)
    try:
        child = stage.child()
        target = stage.work(0)
        child.wait(lambda: child.reached(target), "it reads")
        slot = f"s_{stage.database}"
        stage.db.execute("select pg_terminate_backend(pid) from pg_stat_replication")
        for fault in faults:
            fault(stage.db, slot)
        began = time.monotonic()
        child.wait(lambda: "FAILED" in child.states(), "it halts")
        took = time.monotonic() - began
        (error,) = [m["error"] for m in child.messages if m["type"] == "status" and m["state"] == "FAILED"]
        assert error["code"] in codes
        print(f"{error['code']} {took:.1f} s after the fault")
        assert took <= HALT_S_MAX
    finally:
        stage.close()
