"""A client of the workers' REST API that survives the loss of any worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart.errors import NO_WORKER, NOT_SUBMITTED

REQUEST_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 60.0


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
