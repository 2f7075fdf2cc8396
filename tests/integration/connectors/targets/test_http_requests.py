"""What the target of web services sends, and how it takes answers: a real server, without Kafka."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time

import pytest
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord, TargetUnavailable
from cdcworker.connectors.config import allowed_hosts, tls_policy
from cdcworker.connectors.config.allowed_hosts import HostPolicy
from cdcworker.connectors.targets.http.config import CONFIG_DEF
from cdcworker.connectors.targets.http.target import HttpTarget
from cdcworker.connectors.transforms.data import Header
from cdcworker.schemas.errors import CdcError

from tests.certificates import Authority
from tests.record_sinks import Webhook, is_signed, wait

SECRET = b"a secret of the test"


@pytest.fixture
def hook():
    made = Webhook()
    yield made
    made.close()


def opened(hook, class_name="http-sink", **more):
    config = {"topics": "t", "http.url": hook.url, **{name.replace("__", "."): text for name, text in more.items()}}
    return HttpTarget(TargetPlace(CONFIG_DEF.parse(config), class_name))


def records(*values, **more):
    return RecordBatch(
        [TargetRecord(f"id-0-{n}", "t", 0, n, 1, None, {"k": n}, None, v, **more) for n, v in enumerate(values)]
    )


def test_a_batch_is_one_request_of_events(hook):
    target = opened(hook)
    target.write(records({"a": 1}, None, {"a": "ä\n\U0001f418"}))
    ((method, path, headers, body),) = hook.requests
    assert (method, path, headers["Content-Type"]) == ("POST", "/hook", "application/json")
    whole = {
        "id": "id-0-0",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 1,
        "key": {"k": 0},
        "value": {"a": 1},
    }
    found = json.loads(body)
    assert found[0] == whole
    assert [event["value"] for event in found] == [{"a": 1}, None, {"a": "ä\n\U0001f418"}]
    assert headers["Idempotency-Key"].startswith("batch-")
    target.write(records({"a": 1}, None, {"a": "ä\n\U0001f418"}))
    assert hook.requests[1][2]["Idempotency-Key"] == headers["Idempotency-Key"], "the same records have the same id"
    target.close()


def test_requests_are_signed_and_carry_the_login(hook):
    more = {
        "http__signature__secret": "whsec_" + base64.b64encode(SECRET).decode(),
        "http__authorization__type": "Bearer",
        "http__authorization__token": "t0ken",
        "http__headers__additional": "X-Tenant: a, X-Other: b",
        "batch__max__size": "1",
    }
    target = opened(hook, **more)
    target.write(records({"a": 1}))
    ((_, _, headers, body),) = hook.requests
    assert is_signed(SECRET, headers, body)
    assert (headers["Authorization"], headers["X-Tenant"], headers["X-Other"]) == ("Bearer t0ken", "a", "b")
    assert headers["Idempotency-Key"] == headers["webhook-id"] == "id-0-0"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert json.loads(body)["id"] == "id-0-0", "a request of one record alone is no array"
    target.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "sink.record_refused", "data"),
        (409, "sink.record_refused", "data"),
        (422, "sink.record_refused", "data"),
        (401, "sink.target_refuses", "config"),
        (403, "sink.target_refuses", "config"),
        (404, "sink.target_refuses", "config"),
        (301, "sink.target_refuses", "config"),
        (307, "sink.target_refuses", "config"),
        (408, "sink.target_unavailable", "transient"),
        (425, "sink.target_unavailable", "transient"),
        (429, "sink.target_unavailable", "transient"),
        (500, "sink.target_unavailable", "transient"),
        (503, "sink.target_unavailable", "transient"),
    ],
)
def test_what_a_status_means(hook, status, code, kind):
    hook.trouble = lambda number, events: status
    target = opened(hook)
    with pytest.raises(CdcError) as caught:
        target.write(records({"secret": "of a row"}))
    assert (caught.value.code, caught.value.kind, caught.value.where) == (code, kind, {"status": status})
    assert "row" not in str(caught.value)
    assert len(hook.requests) == 1
    target.close()


def test_an_address_with_places_may_miss_for_one_record(hook):
    hook.trouble = lambda number, events: 404
    target = opened(hook, http__url=hook.url + "/${key.k}")
    with pytest.raises(CdcError) as caught:
        target.write(records({"a": 1}))
    assert caught.value.code == "sink.record_refused"
    target.close()


def test_how_long_a_server_wants_to_be_left_alone(hook):
    hook.trouble = lambda number, events: (503, 7)
    target = opened(hook)
    with pytest.raises(TargetUnavailable) as caught:
        target.write(records({"a": 1}))
    assert caught.value.retry_after_s == 7
    target.close()


def test_a_connection_that_the_server_has_closed_is_opened_again(hook):
    target = opened(hook)
    target.write(records({"a": 1}))
    hook.stop()
    hook.start()
    target.write(records({"a": 2}))
    assert len(hook.events) == 2
    target.close()


def test_a_write_is_broken_off_from_another_thread(hook):
    hook.trouble = lambda number, events: "hang"
    target, caught = opened(hook), []

    def write():
        try:
            target.write(records({"a": 1}))
        except CdcError as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait(lambda: hook.requests, "the request")
    target.cancel()
    thread.join(30)
    assert [error.code for error in caught] == ["sink.target_unavailable"]
    target.close()


def test_a_write_on_a_kept_connection_is_broken_off_and_not_sent_again_by_itself(hook):
    hook.trouble = lambda number, events: "hang" if number > 1 else None
    target, caught = opened(hook), []
    target.write(records({"a": 1}))

    def write():
        try:
            target.write(records({"a": 2}))
        except CdcError as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    wait(lambda: len(hook.requests) == 2, "the request")
    target.cancel()
    thread.join(30)
    assert [error.code for error in caught] == ["sink.target_unavailable"]
    assert len(hook.requests) == 2
    target.close()


@contextlib.contextmanager
def answering(*answers):
    """A server that answers the head of each connection's first request with these bytes, and closes without reading on."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        for answer in answers:
            connection, _ = server.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(4_096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        thread.join(30)
        assert not thread.is_alive()
    finally:
        server.close()


def test_a_server_that_hangs_in_the_handshake_is_broken_off(hook):
    server = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{server.getsockname()[1]}/"
    target, caught = opened(hook, http__url=url, http__connect__timeout__ms="600000"), []

    def write():
        try:
            target.write(records({"a": 1}))
        except CdcError as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    connection, _ = server.accept()
    assert connection.recv(1), "the client's hello"
    target.cancel()
    thread.join(30)
    assert [error.code for error in caught] == ["sink.target_unavailable"]
    connection.close()
    server.close()
    target.close()


def test_a_server_that_reads_no_body_of_this_size_refuses_the_record(hook):
    said = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with answering(said) as url:
        target = opened(hook, http__url=url)
        with pytest.raises(CdcError) as caught:
            target.write(records({"a": "x" * 30_000_000}))
    assert (caught.value.code, caught.value.where) == ("sink.record_refused", {"status": 413})
    target.close()


def test_a_request_that_was_sent_in_part_was_not_taken(hook):
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url:
        target = opened(hook, http__url=url)
        with pytest.raises(TargetUnavailable):
            target.write(records({"a": "x" * 30_000_000}))
    target.close()


def test_an_answer_behind_early_hints_counts(hook):
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    with answering(hints + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url:
        target = opened(hook, http__url=url)
        target.write(records({"a": 1}))
    with answering(hints * 20) as url:
        endless = opened(hook, http__url=url)
        with pytest.raises(TargetUnavailable):
            endless.write(records({"a": 1}))
    target.close()
    endless.close()


def test_no_answer_is_a_passing_trouble(hook):
    hook.stop()
    target = opened(hook)
    with pytest.raises(TargetUnavailable):
        target.write(records({"a": 1}))
    assert [finding.code for finding in target.check()] == ["sink.target_unavailable"]
    hook.start()
    assert target.check() == []
    assert hook.requests == [], "a check sends no request"
    target.close()


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "localhost"])
def test_closed_addresses_are_not_connected_to(host):
    allowed_hosts.use(HostPolicy(loopback=False))
    try:
        config = CONFIG_DEF.parse({"topics": "t", "http.url": "http://example.invalid/"})
        target = HttpTarget(TargetPlace({**config, "http.url": f"http://{host}/latest"}))
        with pytest.raises(CdcError) as caught:
            target.write(records({"a": 1}))
        assert caught.value.code == "config.host_not_allowed"
        assert [finding.code for finding in target.check()] == ["config.host_not_allowed"]
    finally:
        allowed_hosts.use(HostPolicy())


