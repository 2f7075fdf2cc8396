"""Clients that do not end keep nobody waiting, and are told."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest
from cdcworker.coordinator.kafka.client_shutdown import close_client, destroy_client
from confluent_kafka import KafkaError, KafkaException


class Producer:
    pass


def test_a_client_that_ends_is_waited_for(caplog):
    ended = threading.Event()
    assert close_client(ended.set, "member")
    assert ended.is_set()
    assert not caplog.records


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._FAIL)), RuntimeError("closed before")])
def test_a_complaint_is_told_and_keeps_nobody_from_ending(caplog, error):
    def close():
        raise error

    assert close_client(close, "member")
    assert "failed to close client=member" in caplog.text


def test_a_client_that_does_not_end_is_left_behind_and_told(caplog):
    never = threading.Event()
    with caplog.at_level(logging.WARNING):
        assert not close_client(never.wait, "member of the group", timeout_s=0.01)
    assert "abandoned client=member of the group" in caplog.text
    left = next(thread for thread in threading.enumerate() if thread.name == "end-member-of-the-group")
    assert left.daemon
    never.set()
    left.join(10)


def test_a_producer_ends_with_the_last_reference_on_the_other_thread():
    producer = Producer()
    on: list[str] = []
    weakref.finalize(producer, lambda: on.append(threading.current_thread().name))
    held = [producer]
    del producer
    assert destroy_client(held, "leader's producer")
    gc.collect()
    assert on == ["end-leader's-producer"]
