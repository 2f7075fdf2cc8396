"""What the target of NATS publishes, and how it takes answers: a real server, without Kafka."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid

import nkeys
import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.targets.nats.config import CONFIG_DEF
from cdcworker.connectors.targets.nats.target import NatsTarget
from cdcworker.connectors.transforms.data import ConnectSchema, Field
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.nats import find_program
from cdcworker.worker.devstack.ports import HOST, free_ports

from tests.certificates import Authority
from tests.queue_servers.nats_server import NatsServer
from tests.record_sinks import wait

pytestmark = pytest.mark.nats


@pytest.fixture
def name():
    return f"w{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened():
    made = []

    def open_target(config):
        made.append(NatsTarget(TargetPlace(CONFIG_DEF.parse({"topics": "t", **config}), "nats")))
        return made[-1]

    yield open_target
    for target in made:
        target.close()


def record(offset, value, **more):
    return TargetRecord(f"id-0-{offset}", "shop.orders", 0, offset, 1, None, {"id": offset}, None, value, **more)


def batch(*records):
    return RecordBatch(list(records))


def test_messages_have_a_subject_an_id_and_an_event_and_come_once(nats, opened, name):
    target = opened(nats.config(name, subject_template=f"{name}.${{topic}}.${{key.id}}"))
    target.write(batch(record(1, {"a": "ä"}), record(2, None)))
    target.write(batch(record(2, None), record(3, {"a": 1})))
    found = nats.messages(name)
    assert [message.subject for message in found] == [f"{name}.shop.orders.{n}" for n in (1, 2, 3)]
    assert [message.headers["Nats-Msg-Id"] for message in found] == ["id-0-1", "id-0-2", "id-0-3"]
    first = json.loads(found[0].data)
    assert (first["id"], first["key"], first["value"]) == ("id-0-1", {"id": 1}, {"a": "ä"})


def test_a_value_is_one_token_and_no_subject_has_an_empty_one(nats, opened, name):
    target = opened(nats.config(name, subject_template=f"{name}.${{value.a}}", format="value"))
    target.write(batch(record(1, {"a": "x.y *>%ä"})))
    (message,) = nats.messages(name)
    assert (message.subject, json.loads(message.data)) == (f"{name}.x%2Ey%20%2A%3E%25ä", {"a": "x.y *>%ä"})
    for value in ({"a": ""}, {"a": None}, {"a": [1]}, {"b": 1}, {"a": "\ud800"}):
        with pytest.raises(CdcError) as error:
            target.write(batch(record(2, value)))
        assert error.value.code == "sink.record_refused"
    with pytest.raises(CdcError) as error:
        opened(nats.config(name)).write(batch(dataclasses.replace(record(2, 1), topic="a..b")))
    assert error.value.code == "sink.record_refused"


def test_schemas_are_in_the_bucket_before_the_message(nats, opened, name):
    schema = ConnectSchema("struct", fields=(Field("a", ConnectSchema("int32")),), name="row")
    target = opened(nats.config(name, schemas_bucket=f"{name}-schemas"))
    for number in (1, 2):
        target.write(batch(dataclasses.replace(record(number, {"a": 1}), value_schema=schema)))
    again = opened(nats.config(name, schemas_bucket=f"{name}-schemas"))
    again.write(batch(dataclasses.replace(record(3, {"a": 1}), value_schema=schema)))
    keys = {message.headers["cdc-value-schema"] for message in nats.messages(name)}
    assert len(keys) == 1

    async def read(client):
        store = await client.jetstream().key_value(f"{name}-schemas")
        return [(key, json.loads((await store.get(key)).value)) for key in await store.keys()]

    ((key, told),) = nats.call(read)
    assert {key} == keys
    assert told["fields"][0]["name"] == "a"


def test_a_stream_that_is_there_is_taken_as_it_is_and_a_short_memory_of_ids_is_told(nats, opened, name):
    config = nats.config(name)
    assert opened(config).check() == []
    (finding,) = opened(config | {"nats.stream.create": "false"}).check()
    assert (finding.severity, finding.code) == ("error", "sink.target_refuses")
    nats.call(lambda client: client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], duplicate_window=1))
    (finding,) = opened(config).check()
    assert finding.severity == "warning"
    assert finding.key == "nats.stream.duplicate.window.ms"
    opened(config).write(batch(record(1, 1)))
    assert nats.count(name) == 1


def test_a_stream_that_takes_no_such_subject_halts_and_one_that_is_full_is_waited_for(nats, opened, name):
    def add(**more):
        nats.call(lambda client: client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], **more))

    add(max_msgs=1, discard="new")
    target = opened(nats.config(name))
    target.write(batch(record(1, 1)))
    with pytest.raises(TargetUnavailable):
        target.write(batch(record(2, 1)))
    other = f"{name}-other"
    nats.call(lambda client: client.jetstream().add_stream(name=other, subjects=[f"{other}.x"]))
    with pytest.raises(CdcError) as error:
        opened(nats.config(name) | {"nats.stream": other}).write(batch(record(3, 1)))
    assert error.value.code == "sink.target_refuses"
    with pytest.raises(CdcError, match=r"nats\.subject\.template") as error:
        opened(nats.config(name, subject_template="nobody.${topic}", stream_subjects="x")).write(batch(record(4, 1)))
    assert error.value.code == "sink.target_refuses"


def test_a_wrong_login_halts_and_is_not_told(nats, opened, name):
    with pytest.raises(CdcError) as error:
        opened(nats.config(name, password="s3cret")).write(batch(record(1, 1)))
    assert error.value.code == "sink.target_refuses"
    assert "s3cret" not in str(error.value)
    assert [one.severity for one in opened(nats.config(name, password="x")).check()] == ["error"]
    (port,) = free_ports(1)
    away = opened(nats.config(name) | {"nats.servers": f"{HOST}:{port}"})
    assert [one.severity for one in away.check()] == ["warning"]
    with pytest.raises(TargetUnavailable):
        opened(nats.config(name) | {"nats.servers": f"{HOST}:{port}"}).write(batch(record(1, 1)))


def test_closed_hosts_and_too_little_tls_are_refused(nats, opened, name):
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        with pytest.raises(CdcError) as error:
            opened(nats.config(name)).write(batch(record(1, 1)))
        assert error.value.code == "config.host_not_allowed"
        with pytest.raises(TargetUnavailable, match="no address"):
            opened(nats.config(name) | {"nats.servers": "nowhere.invalid"}).write(batch(record(1, 1)))
    finally:
        allowed_hosts.use(HostPolicy())
    tls_policy.use("encrypted")
    try:
        with pytest.raises(CdcError) as error:
            opened(nats.config(name) | {"nats.servers": "mq.example"})
        assert error.value.code == "config.tls_not_enough"
    finally:
        tls_policy.use("any")


def test_tls_nkeys_and_rights_of_a_user(opened, name, tmp_path):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    authority = Authority(tmp_path, "authority")
    pem = authority.issue("server")
    bucket = f"{name}-schemas"
    made = [f"$JS.API.STREAM.{verb}.{each}" for verb in ("INFO", "CREATE") for each in (name, f"KV_{bucket}")]
    allowed = json.dumps([f"{name}.shop.>", f"$KV.{bucket}.>", f"$JS.API.STREAM.MSG.GET.KV_{bucket}", *made])
    rights = f'publish: {{ allow: {allowed} }}, subscribe: "_INBOX.>"'
    users = f'authorization {{ users: [{{ nkey: "{public}", permissions: {{ {rights} }} }}] }}'
    tls = f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}'
    with NatsServer(find_program(), tmp_path / "nats", f"{users}\n{tls}") as server:
        config = {k: v for k, v in server.config(name).items() if k not in ("nats.username", "nats.password")}
        config |= {"nats.servers": f"tls://{HOST}:{server.port}", "nats.nkey.seed": seed.decode()}
        with pytest.raises(CdcError, match="not trusted") as error:
            opened(config).write(batch(record(1, 1)))
        assert error.value.code == "sink.target_refuses"
        config |= {"nats.ssl.truststore.certificates": authority.file.read_text(), "nats.schemas.bucket": bucket}
        schema = ConnectSchema("int32")
        for number in (1, 2):
            opened(config).write(batch(dataclasses.replace(record(number, 1), value_schema=schema)))
        for unfit in ({"nats.subject.template": f"{name}.secret"}, {"nats.schemas.bucket": "other"}):
            with pytest.raises(CdcError, match="permissions") as error:
                opened(config | unfit).write(batch(dataclasses.replace(record(3, 1), value_schema=schema)))
            assert error.value.code == "sink.target_refuses"


def test_a_write_is_broken_off_from_another_thread(opened, name, tmp_path):
    with NatsServer(find_program(), tmp_path / "nats") as server:
        target = opened(server.config(name))
        target.write(batch(record(1, 1)))
        child, errors = server._running(), []
        child.send(19)
        thread = threading.Thread(target=lambda: errors.append(_kind(target)))
        thread.start()
        wait(lambda: not target.cancel() and not thread.is_alive(), "the end of the write")
        assert errors == ["transient"]
        child.send(18)
        target.write(batch(record(2, 1)))
        assert server.count(name) == 2


def _kind(target):
    try:
        target.write(batch(record(2, 1)))
    except CdcError as error:
        return error.kind
    return None
