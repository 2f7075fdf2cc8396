"""Spark's callback thread and the thread that asks for its batches."""

from __future__ import annotations

import threading

from cdcworker.connectors.spark.callback_exchange import CallbackExchange

WAIT_S = 30
MOMENT_S = 0.1


def putting(exchange, *items):
    """A thread that puts the items, and the number of those that it has done with."""
    done = []

    def put():
        for item in items:
            exchange.put(item)
            done.append(item)

    thread = threading.Thread(target=put)
    thread.start()
    return thread, done


def test_a_callback_returns_only_when_the_next_item_is_asked_for(until):
    exchange = CallbackExchange()
    thread, done = putting(exchange, 1, 2)
    assert exchange.take(WAIT_S) == 1
    thread.join(MOMENT_S)
    assert done == []
    assert exchange.take(WAIT_S) == 2
    assert done == [1]
    assert exchange.take(MOMENT_S) is None
    until(lambda: done == [1, 2])
    thread.join(WAIT_S)


def test_whoever_asks_too_early_gets_nothing():
    assert CallbackExchange().take(0.01) is None


def test_an_end_lets_both_sides_go():
    exchange = CallbackExchange()
    thread, done = putting(exchange, 1)
    exchange.close()
    thread.join(WAIT_S)
    assert done == [1]
    assert exchange.take(WAIT_S) is None
    exchange.put(2)
