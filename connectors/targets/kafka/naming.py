"""What a topic is called on the other cluster, and which topics came from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DEFAULT: Final = "DefaultReplicationPolicy"
IDENTITY: Final = "IdentityReplicationPolicy"
POLICIES: Final = {
    DEFAULT: DEFAULT,
    f"org.apache.kafka.connect.mirror.{DEFAULT}": DEFAULT,
    IDENTITY: IDENTITY,
    f"org.apache.kafka.connect.mirror.{IDENTITY}": IDENTITY,
    f"io.strimzi.kafka.connect.mirror.{IDENTITY}": IDENTITY,
}
"""By what a config says."""
PLACE: Final = "${topic}"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The rule of names of a config."""

    source: str
    target: str
    separator: str
    template: str = ""
    """Takes the place of the policy; holds `${topic}` once."""
    keeps: bool = False
    """Whether names stay as they are."""

    def on_target(self, topic: str) -> str:
        """Returns what a topic is called on the other cluster."""
        if self.template:
            return self.template.replace(PLACE, topic)
        return topic if self.keeps else f"{self.source}{self.separator}{topic}"

    def came_from_target(self, topic: str) -> bool:
        """Returns whether a topic is a copy of one of the other cluster: copied back it would grow for ever."""
        if self.keeps or self.template:
            return False
        *clusters, _ = topic.split(self.separator)
        return self.target in clusters

    @property
    def checkpoints(self) -> str:
        """The topic of translated offsets, as MirrorMaker names it."""
        return f"{self.source}{self.separator}checkpoints{self.separator}internal"

    @property
    def ledger(self) -> str:
        """The topic that says what is copied."""
        return f"{self.source}{self.separator}mirror-ledger{self.separator}internal"


def names_of(config: Mapping[str, Any]) -> TopicNames:
    """Returns the rule of a parsed config."""
    return TopicNames(
        config["source.cluster.alias"],
        config["target.cluster.alias"],
        config["replication.policy.separator"],
        config["topic.name.format"],
        POLICIES[config["replication.policy.class"]] == IDENTITY,
    )
