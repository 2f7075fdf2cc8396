"""What answers under the address of --connect is Kafka Connect, or is told to be something else."""

from __future__ import annotations

import json

import httpx
import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.takeover.former_connector import ConnectOffsetsTopic
from cdcworker.worker.cli.takeover.kafka_connect import KafkaConnect

STOPPED = {"connector": {"state": "STOPPED"}, "tasks": []}


@pytest.fixture
def connect():
    """Makes one whose answers are given, by method and path."""
    asked = []

    def make(answers, url="http://connect:8083/"):
        def answer(request):
            asked.append(f"{request.method} {request.url.path}")
            found = answers.get(asked[-1])
            if found is None:
                return httpx.Response(404, json={"message": "not found"})
            return httpx.Response(200, text=found if isinstance(found, str) else json.dumps(found))

        made = KafkaConnect(url)
        made._client = httpx.Client(transport=httpx.MockTransport(answer))
        made.asked = asked
        return made

    return make


@pytest.mark.parametrize("url", ["connect:8083", "http://connect:port", "ftp://connect", "http://", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(CdcError) as caught:
        KafkaConnect(url)
    assert caught.value.code == "cli.connect_refused"
    assert "no address" in caught.value.message


def test_a_password_in_the_address_is_used_and_not_shown():
    one = KafkaConnect("http://me:can%40ary@connect:8083/")
    assert one.url == "http://connect:8083"
    (header,) = [step.headers["authorization"] for step in one._client.auth.auth_flow(httpx.Request("GET", one.url))]
    assert header == "Basic bWU6Y2FuQGFyeQ=="


@pytest.mark.parametrize("content", ["<html>", "{}", '"text"'])
def test_an_answer_of_another_program_is_told(connect, content):
    with pytest.raises(CdcError, match="GET /connectors was answered as Kafka Connect does not"):
        connect({"GET /connectors": content}).connectors()


def test_a_key_without_a_value_is_no_key(connect):
    one = connect({"GET /connectors/shop/config": {"name": "shop", "database.password": None}})
    assert one.config("shop") == {"name": "shop"}


def test_a_connector_that_stands_is_left_alone(connect):
    one = connect({"GET /connectors/shop/status": STOPPED})
    one.stop("shop")
    assert one.asked == ["GET /connectors/shop/status"]


def test_keys_of_others_in_the_topic_of_offsets_are_passed_over(monkeypatch):
    class Log:
        def __init__(self, *_arguments, **_more):
            pass

        def read_to_end(self, _timeout_s):
            keys = ("not json", "5", "{}", '["other",{"server":"o"}]', '["shop",{"server":"s"}]')
            return [type("Record", (), {"key": key, "value": {"lsn": 8}}) for key in keys]

        def close(self):
            pass

    monkeypatch.setattr("cdcworker.coordinator.kafka.compacted_log.KafkaCompactedLog", Log)
    assert ConnectOffsetsTopic("kafka:9092", "offsets").stored_offsets("shop") == [
        {"partition": {"server": "s"}, "offset": {"lsn": 8}}
    ]
