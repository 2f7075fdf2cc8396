"""Where nobody has to say who asks: pages of other sites in a browser on the same machine ask in vain."""

import pytest
from cdcworker.worker.security.gate import Gate


@pytest.fixture
def local(connect, herder):
    return connect(herder, gate=Gate(local_only=True))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8083", "127.0.0.1:8083", "127.0.0.9", "[::1]:8083", "LOCALHOST"]
)
def test_names_of_this_machine_are_answered(local, host):
    assert local.get("/connectors", headers={"Host": host}).status_code == 200
    origin = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert local.get("/connectors", headers=origin).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8083",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "a@b",
        "[x",
    ],
)
def test_a_rebound_name_is_not(local, host):
    answer = local.get("/connectors", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.not_permitted")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://[x"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_what_a_page_of_another_site_sends_is_refused(local, herder, config, headers):
    headers = {"Host": "localhost:8083", **headers}
    for method, path in (("POST", "/connectors"), ("GET", "/connectors"), ("POST", "/v1/drain")):
        assert local(method, path, json={"name": "c", "config": config}, headers=headers).status_code == 403
    assert herder.submitted == []


def test_probes_are_answered_by_any_name(local):
    assert local.get("/health", headers={"Host": "pod.example"}).status_code == 200
