"""A source and a sink opened for a comparison: which tables, which columns, by which keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdcworker.connectors.api.sink import LedgerAccess
from cdcworker.connectors.api.source import VerifiesRows
from cdcworker.connectors.api.table_batch import DELETED, IS_CURRENT
from cdcworker.connectors.capture.tables.compared_source import ComparedSettings, ComparedSource
from cdcworker.connectors.comparison.source_tables import SentTable, sent_tables, source_notes
from cdcworker.connectors.verify.canonical_text import SourceModes
from cdcworker.connectors.verify.databases import TargetSide, VerifyLimits
from cdcworker.connectors.verify.errors import UNFIT
from cdcworker.connectors.verify.plan import ComparisonPlan, plan
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.topic_access import TopicAccess

PLAIN: Final = SourceModes()
NOT_CAPTURED: Final = "the source's configuration or its publication leaves the table out"


@dataclass
class OpenedComparison:
    """Both sides, connected, with what is to be compared."""

    source: ComparedSource
    target: TargetSide
    plans: list[ComparisonPlan]
    notes: list[str] = field(default_factory=list)
    """What a reader of the result has to know besides."""
    hands_on_deletions: bool = True
    """False: the source leaves them out."""


@dataclass(frozen=True, slots=True)
class ComparedConnectors:
    """The two connectors, with secrets resolved, and what of them is compared."""

    sink: str
    sink_config: Mapping[str, str] = field(repr=False)
    source_config: Mapping[str, str] = field(repr=False)
    topics: Sequence[str] = ()
    """Topics that exist."""
    tables: Sequence[str] = ()
    """Patterns of `schema.table`; none: all tables."""
    file_roots: tuple[str, ...] = ()
    machine: Callable[[], tuple[str, Sequence[str]]] = field(default=lambda: ("", ()))
    """For a lake: the home of Java, and the sink's libraries."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Topics whose tables the sink has paused, and why: they are not compared, and nobody waits for them."""
    held_by_source: Mapping[str, str] = field(default_factory=dict)
    """Tables (`schema.table`) that the source holds back, with the code of the error: the warehouse cannot have their changes."""
    access: TopicAccess = field(default_factory=TopicAccess)
    """The topics that the sink may read: tables of others are not compared."""


CatchUp = Callable[[Sequence[str], ComparedSource, TargetSide], None]
"""Waits until the warehouse holds what the source holds of these topics: only then is a table missing that is not there."""


def _no_wait(_topics: Sequence[str], _source: ComparedSource, _target: TargetSide) -> None:
    return


@contextlib.contextmanager
def opened(
    wanted: ComparedConnectors, limits: VerifyLimits, catch_up: CatchUp = _no_wait
) -> Iterator[OpenedComparison]:
    """Connects to both sides and plans the comparison of each table. CdcError UNFIT when nothing can be compared."""
    from cdcworker.connectors.spark.connector import SparkSink

    source, sink = _source_of(wanted), SparkSink.config_def.parse(wanted.sink_config)
    if sink["output.mode"] == "log":
        raise CdcError(UNFIT, "a change log holds every version of a row, the source the last one alone")
    with contextlib.ExitStack() as stack:
        settings = source.settings
        stack.callback(source.close)
        access = LedgerAccess(wanted.sink, file_roots=wanted.file_roots, machine=wanted.machine)
        target = stack.enter_context(SparkSink(wanted.sink_config).verify_side(access))
        source.prepare(limits)
        target.prepare(limits)
        hands_on_deletions = "d" not in settings.skipped and source.hands_on_deletions()
        both = OpenedComparison(source, target, [], [*source_notes(settings), *source.notes], hands_on_deletions)
        tables, gone = sent_tables(source, sink, wanted.topics, wanted.tables, wanted.access)
        both.notes += [f"{name} is not in the source any more" for name in gone]
        if not tables:
            raise CdcError(UNFIT, "no table of the sink comes from this source", where={"sink": wanted.sink})
        why = {one.topic: _why_held(one, wanted) for one in tables}
        both.plans += [
            ComparisonPlan(one.topic, one.table, None, reason=why[one.topic], is_held=True)
            for one in tables
            if why[one.topic]
        ]
        both.plans += _plans([one for one in tables if not why[one.topic]], settings, sink, both, catch_up)
        yield both


def _source_of(wanted: ComparedConnectors) -> ComparedSource:
    """Returns the source's side, which is not connected yet. CdcError UNFIT for one whose rows cannot be compared."""
    from cdcworker.connectors.registry.names import lookup

    plugin = lookup(wanted.source_config.get("connector.class", ""))
    connector = plugin.load()(wanted.source_config)
    if not isinstance(connector, VerifiesRows):
        text = f"rows of a source of the class {plugin.name} cannot be compared"
        raise CdcError(UNFIT, text, where={"sink": wanted.sink})
    source: ComparedSource = connector.verify_source()
    return source


def _why_held(one: SentTable, wanted: ComparedConnectors) -> str:
    """Returns why a table is not looked at in the warehouse; empty: it is compared."""
    if one.transformed:
        # The warehouse has rows of other tables there, or others than the source: a repair would delete them.
        return one.transformed
    if code := wanted.held_by_source.get(f"{one.table.schema}.{one.table.name}"):
        return f"the source holds it back: {code}"
    if not one.is_sent:
        # The source's login may read more than the source hands on: keys of such rows are not for the sink.
        return NOT_CAPTURED
    return f"the sink holds it back: {wanted.held[one.topic]}" if one.topic in wanted.held else ""


def _plans(
    tables: Sequence[SentTable],
    settings: ComparedSettings,
    sink: Mapping[str, Any],
    both: OpenedComparison,
    catch_up: CatchUp,
) -> list[ComparisonPlan]:
    def planned() -> list[ComparisonPlan]:
        catch_up([table.topic for table in tables], both.source, both.target)
        return [planned_table(table, settings, sink, both.target, both.source.modes) for table in tables]

    plans = planned()
    lacking = {one.topic: _lacking(one, both.source) for one in plans}
    if not any(lacking.values()):
        return plans
    # These values may have come since: their columns come with them.
    return [replace(one, lacking=tuple(name for name in lacking[one.topic] if name in one.absent)) for one in planned()]


def planned_table(
    sent: SentTable,
    settings: ComparedSettings,
    sink: Mapping[str, Any],
    target: TargetSide,
    modes: SourceModes = PLAIN,
) -> ComparisonPlan:
    """Returns how a table of the source is compared with the one that the warehouse has now."""
    ours = sent.table
    theirs = target.table(sink["warehouse.schema"] or ours.schema, ours.name)
    if theirs is not None and sink["delete.mode"] == "soft":
        theirs = replace(theirs, hides=DELETED if DELETED in {column.name for column in theirs.columns} else "")
    if theirs is not None and IS_CURRENT in {column.name for column in theirs.columns}:
        theirs = replace(theirs, shows=IS_CURRENT)
    is_sent = {
        column.name: settings.filters.column(ours.schema, ours.name, column.name)
        and (not sent.names or column.name in sent.names)
        and settings.masks.rule(ours.schema, ours.name, column.name) is None
        for column in ours.columns
        if not column.generated
    }
    found = plan(sent.topic, ours, theirs, modes, is_sent)
    return found.unfit("the publication sends a part of its rows only") if sent.is_filtered else found


def _lacking(one: ComparisonPlan, source: ComparedSource) -> tuple[str, ...]:
    """A column that was added and never filled comes to the warehouse with the next change of a row."""
    return tuple(name for name in one.absent if source.has_values(one.source, name))
