"""The tables of a source that a sink holds."""

from __future__ import annotations

import pytest
from cdcworker.connectors.comparison.opening import planned_table
from cdcworker.connectors.comparison.source_tables import SentTable, chosen_topics, source_notes
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.verify.canonical_text import VerifiedColumn
from cdcworker.connectors.verify.plan import SideTable
from cdcworker.schemas.topic_access import TopicAccess

CONFIG = {
    "connector.class": "postgres", "topic.prefix": "shop", "database.hostname": "db", "database.user": "u",
    "database.dbname": "d", "table.exclude.list": "public.left_out",
}  # fmt: skip
PUBLISHED = [("public", "orders"), ("public", "new"), ("public", "left_out"), ("other", "t")]


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"topics": ["shop.public.orders", "crm.public.people", "shop.watermark"]}, ["shop.public.orders"]),
        ({"topics": [], "topics.regex": "shop[.].*"}, ["shop.other.t", "shop.public.new", "shop.public.orders"]),
        ({"topics": [], "topics.regex": "(crm|shop)[.]public[.].*"}, ["shop.public.new", "shop.public.orders"]),
    ],
    ids=["listed", "by a pattern", "by a pattern that meets another source"],
)
def test_a_sink_holds_the_tables_of_its_topics_and_those_that_its_pattern_will_meet(sink, expected):
    there = ["shop.public.orders", "shop.watermark", "shop.transaction", "crm.public.people"]
    assert chosen_topics(sink, parse(CONFIG), there, PUBLISHED, TopicAccess()) == expected


@pytest.mark.parametrize("pattern", [r"shop\..*", ".*"])
@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [(("crm-",), []), (("shop.public.",), ["shop.public.new", "shop.public.orders"])],
    ids=["none of the source", "a part of it"],
)
def test_a_sink_holds_no_table_whose_topic_it_may_not_read(pattern, prefixes, expected):
    """Nobody has bounded what is published: topics that do not exist yet count as those that do."""
    sink, there = {"topics": [], "topics.regex": pattern}, ["shop.public.orders", "shop.other.t", "crm-a"]
    assert chosen_topics(sink, parse(CONFIG), there, PUBLISHED, TopicAccess(prefixes=prefixes)) == expected


def test_a_published_table_whose_topic_would_be_the_clusters_own_is_not_compared():
    own = TopicAccess(own=frozenset({"shop.public.new"}))
    sink = {"topics": [], "topics.regex": r"shop\.public\..*"}
    assert chosen_topics(sink, parse(CONFIG), [], PUBLISHED, own) == ["shop.public.orders"]


def test_what_a_source_does_not_send_is_noted():
    assert source_notes(parse(CONFIG | {"skipped.operations": "none"})) == []
    notes = source_notes(parse(CONFIG | {"skipped.operations": "d", "snapshot.mode": "never"}))
    assert len(notes) == 2
    assert "kinds d" in notes[0]
    assert "snapshot.mode" in notes[1]


class Warehouse:
    """A target that has the table of the source."""

    def __init__(self, table):
        self._table = table

    def table(self, schema, name):
        return self._table


@pytest.mark.parametrize(
    "rule", ["column.mask.hash.SHA-256.with.salt.s", "column.mask.with.4.chars", "column.truncate.to.2.chars"]
)
@pytest.mark.parametrize("column", ["email", "note"])
def test_a_column_that_is_not_handed_on_as_it_is_is_not_compared(rule, column):
    """Keys of the source go to the warehouse's database: there a masked one is what the mask hides."""
    columns = tuple(VerifiedColumn(name, "text") for name in ("email", "note", "other"))
    table = SideTable("public", "people", columns, ("email",))
    settings = parse(CONFIG | {rule: f"public.people.{column}"})
    sink = {"warehouse.schema": "", "delete.mode": "hard"}
    found = planned_table(SentTable("shop.public.people", table), settings, sink, Warehouse(table))
    assert found.left_out == ((column, "left out by the source's configuration"),)
    assert ("email" in found.reason) == (column == "email")
