"""What a test leaves behind in its process fails that test: each kind of it is found."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cdcworker.schemas import failpoints

from tests.process_state import process_state, unchanged

NAME = "CDC_TEST_LEFT_BEHIND"
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "environment": (lambda: os.environ.update({NAME: "1"}), lambda: os.environ.pop(NAME, None)),
    "working directory": (lambda: os.chdir("/"), lambda: None),
    "failpoints": (lambda: failpoints.listen(print), lambda: failpoints.listen(None)),
    "signal handlers": (
        lambda: signal.signal(signal.SIGPROF, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGPROF, signal.SIG_DFL),
    ),
    "logging": (
        lambda: logging.getLogger("cdcworker").setLevel(1),
        lambda: logging.getLogger("cdcworker").setLevel(logging.NOTSET),
    ),
    "garbage collection": (gc.disable, gc.enable),
}
"""By the kind of state: a change that some test might leave, and what takes it back."""


def test_every_kind_of_state_is_tried() -> None:
    assert CHANGES.keys() == process_state().keys()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_is_left_behind_is_found_by_its_kind(kind: str, tmp_path: Path) -> None:
    change, take_back = CHANGES[kind]
    before = Path.cwd()
    try:
        with pytest.raises(AssertionError, match=f"left behind.*{kind}"), unchanged():
            change()
    finally:
        take_back()
        os.chdir(before)


def test_the_environment_is_put_back_so_that_the_next_test_is_not_blamed() -> None:
    with pytest.raises(AssertionError, match=NAME), unchanged():
        os.environ[NAME] = "1"
    assert NAME not in os.environ


def test_what_changes_nothing_passes() -> None:
    with unchanged():
        assert process_state() == process_state()
