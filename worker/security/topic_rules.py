"""What the worker's properties say of topics: which are the cluster's own, and which others are closed to connectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, parse_list
from cdcworker.schemas.topic_access import TopicAccess

OWN: Final = "topics.own"
"""The rule that lists the cluster's own topics. It is derived, and no property."""
CLOSED: Final = "connector.topics.closed"
OPEN: Final = "connector.topics.open"


def _names(value: list[str]) -> str | None:
    if any("*" in name[:-1] or name == "*" for name in value):
        return "expects names of topics, or beginnings of names that end in *"
    return None


TOPIC_KEYS: Final = (
    ConfigKey(
        CLOSED,
        "LIST",
        default=[],
        doc="Topics that no connector may read or write, besides the cluster's own: names, or beginnings that end in *. "
        "For topics of other clusters on the same Kafka whose names do not tell, such as their audit topics.",
        validator=_names,
    ),
    ConfigKey(
        OPEN,
        "LIST",
        default=[],
        doc="Topics with rows that are named like those of another cluster (configs, offsets, status and schemas or "
        "coordination, all behind the same prefix; for Kafka Connect the first three): names, or beginnings that "
        "end in *.",
        validator=_names,
    ),
)


def rules_of(own: Iterable[str], values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the rules for those who act for a connector, in the form in which they get the worker's other rules."""
    return {OWN: ",".join(own), CLOSED: ",".join(values[CLOSED]), OPEN: ",".join(values[OPEN])}


def access_of(rules: Mapping[str, str], prefixes: Iterable[str] = ()) -> TopicAccess:
    """Returns the access of a connector. `prefixes`: what its topics' names begin with; none: anything."""
    closed, opened = (tuple(parse_list(rules.get(name, ""))) for name in (CLOSED, OPEN))
    return TopicAccess(frozenset(parse_list(rules.get(OWN, ""))), closed, opened, tuple(prefixes))
