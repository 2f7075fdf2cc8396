"""The keys of the sink into RabbitMQ, its messages, how confirms are counted, and what errors of the server mean."""

from __future__ import annotations

import pytest

pytest.importorskip("amqp")

from amqp import exceptions
from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.targets.rabbitmq.addresses import is_secure, places_of
from cdcworker.connectors.targets.rabbitmq.config import CONFIG_DEF, OTHERS
from cdcworker.connectors.targets.rabbitmq.confirms import Confirms, Message
from cdcworker.connectors.targets.rabbitmq.messages import MessageForm, order_of, word
from cdcworker.connectors.targets.rabbitmq.replies import PUBLISH, error_of, login_error
from cdcworker.connectors.targets.rabbitmq.topology import Binding, topology_of
from cdcworker.connectors.transforms.data import Header
from cdcworker.schemas.errors import CdcError

BASE = {"topics": "t", "rabbitmq.addresses": "mq.example", "rabbitmq.exchange": "x"}


def parsed(**more):
    given = {f"rabbitmq.{name.replace('_', '.')}": value for name, value in more.items()}
    return CONFIG_DEF.parse({**BASE, **given})


def wrong(config):
    return {value.name for value in CONFIG_DEF.validate({**BASE, **config}) if value.errors}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rabbitmq.addresses": "amqp://user:pass@a"}, "rabbitmq.addresses"),
        ({"rabbitmq.addresses": "http://a"}, "rabbitmq.addresses"),
        ({"rabbitmq.addresses": "a:0"}, "rabbitmq.addresses"),
        ({"rabbitmq.addresses": "169.254.169.254"}, "rabbitmq.addresses"),
        ({"rabbitmq.host": "a"}, "rabbitmq.addresses"),
        ({"rabbitmq.host": "a b", "rabbitmq.addresses": ""}, "rabbitmq.host"),
        ({"rabbitmq.username": "u"}, "rabbitmq.password"),
        ({"rabbitmq.exchange": "${value}"}, "rabbitmq.exchange"),
        ({"rabbitmq.exchange": "x" * 128}, "rabbitmq.exchange"),
        ({"rabbitmq.exchange": "x-${topic}", "rabbitmq.declare": "create"}, "rabbitmq.declare"),
        ({"rabbitmq.exchange": "", "rabbitmq.queues": "a=b"}, "rabbitmq.queues"),
        ({"rabbitmq.exchange": "amq.topic", "rabbitmq.declare": "create"}, "rabbitmq.declare"),
        ({"rabbitmq.exchange.type": "fan"}, "rabbitmq.exchange.type"),
        ({"rabbitmq.queue.arguments": "x-max-length"}, "rabbitmq.queue.arguments"),
        ({"rabbitmq.topic.queue.map": '{"a":1}'}, "rabbitmq.topic.queue.map"),
        ({"rabbitmq.topic.queue.map": "a:b"}, "rabbitmq.topic.queue.map"),
        ({"rabbitmq.headers": "a"}, "rabbitmq.headers"),
        ({"rabbitmq.headers": "a:${x}"}, "rabbitmq.headers"),
        ({"rabbitmq.auth.mechanism": "EXTERNAL"}, "rabbitmq.ssl.keystore.certificate.chain"),
        ({"rabbitmq.ssl.truststore.certificates": "x"}, "rabbitmq.ssl.truststore.certificates"),
        ({"rabbitmq.https.ssl.truststore.location": "x"}, "rabbitmq.https.ssl.truststore.location"),
        ({"rabbitmq.publish.max.batch.size": "0"}, "rabbitmq.publish.pending.max"),
    ],
)
def test_what_is_refused_by_name(config, key):
    assert wrong(config) == {key}


def test_a_config_of_confluents_sink_means_what_it_meant():
    given = {
        "topics": "t", "rabbitmq.host": "rabbitmq", "rabbitmq.port": "5671", "rabbitmq.username": "u", "rabbitmq.password": "p",
        "rabbitmq.exchange": "exchange1", "rabbitmq.routing.key": "rkey1", "rabbitmq.delivery.mode": "persistent",
        "rabbitmq.queue": "myqueue", "rabbitmq.security.protocol": "SSL", "rabbitmq.publish.max.batch.size": "100",
        "rabbitmq.publish.max.retries": "1", "rabbitmq.publish.ack.timeout": "10000",
    }  # fmt: skip
    assert [value.name for value in CONFIG_DEF.validate(given) if value.errors] == []
    config = CONFIG_DEF.parse(given)
    assert places_of(config) == [("rabbitmq", 5671)]
    assert (is_secure(config), config["rabbitmq.publish.pending.max"]) == (True, 100)
    made = MessageForm(config, OTHERS[0]).message(record(b"\0raw"))
    assert (made.exchange, made.routing_key, made.content.body) == ("exchange1", "rkey1", b"\0raw")
    assert made.content.properties["content_type"] == "application/octet-stream"


