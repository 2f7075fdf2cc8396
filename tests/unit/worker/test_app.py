"""What a worker makes of signals and of a drain that is asked for over REST."""

from __future__ import annotations

import signal
import threading

import pytest
from cdcworker.connectors.datagen.connector import DatagenSource
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.app import App, plan


@pytest.fixture
def app():
    made = App.__new__(App)
    made._end_requested, made._stop_requested, made._signalled, made._comes_back = (
        threading.Event(),
        threading.Event(),
        False,
        False,
    )
    return made


def test_the_first_signal_drains_and_the_second_ends_at_once(app):
    app.on_signal(signal.SIGTERM, None)
    assert (app._end_requested.is_set(), app._stop_requested.is_set()) == (True, False)
    app.on_signal(signal.SIGINT, None)
    assert app._stop_requested.is_set()


def test_the_signal_behind_a_drain_that_was_asked_for_does_not_cut_it_short(app):
    """As the kubelet sends it when a pod's preStop hook has asked."""
    app.ask_to_drain(True)
    app.on_signal(signal.SIGTERM, None)
    assert (app._end_requested.is_set(), app._stop_requested.is_set()) == (True, False)
    app.on_signal(signal.SIGTERM, None)
    assert app._stop_requested.is_set()


@pytest.mark.parametrize(("stored", "tasks"), [("0", 1), ("-3", 1), (" 2 ", 2), (None, 1)])
def test_a_config_from_before_tasks_max_was_checked_is_split_as_it_was(stored, tasks):
    config = {"connector.class": "datagen", "topic.prefix": "p"} | ({} if stored is None else {"tasks.max": stored})
    assert len(DatagenSource(config).split(tasks)) == tasks
    assert len(plan(Connector("c", "i", 1, config, "RUNNING", "source"), frozenset())) == tasks


def test_a_stored_tasks_max_that_is_no_number_is_named():
    config = {"connector.class": "datagen", "topic.prefix": "p", "tasks.max": "abc"}
    with pytest.raises(CdcError, match=r"tasks.max: Not a number of type INT") as caught:
        plan(Connector("c", "i", 1, config, "RUNNING", "source"), frozenset())
    assert caught.value.code == "config.invalid"