def test_plain_http_to_another_machine_is_refused_where_the_worker_asks_for_tls():
    tls_policy.use("verified")
    try:
        with pytest.raises(CdcError) as caught:
            HttpTarget(TargetPlace(CONFIG_DEF.parse({"topics": "t", "http.url": "http://192.0.2.1/"})))
        assert caught.value.code == "config.tls_not_enough"
        HttpTarget(TargetPlace(CONFIG_DEF.parse({"topics": "t", "http.url": "https://192.0.2.1/"})))
    finally:
        tls_policy.use("any")


def test_certificates_of_both_sides_are_verified(hook, tmp_path):
    authority = Authority(tmp_path, "authority")
    hook.secure(authority.issue("server"), authority.file)
    client = authority.issue("client").read_text()
    chain, key = client[: client.index("-----BEGIN PRIVATE")], client[client.index("-----BEGIN PRIVATE") :]
    more = {"http__ssl__keystore__certificate__chain": chain, "http__ssl__keystore__key": key}
    url = hook.url.replace("http://", "https://")
    trusted = opened(hook, http__url=url, http__ssl__truststore__certificates=authority.file.read_text(), **more)
    trusted.write(records({"a": 1}))
    assert len(hook.events) == 1
    trusted.close()
    stranger = opened(hook, http__url=url, **more)
    with pytest.raises(CdcError) as caught:
        stranger.write(records({"a": 1}))
    assert caught.value.code == "sink.target_refuses"
    stranger.close()


