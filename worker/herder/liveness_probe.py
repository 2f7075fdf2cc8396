"""Probes of workers that have fallen silent: a refused connection, twice, or another process at the address means that
the worker is gone."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from cdcworker.coordinator.core.events import ProbeWorker, WorkerProbed
from cdcworker.schemas.threads import start_thread
from cdcworker.schemas.untrusted.json_text import parse_json

log = logging.getLogger(__name__)

PROBES_AT_ONCE_MAX = 8
TIMEOUT_S = 1.0
AGAIN_AFTER_S = 0.3
"""Seconds between the two attempts: the first may meet a listener that is just being replaced."""
LIVE_PATH = "/v1/live"
ANSWER_BYTES_MAX = 4096

Post = Callable[[WorkerProbed], None]


class LivenessProber:
    """Probes workers for the herder, each probe on its own thread for a few seconds at most."""

    def __init__(self, post: Post, tls: ssl.SSLContext | None = None) -> None:
        self._post = post
        self._tls = tls
        self._free = threading.Semaphore(PROBES_AT_ONCE_MAX)

    def probe(self, command: ProbeWorker) -> None:
        """Posts the result of the probe. When too many probes run the result is `unknown`, and the core asks again."""
        if not self._free.acquire(blocking=False):
            self._post(WorkerProbed(command.worker_id, command.boot_id, "unknown"))
            return
        start_thread(self._run, command, name="probe")

    def _run(self, command: ProbeWorker) -> None:
        try:
            gone = is_gone(command.url, command.boot_id, self._tls)
        finally:
            self._free.release()
        log.info("worker probed worker=%s gone=%s", command.worker_id, gone)
        self._post(WorkerProbed(command.worker_id, command.boot_id, "gone" if gone else "unknown"))


def is_gone(url: str, boot_id: str, tls: ssl.SSLContext | None = None) -> bool:
    """Returns whether the process with this boot id certainly no longer listens at the URL. No answer at all proves
    nothing."""
    for attempt in range(2):
        try:
            answered = _boot_at(url, tls)
        except ConnectionRefusedError:
            if attempt == 0:
                time.sleep(AGAIN_AFTER_S)
            continue
        except (OSError, ValueError, http.client.HTTPException):
            return False
        return bool(answered) and answered != boot_id
    return True


def _boot_at(url: str, tls: ssl.SSLContext | None) -> str:
    """Returns the boot id of the worker that answers at the URL; over https its certificate has to be valid."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an address of a worker")
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=TIMEOUT_S, context=tls)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + LIVE_PATH)
        answer = parse_json(connection.getresponse().read(ANSWER_BYTES_MAX))
    finally:
        connection.close()
    return str(answer.get("boot", "")) if isinstance(answer, dict) else ""
