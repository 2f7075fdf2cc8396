"""The two connectors of the demo, and a client of the workers' REST API that survives the loss of any worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.errors import NO_WORKER, NOT_SUBMITTED
from cdcworker.worker.quickstart.workload import TABLES

PREFIX = "shop"
SCHEMA_NAME = "public"
PUBLICATION = "shop"
SOURCE, SINK = "shop-source", "shop-warehouse"
DATA_TOPICS = tuple(f"{PREFIX}.{SCHEMA_NAME}.{table}" for table in TABLES)
WATERMARK_TOPIC = f"{PREFIX}.watermark"
REQUEST_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of all parts."""

    workers: tuple[str, ...]
    kafka: str
    postgres: str
    warehouse: str


def source_config(dsn: str, password: str) -> dict[str, str]:
    """Returns the source's config. `password` is the password or a reference to it."""
    return {
        "connector.class": "postgres",
        "tasks.max": "1",
        "topic.prefix": PREFIX,
        **_connection("database", dsn, password),
        "table.include.list": ",".join(f"{SCHEMA_NAME}.{table}" for table in TABLES),
        "slot.name": "shop",
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
    }


def sink_config(dsn: str, password: str) -> dict[str, str]:
    return {
        "connector.class": "spark",
        "tasks.max": "1",
        "topics": ",".join(DATA_TOPICS),
        "warehouse": "postgres",
        **_connection("warehouse", dsn, password),
    }


def _connection(prefix: str, dsn: str, password: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {
        f"{prefix}.hostname": parts.hostname or "localhost",
        f"{prefix}.port": str(parts.port or 5432),
        f"{prefix}.user": unquote(parts.username or ""),
        f"{prefix}.password": password,
        f"{prefix}.dbname": unquote(parts.path.lstrip("/")),
    }


def password_of(dsn: str) -> str:
    return unquote(urlsplit(dsn).password or "")


class ClusterClient:
    """Asks the worker that answered last, then the others."""

    def __init__(self, urls: Sequence[str]) -> None:
        import httpx

        self._urls = list(urls)
        self._client = httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def request(
        self, method: str, path: str, body: Any = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> tuple[int, Any]:
        """Returns status and decoded body of the first worker that answers."""
        import httpx

        for url in tuple(self._urls):
            try:
                answer = self._client.request(method, url + path, json=body, timeout=timeout_s)
            except httpx.TransportError:
                self._urls.remove(url)
                self._urls.append(url)
                continue
            return answer.status_code, answer.json() if answer.content else None
        raise CdcError(NO_WORKER, f"none of {', '.join(sorted(self._urls))} answers")

    def cluster(self) -> dict[str, Any] | None:
        """Returns the state of the cluster, None while no worker can answer it."""
        try:
            status, body = self.request("GET", "/v1/cluster", timeout_s=3.0)
        except (CdcError, ValueError):
            return None
        return body if status == 200 and isinstance(body, dict) else None

    def submit(self, name: str, config: Mapping[str, str], alive: Callable[[], None] = lambda: None) -> None:
        """Creates or replaces a connector; asks again while there is no leader."""
        deadline = time.monotonic() + SUBMIT_TIMEOUT_S
        while True:
            alive()
            status, body = self.request("PUT", f"/connectors/{name}/config", dict(config))
            if status in (200, 201):
                return
            if status not in (409, 503) or time.monotonic() > deadline:
                message = body.get("message", body) if isinstance(body, dict) else body
                raise CdcError(NOT_SUBMITTED, f"{name} was answered with HTTP {status}: {message}")
            time.sleep(0.5)
