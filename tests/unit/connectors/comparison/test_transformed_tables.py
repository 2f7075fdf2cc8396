"""Tables that a source's transforms change, route or leave out."""

from __future__ import annotations

import pytest
from cdcworker.connectors.comparison.source_tables import published_topics, routed_topics
from cdcworker.connectors.comparison.transformed_tables import SHARED, TransformedTables
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.schemas.topic_access import TopicAccess

CONFIG = {
    "connector.class": "postgres", "topic.prefix": "shop", "database.hostname": "db", "database.user": "u",
    "database.dbname": "d",
}  # fmt: skip
PACKAGE = "org.apache.kafka.connect.transforms."
ORDERS, PART, PEOPLE = "shop.public.orders", "shop.public.orders_1", "shop.public.people"
ROUTE = {"type": "RegexRouter", "regex": r"(.*)_\d+", "replacement": "$1"}
OTHER = {"type": "RegexRouter", "regex": "shop.public.people", "replacement": "shop.crm.people"}


def config(*transforms, **predicates):
    """Transforms with the names t0, t1 and so on."""
    found = {**CONFIG, "transforms": ",".join(f"t{number}" for number in range(len(transforms)))}
    for number, keys in enumerate(transforms):
        found |= {f"transforms.t{number}.{key}": value for key, value in keys.items()}
    if predicates:
        found["predicates"] = ",".join(predicates)
        found |= {f"predicates.{name}.{key}": value for name, keys in predicates.items() for key, value in keys.items()}
    return parse(found)


def transformed(*transforms, **predicates):
    return TransformedTables(config(*transforms, **predicates).raw, [ORDERS, PART, PEOPLE])


def reasons(*transforms, **predicates):
    found = transformed(*transforms, **predicates)
    return {topic: reason for topic in (ORDERS, PART, PEOPLE) if (reason := found.reason(topic))}


def test_a_table_whose_topic_is_another_and_one_whose_topic_holds_others_too_are_not_compared():
    """A repair would delete from the warehouse what the source has in the other table."""
    assert reasons(ROUTE) == {ORDERS: SHARED, PART: "transforms.t0 gives its records another topic"}
    assert list(transformed(ROUTE).routed()) == [(PART, {ORDERS})]
    assert transformed(ROUTE).is_shared(ORDERS)
    # One behind the other: what the first makes of a name meets the second.
    behind = {"type": "RegexRouter", "regex": ORDERS, "replacement": PEOPLE}
    assert set(reasons(ROUTE, behind)) == {ORDERS, PART, PEOPLE}


def test_a_condition_tells_which_tables_are_meant_if_it_goes_by_topics():
    people = {"type": "TopicNameMatches", "pattern": r".*\.people"}
    meant = {**ROUTE, "predicate": "p"}
    assert reasons(meant, p=people) == {}
    assert set(reasons({**meant, "negate": "true"}, p=people)) == {ORDERS, PART}
    # Of others nobody knows which records they are met by.
    assert set(reasons(meant, p={"type": "HasHeaderKey", "name": "h"})) == {ORDERS, PART}
    mask = {"type": "MaskField$Value", "fields": "op", "predicate": "p"}
    changes = "transforms.t0 (MaskField$Value) changes its records, or leaves some out"
    assert reasons(mask, p=people) == {PEOPLE: changes}


@pytest.mark.parametrize(
    ("keys", "is_harmless"),
    [
        ({"type": "InsertHeader", "header": "h", "value.literal": "v"}, True),
        ({"type": "DropHeaders", "headers": "h"}, True),
        ({"type": "HeaderFrom$Value", "fields": "op", "headers": "h", "operation": "copy"}, True),
        ({"type": "HeaderFrom$Value", "fields": "op", "headers": "h", "operation": "move"}, False),
        ({"type": "Filter", "predicate": "p"}, True),
        ({"type": "Filter", "predicate": "p", "negate": "true"}, False),
        ({"type": "Filter"}, False),
        ({"type": "ReplaceField$Key", "renames": "id:key"}, False),
        ({"type": "ReplaceField$Value", "renames": "op:what"}, False),
        ({"type": f"{PACKAGE}ValueToKey", "fields": "op"}, False),
        ({"type": "TimestampRouter"}, False),
        ({"type": "io.debezium.transforms.ExtractNewRecordState"}, False),
    ],
)
def test_what_leaves_keys_and_rows_as_they_are_keeps_no_table_from_being_compared(keys, is_harmless):
    found = reasons(keys, p={"type": "RecordIsTombstone"})
    assert set(found) == (set() if is_harmless else {ORDERS, PART, PEOPLE})
    assert reasons() == {}


@pytest.mark.parametrize(
    ("sink", "prefixes", "expected"),
    [
        ({"topics": ["shop.crm.people"]}, (), [PEOPLE]),
        ({"topics": [], "topics.regex": r"shop\.crm\..*"}, (), [PEOPLE]),
        ({"topics": ["shop.public.orders"]}, (), []),
        ({"topics": [], "topics.regex": ".*"}, ("shop.public.",), []),
    ],
    ids=["listed", "by a pattern", "another", "a topic that the sink may not read"],
)
def test_a_table_that_comes_to_the_sink_under_another_name_is_told(sink, prefixes, expected):
    settings = config(OTHER)
    topics = published_topics(settings, [("public", "orders"), ("public", "people"), ("public", "x" * 250)])
    found = TransformedTables(settings.raw, topics)
    assert routed_topics(found, sink, [], TopicAccess(prefixes=prefixes)) == expected
