"""The context of handlers: the herder, validation, forwarding and the settings of one REST server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from cdcworker.coordinator.log.connections import as_run
from cdcworker.coordinator.model import Connection, Connector, Reply, View
from cdcworker.coordinator.model import Request as Command
from cdcworker.schemas.log import SchemaLog
from cdcworker.worker.http import errors as e
from cdcworker.worker.offsets.model import ConnectorOffsets
from cdcworker.worker.quotas import admission as quotas
from cdcworker.worker.rest.event_feed import EventFeed
from cdcworker.worker.rest.forward import Forwarder
from cdcworker.worker.rest.rebalance_counts import RebalanceCounts
from cdcworker.worker.rest.settings import ApiSettings, RequestLimits, Services, available
from cdcworker.worker.rest.slow_calls import AllBusy, SlowCalls
from cdcworker.worker.security.access import caller_of
from cdcworker.worker.security.audit import AS_WRITTEN
from cdcworker.worker.security.caller_shares import CallerShares
from cdcworker.worker.validation.connections import whole
from cdcworker.worker.validation.validate import (
    Checks,
    ConnectorCatalog,
    ValidationReport,
    check_clusters,
    check_keys,
    check_live,
    run_checks,
    unchecked,
)

Work = TypeVar("Work")

POLL_S = 0.02
HERDER_SILENT_S = 10.0
"""Seconds without an answer of the herder's thread after which Kafka Connect calls a worker unhealthy."""


class HerderLike(Protocol):
    """The herder as far as the REST API needs it."""

    def view(self) -> View: ...

    def submit(self, request: Command, /) -> Future[Reply]: ...

    def forget_topics(self, connector: str, /) -> None: ...


