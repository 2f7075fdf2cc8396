"""A PostgreSQL source and a warehouse opened for a comparison: which tables, which columns, by which keys."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.api import DELETED
from cdcworker.connectors.hosts import guarded
from cdcworker.connectors.verify.errors import UNFIT
from cdcworker.connectors.verify.plan import Plan, Table, plan
from cdcworker.connectors.verify.sides import Limits, PostgresSource, PostgresTarget
from cdcworker.connectors.verify.sql import Statement
from cdcworker.connectors.verify.texts import Modes
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topics import topic_name, topic_path

if TYPE_CHECKING:
    from cdcworker.connectors.postgres.config import Settings
    from cdcworker.connectors.verify.lakes import LakeTarget

APPLICATION: Final = "cdcworker-verify"
PUBLISHED: Final = """
select schemaname::text, tablename::text, attnames::text[],
       coalesce(to_jsonb(p)->>'rowfilter', '') <> ''
from pg_publication_tables p where pubname = %s"""


@dataclass
class Opened:
    """Both sides, connected; `plans` say what is compared, `notes` what one has to know besides."""

    source: PostgresSource
    target: PostgresTarget | LakeTarget
    plans: list[Plan]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The two connectors with secrets resolved; `topics` are those that there are, `tables` patterns of `schema.table`."""

    sink: str
    sink_config: Mapping[str, str] = field(repr=False)
    source_config: Mapping[str, str] = field(repr=False)
    topics: Sequence[str] = ()
    tables: Sequence[str] = ()
    file_roots: tuple[str, ...] = ()
    machine: Callable[[], tuple[str, Sequence[str]]] = field(default=lambda: ("", ()))
    """For a lake: the home of Java, and the sink's libraries."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Topics that the sink holds back, and why: their tables are not compared, and nobody waits for them."""


CatchUp = Callable[[Sequence[str], PostgresSource, "PostgresTarget | LakeTarget"], None]
"""Waits until the warehouse holds what the source holds of these topics: only then is a table missing that is not there."""


@contextlib.contextmanager
def opened(wanted: Wanted, limits: Limits, catch_up: CatchUp = lambda *_: None) -> Iterator[Opened]:
    from cdcworker.connectors.postgres.config import parse
    from cdcworker.connectors.postgres.connection import connect
    from cdcworker.connectors.postgres.errors import translate
    from cdcworker.connectors.spark.config import CONFIG_DEF

    settings, sink = parse(wanted.source_config), CONFIG_DEF.parse(wanted.sink_config)
    if sink["output.mode"] == "log":
        raise CdcError(UNFIT, "a change log holds every version of a row, the source the last one alone")
    with contextlib.ExitStack() as stack:
        source = PostgresSource(connect(settings, APPLICATION), "source", translate)
        stack.callback(source.close)
        target = _target(wanted.sink, sink) if sink["warehouse"] == "postgres" else _lake(wanted, sink, stack)
        stack.callback(target.close)
        source.prepare(limits)
        target.prepare(limits)
        found = Opened(source, target, [], _notes(settings))
        tables = _source_tables(wanted, settings, sink, found)
        if not tables:
            raise CdcError(UNFIT, "no table of the sink comes from this source", where={"sink": wanted.sink})
        for one in (table for table in tables if table.topic in wanted.held):
            why = f"the sink holds it back: {wanted.held[one.topic]}"
            found.plans.append(Plan(one.topic, one.table, None, reason=why, is_held=True))
        found.plans += _plans(
            [table for table in tables if table.topic not in wanted.held], settings, sink, found, catch_up
        )
        yield found


def _plans(
    tables: Sequence[_Sent], settings: Settings, sink: Mapping[str, Any], both: Opened, catch_up: CatchUp
) -> list[Plan]:
    def planned() -> list[Plan]:
        catch_up([table.topic for table in tables], both.source, both.target)
        return [_planned(table, settings, sink, both.target) for table in tables]

    plans = planned()
    lacking = {made.topic: _lacking(made, both.source) for made in plans}
    if not any(lacking.values()):
        return plans
    # These values may have come since: their columns come with them.
    return [
        replace(made, lacking=tuple(name for name in lacking[made.topic] if name in made.absent)) for made in planned()
    ]


