"""The sink into OpenSearch without a server: what configs say, names, mappings, pieces of JSON, and what answers mean."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.config import settings_of
from cdcworker.connectors.registry.shipped import PLUGINS
from cdcworker.connectors.targets.opensearch import raw_json
from cdcworker.connectors.targets.opensearch.bulk import Write, send
from cdcworker.connectors.targets.opensearch.config import AIVEN, CONFIG_DEF, CONFLUENT, engine_of, nulls_of
from cdcworker.connectors.targets.opensearch.documents import DocumentRules, DocumentWriter
from cdcworker.connectors.targets.opensearch.errors import current_version, item_error
from cdcworker.connectors.targets.opensearch.identities import IndexIdentities
from cdcworker.connectors.targets.opensearch.indexes import IndexRules, missing, with_fields
from cdcworker.connectors.targets.opensearch.server_checks import DEFAULT_MS, duration_ms
from cdcworker.connectors.targets.opensearch.stored import complete
from cdcworker.connectors.targets.opensearch.target import moment
from cdcworker.connectors.targets.rows import Row
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

GIVEN = {"topics": "shop.Orders", "connection.url": "https://search.example:9200"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def errors(**more):
    given = GIVEN | {name.replace("__", "."): value for name, value in more.items()}
    return {one.name: one.errors for one in CONFIG_DEF.validate(given) if one.errors}


def test_configs_of_other_sinks():
    plugin = next(one for one in PLUGINS if one.name == "opensearch")
    assert set(plugin.aliases) == {*CONFLUENT, *AIVEN}
    parsed = CONFIG_DEF.parse(
        GIVEN
        | {"batch.size": "77", "linger.ms": "0", "max.in.flight.requests": "9", "flush.timeout.ms": "1500"}
        | {"connection.timeout.ms": "11", "read.timeout.ms": "12", "index.write.method": "upsert", "type.name": "_doc"}
    )
    settings = engine_of(parsed, settings_of(parsed, 500))
    assert (settings.linger_s, settings.lanes, settings.target_timeout_s) == (0.0, 9, 1.5)
    assert (parsed["http.connect.timeout.ms"], parsed["http.request.timeout.ms"]) == (11, 12)
    assert parsed["write.method"] == "UPSERT"
    assert [nulls_of(parsed, name) for name in (CONFLUENT[0], AIVEN[0], "opensearch")] == ["fail", "ignore", "delete"]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"topics": "a.B,a.b"}, "index.name.template"),
        ({"topics": "_internal"}, "index.name.template"),
        ({"index__name__template": "${nothing}"}, "index.name.template"),
        ({"connection__url": "https://u:p@search.example"}, "connection.url"),
        ({"connection__url": "https://search.example/path"}, "connection.url"),
        ({"connection__url": "https://a.example,http://b.example"}, "connection.url"),
        ({"connection__username": "u"}, "connection.password"),
        ({"connection__token": "t", "connection__api__key": "k"}, "connection.api.key"),
        ({"topic__to__external__resource__mapping": "t:UPPER"}, "topic.to.external.resource.mapping"),
        ({"write__method": "merge"}, "write.method"),
        ({"versions__index": "_own"}, "versions.index"),
    ],
)
def test_what_is_wrong_is_said_at_its_key(more, key):
    assert list(errors(**more)) == [key]


def test_several_topics_may_be_one_index_where_the_template_says_so():
    assert errors(topics="a,b", index__name__template="all") == {}


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_members_stand_in_the_text_as_they_are(value):
    found = raw_json.members(json.dumps(value, indent=1))
    assert {name: json.loads(text) for name, text in found.items()} == value


@given(JSON)
def test_a_value_whose_names_stand_once_stays_what_it_is(value):
    assert json.loads(raw_json.last_of_each(json.dumps(value, indent=1))) == value


def test_of_members_with_one_name_the_last_counts():
    schema = struct(("v", ConnectSchema("string", optional=True, name="io.debezium.data.Json")))
    text = ' {"a":1.10, "b":[{"c":1,"\\u0063":2.50},[]], "a":{"d":null,"d":"\\u00e4"}}'
    found = DocumentWriter(DocumentRules()).document(Row(schema, {"v": text}))
    assert found == '{"v":{"a":{"d":"\\u00e4"},"b":[{"c":2.50},[]]}}'


def test_numbers_keep_their_digits():
    text = '{"docs": [ {"a" : 1.10, "b":123456789012345678901234567890.10}, [] ]}'
    first, second = raw_json.items(raw_json.members(text)["docs"])
    assert raw_json.members(first) == {"a": "1.10", "b": "123456789012345678901234567890.10"}
    assert second == "[]"
    for bad in ("", "[1", '{"a" 1}', '{"a":1 "b":2}', "7"):
        with pytest.raises(ValueError, match=r".*"):
            (raw_json.members if "{" in bad else raw_json.items)(bad)


def test_fields_that_are_missing_are_added_at_each_depth():
    present = {"a": {"type": "text"}, "s": {"properties": {"x": {"type": "long"}}}}
    wanted = {
        "a": {"type": "long"},
        "b": {"type": "date"},
        "s": {"properties": {"x": {"type": "text"}, "y": {"type": "long"}}},
    }
    more = missing(wanted, present)
    assert more == {"b": {"type": "date"}, "s": {"properties": {"y": {"type": "long"}}}}
    assert missing(present, present) == {}
    assert with_fields(present, more) == {
        "a": {"type": "text"}, "b": {"type": "date"}, "s": {"properties": {"x": {"type": "long"}, "y": {"type": "long"}}},
    }  # fmt: skip


def test_errors_tell_no_value():
    reason = (
        "failed to parse field [n] of type [integer] in document with id 'secret'. Preview of field's value: 'secret'"
    )
    error = item_error(400, {"type": "mapper_parsing_exception", "reason": reason}, ("id", "n"))
    assert (error.code, dict(error.where)) == ("sink.mapping_conflict", {"field": "n"})
    hidden = item_error(400, {"type": "mapper_parsing_exception", "reason": "failed to parse field [secret.x]"}, ("n",))
    strange = item_error(400, {"type": "Secret: 7", "reason": ["secret"]}, ())
    for one in (error, hidden, strange):
        assert "secret" not in str(one).lower()
    conflict = {
        "reason": "[current version [9]]: version conflict, current version [5] is higher or equal to the one provided [3]"
    }
    assert current_version(conflict) == 5


def test_values_that_are_none_of_their_type_are_refused():
    schema = struct(
        ("v", ConnectSchema("string", optional=True, name="io.debezium.data.Json")),
        ("d", ConnectSchema("int32", optional=True, name="io.debezium.time.Date")),
        ("n", struct(("scale", ConnectSchema("int32")), ("value", ConnectSchema("bytes")), name="io.debezium.data.VariableScaleDecimal", optional=True)),
    )  # fmt: skip
    writer = DocumentWriter(DocumentRules())
    value = {"v": '{"a":\n1.10}', "d": 0, "n": {"scale": 2, "value": (12345).to_bytes(2, "big")}}
    text = writer.document(Row(schema, value))
    assert text == '{"v":{"a": 1.10},"d":"1970-01-01","n":123.45}'
    assert json.loads(text, parse_float=Decimal)["n"] == Decimal("123.45")
    for name, bad in (("v", "{secret"), ("d", "secret"), ("n", {"scale": 2})):
        with pytest.raises(CdcError) as error:
            writer.document(Row(schema, {name: bad}))
        assert error.value.code == "sink.record_refused"
        assert "secret" not in str(error.value)
    assert writer.document(Row(schema, {})) == '{"v":null,"d":null,"n":null}'


def test_durations():
    assert [duration_ms(text) for text in ("60s", "1h", "250ms", "2d", None, "-1")] == [
        60_000, 3_600_000, 250, 172_800_000, DEFAULT_MS, DEFAULT_MS,
    ]  # fmt: skip


class Answers:
    """A client whose every answer is the same."""

    def __init__(self, said, status=200):
        self.body, self.status, self.count = json.dumps(said).encode(), status, 0

    def ask(self, *_arguments, **_more):
        self.count += 1
        return self

    def json(self):
        return json.loads(self.body)


@pytest.mark.parametrize(
    "items", [[], [{}], ["taken"], [{"index": None}], [{"index": {"status": "201"}}], [{"index": {"status": 201}}] * 2]
)
def test_an_answer_that_does_not_tell_of_each_document_is_no_answer(items):
    with pytest.raises(TargetUnavailable):
        send(Answers({"items": items}), [Write("index", "i", "1", 7, text="{}")], "false", tells_topics=True)


CONFLICT = "version_conflict_engine_exception"
LATER = f"version conflict, current version [{1 << 48}] is higher or equal to the one provided [7]"


@pytest.mark.parametrize(
    ("verb", "said", "code"),
    [
        ("delete", {"status": 404}, None),
        ("index", {"status": 404}, "sink.record_refused"),
        ("index", {"status": 409, "error": {"type": CONFLICT, "reason": "current version [9] is higher"}}, None),
        ("index", {"status": 409, "error": {"type": CONFLICT, "reason": LATER}}, "sink.target_refuses"),
        ("index", {"status": 409, "error": {"type": CONFLICT}}, "sink.target_refuses"),
        ("index", {"status": 409, "error": {"type": "other_exception"}}, "sink.record_refused"),
        ("index", {"status": 409, "error": "secret"}, "sink.record_refused"),
    ],
)
def test_only_a_conflict_with_a_version_of_the_same_topic_counts_as_written(verb, said, code):
    (error,) = send(Answers({"items": [{verb: said}]}), [Write(verb, "i", "1", 7)], "false", tells_topics=True)
    assert (None if error is None else error.code) == code
    if CONFLICT in str(said):
        assert send(Answers({"items": [{verb: said}]}), [Write(verb, "i", "1", 7)], "false", tells_topics=False) == [
            None
        ]


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"error": {"type": "no_shard_available_action_exception", "reason": "secret"}}, "sink.target_unavailable"),
        ({"error": {"type": "index_closed_exception", "reason": "secret"}}, "sink.target_refuses"),
        ({"error": "secret"}, "sink.target_unavailable"),
        ({}, "sink.target_unavailable"),
    ],
)
def test_a_document_that_the_server_does_not_look_for_is_not_taken_for_an_absent_one(document, code):
    with pytest.raises(CdcError) as error:
        complete(Answers({"docs": [document]}), [Write("index", "i", "1", 7, pieces={}, kept=("a",))])
    assert error.value.code == code
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("answers", [Answers({}, 403), Answers({"i": {}}), Answers({"i": {"settings": {}}})])
def test_a_server_that_tells_no_ids_of_indexes_is_asked_once_a_second_and_counts_as_unchanged(answers):
    now = [5.0]
    found = IndexIdentities(answers, IndexRules(creates=True, streams=False, gc_deletes_ms=0), lambda: now[0])
    for number, passes in enumerate((0.0, 0.9, 0.2, 0.9), 1):
        now[0] += passes
        assert not found.have_changed({"i"})
        assert answers.count == (1 if number < 3 else 2)


@pytest.mark.parametrize(
    ("millis", "text"), [(-1, "1970-01-01T00:00:00.000+00:00"), ((1 << 63) - 1, "9999-12-31T23:59:59.999+00:00")]
)
def test_times_of_records_are_times_that_the_server_takes(millis, text):
    assert moment(millis) == text
