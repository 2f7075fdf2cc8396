"""Tables whose records a source's transforms change, route or leave out: no warehouse holds them as the source does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.transform_chain.config import KNOWN
from cdcworker.connectors.transforms.definitions import ROUTER, short_name
from cdcworker.schemas import patterns
from cdcworker.schemas.patterns import Pattern
from cdcworker.schemas.record_format import RegexRoute

SHARED: Final = "records of other tables come into its topic too"
_HEADERS_ONLY: Final = ("DropHeaders", "ExtractChangedRecordState", "InsertHeader")
_TOMBSTONES: Final = "RecordIsTombstone"
_BY_TOPIC: Final = "TopicNameMatches"


@dataclass(frozen=True, slots=True)
class AppliedTransform:
    """A transform of a source's config, as far as it matters to a comparison."""

    alias: str
    kind: str
    route: RegexRoute | None = None
    topics: Pattern | None = None
    """Only records of these topics are meant, with `negate` those of all others; None: those of every topic."""
    negate: bool = False
    is_harmless: bool = False
    """The sink's rows are the same without it."""

    def may_apply(self, topic: str) -> bool:
        return self.topics is None or (self.topics.fullmatch(topic) is not None) is not self.negate

    def reason(self, topic: str) -> str:
        """Returns what it does to the table of the topic; empty: nothing."""
        if self.is_harmless or not self.may_apply(topic):
            return ""
        if self.route is None:
            return f"transforms.{self.alias} ({self.kind}) changes its records, or leaves some out"
        return f"transforms.{self.alias} gives its records another topic" if self.route.apply(topic) != topic else ""


class TransformedTables:
    """What the transforms of a source do to its tables, each known by the topic that it has without them."""

    def __init__(self, raw: Mapping[str, Any], topics: Iterable[str]) -> None:
        """`raw`: the parsed config. `topics`: those of all tables that the source hands on."""
        self._transforms = tuple(_transforms(raw))
        routes = [one for one in self._transforms if one.route is not None]
        self._routed = {topic: _routed(routes, topic) for topic in topics} if routes else {}
        self._shared = {name for topic, names in self._routed.items() for name in names if name != topic}

    def routed(self) -> Iterator[tuple[str, Collection[str]]]:
        """Yields the topics of tables whose records may come into others, with these."""
        for topic, names in self._routed.items():
            if others := names - {topic}:
                yield topic, others

    def is_shared(self, topic: str) -> bool:
        """Returns whether records of another table may come into the topic."""
        return topic in self._shared

    def reason(self, topic: str) -> str:
        """Returns why the table cannot be compared; empty: it can."""
        found = (one.reason(topic) for one in self._transforms)
        return next(filter(None, found), SHARED if self.is_shared(topic) else "")


def _routed(routes: Iterable[AppliedTransform], topic: str) -> set[str]:
    """Returns every topic that a record of the table may come to, whichever conditions hold."""
    names = {topic}
    for one in routes:
        assert one.route is not None
        names |= {one.route.apply(name) for name in names if one.may_apply(name)}
    return names


def _transforms(raw: Mapping[str, Any]) -> Iterator[AppliedTransform]:
    for alias in raw["transforms"]:
        at = f"transforms.{alias}."
        kind = KNOWN["transforms"][str(raw[f"{at}type"])]
        name, predicate, negate = short_name(kind), raw.get(f"{at}predicate"), bool(raw.get(f"{at}negate"))
        condition, topics = _condition(raw, predicate) if predicate else ("", None)
        route = (
            RegexRoute(patterns.required(raw[f"{at}regex"].strip()), raw[f"{at}replacement"].strip())
            if kind == ROUTER
            else None
        )
        # A sink goes by the record of the deletion.
        drops_tombstones = name == "Filter" and condition == _TOMBSTONES and not negate
        copies = name.startswith("HeaderFrom") and raw[f"{at}operation"] == "copy"
        is_harmless = name in _HEADERS_ONLY or drops_tombstones or copies
        yield AppliedTransform(alias, name, route, topics, negate, is_harmless)


def _condition(raw: Mapping[str, Any], predicate: str) -> tuple[str, Pattern | None]:
    """Returns the class of a predicate, and the topics that it means."""
    at = f"predicates.{predicate}."
    name = short_name(KNOWN["predicates"][str(raw[f"{at}type"])])
    return name, patterns.required(raw[f"{at}pattern"]) if name == _BY_TOPIC else None
