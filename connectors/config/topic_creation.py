"""Kafka Connect's topic creation groups (KIP-158): the topics of a group are created with settings of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.config.definition import PARSERS, ConfigKey, Validator, between, one_of, regex_list
from cdcworker.schemas import patterns

GROUPS: Final = "topic.creation.groups"
DEFAULT: Final = "default"
CLEANUP: Final = "cleanup.policy"
GROUPS_MAX: Final = 100
"""Groups of one connector: each has keys of its own, which are judged and shown."""
_AT: Final = "topic.creation."
_POLICIES: Final = ("delete", "compact", "compact,delete")
_GIVEN: Final = "Given to created topics as it is."
_OWN: Final = frozenset(("include", "exclude", "partitions", "replication.factor"))
_SHOWN_AS: Final = "Topic creation"


def _problem(names: Sequence[str]) -> str | None:
    if len(set(names)) < len(names):
        return "names one alias twice"
    return f"names {len(names)} groups; at most {GROUPS_MAX} may be named" if len(names) > GROUPS_MAX else None


def creation_keys(group: str = DEFAULT) -> Iterable[ConfigKey]:
    """The keys of one group. Those that a group does not say are as in the group `default`."""
    at = f"{_AT}{group}."
    inherited = "" if group == DEFAULT else " As in the group default unless it is given."
    what = "data topics" if group == DEFAULT else f"topics of the group {group}"
    yield ConfigKey(
        f"{at}partitions", "INT", 1 if group == DEFAULT else None, group=_SHOWN_AS, validator=_number(group, 10_000),
        doc=f"Partitions of {what} created for this connector; -1 leaves it to the broker.{inherited}",
    )  # fmt: skip
    yield ConfigKey(
        f"{at}replication.factor", "SHORT", -1 if group == DEFAULT else None, group=_SHOWN_AS,
        validator=_number(group, 100),
        doc=f"Replicas of {what} created for this connector; -1 leaves it to the broker.{inherited}",
    )  # fmt: skip
    yield ConfigKey(
        f"{at}{CLEANUP}", default="delete", group=_SHOWN_AS, validator=one_of(*_POLICIES), recommended=_POLICIES,
        doc=f"Clean-up policy of created {what}.",
    )  # fmt: skip


def _number(group: str, high: int) -> Validator:
    judge = between(-1, high)

    def check(value: Any) -> str | None:
        if value is None or (value == 0 and group == DEFAULT):
            return None
        return "must be above 0, or -1 to leave it to the broker" if value == 0 else judge(value)

    return check


GROUPS_KEY: Final = ConfigKey(
    GROUPS, "LIST", [], importance="LOW", group=_SHOWN_AS, validator=_problem,
    doc="Names of groups of topics that are created with settings of their own: topic.creation.<group>.include and .exclude are "
    "lists of regular expressions for whole topic names; the first group that has a topic counts, and the group default has the "
    "others.",
)  # fmt: skip


def named_groups(config: Mapping[str, str]) -> list[str]:
    """Returns the names of a config's groups, in their order; each once, also where the config is refused for them."""
    text = config.get(GROUPS, "")
    names: list[str] = PARSERS["LIST"](text) if isinstance(text, str) else []
    return [name for name in dict.fromkeys(names) if name != DEFAULT][:GROUPS_MAX]


def group_keys(config: Mapping[str, str]) -> Iterable[ConfigKey]:
    """The keys that depend on the config: those of each group begin with its name."""
    groups = named_groups(config)
    for name in groups:
        at = f"{_AT}{name}."
        yield ConfigKey(
            f"{at}include", "LIST", [], importance="LOW", group=_SHOWN_AS, validator=regex_list,
            doc=f"Regular expressions for the whole names of the group's topics: those of {name}.",
        )  # fmt: skip
        yield ConfigKey(
            f"{at}exclude", "LIST", [], importance="LOW", group=_SHOWN_AS, validator=regex_list,
            doc="Regular expressions for the whole names of topics that the group does not have, although it includes them.",
        )  # fmt: skip
        yield from creation_keys(name)
    for name in groups:
        for setting in _settings(name, config):
            if setting not in _OWN and setting != CLEANUP:
                yield ConfigKey(f"{_AT}{name}.{setting}", group=_SHOWN_AS, importance="LOW", note=_GIVEN)


def _settings(name: str, config: Mapping[str, str]) -> Iterable[str]:
    """Returns what a config says of a group, without what it says of one whose name begins like this one's."""
    at = f"{_AT}{name}."
    longer = tuple(f"{_AT}{other}." for other in named_groups(config) if other.startswith(f"{name}."))
    return [key.removeprefix(at) for key in config if key.startswith(at) and not key.startswith(longer)]


@dataclass(frozen=True, slots=True)
class CreationGroup:
    """The way in which the topics of one group are created; -1 leaves a number to the broker."""

    name: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]
    include: tuple[str, ...] = (".*",)
    exclude: tuple[str, ...] = ()

    def has(self, topic: str) -> bool:
        """Returns whether the topic belongs to this group. CdcError `config.pattern_invalid` for a stored expression that
        is none."""
        return not patterns.matches_any(self.exclude, topic) and patterns.matches_any(self.include, topic)


def creation_groups(config: Mapping[str, str], values: Mapping[str, Any]) -> tuple[CreationGroup, ...]:
    """Returns the groups in the order in which they are looked at, the group `default` last. `values`: the parsed values
    of the keys above."""
    default = _group(DEFAULT, config, values, {})
    inherited = {"partitions": default.partitions, "replication.factor": default.replication_factor}
    return (*(_group(name, config, values, inherited) for name in named_groups(config)), default)


def _group(
    name: str, config: Mapping[str, str], values: Mapping[str, Any], inherited: Mapping[str, int]
) -> CreationGroup:
    at = f"{_AT}{name}."

    def number(of: str) -> int:
        return inherited[of] if values[at + of] is None else int(values[at + of])

    settings = {of: config[at + of] for of in _settings(name, config) if of not in _OWN}
    settings[CLEANUP] = str(values[at + CLEANUP])
    group = CreationGroup(name, number("partitions"), number("replication.factor"), settings)
    if name == DEFAULT:
        return group
    return replace(group, include=tuple(values[f"{at}include"]), exclude=tuple(values[f"{at}exclude"]))


def compacts(values: Mapping[str, Any]) -> bool:
    """Returns whether topics of some group are created as compacted ones. `values`: a parsed config."""
    return any(
        "compact" in str(value) for key, value in values.items() if key.startswith(_AT) and key.endswith("." + CLEANUP)
    )
