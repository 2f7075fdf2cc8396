"""Configuration keys of the records beside those of tables: heartbeats and the ends of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, between, matches

IDLE_MS_DEFAULT: Final = 10_000
"""How long an idle table may hold the log back: far below what fills a disk, far above what costs anything."""
_NAME = matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore")
_NAME_OR_NONE = matches(r"[A-Za-z0-9._\-]{0,249}", "letters, digits, dot, hyphen and underscore")


def beside_keys() -> Iterable[ConfigKey]:
    group = "Heartbeats"
    yield ConfigKey(
        "heartbeat.interval.ms", "INT", 0, validator=between(0), group=group,
        doc="How often a record goes to the heartbeat topic. An idle task stores and confirms its position as often, so"
        " that it never holds the log back. 0: every 10 s, without heartbeat records.",
    )  # fmt: skip
    yield ConfigKey(
        "heartbeat.action.query", default="", group=group, importance="LOW",
        doc="A statement that the source runs at each heartbeat, if there are any. Not needed to move an idle slot on.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.heartbeat.prefix", default="__debezium-heartbeat", validator=_NAME, group=group, importance="LOW",
        former="heartbeat.topics.prefix", topics="heartbeats", doc="Heartbeats go to the topic of this name, a dot and topic.prefix.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.heartbeat.name", default="", validator=_NAME_OR_NONE, group=group, importance="LOW",
        topics="name", doc="The heartbeat topic's whole name, instead.",
    )  # fmt: skip
    yield ConfigKey(
        "provide.transaction.metadata", "BOOLEAN", False, group="Topics",
        doc="A record at the beginning and at the end of each transaction, with its events counted, and in each event its place in"
        " the transaction. Rows are decoded in Python then.",
    )  # fmt: skip
    yield ConfigKey(
        "extended.headers.enabled", "BOOLEAN", False, group="Topics", importance="LOW",
        doc="Headers in each record that name topic.prefix, task and connector (`__debezium.context.connectorLogicalName`,"
        " `…taskId`, `…connectorName`), as Debezium writes them by default. They cost about a microsecond of processor time a record.",
    )  # fmt: skip
    yield ConfigKey(
        "topic.transaction", default="transaction", validator=_NAME, group="Topics", importance="LOW",
        topics="part", doc="Last part of that topic's name, behind topic.prefix and a dot.",
    )  # fmt: skip


def heartbeat_topic(raw: Mapping[str, Any]) -> str:
    return str(raw["topic.heartbeat.name"] or f"{raw['topic.heartbeat.prefix']}.{raw['topic.prefix']}")


def transaction_topic(raw: Mapping[str, Any]) -> str:
    return f"{raw['topic.prefix']}.{raw['topic.transaction']}"
