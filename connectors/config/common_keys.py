"""Keys that every connector has, as Kafka Connect names them, and those accepted without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cdcworker.connectors.config.definition import (
    ConfigDef,
    ConfigKey,
    between,
    non_empty,
    one_of,
    one_of_any_case,
)
from cdcworker.connectors.config.refusals import Refusal, Sentence
from cdcworker.connectors.config.topic_creation import GROUPS_KEY, creation_keys

TASKS_MAX = ConfigKey(
    "tasks.max",
    "INT",
    default=1,
    importance="HIGH",
    group="Common",
    doc="Most tasks that the connector may be split into.",
    validator=between(1, 1000),
)

_STORED_TASKS_MAX = ConfigDef([replace(TASKS_MAX, validator=None)])


def tasks_max_of(config: Mapping[str, str]) -> int:
    """Returns the most tasks that a stored config allows. CdcError `config.invalid` for one that no number can be read from:
    it was taken by a version that did not check it."""
    return max(1, int(_STORED_TASKS_MAX.parse(config)["tasks.max"]))


NAME_CHARS_MAX = 249


def control_characters(found: Iterable[int]) -> Refusal:
    """Returns what Kafka Connect says of a name that holds these."""
    listed = ", ".join(map(str, found))
    return Refusal(f"String may not contain control sequences but had the following ASCII chars: {listed}")


def _connector_name(name: str) -> str | None:
    if not name:
        return Refusal("String may not be empty")
    if control := [ord(char) for char in name if char < " " or char == "\x7f"]:
        return control_characters(control)
    return None if len(name) <= NAME_CHARS_MAX else f"expects at most {NAME_CHARS_MAX} characters"


IDENTITY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "name",
        required=True,
        importance="HIGH",
        group="Common",
        doc="Name of the connector, unique in the cluster.",
        validator=_connector_name,
    ),
    ConfigKey(
        "connector.class",
        "CLASS",
        required=True,
        importance="HIGH",
        group="Common",
        doc="Which connector: a name or a known class name from GET /connector-plugins.",
        validator=non_empty,
        connects=True,
    ),
)
"""What tells connectors apart, whatever they do: the worker looks at these for all of them."""

CONNECTION_KEY = ConfigKey(
    "connection",
    group="Common",
    doc="Name of a connection of the cluster: it provides the keys of addresses and logins that the config leaves out.",
    connects=True,
)

CONNECTOR_KEYS: tuple[ConfigKey, ...] = (
    *IDENTITY_KEYS,
    TASKS_MAX,
    ConfigKey(
        "errors.tolerance",
        default="none",
        group="Error handling",
        doc="none: a record that cannot be handled halts its task. all: it goes to the dead letters.",
        validator=one_of("none", "all"),
        recommended=("none", "all"),
    ),
)

TASK_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "task.restart.max",
        "INT",
        default=10,
        importance="LOW",
        group="Restarts",
        doc="How often a task is started again within the window after failures that may pass; then it is quarantined.",
        validator=between(0, 100),
    ),
    ConfigKey(
        "task.restart.data.max",
        "INT",
        default=0,
        importance="LOW",
        group="Restarts",
        doc="The same for records that cannot be handled; 0: such a task halts at once.",
        validator=between(0, 100),
    ),
    ConfigKey(
        "task.restart.window.ms",
        "LONG",
        default=600_000,
        importance="LOW",
        group="Restarts",
        doc="The window of both; a task that ran so long without a failure has its whole budget again.",
        validator=between(1_000, 604_800_000),
    ),
    ConfigKey(
        "task.restart.backoff.ms",
        "LONG",
        default=1_000,
        importance="LOW",
        group="Restarts",
        doc="Longest pause before the first restart; it doubles with each further one.",
        validator=between(10, 3_600_000),
    ),
    ConfigKey(
        "task.restart.backoff.max.ms",
        "LONG",
        default=60_000,
        importance="LOW",
        group="Restarts",
        doc="Where the doubling ends.",
        validator=between(10, 3_600_000),
    ),
    ConfigKey(
        "task.start.timeout.ms",
        "LONG",
        default=600_000,
        importance="LOW",
        group="Restarts",
        doc="A task that is starting and has said nothing for so long is killed; that counts as a failure.",
        validator=between(1_000, 86_400_000),
    ),
    ConfigKey(
        "task.hang.timeout.ms",
        "LONG",
        default=60_000,
        importance="LOW",
        group="Restarts",
        doc="A task that has made no step for so long is killed; that counts as a failure. 0: never.",
        validator=between(0, 86_400_000),
    ),
    ConfigKey(
        "task.memory.limit.mb",
        "INT",
        importance="LOW",
        group="Restarts",
        doc="Most memory of a task with all its processes; past it the task is killed, which counts as a failure. 0: no"
        " limit. Default: 2048, for a sink with a JVM its heap more.",
        validator=between(0, 1_048_576),
    ),
)
"""What herd and worker read of a connector's config: limits of a task, and when a failed one is started again."""

