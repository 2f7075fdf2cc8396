"""What a worker makes of signals and of a drain that is asked for over REST."""

from __future__ import annotations

import signal
import threading

import pytest
from cdcworker.worker.app import App


@pytest.fixture
def app():
    made = App.__new__(App)
    made._asked, made._at_once, made._signalled, made._returns = threading.Event(), threading.Event(), False, False
    return made


def test_the_first_signal_drains_and_the_second_ends_at_once(app):
    app.on_signal(signal.SIGTERM, None)
    assert (app._asked.is_set(), app._at_once.is_set()) == (True, False)
    app.on_signal(signal.SIGINT, None)
    assert app._at_once.is_set()


def test_the_signal_behind_a_drain_that_was_asked_for_does_not_cut_it_short(app):
    """As the kubelet sends it when a pod's preStop hook has asked."""
    app.ask_to_drain(True)
    app.on_signal(signal.SIGTERM, None)
    assert (app._asked.is_set(), app._at_once.is_set()) == (True, False)
    app.on_signal(signal.SIGTERM, None)
    assert app._at_once.is_set()
