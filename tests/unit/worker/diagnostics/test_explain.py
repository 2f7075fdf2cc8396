"""The way of one row: what is asked, what a target's answer means, what the command shows, who may ask."""

from __future__ import annotations

import json
import sys

import httpx
import pytest
from cdcworker.worker.cli.commands.explain import explain, picture
from cdcworker.worker.cli.render.output import plain
from cdcworker.worker.diagnostics.explain import Explainer, places_of, positions_of
from cdcworker.worker.diagnostics.explain_child import _commit, _reads, _traced
from cdcworker.worker.diagnostics.row_search import FoundChange, _is_bare
from cdcworker.worker.security.audit import Audit
from click.testing import CliRunner

CHILD = "import json, sys; print(json.dumps({'stages': [], 'asked': json.load(sys.stdin)}))"
FOUND = FoundChange({"topic": "p.s.t", "partition": 0, "offset": 5, "written_ms": 1_000})
STAGES = [
    {"stage": "commit", "found": True, "at_ms": 1_790_000_000_000, "text": "update"},
    {"stage": "topic", "found": True, "at_ms": 1_790_000_000_012, "text": "p.s.t/0@5"},
    {"stage": "sink", "found": False, "at_ms": None, "text": "wh has not come so far"},
]


@pytest.mark.parametrize("source_class", ["postgres", ""], ids=["postgres", "unknown"])
def test_an_lsn_is_written_as_postgres_writes_it(source_class):
    positions = positions_of(source_class)
    assert positions.parse_position("1/16B3748") == positions.parse_position(str((1 << 32) + 0x16B3748))
    assert positions.position_text(positions.parse_position("1/16B3748")) == "1/16B3748"
    for wrong in ("", "x", "1/", "1/123456789", "-1", "9" * 21):
        with pytest.raises(ValueError, match=r"LSN"):
            positions.parse_position(wrong)


def test_a_source_without_a_form_of_positions_shows_numbers():
    positions = positions_of("datagen")
    assert positions.position_text(positions.parse_position("18446744073709551615")) == "18446744073709551615"
    for wrong in ("", "0/1", "-1", "1" * 21, "٣"):
        with pytest.raises(ValueError, match="number"):
            positions.parse_position(wrong)


def test_a_change_of_mysql_is_shown_where_its_log_has_it():
    source = {"commit_lsn": 7, "gtid": "0-1-100", "file": "log.000002", "pos": 4, "ts_ms": 5}
    stage = _commit({"op": "update", "source": source}, positions_of("mysql"), places_of("mysql"))
    assert stage["text"] == "update at 0-1-100 (log.000002:4), committed as 7"
    stage = _commit(
        {"op": "read", "source": {"commit_lsn": 7, "snapshot": "true"}}, positions_of("mysql"), places_of("mysql")
    )
    assert stage["text"] == "read by a snapshot at position 7"
    stage = _commit(
        {"op": "update", "source": {"commit_lsn": 0x16B3748, "lsn": 0x16B3740}},
        positions_of("postgres"),
        places_of("postgres"),
    )
    assert stage["text"] == "update at LSN 0/16B3740, committed at 0/16B3748"


@pytest.mark.parametrize(
    ("told", "found", "text"),
    [
        ({"next_offset": 6}, True, "wh has applied it"),
        ({"next_offset": 5}, False, "1 offsets behind it"),
        ({"next_offset": None}, False, "nothing of this partition yet"),
        ({"next_offset": 6, "batch": 3, "applied": "a", "position": "a"}, True, "in batch 3"),
        ({"next_offset": 9, "batch": 3, "applied": "b", "position": "a", "row": "newer"}, True, "3 or before: the ledger keeps the last; the row in the warehouse is of a later change"),
        ({"next_offset": 6, "row": "absent"}, True, "no such row now"),
        ({"next_offset": 6, "dead": "schema.undecodable", "dead_ms": 7}, True, "dead letter: schema.undecodable"),
    ],
)  # fmt: skip
def test_a_targets_answer_is_told_as_far_as_it_goes(told, found, text):
    stage = _traced({"sink": "wh"}, told, FOUND)
    assert (stage["stage"], stage["found"]) == ("sink", found)
    assert text in stage["text"]


def test_a_sink_reads_the_topics_that_it_lists_or_matches():
    configs = [
        {"topics": "a, p.s.t"},
        {"topics.regex": r"p\..*"},
        {"topics": "a", "topics.regex": ".*"},
        {"topics.regex": "("},
        {},
    ]
    assert [_reads(config, "p.s.t") for config in configs] == [True, True, False, False, False]