EXACTLY_ONCE = "exactly-once"
DELIVERIES = (EXACTLY_ONCE, "at-least-once")


_support = one_of_any_case("required", "requested")


def delivery_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if config["exactly.once.support"].lower() == "required" and config["delivery"] != EXACTLY_ONCE:
        yield "exactly.once.support", f"is not given with delivery={config['delivery']}"


def topic_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns what is wrong about the topics that a sink reads, at both keys and in Kafka Connect's words."""
    names = "topics", "topics.regex"
    if config["topics"] and config["topics.regex"]:
        text = "topics and topics.regex are mutually exclusive options, but both are set."
    elif not config["topics"] and not config["topics.regex"]:
        text = "Must configure one of topics or topics.regex"
    else:
        return []
    return [(name, Sentence(text)) for name in names]


SOURCE_KEYS: tuple[ConfigKey, ...] = (
    *TASK_KEYS,
    ConfigKey(
        "delivery",
        default=EXACTLY_ONCE,
        group="Delivery",
        doc="exactly-once: records and position in one Kafka transaction. at-least-once: records without transactions, the"
        " position after they are acknowledged; after a failure some come again, in their order.",
        validator=one_of(*DELIVERIES),
        recommended=DELIVERIES,
    ),
    ConfigKey(
        "exactly.once.support",
        default="requested",
        importance="LOW",
        group="Delivery",
        doc="required: the connector is refused unless its delivery is exactly-once.",
        validator=_support,
        recommended=("requested", "required"),
        connects=False,
    ),
    GROUPS_KEY,
    *creation_keys(),
    ConfigKey(
        "batch.commit.ms.max",
        "INT",
        default=200,
        importance="LOW",
        group="Delivery",
        doc="A busy task commits its Kafka transaction at the first source commit after this time.",
        validator=between(1, 60_000),
    ),
    ConfigKey(
        "batch.commit.records.max",
        "INT",
        default=20_000,
        importance="LOW",
        group="Delivery",
        doc="A busy task commits its Kafka transaction at the first source commit after this many records.",
        validator=between(1, 1_000_000),
    ),
    ConfigKey(
        "batch.commit.bytes.max",
        "INT",
        default=8_000_000,
        importance="LOW",
        group="Delivery",
        doc="A busy task commits its Kafka transaction at the first source commit after this many bytes.",
        validator=between(1, 1_000_000_000),
    ),
    ConfigKey(
        "transaction.timeout.ms",
        "INT",
        default=900_000,
        importance="LOW",
        group="Delivery",
        doc="Longest Kafka transaction; the broker's transaction.max.timeout.ms must allow it.",
        validator=between(10_000, 7_200_000),
    ),
    ConfigKey(
        "transaction.split.bytes",
        "LONG",
        default=1 << 30,
        importance="LOW",
        group="Delivery",
        doc="A source transaction larger than this, or open in Kafka for half of transaction.timeout.ms, is committed in"
        " parts; a smaller one is visible as a whole.",
        validator=between(100_000, 1 << 40),
    ),
)

_OWN_FORMAT = "Not needed here: a line has no key, and value.converter says what its value is."

ACCEPTED: dict[str, str] = {
    "key.converter": _OWN_FORMAT,
    "value.converter": _OWN_FORMAT,
    "header.converter": "Headers are written as bytes.",
    "key.converter.*": _OWN_FORMAT,
    "value.converter.*": _OWN_FORMAT,
    "header.converter.*": "Headers are written as bytes.",
    "tasks.max.enforce": "tasks.max always holds.",
    "config.action.reload": "References are resolved each time a task starts.",
    "errors.retry.timeout": "Retries follow the cluster's own back-off.",
    "errors.retry.delay.max.ms": "Retries follow the cluster's own back-off.",
    "errors.log.enable": "Errors are always logged.",
    "errors.log.include.messages": "Row values are never logged.",
    "transaction.boundary": "Kafka transactions end at source commits.",
    "transaction.boundary.interval.ms": "Kafka transactions end at source commits.",
    "topic.creation.default.*": "Given to created topics as it is.",
    "topic.creation.enable": "Topics are always created by the task.",
    "connector.plugin.version": "There is one version of each connector.",
}
"""Keys of Kafka Connect that need nothing here: accepted, with the note shown by validation."""
