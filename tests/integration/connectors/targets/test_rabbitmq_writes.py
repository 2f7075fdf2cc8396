"""What the target of RabbitMQ publishes, and how it takes answers: a real server, without Kafka."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.targets.rabbitmq.config import CONFIG_DEF
from cdcworker.connectors.targets.rabbitmq.target import RabbitTarget
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.devstack.ports import HOST, free_ports
from cdcworker.worker.devstack.rabbitmq import find_programs

from tests.certificates import Authority
from tests.queue_servers.rabbitmq_server import RabbitMqServer
from tests.queue_servers.tls_front import TlsFront
from tests.record_sinks import wait

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def name():
    return f"w{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened():
    made = []

    def open_target(config):
        made.append(RabbitTarget(TargetPlace(CONFIG_DEF.parse({"topics": "t", **config}), "rabbitmq")))
        return made[-1]

    yield open_target
    for target in made:
        target.close()


def record(offset, value, key=None):
    return TargetRecord(f"id-0-{offset}", "shop.orders", 0, offset, 1, None, key or {"id": offset}, None, value)


def batch(*records):
    return RecordBatch(list(records))


def refusal(target, *records):
    with pytest.raises(CdcError) as error:
        target.write(batch(*records))
    return error.value


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_messages_have_a_routing_key_an_id_and_an_event(rabbitmq, opened, name, kind):
    config = rabbitmq.config(name, queue_type=kind, routing_key="${topic}.${key.id}")
    target = opened(config)
    target.write(batch(record(1, {"a": "ä"}), record(2, None)))
    # A stream counts later.
    wait(lambda: rabbitmq.count(name) == 2, "both messages")
    if kind == "stream":
        return
    first, second = rabbitmq.taken(name)
    assert [each.delivery_info["routing_key"] for each in (first, second)] == ["shop.orders.1", "shop.orders.2"]
    assert first.properties["message_id"] == first.headers["cdc-id"] == "id-0-1"
    assert (first.properties["delivery_mode"], first.properties["content_type"]) == (2, "application/json")
    event = json.loads(first.body)
    assert (event["id"], event["key"], event["value"]) == ("id-0-1", {"id": 1}, {"a": "ä"})


def test_many_messages_of_any_size_come_in_their_order(rabbitmq, opened, name):
    target = opened(rabbitmq.config(name))
    records = [record(n, {"a": "x" * (n % 7 * 40_000 if n % 50 == 0 else n)}, {"id": n % 90}) for n in range(1_000)]
    target.write(batch(*records[:600]))
    target.write(batch(*records[600:]))
    found = [json.loads(each.body) for each in rabbitmq.taken(name)]
    assert [each["offset"] for each in found] == list(range(1_000))
    assert [each["value"] for each in found] == [each.value for each in records]


def test_a_queue_that_is_full_is_waited_for_and_gets_each_message_once(rabbitmq, opened, name):
    rabbitmq.make(name, name, max_length=3, overflow="reject-publish")
    target = opened(rabbitmq.config(name, declare="check"))
    records = [record(n, n) for n in range(10)]
    found, said = [], set()
    while len(found) < 10:
        try:
            target.write(batch(*records))
        except TargetUnavailable as error:
            said.add(str(error))
        found += rabbitmq.taken(name)
    assert all("basic.nack" in each for each in said)
    assert said
    offsets = [json.loads(each.body)["offset"] for each in found]
    assert sorted(offsets) == list(range(10)), "what was confirmed is not published again"


def test_no_message_passes_another_of_its_key_where_a_queue_refuses_some(rabbitmq, opened, name):
    rabbitmq.make(name, name, max_length=1, overflow="reject-publish")
    target = opened(rabbitmq.config(name, declare="check"))
    found, ended = [], threading.Event()

    def consume():
        with rabbitmq.channel() as channel:
            channel.basic_qos(0, 1, False)

            def take(message):
                found.append(json.loads(message.body)["offset"])
                channel.basic_ack(message.delivery_tag)

            channel.basic_consume(name, callback=take)
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    channel.connection.drain_events(timeout=0.05)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        records = [record(n, n, {"id": n % 3}) for n in range(400)]

        def written():
            try:
                target.write(batch(*records))
            except TargetUnavailable:
                return False
            return True

        wait(written, "that all are taken")
        wait(lambda: len(found) >= 400, "all messages")
    finally:
        ended.set()
        thread.join()
    for key in range(3):
        assert [n for n in found if n % 3 == key] == list(range(key, 400, 3))


def test_a_message_that_no_queue_takes_is_refused_tried_again_or_dropped(rabbitmq, opened, name):
    rabbitmq.make(name, name, "shop.orders.1")
    config = rabbitmq.config(name, declare="check", routing_key="${topic}.${key.id}")
    assert refusal(opened(config), record(1, 1), record(2, 1)).code == "sink.record_refused"
    assert rabbitmq.count(name) == 1
    assert refusal(opened(config | {"rabbitmq.unroutable": "retry"}), record(2, 1)).code == "sink.target_unavailable"
    ignoring = opened(config | {"rabbitmq.unroutable": "ignore"})
    ignoring.write(batch(record(2, 1)))
    assert [each.severity for each in ignoring.check()] == ["warning"]


def test_what_has_to_be_there_is_made_or_looked_for(rabbitmq, opened, name):
    config = rabbitmq.config(name)
    assert opened(config).check() == [], "what is made needs not be there"
    (finding,) = opened(config | {"rabbitmq.declare": "check"}).check()
    assert (finding.severity, finding.key) == ("error", "rabbitmq.exchange")
    assert name in finding.message
    found = refusal(opened(config | {"rabbitmq.declare": "check"}), record(1, 1))
    assert (found.code, found.where["key"]) == ("sink.target_refuses", "rabbitmq.exchange")
    found = refusal(opened(config | {"rabbitmq.declare": "none"}), record(1, 1))
    assert (found.code, found.where["key"]) == ("sink.target_refuses", "rabbitmq.exchange")
    opened(config).write(batch(record(1, 1)))
    assert opened(config | {"rabbitmq.declare": "check"}).check() == []
    found = refusal(opened(config | {"rabbitmq.queue.type": "quorum"}), record(2, 1))
    assert (found.code, found.where["key"]) == ("sink.target_refuses", "rabbitmq.declare")
    found = refusal(
        opened(config | {"rabbitmq.exchange.type": "x-none", "rabbitmq.exchange": f"{name}-2"}), record(2, 1)
    )
    assert found.code == "sink.target_refuses"
    depends = opened(config | {"rabbitmq.exchange": "x-${key.id}", "rabbitmq.declare": "none", "rabbitmq.queues": ""})
    assert refusal(depends, record(2, 1)).code == "sink.record_refused"


def test_the_default_exchange_knows_queues_by_their_names(rabbitmq, opened, name):
    config = rabbitmq.config(name, exchange="", routing_key=name, queues=name)
    opened(config).write(batch(record(1, 1)))
    assert rabbitmq.count(name) == 1


def test_a_message_that_is_too_large_is_refused(opened, rabbitmq, name):
    target = opened(rabbitmq.config(name))
    rabbitmq.run("application:set_env(rabbit, max_message_size, 1000)")
    rabbitmq.run("persistent_term:put(max_message_size, 1000)")
    try:
        target.write(batch(record(1, "x")))
        assert refusal(target, record(2, "secret" * 1_000)).code == "sink.record_refused"
        target.write(batch(record(3, "x")))
    finally:
        rabbitmq.run("application:set_env(rabbit, max_message_size, 134217728)")
        rabbitmq.run("persistent_term:put(max_message_size, 134217728)")
    assert rabbitmq.count(name) == 2


def test_logins_and_rights_that_are_missing_are_told_by_name(rabbitmq, opened, name):
    config = rabbitmq.config(name)
    opened(config).write(batch(record(1, 1)))
    for unfit, key in (
        ({"rabbitmq.password": "s3cret"}, "rabbitmq.username"),
        ({"rabbitmq.virtual.host": "none"}, "rabbitmq.virtual.host"),
    ):
        found = refusal(opened(config | unfit), record(2, 1))
        assert (found.code, found.where["key"]) == ("sink.target_refuses", key)
        assert "s3cret" not in str(found)
        assert [(one.severity, one.key) for one in opened(config | unfit).check()] == [("error", key)]
    rabbitmq.add_user(name, "p", "^$", f"^{name}$", "^$")
    least = config | {"rabbitmq.username": name, "rabbitmq.password": "p", "rabbitmq.declare": "check"}
    assert opened(least).check() == []
    opened(least).write(batch(record(2, 1)))
    assert rabbitmq.count(name) == 2
    for unfit in ({"rabbitmq.exchange": "amq.topic", "rabbitmq.queues": ""}, {"rabbitmq.declare": "create"}):
        found = refusal(opened(least | unfit), record(3, 1))
        assert (found.code, found.where["key"]) == ("sink.target_refuses", "rabbitmq.username")


def test_servers_are_tried_in_turn(rabbitmq, opened, name):
    (port,) = free_ports(1)
    config = rabbitmq.config(name, addresses=f"{HOST}:{port},{HOST}:{rabbitmq.port}")
    opened(config).write(batch(record(1, 1)))
    assert rabbitmq.count(name) == 1
    away = opened(config | {"rabbitmq.addresses": f"{HOST}:{port}"})
    assert [one.severity for one in away.check()] == ["warning"]
    assert isinstance(refusal(away, record(2, 1)), TargetUnavailable)


def test_a_connection_that_was_idle_or_cut_is_made_anew(rabbitmq, opened, name):
    target = opened(rabbitmq.config(name, requested_heartbeat_seconds="1"))
    target.write(batch(record(1, 1)))
    rabbitmq.cut()
    target.write(batch(record(2, 1)))
    target._client._used_at -= 1
    before = target._client._connection
    target.write(batch(record(3, 1)))
    assert target._client._connection is not before
    assert rabbitmq.count(name) == 3


def test_closed_hosts_and_too_little_tls_are_refused(rabbitmq, opened, name):
    config = rabbitmq.config(name)
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        assert refusal(opened(config), record(1, 1)).code == "config.host_not_allowed"
        assert "no address" in str(refusal(opened(config | {"rabbitmq.addresses": "nowhere.invalid"}), record(1, 1)))
    finally:
        allowed_hosts.use(HostPolicy())
    tls_policy.use("encrypted")
    try:
        with pytest.raises(CdcError) as error:
            opened(config | {"rabbitmq.addresses": "mq.example"})
        assert error.value.code == "config.tls_not_enough"
    finally:
        tls_policy.use("any")


def test_tls_verifies_the_server(rabbitmq, opened, name, tmp_path):
    authority = Authority(tmp_path, "authority")
    with TlsFront(rabbitmq.port, authority.issue("server")) as front:
        config = rabbitmq.config(name, addresses=f"amqps://{HOST}:{front.port}")
        assert "not trusted" in str(refusal(opened(config), record(1, 1)))
        config |= {"rabbitmq.ssl.truststore.certificates": authority.file.read_text()}
        target = opened(config)
        target.write(batch(*(record(n, "x" * 500) for n in range(600))))
        target.write(batch(record(600, 1)))
    assert rabbitmq.count(name) == 601


@pytest.mark.long
def test_a_certificate_says_who_the_client_is(opened, name, tmp_path):
    authority = Authority(tmp_path, "authority")
    server, client = authority.issue("server"), authority.issue("client")
    (port,) = free_ports(1)
    settings = {
        "listeners.ssl.1": f"{HOST}:{port}", "ssl_options.cacertfile": str(authority.file), "ssl_options.certfile": str(server),
        "ssl_options.keyfile": str(server), "ssl_options.verify": "verify_peer", "ssl_options.fail_if_no_peer_cert": "true",
        "auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL", "ssl_cert_login_from": "common_name",
    }  # fmt: skip
    plugins = ("rabbitmq_auth_mechanism_ssl",)
    with RabbitMqServer(find_programs(), tmp_path / "rabbitmq", settings, plugins) as own:
        own.add_user("client", "unused", ".*", ".*", ".*")
        config = own.config(name, addresses=f"amqps://{HOST}:{port}", auth_mechanism="EXTERNAL")
        config |= {
            "rabbitmq.ssl.truststore.certificates": authority.file.read_text(),
            "rabbitmq.ssl.keystore.certificate.chain": client.read_text(),
            "rabbitmq.ssl.keystore.key": client.read_text(),
        }
        opened(config).write(batch(record(1, 1)))
        assert own.count(name) == 1


def test_a_write_is_broken_off_from_another_thread(rabbitmq, opened, name):
    target = opened(rabbitmq.config(name))
    target.write(batch(record(1, 1)))
    child, errors = rabbitmq._running(), []
    child.freeze()
    try:
        thread = threading.Thread(target=lambda: errors.append(refusal(target, record(2, 1)).kind))
        thread.start()
        wait(lambda: not target.cancel() and not thread.is_alive(), "the end of the write")
    finally:
        child.thaw()
    assert errors == ["transient"]
    target.write(batch(record(2, 1)))
    wait(lambda: rabbitmq.count(name) >= 2, "the message")


def test_a_server_that_takes_nothing_now_is_told_and_keeps_one_message(rabbitmq, opened, name):
    target = opened(rabbitmq.config(name, publish_ack_timeout="1000"))
    target.write(batch(record(1, 1)))
    target.close()
    rabbitmq.alarm(on=True)
    try:
        for _ in range(2):
            assert "connection.blocked" in str(refusal(target, *(record(n, "x" * 5_000) for n in range(2, 200))))
    finally:
        rabbitmq.alarm(on=False)
    target.write(batch(*(record(n, "x" * 5_000) for n in range(2, 200))))
    found = [json.loads(each.body)["offset"] for each in rabbitmq.taken(name)]
    assert set(found) == set(range(1, 200))
    assert len(found) <= 199 + 2
