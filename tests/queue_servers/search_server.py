"""A real server of OpenSearch, from the locked Java libraries."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from cdcworker.worker.devstack.opensearch import EmbeddedOpenSearch

ANSWER_S = 30.0


class SearchServer(EmbeddedOpenSearch):
    """A server, and what it holds."""

    def config(self, **more: str) -> dict[str, str]:
        """Returns the config of a sink."""
        return {
            "connector.class": "opensearch",
            "connection.url": self.url,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the value of an answer; None where there is none, or it is an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def documents(self, index: str, since: int = 0) -> list[dict[str, Any]]:
        """Returns the documents of an index in the order in which they were written last, each with `_id`, `_version`, `_seq_no` and
        `_source`: up to 10,000 from a sequence number on."""
        self.ask("POST", f"/{index}/_refresh")
        query = {"range": {"_seq_no": {"gte": since}}}
        body = {"size": 10_000, "version": True, "seq_no_primary_term": True, "sort": ["_seq_no"], "query": query}
        found = self.ask("POST", f"/{index}/_search", body)
        return [] if found is None else list(found["hits"]["hits"])

    def rows(self, index: str) -> dict[str, Any]:
        """Returns what the documents of an index hold, by their ids."""
        return {one["_id"]: one["_source"] for one in self.documents(index)}

    def drop(self, *indexes: str) -> None:
        for index in indexes:
            self.ask("DELETE", f"/{index}")
