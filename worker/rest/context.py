"""What handlers work with: the herder, validation, forwarding and the settings of one REST server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from cdcworker.coordinator.errors import RECORD_TOO_LARGE
from cdcworker.coordinator.model import ChangeJob, Connector, JsonObject, PutJob, Reply, Restart, View
from cdcworker.coordinator.model import Request as Command
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.changes import Changes
from cdcworker.worker.explain import Explainer
from cdcworker.worker.letters import DeadLetters
from cdcworker.worker.offsets import Offsets
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest import reading
from cdcworker.worker.rest.feed import Feed
from cdcworker.worker.rest.forward import Forwarder
from cdcworker.worker.rest.moves import Moves
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.tls import Tls
from cdcworker.worker.support import Support
from cdcworker.worker.validate import (
    CHECK_TIMEOUT_S,
    Catalog,
    Checks,
    Report,
    check_keys,
    check_live,
    run_checks,
    unchecked,
)
from cdcworker.worker.verify import Verifier
from starlette.requests import Request
from starlette.responses import Response

POLL_S = 0.02
HERDER_SILENT_S = 10.0
"""Connect calls a worker unhealthy when its control thread has not answered for this long."""


class HerderLike(Protocol):
    def view(self) -> View: ...

    def submit(self, request: Command, /) -> Future[Reply]: ...

    def forget_topics(self, connector: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """Each limit with its reason where it is not Connect's own number."""

    reply_timeout_s: float = 90.0
    leader_wait_s: float = 2.0
    """A request that meets no leader waits this long for one: clean hand-overs take about a second."""
    catch_up_s: float = 1.0
    """After a forwarded change this worker's own picture may lag; the answer waits so long for it."""
    patch_s: float = 10.0
    """How long a PATCH is computed again while others change the same connector."""
    body_bytes_max: int = 1 << 20
    topic_tracking: bool = True
    topic_tracking_reset: bool = True
    live_checks: bool = True
    check_timeout_s: float = CHECK_TIMEOUT_S
    checks_max: int = 2
    """Children that check at the same time: each costs an interpreter and a database connection."""
    offsets: Offsets | None = None
    """Who reads and alters the offsets of connectors."""
    offset_calls_max: int = 4
    schemas: Callable[[], SchemaLog] | None = None
    """The schema log as far as it has been read."""
    examine: Callable[[JsonObject, float], list[JsonObject]] | None = None
    """Examines a connector within so many seconds: the findings of the doctor."""
    verifier: Verifier | None = None
    """Compares sinks with their sources."""
    changes: Changes | None = None
    """Reads the topics of connectors for who wants to see rows change."""
    explainer: Explainer | None = None
    """Follows single rows."""
    letters: DeadLetters | None = None
    """Shows what sinks have set aside, and has it applied again."""
    support: Support | None = None
    """Tells of this worker what a support bundle needs."""
    events_s_max: float = 3600.0
    """A stream of events ends after this time; its client connects again and misses nothing."""
    plan: Callable[[Connector], Sequence[Mapping[str, str]]] | None = None
    """Splits a connector into its tasks' configs, for dry runs."""
    audit: Audit = field(default_factory=Audit)
    gate: Gate = field(default_factory=Gate)
    tls: Tls | None = None
    session_key_ttl_s: float = 0.0
    """How long workers sign their requests with one key; 0: this server sees to no key."""


