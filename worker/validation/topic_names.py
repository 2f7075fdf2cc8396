"""Topics that a config names, as far as they can be told before anything runs: checked by the one rule for connectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, default_text, has_reference, parse_list
from cdcworker.schemas.errors import CODES
from cdcworker.schemas.topic_access import TopicAccess, relatives

May = Callable[[str, Collection[str]], bool]
PREFIX_KEY = "topic.prefix"


def topic_findings(
    definition: ConfigDef,
    config: Mapping[str, str | None],
    kind: str,
    access: TopicAccess,
    there: Collection[str] = (),
) -> Iterator[CheckFinding]:
    """Returns an error for each key that names a topic which the connector may not have. `there`: topics that are known
    to exist, by which those of other clusters are known.

    What only a running task can tell (names of tables, references) the task checks by the same rule.
    """
    verb = "reads" if kind == "sink" else "writes"
    may: May = access.may_read if kind == "sink" else access.may_write
    for key in definition.keys.values():
        for topic in _named(key, definition, config):
            if not may(topic, there):
                error = access.refusal(topic, there, verb)
                text = f"{key.name} names {topic}: {error.message}"
                yield CheckFinding(key.name, "error", error.code, text, CODES[error.code].hint)
                break


def cluster_topics(definition: ConfigDef, config: Mapping[str, str | None]) -> frozenset[str]:
    """Returns the topics whose existence would tell that a topic which the config names is another cluster's."""
    named = (topic for key in definition.keys.values() for topic in _named(key, definition, config))
    return frozenset[str]().union(*map(relatives, named))


def _named(key: ConfigKey, definition: ConfigDef, config: Mapping[str, str | None]) -> list[str]:
    """Returns the topics that a key is known to lead to. Of names that go on, the beginning and what is known to follow."""
    value = _value(key, config)
    if not value or not key.topics or key.topics == "pattern":
        return []
    if key.topics == "names":
        return [name for name in parse_list(value) if not has_reference(name)]
    if has_reference(value):
        return []
    if key.topics == "template":
        return [] if "$" in value else [value]
    if key.topics == "prefix":
        return [f"{value}.watermark"]
    first = definition.keys.get(PREFIX_KEY)
    prefix = _value(first, config) if first else ""
    if key.topics in ("heartbeats", "part"):
        if not prefix or has_reference(prefix):
            return []
        return [f"{value}.{prefix}" if key.topics == "heartbeats" else f"{prefix}.{value}"]
    return [value]


def _value(key: ConfigKey, config: Mapping[str, str | None]) -> str:
    given = config.get(key.name, config.get(key.former) if key.former else None)
    return (default_text(key) or "" if given is None else given).strip()
