"""A web API with one list of items, over HTTP, with all ways of pages; and the same as the harness of a source."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

PAGE = 500


class JsonApi:
    """`GET /items?since=…` answers with items whose `at` is not below `since`; `pages` says how the next page is named. `answers` are
    given first, each a status, headers and a body. `asked` are the requests."""

    def __init__(self, pages: str = "none", page: int = PAGE) -> None:
        self.items: list[dict[str, Any]] = []
        self.answers: list[tuple[int, Mapping[str, str], bytes]] = []
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.pages, self.page, self.is_away = pages, page, False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/items?kind=all"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, target: str) -> tuple[int, Mapping[str, str], bytes]:
        if self.is_away:
            return 503, {}, b""
        if self.answers:
            return self.answers.pop(0)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        found = [item for item in self.items if item["at"] >= int(asked.get("since", 0))]
        begin = (int(asked.get("page", 1)) - 1) * self.page if self.pages == "page" else int(asked.get("offset", 0))
        end = begin + self.page if self.pages != "none" else len(found)
        shown, headers, more = found[begin:end], {}, end < len(found)
        body: dict[str, Any] = {"data": {"items": shown}, "next": None}
        following = f"/items?{urlencode({**asked, 'offset': end})}"
        if more and self.pages == "link":
            headers = {"Link": f'<{self.url}>; rel="first", <{following}>; rel="next"'}
        elif more and self.pages == "next":
            body["next"] = f"http://127.0.0.1:{self.port}{following}"
        elif more and self.pages == "cursor":
            body["next"] = end
        return 200, headers, json.dumps(body).encode()


def _handler(api: JsonApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            api.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            status, headers, body = api.answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class ApiHarness(JsonApi):
    """The API as a source's outside: its cursor is the number of an item."""

    unfit: Mapping[str, str] = {"http.url": "nowhere"}

    @property
    def config(self) -> Mapping[str, str]:
        return {
            "http.url": self.url, "http.table": "orders", "http.items.pointer": "/data/items", "http.key": "id",
            "http.fields": "id:int64,customer:string:/who/name,at:int64,extra:json", "http.cursor.field": "at",
            "http.cursor.parameter": "since", "http.pagination": "link",
        }  # fmt: skip

    def write(self, count: int) -> None:
        for _ in range(count):
            self.write_text(f"customer {len(self.items)}")

    def write_text(self, text: str) -> None:
        number = len(self.items) + 1
        self.items.append({"id": number, "who": {"name": text}, "at": number, "extra": [1.5, None]})

    def rows(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [
            ("orders", {"id": item["id"], "customer": item["who"]["name"], "at": item["at"]}) for item in self.items
        ]

    def stop(self) -> None:
        self.is_away = True

    def start(self) -> None:
        self.is_away = False
