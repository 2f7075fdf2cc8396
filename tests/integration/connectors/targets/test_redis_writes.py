"""What the target of Redis writes, and how it takes answers: a real server, without Kafka."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import uuid
from pathlib import Path

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.targets.redis.config import CONFIG_DEF, TYPES
from cdcworker.connectors.targets.redis.target import RedisTarget
from cdcworker.connectors.transforms.data import ConnectSchema, Field
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import free_ports

from tests.certificates import Authority
from tests.queue_servers.redis_server import PASSWORD, RedisServer, find_program
from tests.queue_servers.tls_front import TlsFront
from tests.record_sinks import wait

pytestmark = pytest.mark.redis
GONE = object()


@pytest.fixture
def name():
    return f"w{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened():
    made = []

    def open_target(config, class_name="redis", **more):
        made.append(RedisTarget(TargetPlace(CONFIG_DEF.parse({"topics": "t", **config, **more}), class_name)))
        return made[-1]

    yield open_target
    for target in made:
        target.close()


def change(offset, value, key=1, partition=0, topic="id-x", at=1):
    value = {"before": {"id": key}, "after": None, "op": "d"} if value is GONE else value
    return TargetRecord(f"{topic}-{partition}-{offset}", "t", partition, offset, at, None, {"id": key}, None, value)


def after(**row):
    return {"before": None, "after": row, "op": "u"}


def held(client, kind, key):
    if kind == "HASH":
        return client.hgetall(key) or None
    if kind == "SET":
        return {"id": "1", "n": "?"} if client.sismember(key, "1") else None
    text = client.get(key) if kind == "STRING" else client.execute_command("JSON.GET", key)
    return None if text is None else {name: str(value) for name, value in json.loads(text).items()}


@pytest.mark.parametrize("kind", ["HASH", "JSON", "STRING", "SET"])
def test_an_older_or_repeated_write_changes_nothing(redis, opened, name, kind):
    key = name if kind == "SET" else f"{name}:${{key}}"
    place = name if kind == "SET" else f"{name}:1"
    target = opened(redis.config(type=kind, key_template=key))

    def written(*records):
        target.write(RecordBatch(list(records)))
        found = held(redis.client, kind, place)
        return found and (found["n"] if kind != "SET" else "there")

    def row(n):
        return "there" if kind == "SET" else str(n)

    assert written(change(5, after(id=1, n=5))) == row(5)
    assert written(change(4, after(id=1, n=4))) == row(5), "an older one"
    assert written(change(3, GONE)) == row(5), "an older deletion"
    assert written(change(5, after(id=1, n=9))) == row(5), "the same once more"
    assert written(change(6, GONE)) is None
    assert written(change(5, after(id=1, n=5)), change(6, GONE)) is None, "a late write after the deletion"
    assert written(change(7, after(id=1, n=7))) == row(7)
    assert written(change(8, None)) is None, "a tombstone is a deletion"
    assert written(change(1, after(id=1, n=1), partition=4, at=0)) is None, "another partition, earlier"
    assert written(change(1, after(id=1, n=1), partition=4, at=2)) == row(1), "another partition, later"
    assert written(change(0, after(id=1, n=0), topic="id-of-another-topic", at=0)) == row(0)


def test_offsets_and_numbers_beyond_what_lua_counts_are_kept(redis, opened, name):
    big = 2**53 - 1
    target = opened(redis.config(type="JSON", key_template=f"{name}:${{key}}"))
    target.write(RecordBatch([change(big, after(id=2**62 + 1, n="ä\U0001f418"))]))
    assert redis.client.get(f"{{{name}:1}}:version") == f"id-x 0 {big} 1"
    assert json.loads(redis.client.execute_command("JSON.GET", f"{name}:1")) == {"id": 2**62 + 1, "n": "ä\U0001f418"}


@pytest.mark.parametrize("kind", ["HASH", "JSON"])
def test_a_large_value_that_the_source_did_not_send_stays(redis, opened, name, kind):
    target = opened(redis.config(type=kind, key_template=f"{name}:${{key}}"))
    target.write(RecordBatch([change(1, after(id=1, **{'wei"rd': "large"}, gone="x"))]))
    target.write(RecordBatch([change(2, after(id=1, **{'wei"rd': "__debezium_unavailable_value"}))]))
    assert held(redis.client, kind, f"{name}:1") == {"id": "1", 'wei"rd': "large"}


@pytest.mark.parametrize("kind", ["HASH", "JSON"])
def test_values_without_a_text_that_the_source_did_not_send_stay_too(redis, opened, name, kind):
    target = opened(redis.config(type=kind, key_template=f"{name}:${{key}}"))
    target.write(RecordBatch([change(1, after(id=1, b="bytes", n="5", gone="x"))]))
    unsent = change(2, after(id=1, b=b"__debezium_unavailable_value", n=None, late=["__debezium_unavailable_value"]))
    target.write(RecordBatch([dataclasses.replace(unsent, unsent=("n",))]))
    assert held(redis.client, kind, f"{name}:1") == {"id": "1", "b": "bytes", "n": "5"}


@pytest.mark.parametrize("kind", ["HASH", "STREAM"])
def test_a_value_of_more_fields_than_a_script_takes_is_refused_and_removes_nothing(redis, opened, name, kind):
    target = opened(redis.config(type=kind, key_template=name, stream_fields="row"))
    target.write(RecordBatch([change(1, {"id": 1})]))
    with pytest.raises(CdcError) as error:
        target.write(RecordBatch([change(2, dict.fromkeys(map(str, range(4_000)), 1))]))
    assert error.value.code == "sink.record_refused"
    assert redis.client.exists(name)
    target.write(RecordBatch([change(3, {f"{n}": 1 for n in range(3_500)})]))


def test_a_row_is_not_kept_where_the_version_of_another_one_is(redis, opened, name):
    target = opened(redis.config(type="STRING", key_template=f"{{{name}}}:${{key}}"))
    target.write(RecordBatch([change(n, f"{n}", key=key) for n, key in enumerate(("7", "7:version", "7%:version"))]))
    target.write(RecordBatch([change(5, "new", key="7")]))
    assert [redis.client.get(f"{{{name}}}:{key}") for key in ("7", "7:version", "7%25:version")] == ["new", "1", "2"]


def test_a_truncation_and_a_value_without_fields_are_refused(redis, opened, name):
    target = opened(redis.config(type="HASH", key_template=name))
    for value in ({"before": None, "after": None, "op": "t"}, "text", [1]):
        with pytest.raises(CdcError) as error:
            target.write(RecordBatch([change(1, value)]))
        assert error.value.code == "sink.record_refused"
    assert not redis.client.exists(name)


def test_keys_are_filled_so_that_no_two_rows_share_one(redis, opened, name):
    target = opened(redis.config(type="STRING", key_template=f"{name}:${{key}}"))
    keys = [{"a": "x:y", "b": "z"}, {"a": "x", "b": "y:z"}, {"a": "{x}", "b": "%7Bx%7D"}]
    target.write(RecordBatch([dataclasses.replace(change(n, str(n)), key=key) for n, key in enumerate(keys)]))
    found = {key.removeprefix(f"{name}:") for key in redis.client.scan_iter(f"{name}*")}
    assert found == {"x%3Ay:z", "x:y%3Az", "%7Bx%7D:%257Bx%257D"}


def test_rows_and_versions_expire_where_the_config_says_so(redis, opened, name):
    target = opened(redis.config(type="STRING", key_template=f"{name}:${{key}}", key_ttl="100", version_ttl="50"))
    target.write(RecordBatch([change(1, "x"), change(1, "y", key=2), change(2, None, key=2)]))
    client = redis.client
    assert 0 < client.ttl(f"{name}:1") <= 100
    assert 0 < client.ttl(f"{{{name}:2}}:version") <= 50
    members = opened(redis.config(type="SET", key_template=name, version_ttl="1"))
    members.write(RecordBatch([change(1, "x"), change(2, None)]))
    assert client.hlen(f"{{{name}}}:versions") == 1
    wait(lambda: client.time()[0] > client.zscore(f"{{{name}}}:deleted", "1"), "the second")
    members.write(RecordBatch([change(3, "x", key=2)]))
    assert client.hkeys(f"{{{name}}}:versions") == ["2"], "that of the deleted member is forgotten"


def test_a_stream_has_each_entry_once_and_fields_of_rows(redis, opened, name):
    target = opened(redis.config(key_template=name, stream_fields="row"))
    schema = ConnectSchema(
        "struct", fields=(Field("a", ConnectSchema("bytes")), Field("n", ConnectSchema("int32", optional=True)))
    )
    batch = RecordBatch(
        [dataclasses.replace(change(n, {"a": b"\0", "n": n or None}), value_schema=schema) for n in range(4)]
    )
    target.write(batch)
    target.write(RecordBatch([*batch.records[2:], change(9, {"a": "x"}), change(0, {"a": "y"}, partition=1)]))
    entries = [entry for _, entry in redis.client.xrange(name)]
    assert [entry["id"] for entry in entries] == [f"id-x-0-{n}" for n in (0, 1, 2, 3, 9)] + ["id-x-1-0"]
    assert entries[0] == {"id": "id-x-0-0", "a": "AA=="}
    assert entries[3] == {"id": "id-x-0-3", "a": "AA==", "n": "3"}
    plain = opened(redis.config(key_template=name, stream_once="false", stream_maxlen="1"))
    plain.write(batch)
    assert redis.client.xlen(name) >= 1


def test_scripts_that_the_server_has_forgotten_are_sent_again(redis, opened, name):
    target = opened(redis.config(type="STRING", key_template=f"{name}:${{key}}"))
    target.write(RecordBatch([change(1, "x")]))
    redis.client.script_flush()
    target.write(RecordBatch([change(2, "y")]))
    assert redis.client.get(f"{name}:1") == "y"


def test_a_wrong_password_halts_and_no_memory_is_waited_for(redis, opened, name):
    with pytest.raises(CdcError) as error:
        opened(redis.config(key_template=name, password="s3cret")).write(RecordBatch([change(1, {"a": 1})]))
    assert error.value.code == "sink.target_refuses"
    assert "s3cret" not in str(error.value)
    target = opened(redis.config(key_template=name))
    redis.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TargetUnavailable, match="OutOfMemory"):
            target.write(RecordBatch([change(1, {"a": 1})]))
    finally:
        redis.client.config_set("maxmemory", 0)
    target.write(RecordBatch([change(1, {"a": 1})]))
    assert redis.client.xlen(name) == 1


def test_the_rights_that_the_docs_name_are_enough(redis, opened, name):
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "write-to-redis.md").read_text()
    words = re.search(r"ACL SETUSER sink (.*?)```", page, re.DOTALL)[1].split()
    redis.client.execute_command("ACL", "SETUSER", name, *words)
    login = {"redis.username": name, "redis.password": "PASSWORD"}
    missing = "__debezium_unavailable_value"
    try:
        for kind in TYPES:
            target = opened(redis.config(type=kind, key_template=f"{name}:{kind}:${{key}}") | login)
            target.write(RecordBatch([change(1, after(id=1, a="x")), change(2, after(id=1, a=missing, b=missing))]))
            if kind != "STREAM":
                target.write(RecordBatch([change(3, GONE)]))
            assert target.check() == []
        opened(redis.config(key_template=name, stream_once="false") | login).write(
            RecordBatch([change(1, after(id=1))])
        )
    finally:
        redis.client.execute_command("ACL", "DELUSER", name)


def test_a_replica_that_is_not_there_keeps_a_batch_from_counting(redis, opened, name):
    target = opened(redis.config(key_template=name, wait_replicas="1", wait_timeout="10"))
    with pytest.raises(TargetUnavailable, match="0 of 1 replicas"):
        target.write(RecordBatch([change(1, {"a": 1})]))


def test_closed_hosts_and_too_little_tls_are_refused_and_names_without_address_are_waited_for(redis, opened):
    batch = RecordBatch([change(1, {"a": 1})])
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        with pytest.raises(CdcError) as error:
            opened(redis.config()).write(batch)
        assert error.value.code == "config.host_not_allowed"
        with pytest.raises(TargetUnavailable, match="no address"):
            opened({"redis.hosts": "nowhere.invalid"}).write(batch)
    finally:
        allowed_hosts.use(HostPolicy())
    tls_policy.use("encrypted")
    try:
        with pytest.raises(CdcError) as error:
            opened({"redis.hosts": "db.example"})
        assert error.value.code == "config.tls_not_enough"
    finally:
        tls_policy.use("any")


def test_the_servers_certificate_is_verified(redis, opened, name, tmp_path):
    authority = Authority(tmp_path, "authority")
    with TlsFront(redis.port, authority.issue("server")) as front:
        config = redis.config(key_template=name, hosts=f"127.0.0.1:{front.port}") | {"redis.ssl.enabled": "true"}
        with pytest.raises(CdcError, match="not trusted") as error:
            opened(config).write(RecordBatch([change(1, {"a": 1})]))
        assert error.value.code == "sink.target_refuses"
        trusted = {"redis.ssl.truststore.certificates": authority.file.read_text()}
        opened(config | trusted).write(RecordBatch([change(1, {"a": 1})]))
    assert redis.client.xlen(name) == 1


def test_a_write_is_broken_off_from_another_thread(redis, opened, name):
    target = opened(redis.config(key_template=name))
    target.write(RecordBatch([change(1, {"a": 1})]))
    redis.client.client_pause(20_000, all=True)
    try:
        errors = []
        thread = threading.Thread(target=lambda: errors.append(_raised(target, change(2, {"a": 1}))))
        thread.start()
        wait(lambda: not target.cancel() and not thread.is_alive(), "the end of the write")
        assert errors == ["transient"]
    finally:
        redis.stop()
        redis.start()


def _raised(target, record):
    try:
        target.write(RecordBatch([record]))
    except CdcError as error:
        return error.kind
    return None


def test_what_is_looked_at_before_a_start(redis, opened):
    assert opened(redis.config(type="JSON")).check() == []
    redis.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert [finding.severity for finding in opened(redis.config()).check()] == ["warning"]
    finally:
        redis.client.config_set("maxmemory-policy", "noeviction")
    assert [f.severity for f in opened(redis.config(password="x")).check()] == ["error"]
    (port,) = free_ports(1)
    away = opened(redis.config() | {"redis.hosts": f"127.0.0.1:{port}"})
    assert [f.severity for f in away.check()] == ["warning"]


def test_a_cluster_gets_each_row_at_the_node_of_its_slot(opened, name, tmp_path):
    program = find_program()
    servers = [
        RedisServer(program, tmp_path / str(n), "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--masterauth", PASSWORD)
        for n in range(2)
    ]  # fmt: skip
    try:
        for server, (first, last) in zip(servers, ((0, 8191), (8192, 16383)), strict=True):
            server.start()
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        one, other = servers
        one.client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        for server in servers:
            wait(
                lambda server=server: server.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
                "the cluster",
            )
        for kind in ("HASH", "STREAM", "SET"):
            template = f"{name}:{kind}:${{key}}"
            target = opened(one.config(type=kind, key_template=template) | {"redis.client.mode": "Cluster"})
            target.write(RecordBatch([change(1, after(id=n), key=n) for n in range(20)]))
            target.write(RecordBatch([change(1, after(id=n), key=n) for n in range(20)]))
        found = [set(server.client.scan_iter(f"{name}:*")) for server in servers]
        assert all(found)
        assert len(found[0] | found[1]) == 60
    finally:
        for server in servers:
            server.remove()
