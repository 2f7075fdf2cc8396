"""Which topics a connector may read and write: none of a cluster's own, and of the others those that were granted.

This is the one rule. Validation asks it, and so does every consumer and producer that acts for a connector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from cdcworker.schemas.errors import CdcError, declare

OWN_TOPIC: Final = declare(
    "topic.internal",
    "config",
    "A connector would use a topic that belongs to a cluster of workers or to Kafka itself",
    "Name another topic. If it holds rows and only looks like a cluster's own, name it in the worker property "
    "connector.topics.open.",
)
NOT_GRANTED: Final = declare(
    "topic.not_granted",
    "config",
    "A connector would use a topic that its owner was not granted",
    "Name topics that begin as the message says, or have the operator add topics to the grant: "
    "admin:PREFIX@topics=BEGINNING+BEGINNING.",
)

INTERNAL: Final = "__"
"""What names of Kafka's internal topics begin with."""
HEARTBEATS: Final = "__debezium-heartbeat."
"""What Debezium's names of heartbeat topics begin with: the one kind of such topics that connectors write."""
_OWN_PARTS: Final = ("configs", "offsets", "status", "schemas", "coordination")
_CONNECT_PARTS: Final = ("configs", "offsets", "status")
_FORMS: Final = (
    (re.compile(rf"(?P<group>.+)\.(?:{'|'.join(_OWN_PARTS)})"), ".", _OWN_PARTS, 3),
    (re.compile(r"(?P<group>.+)[-._]audit"), ".", _OWN_PARTS, 4),
    (re.compile(rf"(?P<group>.+)-(?:{'|'.join(_CONNECT_PARTS)})"), "-", _CONNECT_PARTS, 2),
    (re.compile(rf"(?P<group>[^.]+)\.(?:{'|'.join(_CONNECT_PARTS)})"), ".", _CONNECT_PARTS, 2),
    (re.compile(rf"(?P<group>[^.]+)_(?:{'|'.join(_CONNECT_PARTS)})"), "_", _CONNECT_PARTS, 2),
)
"""Forms of the names of a cluster's topics, our own and Kafka Connect's: with how many of the others a name is one of
them. A table may well be called status; hardly anybody has four tables of these names in one schema. With a dot or an
underscore three are enough where no dot is in front: a table's topic has two, behind its prefix and behind its schema."""

Exists = Callable[[Collection[str]], Collection[str]]
"""Returns which of these topics exist."""


def relatives(topic: str) -> frozenset[str]:
    """Returns the other topics that the cluster has to which a topic of this name may belong; none for other names."""
    return frozenset(name for names, _ in _families(topic) for name in names)


def _families(topic: str) -> Iterator[tuple[frozenset[str], int]]:
    for form, separator, parts, enough in _FORMS:
        found = form.fullmatch(topic)
        if found is not None:
            yield frozenset(f"{found['group']}{separator}{part}" for part in parts) - {topic}, enough


def is_of_cluster(topic: str, there: Collection[str]) -> bool:
    """Returns whether a topic belongs to some cluster, by its name and by those topics of its kind that are there."""
    return any(len(names.intersection(there)) >= enough for names, enough in _families(topic))


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """The topics of one connector. `there` are topics that exist: at least those of `relatives` of the topic."""

    own: frozenset[str] = frozenset()
    """The topics of this cluster, the audit topic among them."""
    closed: tuple[str, ...] = ()
    """Topics that the operator has closed: names, and beginnings of names that end in `*`."""
    open: tuple[str, ...] = ()
    """Topics that look like those of another cluster and are not."""
    prefixes: tuple[str, ...] = ()
    """What names of the connector's topics begin with; empty: anything."""

    def bounded(self, prefixes: Iterable[str]) -> TopicAccess:
        """Returns the access of a connector with these prefixes."""
        return replace(self, prefixes=tuple(prefixes))

    def is_own(self, topic: str, there: Collection[str] = ()) -> bool:
        """Returns whether no connector may read or write the topic."""
        if topic in self.own or _is_named(topic, self.closed):
            return True
        if topic.startswith(INTERNAL) and not topic.startswith(HEARTBEATS):
            return True
        return not _is_named(topic, self.open) and is_of_cluster(topic, there)

    def is_granted(self, topic: str) -> bool:
        """Returns whether the connector's prefixes cover the topic. Heartbeats count by what they are named after."""
        return not self.prefixes or topic.removeprefix(HEARTBEATS).startswith(self.prefixes)

    def may_read(self, topic: str, there: Collection[str] = ()) -> bool:
        return not self.is_own(topic, there) and self.is_granted(topic)

    def may_write(self, topic: str, there: Collection[str] = ()) -> bool:
        return not self.is_own(topic, there) and self.is_granted(topic)

    def check_read(self, topics: Iterable[str], exists: Exists) -> None:
        """CdcError `topic.internal` or `topic.not_granted` for the first topic that the connector may not read."""
        self._check(topics, exists, self.may_read, "reads")

    def check_write(self, topics: Iterable[str], exists: Exists) -> None:
        """CdcError `topic.internal` or `topic.not_granted` for the first topic that the connector may not write."""
        self._check(topics, exists, self.may_write, "writes")

    def _check(
        self, topics: Iterable[str], exists: Exists, may: Callable[[str, Collection[str]], bool], verb: str
    ) -> None:
        wanted = sorted(set(topics))
        if (own := next(filter(self.is_own, wanted), None)) is not None:
            raise self.refusal(own, (), verb)  # known by its name alone, also while Kafka cannot be asked
        asked = frozenset[str]().union(*map(relatives, wanted))
        there = frozenset(exists(asked)) if asked else asked
        for topic in wanted:
            if not may(topic, there):
                raise self.refusal(topic, there, verb)

    def refusal(self, topic: str, there: Collection[str], verb: str) -> CdcError:
        """Returns why a topic is refused."""
        if self.is_own(topic, there):
            return CdcError(OWN_TOPIC, f"no connector {verb} this topic", where={"topic": topic})
        text = f"the connector {verb} topics that begin with {' or '.join(self.prefixes)} only"
        return CdcError(NOT_GRANTED, text, where={"topic": topic})

    def readable(self, topics: Collection[str]) -> frozenset[str]:
        """Returns those of all existing topics among which a pattern may choose: internal ones are never meant by one."""
        return frozenset(name for name in topics if not name.startswith(INTERNAL) and self.may_read(name, topics))


def _is_named(topic: str, names: Iterable[str]) -> bool:
    return any(topic.startswith(name[:-1]) if name.endswith("*") else topic == name for name in names)
