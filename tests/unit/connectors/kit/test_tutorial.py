"""The source of the tutorial is what it says: its code, from the page, passes the checks against a web API, in under 100 lines."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import pytest
from cdcworker.connectors.api.kit import Unavailable
from cdcworker.connectors.kit.connector_classes import source_class
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.source_checks import Limits, SourceChecks

PAGE = Path(__file__).parents[4] / "docs/how-to/write-a-connector.md"
TOKEN = "tutorial-token"


def code() -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return found


class Shop:
    """The web API of the tutorial, and the harness of its source."""

    def __init__(self):
        self.orders, self.answer = [], None
        self.unfit = {"orders.url": "shop"}
        self.start()

    @property
    def config(self):
        return {"orders.url": f"http://127.0.0.1:{self.port}/orders", "orders.token": TOKEN}

    def write(self, count):
        for _ in range(count):
            self.write_text(f"customer {len(self.orders)}")

    def write_text(self, text):
        self.orders.append({"id": len(self.orders) + 1, "customer": text, "items": [1], "unknown": True})

    def rows(self):
        return [("orders", {"id": each["id"], "customer": each["customer"]}) for each in self.orders]

    def stop(self):
        self.answer = (503, {})

    def start(self):
        self.answer = None
        if not hasattr(self, "server"):
            self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
            self.port = self.server.server_address[1]
            threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def handler(shop):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked = {name: int(values[0]) for name, values in parse_qs(urlsplit(self.path).query).items()}
            found = shop.orders[asked["after"] : asked["after"] + asked["limit"]]
            status, headers = shop.answer or (200, {})
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status = 401
            more = asked["after"] + len(found) < len(shop.orders)
            body = json.dumps({"orders": found, "more": more}).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


@pytest.fixture(scope="module")
def module():
    made = ModuleType("acme_orders")
    exec(compile(code(), str(PAGE), "exec"), made.__dict__)
    return made


@pytest.fixture
def shop():
    made = Shop()
    yield made
    made.close()


def made_class(module):
    return source_class("acme-orders", "1.0", module.plugin)


def test_it_is_short() -> None:
    assert len(code().splitlines()) < 100


def test_the_source_passes_the_checks(module, shop):
    config = {"connector.class": "acme-orders", "topic.prefix": "p", "poll.interval.ms": "0", **shop.config}
    checks = SourceChecks(made_class(module), shop, config, limits=Limits(10.0, 10.0, 0.2))
    assert [each for each in findings(checks.all()) if each.problem] == []


def test_it_waits_as_long_as_the_shop_says_and_tells_a_wrong_token(module, shop):
    config = {"topic.prefix": "p", **shop.config}
    made = made_class(module)
    shop.answer = (429, {"Retry-After": 7})
    parsed = made.config_def.parse(config)
    source = module.Orders(type("Place", (), {"config": parsed}))
    with pytest.raises(Unavailable) as caught:
        source.read(None)
    assert caught.value.retry_after_s == 7
    source.close()
    shop.answer = None
    (finding,) = made({**config, "orders.token": "wrong"}).check()
    assert (finding.code, finding.message) == ("plugin.misconfigured", "the shop answers 401")
    assert made(config).check() == []
