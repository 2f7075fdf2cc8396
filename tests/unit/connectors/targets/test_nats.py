"""The keys of the sink into NATS, tokens of subjects, and what codes of the server mean."""

from __future__ import annotations

import pytest

pytest.importorskip("nats")

from cdcworker.connectors.targets.nats.config import CONFIG_DEF, places_of, subjects_of, takes
from cdcworker.connectors.targets.nats.replies import error_of, of_code
from cdcworker.connectors.targets.nats.target import token
from cdcworker.schemas.errors import CdcError
from nats import errors

BASE = {"topics": "t", "nats.servers": "nats.example", "nats.stream": "s"}


def wrong(config):
    return {value.name for value in CONFIG_DEF.validate({**BASE, **config}) if value.errors}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"nats.servers": "user:pass@a"}, "nats.servers"),
        ({"nats.servers": "http://a"}, "nats.servers"),
        ({"nats.servers": "a:0"}, "nats.servers"),
        ({"nats.servers": "169.254.169.254"}, "nats.servers"),
        ({"nats.stream": "a.b"}, "nats.stream"),
        ({"nats.subject.template": "a.*"}, "nats.subject.template"),
        ({"nats.subject.template": "a..b"}, "nats.subject.template"),
        ({"nats.subject.template": "cdc.${value}"}, "nats.subject.template"),
        ({"nats.subject.template": "${topic}"}, "nats.stream.subjects"),
        ({"nats.stream.subjects": "a.>.b"}, "nats.stream.subjects"),
        ({"nats.username": "u"}, "nats.password"),
        ({"nats.token": "t", "nats.nkey.seed": "s"}, "nats.nkey.seed"),
        ({"nats.ssl.truststore.certificates": "x"}, "nats.ssl.truststore.certificates"),
        ({"nats.stream.max.age.ms": "1000"}, "nats.stream.duplicate.window.ms"),
    ],
)
def test_what_is_refused_by_name(config, key):
    assert wrong(config) == {key}


@pytest.mark.parametrize(
    ("config", "subjects"),
    [
        ({}, ["cdc.>"]),
        ({"nats.subject.template": "a.b-${topic}.c"}, ["a.>"]),
        ({"nats.subject.template": "a.b"}, ["a.b"]),
        ({"nats.subject.template": "${topic}", "nats.stream.subjects": "shop.>,x.*.y"}, ["shop.>", "x.*.y"]),
    ],
)
def test_the_subjects_of_a_stream_that_is_made(config, subjects):
    assert wrong(config) == set()
    assert subjects_of(CONFIG_DEF.parse({**BASE, **config})) == subjects


def test_the_forms_of_servers():
    parsed = CONFIG_DEF.parse({**BASE, "nats.servers": "a,nats://b:1,tls://[2001:db8::1]:2"})
    assert places_of(parsed) == [("a", 4222), ("b", 1), ("2001:db8::1", 2)]


@pytest.mark.parametrize(
    ("wanted", "subject", "is_taken"),
    [
        ("a.>", "a.b.c", True), ("a.>", "a", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False), ("a.*.c", "a.b.c", True),
        ("a.b", "a.b", True), ("a.b", "a.c", False), (">", "a", True), ("*.>", "a.b", True), ("*.>", "a", False),
    ],
)  # fmt: skip
def test_which_subjects_a_stream_takes(wanted, subject, is_taken):
    assert takes(wanted, subject) is is_taken


def test_values_are_tokens_that_differ():
    values = ["a.b", "a%2Eb", "a b", "*", ">", "\u2028", "ä"]
    assert len({token(value) for value in values}) == len(values)
    assert not any(set(token(value)) & set(". *>\u2028") for value in values)
    with pytest.raises(CdcError):
        token("")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(503, 10077, "transient"), (400, 10077, "transient"), (400, 10060, "config"), (404, 10059, "config"), (400, 10054, "data")],
)  # fmt: skip
def test_what_a_code_means(status, code, kind):
    assert of_code(status, code).kind == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.NoServersError(), "transient"),
        (errors.ConnectionClosedError(), "transient"),
        (TimeoutError(), "transient"),
        (errors.Error("nats: 'Authorization Violation' of s3cret"), "config"),
        (errors.MaxPayloadError(), "data"),
    ],
)
def test_what_an_error_means(error, kind):
    found = error_of(error)
    assert found.kind == kind
    assert "s3cret" not in str(found)