def test_values_of_aiven_and_confluent_are_understood(hook):
    aiven = "io.aiven.kafka.connect.http.HttpSinkConnector"
    target = opened(hook, aiven, batching__enabled="true", batch__max__size="2")
    target.write(records({"a": 1}, {"a": 2}))
    assert hook.trouble is None
    assert hook.requests[0][3] == b'{"a":1}\n{"a":2}'
    target.close()
    confluent = "io.confluent.connect.http.HttpSinkConnector"
    target = opened(hook, confluent, batch__max__size="1")
    target.write(records({"a": 1}))
    target.write(records(None))
    assert [body for *_, body in hook.requests[1:]] == [b'{"a":1}'], "a tombstone is left out"
    target.close()


def test_bodies_by_template(hook):
    template = '{"what":"changed","id":${id},"row":${value.after},"key":${key.k},"tenant":${header.tenant}}'
    target = opened(hook, http__body__template=template, batch__max__size="1")
    target.write(records({"after": {"a": 'q"'}}, headers=[Header("tenant", None, b"acme")]))
    assert json.loads(hook.requests[0][3]) == {
        "what": "changed", "id": "id-0-0", "row": {"a": 'q"'}, "key": 0, "tenant": "acme",
    }  # fmt: skip
    with pytest.raises(CdcError) as caught:
        target.write(records({"before": 1}))
    assert (caught.value.kind, caught.value.where) == ("data", {"place": "value.after"})
    target.close()
