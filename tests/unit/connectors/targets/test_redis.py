"""The keys of the sink into Redis, names of other sinks, keys of rows, and what errors of the server mean."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.targets.redis.config import CONFIG_DEF, CUSTENBORDER, OWN, key_template, places_of, type_of
from cdcworker.connectors.targets.redis.replies import error_of, worst_of
from cdcworker.connectors.targets.redis.target import companion, escaped, path_of
from cdcworker.schemas.errors import CdcError
from redis import exceptions
from redis.crc import key_slot

BASE = {"topics": "t", "redis.hosts": "redis.example"}


def wrong(config):
    return {value.name for value in CONFIG_DEF.validate(config) if value.errors}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"redis.hosts": "a b"}, "redis.hosts"),
        ({"redis.hosts": "a:0"}, "redis.hosts"),
        ({"redis.hosts": "user@a"}, "redis.hosts"),
        ({"redis.hosts": "169.254.169.254"}, "redis.hosts"),
        ({"redis.hosts": "a,b"}, "redis.hosts"),
        ({"redis.hosts": ""}, "redis.hosts"),
        ({"redis.uri": "redis://a"}, "redis.hosts"),
        ({"redis.hosts": "", "redis.uri": "redis://user:pass@a:1"}, "redis.uri"),
        ({"redis.hosts": "", "redis.uri": "http://a"}, "redis.uri"),
        ({"redis.type": "LIST"}, "redis.type"),
        ({"redis.key.template": "${value}"}, "redis.key.template"),
        ({"redis.key.template": "a}b${key}"}, "redis.key.template"),
        ({"redis.key.template": "{a}{b}"}, "redis.key.template"),
        ({"redis.username": "u"}, "redis.password"),
        ({"redis.ssl.truststore.certificates": "x"}, "redis.ssl.truststore.certificates"),
        ({"redis.client.mode": "Cluster", "redis.database": "1"}, "redis.database"),
        ({"redis.client.mode": "Sentinel"}, "redis.client.mode"),
        ({"redis.insecure": "true"}, "redis.insecure"),
        ({"redis.ssl.truststore.path": "/x"}, "redis.ssl.truststore.path"),
    ],
)
def test_what_is_refused_by_name(config, key):
    assert wrong({**BASE, **config}) == {key}


@pytest.mark.parametrize(
    ("config", "places"),
    [
        ({"redis.hosts": "a:1,[2001:db8::1]:2,c", "redis.client.mode": "Cluster"}, [("a", 1), ("2001:db8::1", 2), ("c", 6379)]),
        ({"redis.uri": "rediss://a:7/3"}, [("a", 7)]),
        ({"redis.host": "a"}, [("a", 6379)]),
    ],
)  # fmt: skip
def test_the_forms_of_a_place(config, places):
    assert wrong({"topics": "t", **config}) == set()
    assert places_of(CONFIG_DEF.parse({"topics": "t", **config})) == places


@pytest.mark.parametrize(
    ("class_name", "config", "kind", "template"),
    [
        ("redis", {}, "STREAM", "${topic}"),
        ("redis", {"redis.type": "hash"}, "HASH", "${topic}:${key}"),
        (OWN[0], {"redis.type": "JSON", "redis.keyspace": "x", "redis.separator": "/", "redis.multiexec": "false"}, "JSON", "x/${key}"),
        (OWN[0], {"redis.type": "SET", "redis.tls": "true"}, "SET", "${topic}"),
        (CUSTENBORDER[0], {"redis.charset": "UTF-8", "redis.ssl.enabled": "true"}, "STRING", "${key}"),
    ],
)  # fmt: skip
def test_names_of_other_sinks_mean_what_they_mean_there(class_name, config, kind, template):
    assert lookup(class_name).name == "redis"
    assert wrong({**BASE, **config}) == set()
    parsed = CONFIG_DEF.parse({**BASE, **config})
    assert (type_of(parsed, class_name), key_template(parsed, class_name)) == (kind, template)


@pytest.mark.parametrize("key", [b"a", b"a:{b}:c", b"x{y", escaped("{a}%").encode()])
def test_what_is_kept_beside_a_key_is_in_its_slot(key):
    assert key_slot(companion(key, b":version")) == key_slot(key)
    assert companion(key, b":version") != key


def test_paths_of_fields():
    assert [path_of("a"), path_of("it's")] == ["$['a']", '$["it\'s"]']
    for name in ("a\\b", "a'\"b"):
        with pytest.raises(CdcError):
            path_of(name)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionError("cut"), "transient"),
        (exceptions.BusyLoadingError("loading"), "transient"),
        (exceptions.ResponseError("MISCONF Redis is configured to save"), "transient"),
        (exceptions.ResponseError("ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed"), "transient"),
        (exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), "transient"),
        (exceptions.AuthenticationError("wrong"), "config"),
        (exceptions.NoPermissionError("no"), "config"),
        (exceptions.ResponseError("unknown command 'JSON.SET', with args beginning with: 'OOM'"), "config"),
        (exceptions.ResponseError("WRONGTYPE Operation against a key holding s3cret"), "data"),
        (exceptions.ResponseError("something s3cret"), "data"),
    ],
)  # fmt: skip
def test_what_an_error_means(error, kind):
    found = error_of(error)
    assert found.kind == kind
    assert "s3cret" not in str(found)


def test_an_error_of_one_record_counts_only_where_no_other_is():
    refused, away = exceptions.ResponseError("WRONGTYPE"), exceptions.ResponseError("OOM")
    assert worst_of([1, b"x"]) is None
    assert worst_of([1, refused]).kind == "data"
    assert worst_of([refused, away]).kind == "transient"
