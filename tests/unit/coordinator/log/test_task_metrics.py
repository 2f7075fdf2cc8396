"""Numbers of a task over several of its processes."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.log.task_metrics import METRICS_MAX, merge_metrics, with_failure


def tries(since, count, code="c"):
    return {"retrying": {"since_ms": since, "count": count, "code": code}}


@pytest.mark.parametrize(
    ("before", "said", "out"),
    [
        ({}, tries(9, 1), tries(9, 1)),
        (tries(5, 7), tries(9, 1, "d"), tries(5, 1, "d")),
        (tries(5, 7), {"records": 1}, tries(5, 7) | {"records": 1}),
        (tries(5, 7), {"retrying": None}, {"retrying": None}),
        ({"retrying": None}, tries(9, 1), tries(9, 1)),
        ({"retrying": 3}, tries(9, 1), tries(9, 1)),
        ({"retrying": {}}, tries(9, 1), tries(9, 1)),
    ],
)
def test_a_process_that_goes_on_trying_has_tried_since_the_first_one(before, said, out):
    assert merge_metrics(before, said) == out


def test_failures_are_counted_by_class_and_outlive_the_other_numbers():
    numbers = {"records": 1}
    for kind in ("transient", "data", "transient", None):
        numbers = with_failure(numbers, {"kind": kind})
    assert numbers == {"records": 1, "failures": {"transient": 2, "data": 1, "unknown": 1}}
    many = {f"n{number}": 1 for number in range(METRICS_MAX)}
    assert merge_metrics(numbers, many) == {**many, "failures": numbers["failures"]}