def test_the_forms_of_addresses():
    config = parsed(addresses="a,amqps://b:1,[2001:db8::1]:2")
    assert is_secure(config)
    assert places_of(config) == [("a", 5671), ("b", 1), ("2001:db8::1", 2)]
    assert places_of(parsed(addresses="a")) == [("a", 5672)]


def test_queues_their_bindings_and_their_arguments():
    made = topology_of(
        parsed(
            queues="a=x.#,a=y,b",
            queue_arguments="x-max-length=5,x-overflow=reject-publish,x-single-active-consumer=true",
        )
    )
    assert made.bindings == [Binding("a", "x.#"), Binding("a", "y"), Binding("b", "")]
    assert made.arguments == {
        "x-queue-type": "quorum", "x-max-length": 5, "x-overflow": "reject-publish", "x-single-active-consumer": True,
    }  # fmt: skip
    assert topology_of(parsed(exchange="", queues="a")).bindings == [Binding("a", None)]
    assert topology_of(parsed(exchange="x-${topic}")).exchange == ""


def record(value, *, offset=1, key=None, headers=(), topic="shop.orders"):
    return TargetRecord(f"id-0-{offset}", topic, 0, offset, 1_500, None, key, None, value, headers)


def test_a_message_says_which_record_it_is():
    made = MessageForm(parsed(routing_key="${topic}.${key.id}"), "rabbitmq").message(
        record({"a": "ä"}, key={"id": "7.5"})
    )
    assert (made.id, made.exchange, made.routing_key) == ("id-0-1", "x", "shop.orders.7%2E5")
    properties = made.content.properties
    assert properties["message_id"] == "id-0-1"
    assert (properties["delivery_mode"], properties["timestamp"]) == (2, 1)
    assert properties["application_headers"] == {"cdc-id": "id-0-1"}
    assert made.content.body.decode().startswith('{"id":"id-0-1","topic":"shop.orders","partition":0,"offset":1,')


def test_headers_key_and_place_of_the_record_are_forwarded():
    config = parsed(
        headers="op:${value.op},fixed:x:y", forward_kafka_key="true", forward_kafka_metadata="true", forward_kafka_headers="true",
        id_header="x-deduplication-header", priority="3", expiration_ms="10", delivery_mode="TRANSIENT",
    )  # fmt: skip
    made = MessageForm(config, "rabbitmq").message(
        record({"op": "u"}, key={"id": 7}, headers=(Header("h", None, b"text"), Header("raw", None, b"\xff")))
    )
    properties = made.content.properties
    assert properties["application_headers"] == {
        "h": "text", "raw": b"\xff", "KAFKA_TOPIC": "shop.orders", "KAFKA_PARTITION": 0, "KAFKA_OFFSET": 1, "op": "u",
        "fixed": "x:y", "x-deduplication-header": "id-0-1",
    }  # fmt: skip
    assert (properties["correlation_id"], properties["priority"], properties["expiration"]) == ("7", 3, "10")
    assert properties["delivery_mode"] == 1


@pytest.mark.parametrize(
    ("value", "body", "content_type"),
    [({"a": 1}, b'{"a":1}', "application/json"), ("text", b"text", "text/plain"), (b"\0", b"\0", "application/octet-stream"),
     (None, b"null", "application/json")],
)  # fmt: skip
def test_a_value_alone_is_json_text_or_bytes(value, body, content_type):
    made = MessageForm(parsed(format="value"), "rabbitmq").message(record(value))
    assert (made.content.body, made.content.properties["content_type"]) == (body, content_type)


def test_a_topic_of_the_map_goes_straight_to_its_queue():
    form = MessageForm(parsed(topic_queue_map='{"a":"qa"}'), "rabbitmq")
    assert form.message(record(1, topic="a"))[2:4] == ("", "qa")
    assert form.message(record(1, topic="b"))[2:4] == ("x", "b")


@pytest.mark.parametrize("value", [{"a": None}, {"a": [1]}, {"b": 1}, {"a": "\ud800"}, {"a": "x" * 256}])
def test_a_record_without_a_routing_key_is_refused(value):
    with pytest.raises(CdcError) as error:
        MessageForm(parsed(routing_key="${value.a}"), "rabbitmq").message(record(value))
    assert error.value.code == "sink.record_refused"


def test_values_are_words_that_differ():
    values = ["a.b", "a%2Eb", "a", "a%b", "*", "#", "ä"]
    assert len({word(value) for value in values}) == len(values)
    assert not any("." in word(value) for value in values)


