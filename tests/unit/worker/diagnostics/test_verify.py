"""What the leader keeps of comparisons: keys of rows for a repair, within bounds, and only as long as it leads."""

from __future__ import annotations

import json

import pytest
from cdcworker.worker.diagnostics import verify
from cdcworker.worker.diagnostics.verify import Verifier, VerifyRun


@pytest.fixture
def compared(monkeypatch):
    """Has comparisons end one after the other, each with a repair of a key of 50 characters."""
    monkeypatch.setattr(verify, "REPAIRS_BYTES_MAX", 120)
    now = [0.0]
    keeper = Verifier("w:8083", {}, clock=lambda: now[0])

    def compare(*names, rows=1):
        for name in names:
            now[0] += 1
            run = keeper._runs[name] = VerifyRun(name, "i", "s", "w:8083", 0, 60.0)
            table = {
                "table": "public.t", "key": ["id"], "rows": [["k" * 50]] * rows, "deletes": True, "complete": True,
                "counts": {"missing": rows, "different": 0, "extra": 0}, "refused": [],
            }  # fmt: skip
            said = {"result": {"tables": []}, "keys": {"a": ["k"]}, "repair": {"tables": [table]}}
            keeper.said(run, json.dumps(said).encode())
        return keeper

    return compare


def kept(keeper):
    return [run.connector for run in keeper.runs() if run.repair is not None]


def test_the_oldest_repairs_are_forgotten_first_and_the_last_one_is_kept_whatever_its_size(compared):
    assert kept(compared("a", "b", "c")) == ["a", "b", "c"]
    assert kept(compared("d")) == ["b", "c", "d"]
    assert kept(compared("e", rows=100)) == ["c", "d", "e"]
    # That one leaves no room for any other.
    assert kept(compared("f")) == ["f"]


def test_a_worker_that_leads_no_more_keeps_no_keys(compared):
    keeper = compared("a")
    keeper.stop()
    (run,) = keeper.runs()
    assert (run.is_over, run.keys, run.repair) == (True, {}, None)