def _lake(wanted: Wanted, config: Mapping[str, Any], stack: contextlib.ExitStack) -> LakeTarget:
    from cdcworker.connectors.spark.warehouses import folder, lake_writer, own_session
    from cdcworker.connectors.verify.lakes import LakeTarget

    if config["warehouse"] == "parquet":
        from cdcworker.connectors.verify.parquets import ParquetTables

        whole = config["consistency"] == "source"
        return LakeTarget(ParquetTables(folder(config, wanted.file_roots), wanted.sink, whole), wanted.sink)
    writer = lake_writer(config, wanted.sink, 0, wanted.file_roots)
    writer.attach(stack.enter_context(own_session(config, wanted.machine())))
    return LakeTarget(writer, wanted.sink)


def _target(name: str, config: Mapping[str, Any]) -> PostgresTarget:
    import psycopg
    from cdcworker.connectors.spark.config import conninfo, position_column
    from cdcworker.connectors.spark.errors import from_psycopg
    from cdcworker.connectors.spark.pgconnect import ALIVE, CONNECT_TIMEOUT_S
    from psycopg.conninfo import make_conninfo

    try:
        connection = psycopg.connect(
            make_conninfo(guarded(conninfo(config)), **ALIVE),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name=APPLICATION,
            client_encoding="UTF8",
        )
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
    return PostgresTarget(connection, from_psycopg, name, position_column(config))


@dataclass(frozen=True, slots=True)
class _Sent:
    """A table of the source, and what of it is handed on: `names` None: every column."""

    topic: str
    table: Table
    names: Sequence[str] | None = None
    is_filtered: bool = False


def _source_tables(wanted: Wanted, settings: Settings, sink: Mapping[str, Any], found: Opened) -> list[_Sent]:
    from cdcworker.connectors.postgres.catalog import Catalog

    published = {(row[0], row[1]): row[2:] for row in found.source.ask(Statement(PUBLISHED, (settings.publication,)))}
    catalog, out = Catalog(found.source.connection), []
    for topic in chosen_topics(sink, settings, wanted.topics, list(published)):
        path = topic_path(settings.prefix, topic)
        if len(path) != 2 or not _is_wanted(".".join(path), wanted.tables):
            continue
        table = found.source.table(*path)
        if table is None:
            found.notes.append(f"{'.'.join(path)} is not in the source any more")
            continue
        info = catalog.table(table.oid)
        out.append(_Sent(topic, table.keyed(info.key if info else ()), *published.get(path, (None, False))))
    return out


def _planned(sent: _Sent, settings: Settings, sink: Mapping[str, Any], target: PostgresTarget | LakeTarget) -> Plan:
    ours = sent.table
    theirs = target.table(sink["warehouse.schema"] or ours.schema, ours.name)
    if theirs is not None and sink["delete.mode"] == "soft":
        theirs = replace(theirs, hides=DELETED if DELETED in {column.name for column in theirs.columns} else "")
    handed_on = {
        column.name: settings.filters.column(ours.schema, ours.name, column.name)
        and (not sent.names or column.name in sent.names)
        for column in ours.columns
        if not column.generated
    }
    given = settings.modes
    modes = Modes(given.time, given.binary, given.interval, given.varbit)
    made = plan(sent.topic, ours, theirs, modes, handed_on)
    return made.unfit("the publication sends a part of its rows only") if sent.is_filtered else made


def _lacking(made: Plan, source: PostgresSource) -> tuple[str, ...]:
    """A column that was added and never filled comes to the warehouse with the next change of a row."""
    return tuple(name for name in made.absent if source.has_values(made.source, name))


def chosen_topics(
    sink: Mapping[str, Any], settings: Settings, there: Sequence[str], published: Sequence[tuple[str, str]]
) -> list[str]:
    """The sink's topics that hold tables of the source; by a pattern also those of tables that have none yet."""
    beside = {f"{settings.prefix}.{name}" for name in ("watermark", "transaction", "message")}
    if sink["topics"]:
        names = set(sink["topics"])
    else:
        tables = {topic_name(settings.prefix, path) for path in published if settings.filters.table(*path)}
        names = {name for name in {*there, *tables} if re.fullmatch(sink["topics.regex"], name)}
    return sorted(name for name in names - beside if name.startswith(f"{settings.prefix}."))


def _is_wanted(table: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(re.fullmatch(pattern, table) for pattern in patterns)


def _notes(settings: Settings) -> list[str]:
    notes = []
    if settings.skipped:
        notes.append("the source hands on no changes of the kinds " + ", ".join(sorted(settings.skipped)))
    if settings.snapshot_mode in ("never", "no_data", "schema_only"):
        notes.append("the source's snapshot.mode hands on no rows from before its start")
    return notes