def test_records_of_one_key_have_one_order():
    one, same, other = (order_of(record(n, key={"id": key})) for n, key in ((1, 5), (2, 5), (3, 6)))
    assert one == same != other
    assert order_of(record(1)) is None
    assert order_of(record(1, key={"id": [1]})) == order_of(record(2, key={"id": [1]}))


def message(number, order=None):
    return Message(f"m{number}", order, "", "", None)


def test_confirms_count_single_messages_and_all_up_to_one():
    taken: set[str] = set()
    confirms = Confirms(taken)
    for number in range(1, 7):
        confirms.sent(message(number, number % 2))
    confirms.confirmed(2, multiple=False)
    assert (taken, len(confirms), confirms.holds(0), confirms.holds(1)) == ({"m2"}, 5, False, True)
    confirms.returned("m4")
    confirms.confirmed(4, multiple=True)
    assert (taken, confirms.unroutable) == ({"m1", "m2", "m3"}, ["m4"])
    confirms.confirmed(4, multiple=True)
    confirms.refused(5, multiple=False)
    confirms.confirmed(0, multiple=True)
    assert (taken, confirms.not_taken, len(confirms)) == ({"m1", "m2", "m3", "m6"}, 1, 0)
    confirms.begin(set())
    confirms.sent(message(7))
    confirms.confirmed(7, multiple=False)
    assert (confirms.not_taken, confirms.unroutable, len(confirms)) == (0, [], 0)


def test_a_message_waits_for_one_of_its_key_and_comes_again_with_one_that_was_not_taken():
    confirms = Confirms(set())
    for number in (1, 2):
        confirms.sent(message(number, number))
    confirms.refused(1, multiple=False)
    confirms.confirmed(2, multiple=False)
    assert [confirms.holds(order) for order in (1, 2, None)] == [False, False, False]
    assert [confirms.holds_back(message(3, order)) for order in (1, 2, None)] == [True, False, False]
    assert confirms.not_taken == 2
    confirms.begin(set())
    assert not confirms.holds_back(message(4, 1))
    for retries in (False, True):
        confirms = Confirms(set(), retries_unroutable=retries)
        confirms.sent(message(1, 1))
        confirms.returned("m1")
        confirms.confirmed(1, multiple=False)
        assert confirms.holds_back(message(2, 1)) is retries


TOPOLOGY = topology_of(parsed())
DECLARE = (40, 10)


@pytest.mark.parametrize(
    ("error", "kind", "key"),
    [
        (exceptions.NotFound("x", PUBLISH, reply_code=404), "config", "rabbitmq.exchange"),
        (exceptions.AccessRefused("s3cret", PUBLISH, reply_code=403), "config", "rabbitmq.username"),
        (exceptions.PreconditionFailed("x", DECLARE, reply_code=406), "config", "rabbitmq.declare"),
        (exceptions.PreconditionFailed("s3cret is too large", PUBLISH, reply_code=406), "data", None),
        (exceptions.ResourceLocked("x", (50, 10), reply_code=405), "config", "rabbitmq.queues"),
        (
            exceptions.InvalidCommand("unknown exchange type", DECLARE, reply_code=503),
            "config",
            "rabbitmq.exchange.type",
        ),
        (exceptions.ConnectionForced("s3cret", (0, 0), reply_code=320), "transient", None),
        (exceptions.InternalError("s3cret", (0, 0), reply_code=541), "transient", None),
        (ConnectionResetError(104, "s3cret"), "transient", None),
        (TimeoutError("s3cret"), "transient", None),
    ],
)
def test_what_an_error_means(error, kind, key):
    found = error_of(error, TOPOLOGY)
    assert (found.kind, found.where.get("key")) == (kind, key)
    assert "s3cret" not in str(found)


def test_an_exchange_that_the_record_names_is_no_reason_to_halt():
    depends = topology_of(parsed(exchange="x-${topic}"))
    assert error_of(exceptions.NotFound("x", PUBLISH, reply_code=404), depends).kind == "data"


@pytest.mark.parametrize(
    ("error", "kind", "key"),
    [
        (exceptions.AccessRefused("s3cret", (0, 0), reply_code=403), "config", "rabbitmq.username"),
        (exceptions.NotAllowed("s3cret", (10, 40), reply_code=530), "config", "rabbitmq.virtual.host"),
        (exceptions.ConnectionForced("x", (0, 0), reply_code=320), "transient", None),
        (ConnectionRefusedError(111, "x"), "transient", None),
    ],
)
def test_what_a_failed_login_means(error, kind, key):
    found = login_error(error)
    assert (found.kind, found.where.get("key")) == (kind, key)
    assert "s3cret" not in str(found)