@dataclass
class Api:
    herder: HerderLike
    settings: Settings = field(default_factory=Settings)
    catalog: Catalog = field(default_factory=Catalog)
    checks: Checks = run_checks
    forwarder: Forwarder = field(default_factory=Forwarder)
    clock: Callable[[], float] = time.time
    drain: Callable[[bool | None], None] | None = None

    def __post_init__(self) -> None:
        self._checking = asyncio.Semaphore(self.settings.checks_max)
        self.offset_calls = asyncio.Semaphore(self.settings.offset_calls_max)
        self.feed = Feed(self.view, self.clock)
        self.moves = Moves()
        self.ending = threading.Event()
        """The server is to stop: whoever streams, ends."""

    @property
    def examine(self) -> Callable[[JsonObject, float], list[JsonObject]]:
        if self.settings.examine is None:
            raise e.not_available("Examining connectors")
        return self.settings.examine

    @property
    def schemas(self) -> SchemaLog:
        if self.settings.schemas is None:
            raise e.not_available("The schema history")
        return self.settings.schemas()

    @property
    def offsets(self) -> Offsets:
        if self.settings.offsets is None:
            raise e.not_available("Reading and altering offsets")
        return self.settings.offsets

    def view(self) -> View:
        return self.herder.view()

    def connector(self, name: str, missing: str = "Connector {} not found") -> Connector:
        found = self.view().state.connectors.get(name)
        if found is None:
            raise e.not_found(missing.format(name))
        return found

    async def validate(self, config: Mapping[str, str | None], *, live: bool) -> Report:
        """Definitions, then, if those hold, the outside. Time spent waiting for a free checker counts."""
        report = check_keys(self.catalog, config)
        if report.errors or not live or not self.settings.live_checks:
            return report
        given = {name: value for name, value in config.items() if value is not None}
        deadline = time.monotonic() + self.settings.check_timeout_s
        try:
            await asyncio.wait_for(self._checking.acquire(), self.settings.check_timeout_s)
        except TimeoutError:
            return unchecked(report)
        try:
            left = max(0.1, deadline - time.monotonic())
            return await asyncio.to_thread(check_live, report, given, self.checks, left)
        finally:
            self._checking.release()

    async def ask(self, command: Command) -> Reply:
        """The herd's reply; without a leader the request waits a little for the next one."""
        deadline = time.monotonic() + self.settings.leader_wait_s
        while True:
            reply = await self._settled(self.herder.submit(command))
            if reply.outcome != "no_leader" or time.monotonic() >= deadline:
                return reply
            await asyncio.sleep(POLL_S)

    async def _settled(self, future: Future[Reply]) -> Reply:
        """Waits without cancelling: the herder owns the future and may set it at any time."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        future.add_done_callback(wake)
        try:
            await asyncio.wait_for(done.wait(), self.settings.reply_timeout_s)
        except TimeoutError:
            raise self.timed_out() from None
        return future.result()

    def timed_out(self) -> e.RestError:
        age = self.view().last_tick_age_s
        began = datetime.fromtimestamp(self.clock() - age, UTC).isoformat(timespec="milliseconds")
        stage = (
            f"The worker is currently running its coordination step, which began at {began}"
            if age > HERDER_SILENT_S
            else f"The last operation the worker completed was its coordination step, which began at {began}"
        )
        return e.RestError(500, f"Request timed out. {stage}", e.TIMEOUT)

    async def caught_up(self, version: int) -> None:
        """Waits until this worker has read the log up to a version; read-your-write for one client at one worker."""
        await self.until(lambda: self.view().state.version >= version)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for this worker's picture to catch up, as long as its settings allow."""
        deadline = time.monotonic() + self.settings.catch_up_s
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)


async def carry_out(
    api: Api,
    request: Request,
    command: Command,
    *,
    missing: str,
    done: Callable[[Reply], Response],
    checked: bool = False,
    fine: Collection[str] = ("ok",),
) -> Response:
    """Have the herd do it, here or at the leader.

    `checked`: live checks have run, the leader need not repeat them. `fine`: outcomes that count as done.
    """
    from cdcworker.worker.rest import dry

    if dry.asked(request):
        return await dry.preview(api, command, missing=missing, fine=fine)
    reply = await api.ask(command)
    if reply.outcome in fine:
        response = done(reply)
        response.headers["X-CDC-Version"] = str(api.view().state.version)
        return response
    if reply.outcome == "not_leader":
        return await forward(api, request, reply.leader_url, checked=checked, epoch=reply.leader_epoch)
    raise refusal(api, reply, subject(command), missing)


def subject(command: Command) -> str:
    """What it is about."""
    return command.connector if isinstance(command, Restart | PutJob | ChangeJob) else command.name


async def forward(api: Api, request: Request, leader_url: str, *, checked: bool = False, epoch: int = 0) -> Response:
    """Have the leader answer. One that has been followed says by whom: then this worker reads on and asks that one."""
    extra = {"validate": "false"} if checked else {}
    for is_last in (False, True):
        if leader_url.rstrip("/") == api.view().url.rstrip("/"):
            raise e.no_leader()
        known = epoch or reading.leader_epoch(api)
        response = await api.forwarder.forward(request, leader_url, extra, known)
        newer = reading.newer_epoch(response)
        if newer is None or is_last:
            break
        await api.until(lambda newer=newer: reading.leader_epoch(api) >= newer)  # type: ignore[misc]
        leader = api.view().state.leader
        if leader is None or leader.epoch < newer:
            break
        leader_url, epoch = leader.url, leader.epoch
    version = response.headers.get("X-CDC-Version", "")
    if version.isdigit():
        await api.caught_up(int(version))
    return response


def refusal(api: Api, reply: Reply, name: str, missing: str) -> e.RestError:
    if reply.outcome == "no_leader":
        return e.no_leader()
    if reply.outcome == "exists":
        return e.RestError(409, f"Connector {name} already exists", e.EXISTS, headers={"X-CDC-Reason": "exists"})
    if reply.outcome == "not_found":
        return e.not_found(missing)
    if reply.outcome == "version_mismatch":
        message = f"Connector {name} is at another version" + (f": {reply.version}" if reply.version else "")
        return e.RestError(412, message, e.VERSION_MISMATCH)
    if reply.outcome == "too_large":
        return e.RestError(413, f"Connector {name} is too large: {reply.detail}", RECORD_TOO_LARGE)
    if reply.outcome == "timeout":
        return api.timed_out()
    return e.RestError(409, reply.detail or e.CONFLICTING_OPERATION, e.CONFLICT, headers={"X-CDC-Reason": "state"})
