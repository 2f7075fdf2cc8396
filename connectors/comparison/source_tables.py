"""Tables of a source that a sink holds, and what of them the source sends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.capture.tables.compared_source import ComparedSettings, ComparedSource, SentColumns
from cdcworker.connectors.comparison.transformed_tables import TransformedTables
from cdcworker.connectors.verify.plan import SideTable
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.patterns import matches_any, required
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.schemas.topics import topic_name, topic_path


@dataclass(frozen=True, slots=True)
class SentTable:
    """A table of the source, and what of it the publication sends."""

    topic: str
    table: SideTable
    names: Sequence[str] | None = None
    """Columns that are sent; None: every column."""
    is_filtered: bool = False
    """Whether a part of the rows only is sent."""
    is_sent: bool = True
    """False: the sink names the topic, and the source's filters or its publication leave the table out."""
    transformed: str = ""
    """What a transform of the source does to its records, so that the warehouse has not what the source has; empty: nothing."""


def sent_tables(
    source: ComparedSource,
    sink: Mapping[str, Any],
    topics: Sequence[str],
    patterns: Sequence[str],
    access: TopicAccess,
) -> tuple[list[SentTable], list[str]]:
    """Returns the tables of the source that the sink holds and one of the patterns of `schema.table` matches (none: all), and the
    names of those that are not in the source any more. `topics` are those that exist, `access` is that of the sink."""
    settings, published, is_all_sent = source.settings, source.published(), source.is_all_published
    found: list[SentTable] = []
    gone: list[str] = []
    transformed = TransformedTables(settings.raw, published_topics(settings, published))
    chosen = chosen_topics(sink, settings, topics, list(published), access)
    elsewhere = routed_topics(transformed, sink, topics, access)
    for topic in sorted({*chosen, *elsewhere}):
        path = topic_path(settings.prefix, topic)
        if len(path) != 2 or not _is_wanted(".".join(path), patterns):
            continue
        table = source.keyed_table(*path)
        if table is None:
            if not transformed.is_shared(topic):
                gone.append(".".join(path))
            continue
        is_sent = settings.filters.table(*path) and (is_all_sent or path in published)
        columns = published.get(path, SentColumns())
        keyed = table.keyed(table.key, settings.keys.columns_of(*path))
        reason = transformed.reason(topic)
        found.append(SentTable(topic, keyed, columns.names, columns.is_filtered, is_sent, reason))
    return found, gone


def published_topics(settings: ComparedSettings, published: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the topics that published tables have without transforms."""
    for path in published:
        if settings.filters.table(*path):
            with contextlib.suppress(CdcError):  # a name that is too long, which the source tells
                yield topic_name(settings.prefix, path)


def routed_topics(
    transformed: TransformedTables, sink: Mapping[str, Any], topics: Sequence[str], access: TopicAccess
) -> list[str]:
    """Returns the topics, as they are without transforms, of tables whose records come into a topic of the sink by one."""
    found = {topic: [name for name in names if access.may_read(name, topics)] for topic, names in transformed.routed()}
    if sink["topics"]:
        chosen = set(sink["topics"])
    else:
        chosen = set(required(sink["topics.regex"]).matching({name for names in found.values() for name in names}))
    return [topic for topic, names in found.items() if not chosen.isdisjoint(names)]


def chosen_topics(
    sink: Mapping[str, Any],
    settings: ComparedSettings,
    topics: Sequence[str],
    published: Sequence[tuple[str, str]],
    access: TopicAccess,
) -> list[str]:
    """Returns the sink's topics that hold tables of the source; of a sink with a pattern also those of published tables whose
    topics do not exist yet. A topic that the sink may not read is none of them."""
    without_tables = {f"{settings.prefix}.{name}" for name in ("watermark", "transaction", "message")}
    if sink["topics"]:
        names = set(sink["topics"])
    else:
        tables = {topic_name(settings.prefix, path) for path in published if settings.filters.table(*path)}
        names = set(required(sink["topics.regex"]).matching({*topics, *tables}))
    readable = {name for name in names - without_tables if access.may_read(name, topics)}
    return sorted(name for name in readable if name.startswith(f"{settings.prefix}."))


def source_notes(settings: ComparedSettings) -> list[str]:
    """Returns what a reader of the result has to know of the source: changes and rows that it does not send."""
    notes = []
    if settings.skipped:
        notes.append("the source hands on no changes of the kinds " + ", ".join(sorted(settings.skipped)))
    if settings.snapshot_mode in ("never", "no_data", "schema_only"):
        notes.append("the source's snapshot.mode hands on no rows from before its start")
    return notes


def _is_wanted(table: str, patterns: Sequence[str]) -> bool:
    return not patterns or matches_any(patterns, table)
