"""The keys of the sink into a web service, statuses, templates."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.network.http_client import _Connection, endpoint_of
from cdcworker.connectors.network.http_statuses import parse_ranges, ranges_problem, retry_after_s
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.record_sink.json_values import JsonValues
from cdcworker.connectors.targets.http.config import AIVEN, CONFIG_DEF, CONFLUENT
from cdcworker.connectors.targets.http.connector import HttpSink
from cdcworker.connectors.targets.http.target import frame_of, headers_of, request_id, signing_key
from cdcworker.connectors.targets.templates import BodyTemplate, UrlTemplate, problem
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.schemas.errors import CdcError

BASE = {"topics": "t", "http.url": "https://hooks.example/x"}


def parsed(**more):
    return CONFIG_DEF.parse({**BASE, **{name.replace("__", "."): value for name, value in more.items()}})


def wrong(config):
    return {value.name: value.errors for value in CONFIG_DEF.validate({**BASE, **config}) if value.errors}


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a/", "hooks.example", "https://u:p@a/", "https://169.254.169.254/", "https://[fe80::1]/", "https://0x7f.1/",
        "https://${topic}/x", "https://a.${key}/x", "https://a/${value}", "https://a/${event}", "https://a/${nope}", "https://a/${key",
        "https://a/${topic.x}", "https://a/\nb", "https://a/#${key}", "",
        "https://a:0/", "https://a:65536/", "http://a:99999",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    assert set(wrong({"http.url": url})) == {"http.url"}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "https://a/b?c=d",
        "https://a/${topic}/${key}",
        "https://[2001:db8::1]/${key.id}?t=${header.t}",
    ],
)
def test_addresses_that_are_taken(url):
    assert wrong({"http.url": url}) == {}


def test_no_problem_names_a_value():
    problems = wrong({"http.url": "https://user:s3cret@a/", "http.headers.additional": "X s3cret"})
    assert set(problems) == {"http.url", "http.headers.additional"}
    assert "s3cret" not in str(problems)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"http.authorization.type": "basic", "http.authorization.user": "u"}, "http.authorization.password"),
        ({"http.authorization.type": "bearer"}, "http.authorization.token"),
        ({"http.authorization.type": "static"}, "http.headers.authorization"),
        ({"http.authorization.type": "oauth2"}, "http.authorization.type"),
        ({"http.ssl.keystore.key": "k"}, "http.ssl.keystore.certificate.chain"),
        ({"http.url": "http://a/", "http.ssl.truststore.certificates": "c"}, "http.ssl.truststore.certificates"),
        ({"http.body.template": "${id}", "http.body.format": "value"}, "http.body.template"),
        ({"http.headers.additional": "Authorization: x"}, "http.headers.additional"),
        ({"http.headers.additional": "A: b\r\nC: d"}, "http.headers.additional"),
        ({"headers": "A"}, "headers"),
        ({"http.idempotency.header": "Content-Length"}, "http.idempotency.header"),
        ({"http.signature.header.id": "host"}, "http.signature.header.id"),
        ({"behavior.on.null.values": "delete"}, "behavior.on.null.values"),
        ({"retry.on.status.codes": "400-x"}, "retry.on.status.codes"),
        ({"errors.deadletterqueue.topic.name": "t"}, "errors.deadletterqueue.topic.name"),
        ({"oauth2.client.id": "x"}, "oauth2.client.id"),
        ({"transforms": "a", "transforms.a.type": "Nope"}, "transforms.a.type"),
    ],
)
def test_what_is_refused_by_its_key(config, key):
    assert key in wrong(config)


def test_names_of_confluent_count():
    config = {
        "connector.class": CONFLUENT[0], "topics": "t", "http.api.url": "https://a/x", "request.method": "put", "auth.type": "BASIC",
        "connection.user": "u", "connection.password": "p", "max.retries": "3", "retry.backoff.ms": "7", "behavior.on.null.values": "ignore",
        "reporter.bootstrap.servers": "x", "confluent.topic.bootstrap.servers": "x", "headers": "a:b|c: d",
    }  # fmt: skip
    assert [value for value in CONFIG_DEF.validate(config) if value.errors] == []
    found = CONFIG_DEF.parse(config)
    assert (found["http.url"], found["http.method"], found["max.retries"]) == ("https://a/x", "PUT", 3)
    assert headers_of(found)["Authorization"] == "Basic dTpw"
    assert (headers_of(found)["a"], headers_of(found)["c"]) == ("b", "d")
    assert HttpSink(config).batch_default(found) == 1
    assert CONFIG_DEF.connects("http.api.url")


def test_frames_of_requests():
    assert frame_of(parsed(), "http-sink") == ("[", ",", "]")
    assert frame_of(parsed(batch__max__size="1"), "http-sink") == ("", "", "")
    assert frame_of(parsed(), CONFLUENT[0]) == ("", "", "")
    assert frame_of(parsed(batch__max__size="9"), CONFLUENT[0]) == ("[", ",", "]")
    assert frame_of(parsed(batching__enabled="true"), AIVEN[0]) == ("", "\n", "")
    assert frame_of(parsed(batching__enabled="true", batch__prefix="<"), AIVEN[0]) == ("<", "\n", "")


def test_secrets_are_shown_nowhere():
    names = ("http.authorization.token", "http.headers.additional", "http.signature.secret", "http.ssl.keystore.key")
    assert set(CONFIG_DEF.mask(dict.fromkeys(names, "s3cret")).values()) == {"****"}


def test_topics_are_dealt_out_and_dead_letters_are_not_read():
    config = {
        **BASE,
        "connector.class": "http-sink",
        "topics.regex": "a.*",
        "errors.deadletterqueue.topic.name": "a.dead",
    }
    del config["topics"]
    shares = HttpSink(config).split(2, ["a.1", "a.2", "a.3", "a.dead", "__x"])
    assert [share["topics"] for share in shares] == ["a.1,a.3", "a.2"]
    assert HttpSink(config).split(5, []) == []


# Statuses


def test_ranges_of_statuses():
    found = parse_ranges("408, 500-503,590-")
    assert [status for status in (407, 408, 409, 499, 500, 503, 504, 590, 599) if any(status in one for one in found)] == [
        408, 500, 503, 590, 599,
    ]  # fmt: skip
    assert ranges_problem("") is None
    assert all(ranges_problem(text) for text in ("x", "600", "99", "4xx", "400--", "1e3"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None), ("", None), ("7", 7.0), (" 0 ", 0.0), ("-1", None), ("soon", None), ("9" * 30, None),
        ("Wed, 21 Oct 2015 07:28:10 +99999999999999", None), ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0), ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_how_long_a_server_wants_to_be_left_alone(text, seconds):
    assert retry_after_s(text, datetime(2015, 10, 21, 7, 28, 0, tzinfo=UTC)) == seconds


# Templates

KEY = struct(("id", ConnectSchema("int64")))
RECORD = TargetRecord(
    "i", "a b", 1, 2, 3, KEY, {"id": 7}, None, {"after": {"name": 'ä/"', "at": None, "deep": {"x": 1}}}
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("/x", "/x"),
        ("/${topic}/${partition}/${offset}/${timestamp}/${id}", "/a%20b/1/2/3/i"),
        ("/${key}", "/7"),
        ("/${key.id}?n=${value.after.name}", "/7?n=%C3%A4%2F%22"),
    ],
)
def test_addresses_are_filled_with_encoded_values(text, filled):
    assert UrlTemplate(text).fill(RECORD) == filled


@pytest.mark.parametrize(
    "place", ["value.after.at", "value.after.deep", "value.nope", "key.nope", "header.nope", "value.after.name.x"]
)
def test_what_has_no_place_in_an_address_refuses_the_record(place):
    with pytest.raises(CdcError) as caught:
        UrlTemplate(f"/${{{place}}}").fill(RECORD)
    assert caught.value.kind == "data"
    assert "ä" not in str(caught.value)


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_value_changes_no_path(name):
    record = TargetRecord("i", "t", 0, 0, 0, None, name)
    with pytest.raises(CdcError) as caught:
        UrlTemplate("/a/${key}/b").fill(record)
    assert caught.value.kind == "data"


@pytest.mark.parametrize("text", ["/a/${key}${key}/b", "/a/.${key}", "/${key}.?x=1"])
def test_values_beside_each_other_change_no_path(text):
    with pytest.raises(CdcError) as caught:
        UrlTemplate(text.replace("${key}", "${value.a}")).fill(TargetRecord("i", "t", 0, 0, 0, value={"a": "."}))
    assert caught.value.kind == "data"
    assert UrlTemplate("/a/x${key}?y=../.${key}").fill(TargetRecord("i", "t", 0, 0, 0, None, "1")) == "/a/x1?y=../.1"


@pytest.mark.parametrize("secret", ["whsec_", " ", "whsec_ "])
def test_nothing_is_signed_with_an_empty_key(secret):
    with pytest.raises(CdcError) as caught:
        signing_key(parsed(http__signature__secret=secret))
    assert caught.value.code == "sink.target_refuses"


def test_the_header_host_has_no_port_where_it_is_the_schemes_own():
    for url, host in [
        ("https://a/", b"a"), ("https://a:444/", b"a:444"), ("https://a:80/", b"a:80"), ("http://a/", b"a"), ("http://a:443/", b"a:443"),
    ]:  # fmt: skip
        connection = _Connection(endpoint_of(parsed(http__url=url), TARGET_REFUSES, 1.0))
        connection.putrequest("POST", "/")
        assert b"Host: " + host in connection._buffer  # type: ignore[attr-defined]


def test_bodies_are_filled_with_json():
    template = BodyTemplate(
        '{"a":${value.after.name},"b":${key},"c":${event},"d":${value.after.at}}',
        JsonValues(numeric=True),
        lambda _: "9",
    )
    assert template.fill(RECORD) == '{"a":"ä/\\"","b":{"id":7},"c":9,"d":null}'


def test_problems_of_templates():
    assert problem("${event} ${value}", whole=True) is None
    assert all(problem(text, whole=True) for text in ("${}", "${a}", "${value.}", "${key", "${topic.a}", "${a:b}"))


def test_the_id_of_several_records_is_that_of_the_same_ones():
    one, two = (TargetRecord(name, "t", 0, 0, 0) for name in "ab")
    assert request_id([one]) == "a"
    assert request_id([one, two]) == request_id([one, two])
    assert len({request_id(each) for each in ([one, two], [two, one], [one, one], [one])}) == 4
