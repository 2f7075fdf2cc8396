"""What is said of a row in a sink's target, of everything that a target may tell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.worker.diagnostics.explain_child import _traced

FOUND = SimpleNamespace(offset=5)
TOLD = {"position": "07", "next_offset": 6, "batch": 3, "at_ms": 1_000, "applied": "07", "row": "this"}


@pytest.mark.parametrize(
    ("told", "is_found", "text"),
    [
        ({}, True, "wh has applied it, in batch 3; the row in the warehouse is this change's"),
        ({"applied": "09", "row": "newer"}, True, "in batch 3 or before: the ledger keeps the last; the row in the"),
        ({"row": None}, True, "wh has applied it, in batch 3"),
        ({"dead": "schema.undecodable", "dead_ms": 900}, True, "set it aside as a dead letter: schema.undecodable"),
        ({"next_offset": 2}, False, "wh has not come so far: 4 offsets behind it"),
        ({"next_offset": None}, False, "wh has applied nothing of this partition yet"),
    ],
)
def test_a_warehouse_that_knows_batch_and_time(told, is_found, text):
    stage = _traced({"sink": "wh"}, {**TOLD, **told}, FOUND)
    assert text in stage["text"]
    assert (stage["sink"], stage["found"], stage["batch"]) == ("wh", is_found, 3)
    assert stage["at_ms"] == (None if not is_found else 900 if "dead" in told else 1_000)


def test_a_sink_that_knows_its_offsets_alone():
    assert _traced({"sink": "f"}, {"next_offset": 6}, FOUND)["text"] == "f has applied it"