@dataclass
class ApiContext:
    """Everything that a handler works with; one per REST server."""

    herder: HerderLike
    settings: ApiSettings = field(default_factory=ApiSettings)
    catalog: ConnectorCatalog = field(default_factory=ConnectorCatalog)
    checks: Checks = run_checks
    forwarder: Forwarder = field(default_factory=Forwarder)
    clock: Callable[[], float] = time.time
    drain: Callable[[bool | None], None] | None = None

    def __post_init__(self) -> None:
        self._judging = asyncio.Semaphore(self.limits.judgements_max)
        self._judgements = 0
        limits = self.limits
        self.checking = SlowCalls("live-checks", limits.checks_max)
        self.planning = SlowCalls("plans", limits.plans_max)
        self.offset_calls = SlowCalls("offset-calls", limits.offset_calls_max, limits.offset_calls_per_caller_max)
        self.streams = CallerShares(self.limits.streams_per_caller_max)
        self.change_readers = CallerShares(self.limits.change_readers_per_caller_max, self.limits.change_readers_max)
        self.event_feed = EventFeed(self.view, self.clock)
        self.rebalance_counts = RebalanceCounts()
        self._admission = asyncio.Lock()
        self.ending = threading.Event()
        """Set when the server stops: handlers that stream end then."""

    @property
    def limits(self) -> RequestLimits:
        return self.settings.limits

    @property
    def services(self) -> Services:
        return self.settings.services

    @property
    def schemas(self) -> SchemaLog:
        """The schema log as this worker has read it. RestError 501 on a worker that does not read it."""
        return available(self.services.schemas, "The schema history")()

    @property
    def offsets(self) -> ConnectorOffsets:
        """The service that reads and alters offsets. RestError 501 on a worker without it."""
        return available(self.services.offsets, "Reading and altering offsets")

    def view(self) -> View:
        """Returns the cluster as this worker knows it."""
        return self.herder.view()

    def connector(self, name: str, missing: str = "Connector {} not found") -> Connector:
        """Returns the connector. RestError 404 with the text `missing`, which takes the name."""
        connector = self.view().state.connectors.get(name)
        if connector is None:
            raise e.not_found(missing.format(name))
        return connector

    def running(self, name: str, missing: str = "Connector {} not found") -> Connector:
        """Returns the connector with the config that its tasks run with: also what its connection provides, which whoever
        may read the connector alone must not be shown. RestError 404 as `connector`."""
        return as_run(self.view().state, self.connector(name, missing))

    async def judge(self, work: Callable[[], Work]) -> Work:
        """Runs the work in a thread, while the event loop answers others, and returns its result. RestError 503 when too
        much work waits."""
        if self._judgements >= self.limits.judgements_max + self.limits.judgements_waiting_max:
            headers = {"Retry-After": str(e.RETRY_AFTER_S)}
            raise e.RestError(503, "This worker checks too many configs at the moment", e.TOO_MANY, headers=headers)
        self._judgements += 1
        try:
            async with self._judging:
                return await asyncio.to_thread(work)
        finally:
            self._judgements -= 1

    async def mask_ahead(self, configs: Iterable[Mapping[str, str]]) -> None:
        """Has the configs masked by a thread, if that takes time, so that the handler finds them masked."""
        slow = [config for config in configs if not self.catalog.is_quickly_masked(config)]
        if slow:
            await self.judge(lambda: [self.catalog.mask(config) for config in slow])

    def mask_for(
        self, scope: MutableMapping[str, Any], connector: str
    ) -> Callable[[Mapping[str, str]], dict[str, str]]:
        """Returns what makes a config of the connector showable to the caller: secrets are masked, except for an admin
        where the worker's properties allow it. The audit then tells of the answer."""
        caller = caller_of(scope)
        if not (self.settings.configs_as_written and caller.by and caller.may("admin", connector)):
            return self.catalog.mask

        def as_written(config: Mapping[str, str]) -> dict[str, str]:
            if self.catalog.mask(config) != dict(config):
                scope[AS_WRITTEN] = True
            return dict(config)

        return as_written

    async def validate(
        self,
        config: Mapping[str, str | None],
        *,
        live: bool,
        prefixes: tuple[str, ...] = (),
        known: Mapping[str, Connection] | None = None,
    ) -> ValidationReport:
        """Validates a config by its definition and then, if that holds and `live` is set, against the systems outside.

        What the connection provides that the config names counts as given; `known`: the connections that there are, by
        default those of the cluster. `prefixes`: what the names of the connector's topics begin with; empty: anything.
        The time that a request waits for a free validation child counts towards the limit.
        """
        topics = self.settings.topics.bounded(prefixes)
        taken = self.settings.takes_unknown_keys
        there = self.view().state.connections if known is None else known

        def judged() -> tuple[dict[str, str | None], ValidationReport]:
            full = whole(self.catalog, config, there)
            return full, check_keys(self.catalog, full, topics, takes_unknown=taken)

        full, report = await self.judge(judged)
        if report.errors or not live or not self.settings.live_checks:
            return report
        given = {name: value for name, value in full.items() if value is not None}
        asks = self.catalog.has_live_checks(report.plugin, given)
        if not asks and self.services.existing is None:
            return report
        deadline, exists = time.monotonic() + self.limits.check_timeout_s, self.services.existing

        def check() -> ValidationReport:
            checked = check_clusters(report, given, topics, exists) if exists is not None else report
            if checked.errors or not asks:
                return checked
            return check_live(checked, given, self.checks, max(0.1, deadline - time.monotonic()))

        try:
            return await self.checking.run(check, wait_s=self.limits.check_timeout_s)
        except AllBusy:
            return unchecked(report)

    def close(self) -> None:
        """Lets the threads of slow calls end."""
        for calls in (self.checking, self.planning, self.offset_calls):
            calls.close()

    def check_quotas(self, command: Command) -> None:
        """RestError 403 for a change that does not fit into the quotas, as far as this worker knows the cluster."""
        if self.services.quotas is not None:
            error = quotas.refusal(self.services.quotas(), self.view().state.connectors, command)
            if error is not None:
                raise e.RestError(403, error.message, error.code)

    async def ask(self, command: Command) -> Reply:
        """Submits a command and returns the cluster's reply. RestError 403 for a change that does not fit into the quotas.
        A request that finds no leader waits a little for one."""
        deadline = time.monotonic() + self.limits.leader_wait_s
        is_bound = self.services.quotas is not None and quotas.may_grow(command)
        while True:
            reply = await (self._admitted(command) if is_bound else self._settled(self.herder.submit(command)))
            if reply.outcome != "no_leader" or time.monotonic() >= deadline:
                return reply
            await asyncio.sleep(POLL_S)

    async def _admitted(self, command: Command) -> Reply:
        """Submits a command that may use more of a quota. This worker may have become the leader since it was asked: so it looks
        each time. One after the other, each with what the one before has added: together they use no more than there is."""
        async with self._admission:
            if self.view().is_leader:
                self.check_quotas(command)
            reply = await self._settled(self.herder.submit(command))
            if reply.outcome == "ok" and reply.version:
                await self.caught_up(reply.version)
            return reply

    async def _settled(self, future: Future[Reply]) -> Reply:
        """Waits for the future without cancelling it: the herder owns it and may complete it at any time."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        future.add_done_callback(wake)
        try:
            await asyncio.wait_for(done.wait(), self.limits.reply_timeout_s)
        except TimeoutError:
            raise self.timed_out() from None
        return future.result()

    def timed_out(self) -> e.RestError:
        """Returns the error for a command without a reply in time; it names the herder's stage as Kafka Connect does."""
        age = self.view().last_tick_age_s
        began = datetime.fromtimestamp(self.clock() - age, UTC).isoformat(timespec="milliseconds")
        stage = (
            f"The worker is currently running its coordination step, which began at {began}"
            if age > HERDER_SILENT_S
            else f"The last operation the worker completed was its coordination step, which began at {began}"
        )
        return e.RestError(500, f"Request timed out. {stage}", e.TIMEOUT)

    async def caught_up(self, version: int) -> None:
        """Waits until this worker has read the config log up to a version, so that a client reads what it has written."""
        await self.until(lambda: self.view().state.version >= version)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Waits until the condition holds for this worker's view of the cluster, `catch_up_s` seconds at most unless a
        limit is given."""
        deadline = time.monotonic() + (self.limits.catch_up_s if timeout_s is None else timeout_s)
        while not condition() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
