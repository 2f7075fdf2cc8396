"""The keys that Kafka Connect itself has for every connector: checked for each, and shown as Connect shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cdcworker.connectors.config.common_keys import CONNECTION_KEY, IDENTITY_KEYS
from cdcworker.connectors.config.definition import (
    ConfigDef,
    ConfigKey,
    ConfigType,
    Importance,
    Validator,
    Width,
    between,
    non_empty,
    one_of,
    one_of_any_case,
)
from cdcworker.connectors.config.refusals import Refusal

Kind = Literal["source", "sink"]

COMMON: Final = "Common"
TRANSFORMS: Final = "Transforms"
PREDICATES: Final = "Predicates"
ERRORS: Final = "Error Handling"
TOPIC_CREATION: Final = "Topic Creation"
EXACTLY_ONCE: Final = "Exactly Once Support"
OFFSETS: Final = "offsets.topic"
BOUNDARIES: Final = ("poll", "connector", "interval")

DEAD_LETTERS: Final = (
    "is not available: what cannot be read halts its task, or with errors.tolerance=all of a warehouse's sink is set"
    " aside in the warehouse"
)
TRANSFORMED: Final = "is not available: this connector applies no transforms"
CONDITIONS: Final = "is not available: no transform has a condition"
OWN_OFFSETS: Final = "is not available: positions are kept in the cluster's own topic"


@dataclass(frozen=True, slots=True)
class FrameworkKey:
    """One key of Kafka Connect: its form there, and what is checked where a connector does not define it itself."""

    name: str
    type: ConfigType
    default: Any
    importance: Importance
    group: str
    order: int
    width: Width
    display_name: str
    doc: str = ""
    validator: Validator | None = None
    recommended: tuple[str, ...] = ()
    refusal: str = ""
    """Why a value is refused, unless the connector accepts the key."""

    def of(self, own: ConfigKey) -> ConfigKey:
        """Returns a connector's own key in Connect's form. What it means and which values it takes stay as they are."""
        shown_type = own.type if own.type != "CLASS" else self.type
        return replace(
            own,
            type=shown_type,
            default=self.default if own.default is None else own.default,
            importance=self.importance,
            group=self.group,
            order=self.order,
            width=self.width,
            display_name=self.display_name,
        )

    def alone(self, accepted: str | None) -> ConfigKey:
        """Returns the key for a connector that does not define it; `accepted` is the note with which it takes it, if so."""
        refused = self.refusal if accepted is None else ""
        return ConfigKey(
            self.name,
            self.type,
            self.default,
            importance=self.importance,
            group=self.group,
            order=self.order,
            width=self.width,
            display_name=self.display_name,
            doc=self.doc,
            validator=_refusing(refused) if refused else self.validator,
            recommended=self.recommended,
            note=accepted or "",
            connects=False,
        )


def _refusing(text: str) -> Validator:
    return lambda value: text if value else None


def _unique(values: Any) -> str | None:
    return Refusal("Duplicate alias provided.") if len(set(values)) < len(values) else None


def _converter(side: str, order: int) -> Iterator[FrameworkKey]:
    name, title = f"{side}.converter", side.capitalize()
    yield FrameworkKey(
        name, "CLASS", None, "LOW", COMMON, order, "SHORT", f"{title} converter class", validator=non_empty,
        doc=f"How {side}s are written or read.",
    )  # fmt: skip
    yield FrameworkKey(
        f"{name}.plugin.version", "STRING", None, "LOW", COMMON, order + 1, "SHORT", f"{title} converter version",
        doc="Not needed: there is one version.",
    )  # fmt: skip


def _common() -> Iterator[FrameworkKey]:
    key = FrameworkKey
    yield key("name", "STRING", None, "HIGH", COMMON, 1, "MEDIUM", "Connector name")
    yield key("connector.class", "STRING", None, "HIGH", COMMON, 2, "LONG", "Connector class")
    yield key(
        "connector.plugin.version", "STRING", None, "MEDIUM", COMMON, 3, "MEDIUM", "Connector version",
        doc="Not needed: there is one version of each connector.",
    )  # fmt: skip
    yield key(
        "tasks.max", "INT", 1, "HIGH", COMMON, 4, "SHORT", "Tasks max", validator=between(1),
        doc="Most tasks that the connector may be split into.",
    )  # fmt: skip
    yield key(
        "tasks.max.enforce", "BOOLEAN", True, "LOW", COMMON, 5, "SHORT", "Enforce tasks max", doc="tasks.max always holds."
    )  # fmt: skip
    yield from _converter("key", 6)
    yield from _converter("value", 8)
    yield from _converter("header", 10)
    yield key(
        "transforms", "LIST", (), "LOW", TRANSFORMS, 12, "LONG", "Transforms", validator=_unique, refusal=TRANSFORMED,
        doc="Names of transforms.",
    )  # fmt: skip
    yield key(
        "predicates", "LIST", (), "LOW", PREDICATES, 13, "LONG", "Predicates", validator=_unique, refusal=CONDITIONS,
        doc="Names of conditions for transforms.",
    )  # fmt: skip
    yield key(
        "config.action.reload", "STRING", "restart", "LOW", COMMON, 14, "MEDIUM", "Reload Action",
        validator=one_of("none", "restart"), recommended=("none", "restart"),
        doc="References are resolved each time a task starts.",
    )  # fmt: skip
    yield from _error_handling()


def _error_handling() -> Iterator[FrameworkKey]:
    key = FrameworkKey
    yield key(
        "errors.retry.timeout", "LONG", 0, "MEDIUM", ERRORS, 1, "MEDIUM", "Retry Timeout for Errors",
        doc="Retries follow the cluster's own back-off.",
    )  # fmt: skip
    yield key(
        "errors.retry.delay.max.ms", "LONG", 60_000, "MEDIUM", ERRORS, 2, "MEDIUM",
        "Maximum Delay Between Retries for Errors", doc="Retries follow the cluster's own back-off.",
    )  # fmt: skip
    yield key(
        "errors.tolerance", "STRING", "none", "MEDIUM", ERRORS, 3, "SHORT", "Error Tolerance",
        validator=one_of("none", "all"), recommended=("none", "all"),
        doc="Whether a record that cannot be handled halts its task (none).",
    )  # fmt: skip
    yield key(
        "errors.log.enable", "BOOLEAN", False, "MEDIUM", ERRORS, 4, "SHORT", "Log Errors", doc="Errors are always logged."
    )  # fmt: skip
    yield key(
        "errors.log.include.messages", "BOOLEAN", False, "MEDIUM", ERRORS, 5, "SHORT", "Log Error Details",
        doc="Values are never logged.",
    )  # fmt: skip


def _of_sources() -> Iterator[FrameworkKey]:
    key = FrameworkKey
    yield key(
        "topic.creation.groups", "LIST", (), "LOW", TOPIC_CREATION, 1, "LONG", "Topic Creation Groups",
        validator=_unique, doc="Groups of topics that are created with settings of their own.",
    )  # fmt: skip
    yield key("exactly.once.support", "STRING", "requested", "MEDIUM", EXACTLY_ONCE, 2, "SHORT", "Exactly once support",
        validator=one_of_any_case("required", "requested"),
        doc="required: the connector is refused unless it delivers exactly once.",
    )  # fmt: skip
    yield key(
        "transaction.boundary", "STRING", "poll", "MEDIUM", EXACTLY_ONCE, 3, "SHORT", "Transaction Boundary",
        validator=one_of_any_case("interval", "poll", "connector"), recommended=BOUNDARIES,
        doc="Kafka transactions end at source commits.",
    )  # fmt: skip
    yield key(
        "transaction.boundary.interval.ms", "LONG", None, "LOW", EXACTLY_ONCE, 4, "SHORT",
        "Transaction boundary interval", validator=between(0), doc="Kafka transactions end at source commits.",
    )  # fmt: skip
    yield key(
        "offsets.storage.topic", "STRING", None, "LOW", OFFSETS, 1, "LONG", "Offsets topic", refusal=OWN_OFFSETS,
        doc="Not available: positions are kept in the cluster's own topic.",
    )  # fmt: skip


def _of_sinks() -> Iterator[FrameworkKey]:
    key, without = FrameworkKey, "No topic of dead letters is written."
    yield key("topics", "LIST", (), "HIGH", COMMON, 4, "LONG", "Topics")
    yield key("topics.regex", "STRING", "", "HIGH", COMMON, 4, "LONG", "Topics regex")
    at = "errors.deadletterqueue."
    yield key(
        f"{at}topic.name", "STRING", "", "MEDIUM", ERRORS, 6, "MEDIUM", "Dead Letter Queue Topic Name",
        refusal=DEAD_LETTERS, doc="Not available: records that cannot be handled are kept in the warehouse.",
    )  # fmt: skip
    yield key(
        f"{at}topic.replication.factor", "SHORT", 3, "MEDIUM", ERRORS, 7, "MEDIUM",
        "Dead Letter Queue Topic Replication Factor", doc=without,
    )  # fmt: skip
    yield key(
        f"{at}context.headers.enable", "BOOLEAN", False, "MEDIUM", ERRORS, 8, "MEDIUM", "Enable Error Context Headers",
        doc=without,
    )  # fmt: skip


KEYS: Final[Mapping[Kind, tuple[FrameworkKey, ...]]] = {
    "source": (*_common(), *_of_sources()),
    "sink": (*_common(), *_of_sinks()),
}
"""Kafka Connect's keys in its order, by the kind of connector."""

ACCEPTED: Final = {"task.class": "Not needed: the connector says what its tasks are."}
"""What Kafka Connect writes into configs of tasks, which come back as configs of connectors."""


def with_framework(definition: ConfigDef, kind: Kind) -> ConfigDef:
    """Returns a connector's definition with Connect's keys in front, whether it defines them itself or not.

    Only what is submitted is judged by it: a config that runs is read by the connector's own definition.
    """
    identity = {key.name: key for key in IDENTITY_KEYS}
    return definition.headed((*_keys(definition, identity, KEYS[kind]), CONNECTION_KEY), ACCEPTED)


def _keys(
    definition: ConfigDef, identity: Mapping[str, ConfigKey], framework: Iterable[FrameworkKey]
) -> Iterator[ConfigKey]:
    for key in framework:
        own = definition.keys.get(key.name) or identity.get(key.name)
        yield key.of(own) if own is not None else key.alone(definition.note_of(key.name))
