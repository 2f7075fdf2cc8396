"""Follows a worker's event stream, and continues at another worker when the stream breaks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from cdcworker.worker.cli.client.remote import CONNECT_S, RemoteAnswer, RemoteCluster

SILENT_S: Final = 40.0
"""Seconds after which a silent connection counts as dead: a worker sends something every 15 seconds."""
PAUSE_S: Final = 1.0
Query = Sequence[tuple[str, Any]]


def follow(
    remote: RemoteCluster, path: str, query: Query, *, limited: bool, on_cut: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, Any]]:
    """Yields (kind, data) of each event. `limited`: the stream ends when the worker ends it; else it is opened again
    after `on_cut`."""
    import httpx

    last, failures, begun = "", 0, False
    while True:
        try:
            for kind, id, data in stream(remote, path, query, last):
                last, failures, begun = id or last, 0, True
                yield kind, data
            if limited:
                return
        except httpx.HTTPError as exc:
            failures += 1
            if failures > len(remote.urls):
                raise remote.unreachable(remote.urls, exc) from exc
            remote.use_next()
        if begun:
            on_cut()
        time.sleep(PAUSE_S)


def stream(remote: RemoteCluster, path: str, query: Query, last: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (kind, id, data) of each event of one connection."""
    import httpx

    headers = {"accept": "text/event-stream", **remote.access.headers(), **({"last-event-id": last} if last else {})}
    timeout = httpx.Timeout(SILENT_S, connect=CONNECT_S)
    with httpx.stream(
        "GET",
        remote.url + path,
        params=list(query),
        headers=headers,
        timeout=timeout,
        trust_env=False,
        **remote.options(),
    ) as answer:
        if answer.status_code >= 300:
            answer.read()
            remote.refuse(RemoteAnswer(answer.status_code, answer.json(), answer.headers))
        yield from parsed(answer.iter_lines())


def parsed(lines: Iterable[str]) -> Iterator[tuple[str, str, Any]]:
    """Yields (kind, id, data) of each event in the lines of a stream."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.strip() and not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif not line.strip():
            if "data" in fields:
                yield fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
            fields = {}
