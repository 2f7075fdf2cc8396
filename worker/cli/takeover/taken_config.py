"""What becomes of a config of Kafka Connect here: the keys that are set, and those that are in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Effect = Literal["set", "note", "refused"]
CONVERTERS: Final = ("key.converter", "value.converter")


@dataclass(frozen=True)
class KeyFinding:
    """What becomes of one key: it is `set` to another value, there is something to know of it, or it is in the way."""

    key: str
    effect: Effect
    text: str


@dataclass(frozen=True)
class TakenConfig:
    """Our config, and what became of keys that are not simply the same."""

    config: Mapping[str, str] = field(repr=False)
    findings: tuple[KeyFinding, ...] = ()
    kind: Literal["source", "sink"] = "source"

    @property
    def refused(self) -> list[KeyFinding]:
        return [one for one in self.findings if one.effect == "refused"]

    @property
    def origin(self) -> str:
        """Whose connector it was."""
        return "Debezium" if self.kind == "source" else "Kafka Connect"


def inherited(config: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Returns the converters, with their settings, that the connector has from its worker."""
    found: dict[str, str] = {}
    for kind in (*CONVERTERS, "header.converter"):
        if kind not in config and kind in worker:
            found |= {key: value for key, value in worker.items() if key == kind or key.startswith(f"{kind}.")}
    return found