def test_a_key_is_looked_at_closely_only_where_its_bytes_do_not_tell():
    assert [_is_bare(key, numbers_tell=True) for key in ({"id": 7}, {"id": "x"}, {"n": "\\x04"}, None)] == [False, False, True, False]  # fmt: skip
    assert _is_bare({"day": 20_000}, numbers_tell=False), "what is asked for is no number: it may be a date"


@pytest.fixture
def trail():
    return []


@pytest.fixture
def client(connect, herder, cluster, trail):
    cluster.add("shop", {"topic.prefix": "p"})
    cluster.add("wh", {"topics": "p.s.t"}, kind="sink")
    cluster.add("other", {"topic.prefix": "q"})
    explainer = Explainer({"bootstrap.servers": "b"}, {}, {"schemas": "g.schemas"}, (sys.executable, "-c", CHILD))
    return connect(herder, explainer=explainer, audit=Audit("w1", trail.append))


def test_the_child_is_asked_about_the_source_its_topics_and_the_sinks(client, trail):
    answer = client.get("/v1/connectors/shop/explain?of=t&key=7&key=b=x&lsn=0/10").json()
    asked = answer["asked"]
    assert asked["asked"] == {"table": "t", "key": ["7", "b=x"], "lsn": 16, "place": ""}
    assert (asked["source"]["name"], asked["source"]["prefix"], len(asked["source"]["runs"])) == ("shop", "p", 1)
    assert [sink["name"] for sink in asked["sinks"]] == ["wh"]
    assert [(entry["connector"], entry["method"]) for entry in trail] == [("shop", "GET")]
    of_sink = client.get("/v1/connectors/wh/explain?of=t&key=7").json()["asked"]
    assert (of_sink["topics"], of_sink["source"]["name"]) == (["p.s.t"], "shop")


@pytest.mark.parametrize("text", ["0-1-100", "LOG.000001:4", "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"])
def test_a_place_of_mysqls_log_may_be_named(connect, herder, cluster, text):
    cluster.add("orders", {"topic.prefix": "m", "connector.class": "mysql"})
    client = connect(herder, explainer=Explainer({}, {}, {}, (sys.executable, "-c", CHILD)))
    answer = client.get(f"/v1/connectors/orders/explain?of=t&key=7&lsn={text}").json()
    assert (answer["asked"]["asked"]["lsn"], answer["asked"]["asked"]["place"]) == (None, text)
    assert answer["lsn"] == text
    assert client.get("/v1/connectors/orders/explain?of=t&key=7&lsn=0/16B3748").status_code == 400
    assert client.get("/v1/connectors/orders/explain?of=t&key=7&lsn=17").json()["asked"]["asked"]["lsn"] == 17


def test_what_cannot_be_meant_is_refused(client, trail):
    for query in ("", "?of=t", "?key=7", "?of=t&key=7&lsn=x"):
        assert client.get(f"/v1/connectors/shop/explain{query}").status_code == 400, query
    assert client.get("/v1/connectors/nobody/explain?of=t&key=7").status_code == 404
    assert trail == []


def test_a_child_that_says_nothing_is_an_error_with_a_code(connect, herder, cluster):
    cluster.add("shop", {"topic.prefix": "p"})
    client = connect(herder, explainer=Explainer({}, {}, {}, (sys.executable, "-c", "")))
    answer = client.get("/v1/connectors/shop/explain?of=t&key=7")
    assert answer.json()["code"] == "explain.unfinished"


def test_the_picture_has_times_and_what_is_missing():
    shown = plain(picture({"table": "orders", "op": "update", "key": {"id": 7}, "stages": STAGES, "newer": 1, "others": [
        {"op": "create", "topic": "p.s.t", "partition": 0, "offset": 3, "written_ms": 1_790_000_000_000},
    ]})).splitlines()  # fmt: skip
    assert shown[0] == "orders id=7: update"
    assert [line.split()[:2] for line in shown[2:5]] == [["yes", "commit"], ["yes", "topic"], ["no", "sink"]]
    assert "+12 ms" in shown[3]
    assert shown[5] == "other changes of the row that were seen, 1 of them later:"


def test_the_command_says_whether_all_was_found(client, monkeypatch):
    def request(method, url, **options):
        kept = {name: options[name] for name in ("json", "headers")}
        return client(method, url.removeprefix("http://worker"), **kept)

    monkeypatch.setattr(httpx, "request", request)
    done = CliRunner().invoke(explain, ["shop", "t", "id=a b&c", "--url", "http://worker", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["result"]["asked"]["asked"]["key"] == ["id=a b&c"]
