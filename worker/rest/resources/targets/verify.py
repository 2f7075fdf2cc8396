"""Verify over REST: the leader compares a sink with its source, every worker tells how far it is and what was found, and what
was found is repaired."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.api.sink import VERIFY_INTERVAL_MS_MIN, IsCompared
from cdcworker.connectors.snapshot_jobs import REPAIR, SNAPSHOT
from cdcworker.connectors.verify.errors import BUSY, INTERRUPTED, NO_COMPARISON, REPAIR_BUSY, REPAIR_UNFIT, UNFIT
from cdcworker.coordinator.core import jobs
from cdcworker.coordinator.log.record_fields import NUMBER_DIGITS_MAX
from cdcworker.coordinator.log.setting_records import COMPARISON, comparison, readable
from cdcworker.coordinator.model import Connector, PutJob, PutSetting, Reply, View
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.threads import repeated
from cdcworker.worker.diagnostics.repair import RepairPlan
from cdcworker.worker.diagnostics.verify import (
    SCHEDULE,
    NoPlaceError,
    Verifier,
    VerifyRequest,
    VerifyRun,
    held_by_source,
    held_of,
    scheduled_source,
    source_of,
)
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest.commands import carry_out, forward_to_leader
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import dry_run_answer, is_dry_run
from cdcworker.worker.rest.resources.snapshots import require_tables
from cdcworker.worker.rest.routing import Endpoint, flag
from cdcworker.worker.rest.settings import available
from cdcworker.worker.security.access import caller_of, not_permitted
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

log = logging.getLogger(__name__)

PATH: Final = "/v1/connectors/{connector}/verify"
LOOK_EVERY_S: Final = 0.5
WRITE_EVERY_S: Final = 5.0
"""How often the state of a comparison that runs is written to the config log; the worker that runs it knows more."""
TIMEOUT_MS: Final = 3_600_000
BEGUN_AT_ONCE_MAX: Final = 20
"""Due comparisons that one look takes up: those that cannot be made fail at once, and may be thousands."""
Json = dict[str, Any]


async def start(api: ApiContext, request: Request) -> Response:
    """Starts a comparison. The leader alone does, so that there is one comparison of a sink at a time."""
    verifier, connector = _verifier(api), api.connector(request.path_params["connector"])
    view = api.view()
    if not view.is_leader:
        return await _at_leader(api, request, view)
    query = request.query_params
    named, tables, repair = query.get("source", ""), tuple(query.getlist("table")), flag(query, "repair")
    if named:
        # Before it is looked up: who may not operate it is not told whether it is there.
        _require_source(request, named)
    source = source_of(view.state, connector, named)
    _require_source(request, source.name)
    held, theirs = held_of(view, connector.name), held_by_source(view, source.name)
    asked = VerifyRequest(source.name, tables, held=held, held_by_source=theirs, repair=repair)
    check_class(api, connector)
    if is_dry_run(request):
        return dry_run_answer(connector=connector.name, effect="compared", source=source.name)
    try:
        run = verifier.start(view.state, connector, asked, _timeout_s(connector))
    except CdcError as error:
        if error.code == BUSY:
            raise e.RestError(409, error.message, error.code, suggestion=error.hint) from error
        raise
    return JSONResponse(_shown(connector, run.record(), None), 202)


async def show(api: ApiContext, request: Request) -> Response:
    """The comparison that runs, or the last one. Keys are row values: told when asked for, as long as they are kept."""
    verifier, connector, view = _verifier(api), api.connector(request.path_params["connector"]), api.view()
    wants_keys = flag(request.query_params, "keys")
    run = verifier.get(connector.name)
    if run is not None and run.incarnation == connector.incarnation and view.is_leader:
        _require_source(request, run.source)
        return JSONResponse(_shown(connector, run.record(), run.keys if wants_keys else None))
    record = record_of(view, connector)
    if not view.is_leader and (wants_keys or record is None):
        # One that has just begun is on record a little later.
        return await _at_leader(api, request, view)
    if record is None:
        raise e.not_found(f"Connector {connector.name} has not been compared")
    _require_source(request, str(record.get("source", "")))
    return JSONResponse(_shown(connector, record, None))


def check_class(api: ApiContext, connector: Connector) -> None:
    """CdcError when the sink is of a class that cannot be compared. Of a class that this worker does not know the comparison
    says so itself."""
    try:
        found = api.catalog.plugin_of(connector.config).load()
    except (CdcError, ImportError, AttributeError):
        return
    if not issubclass(found, IsCompared):
        raise CdcError(
            UNFIT, f"{connector.name} is of a class that cannot be compared", where={"connector": connector.name}
        )


def _require_source(request: Request, source: str) -> None:
    """Raises RestError 403 when the caller may not operate the source: the result is about its rows. A comparison for which
    no source was found has none."""
    if source:
        _require(request, "operate", source)


def _require(request: Request, role: str, connector: str) -> None:
    """Raises RestError 403 when the caller has not the role. The audit log's entry stays with the connector of the path."""
    caller = caller_of(request.scope)
    if not caller.may(role, connector):
        raise not_permitted(caller, role, connector)


def record_of(view: View, connector: Connector) -> Json | None:
    """Returns the stored result of this connector; one of an earlier connector of this name does not count."""
    found = view.state.settings.get(f"{COMPARISON}{connector.name}")
    parsed = readable(comparison, found)
    if found is None or parsed is None or parsed.incarnation != connector.incarnation:
        return None
    return dict(found)


def _shown(connector: Connector, record: Mapping[str, Any], keys: Mapping[str, Any] | None) -> Json:
    out = {"connector": connector.name, **{name: record[name] for name in record if name not in ("v", "incarnation")}}
    if keys is not None and out.get("result"):
        tables = [
            {**table, "found": [{**item, "values": keys.get(item["key"])} for item in table["found"]]}
            for table in out["result"]["tables"]
        ]
        out["result"] = {**out["result"], "tables": tables}
    return out


def _verifier(api: ApiContext) -> Verifier:
    return available(api.services.verifier, "Comparing connectors with their sources")


async def _at_leader(api: ApiContext, request: Request, view: View) -> Response:
    if view.state.leader is None:
        raise e.no_leader()
    return await forward_to_leader(api, request, view.state.leader.url)


def _timeout_s(connector: Connector) -> float:
    return _number(connector, "verify.timeout.ms", TIMEOUT_MS) / 1000


def _number(connector: Connector, key: str, default: int) -> int:
    text = connector.config.get(key, "").strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_number else default


# -- repairs ----------------------------------------------------------------------------------------------------------


async def repair(api: ApiContext, request: Request) -> Response:
    """Has the source read one batch of the differing rows. A dry run tells how many rows of which tables, and changes nothing:
    it needs no more than `read` on the source."""
    role, name = "read" if is_dry_run(request) else "operate", request.path_params["connector"]
    verifier, connector, view = _verifier(api), api.connector(name), api.view()
    if not view.is_leader:
        return await _at_leader(api, request, view)
    run = verifier.get(name)
    plan = run.repair if run is not None and run.incarnation == connector.incarnation else None
    if run is None or plan is None:
        raise _no_comparison(f"{name} has not been compared for a repair, or not by this leader, or others since")
    _require(request, role, run.source)
    if request.query_params.get("comparison", run.id) != run.id:
        raise _no_comparison(f"{name} has been compared again since")
    answer = {"connector": name, "source": run.source, "comparison": run.id, **plan.shown()}
    if role == "read":
        return dry_run_answer(effect="repaired" if plan.rows else "unchanged", **answer)
    if not plan.rows:
        return JSONResponse({**answer, "snapshot": None})
    return await _begin(api, request, _source(api, run), plan, answer)


async def _begin(api: ApiContext, request: Request, source: Connector, plan: RepairPlan, answer: Json) -> Response:
    number = _batch(request, len(plan.batches))

    def done(reply: Reply) -> Response:
        return JSONResponse({**answer, "batch": number, "snapshot": reply.job}, 202)

    command = PutJob(source.name, SNAPSHOT, plan.batches[number])
    under_way = [job for job in jobs.of(api.view().state, source.name) if job.outcome is None and REPAIR in job.spec]
    if any(dict(job.spec) != command.spec for job in under_way):
        # Its tasks are told of all open jobs in one message, and each holds the keys of its rows.
        raise e.RestError(409, f"the source {source.name} carries out another repair", REPAIR_BUSY)
    return await carry_out(api, request, command, missing=f"Connector {source.name} not found", done=done)


def _source(api: ApiContext, run: VerifyRun) -> Connector:
    """Returns the source. RestError 409 when it is not the one that was compared, or cannot read rows now."""
    source = api.connector(run.source)
    if (source.incarnation, source.config_version) != run.compared_version:
        raise _no_comparison(f"the config of {source.name} has changed since")
    require_tables(api, source)
    if source.target_state != "RUNNING":
        raise e.RestError(409, f"the source {source.name} is {source.target_state}", REPAIR_UNFIT)
    return source


def _batch(request: Request, count: int) -> int:
    text = request.query_params.get("batch", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) < count):
        raise e.bad_request(f"`batch` must be a number below {count}; nothing was done", e.parameter("batch"))
    return int(text)


def _no_comparison(message: str) -> e.RestError:
    return e.RestError(409, f"{message}; nothing was done", NO_COMPARISON)


# -- on the leader ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def kept(api: ApiContext) -> AsyncIterator[None]:
    """Writes results of comparisons into the log and starts those that are due, as long as the server runs."""
    verifier = api.services.verifier
    if verifier is None:
        yield
        return
    async with repeated(VerifySchedule(api, verifier).run_once, LOOK_EVERY_S, name="verify-schedule"):
        try:
            yield
        finally:
            verifier.stop()


class VerifySchedule:
    """Starts comparisons that are due, and writes their results into the config log. It runs on every worker, and only the
    leader's does anything."""

    def __init__(self, api: ApiContext, verifier: Verifier) -> None:
        self._api = api
        self._verifier = verifier
        self._written: dict[str, tuple[Json, float]] = {}
        self._clamped: dict[str, tuple[str, int]] = {}
        """Incarnation and version of the configs about whose interval the log has a line."""
        self._ends: dict[str, tuple[object, str, int]] = {}
        """When comparisons on record ended, with the record and the incarnation: to look is cheap with thousands of sinks."""

    async def run_once(self) -> None:
        """Looks once. That the cluster has no leader now, or that Kafka is away, is an error that passes."""
        try:
            await self.look()
        except (CdcError, e.RestError) as error:
            log.warning("the schedule of comparisons failed error=%s", error)

    async def look(self) -> None:
        view = self._api.view()
        if not view.ready:
            return
        if not view.is_leader:
            self._verifier.stop()
            return
        for run in self._verifier.runs():
            connector = view.state.connectors.get(run.connector)
            if connector is not None and connector.incarnation == run.incarnation:
                await self._write(run)
        sinks = [connector for connector in view.state.connectors.values() if connector.kind == "sink"]
        await self._begin_due(view, [connector for connector in sinks if not await self._end_lost(view, connector)])

    async def _write(self, run: VerifyRun) -> None:
        record, now = run.record(), self._api.clock()
        last, at = self._written.get(run.connector, ({}, 0.0))
        ends = record["state"] != last.get("state") or record["id"] != last.get("id")
        if record == last or (not ends and now - at < WRITE_EVERY_S):
            return
        if await self._put(run.connector, record):
            self._written[run.connector] = (record, now)
            if run.is_over:
                result = run.result or {}
                verdict, differences = result.get("verdict", "failed"), result.get("differences", "")
                log.info("compared connector=%s verdict=%s differences=%s", run.connector, verdict, differences)

    async def _end_lost(self, view: View, connector: Connector) -> bool:
        """Writes that a comparison has failed whose worker is gone; returns whether there was one."""
        found, run = view.state.settings.get(f"{COMPARISON}{connector.name}"), self._run_of(connector)
        if found is None or found.get("state") != "running" or (run is not None and run.id == found.get("id")):
            return False
        record = record_of(view, connector)
        if record is None:
            return False
        error = CdcError(INTERRUPTED, "the worker that compared has ended, or leads no more").to_dict()
        await self._put(connector.name, {**record, "state": "failed", "ended": self._now(), "error": error})
        return True

    async def _begin_due(self, view: View, sinks: Sequence[Connector]) -> None:
        """Begins comparisons that are due, first the one that is due longest: a sink that is compared often, or takes long, has
        its next turn behind those that wait."""
        due = [(at, connector) for connector in sinks if (at := self._due_ms(view, connector)) is not None]
        waits, left, now = False, BEGUN_AT_ONCE_MAX, self._now()
        for _, connector in sorted((item for item in due if item[0] <= now), key=lambda item: item[0]):
            hindrance = self._verifier.hindrance(connector, SCHEDULE)
            if hindrance is None and left:
                left -= 1
                await self._begin(view, connector)
            waits = waits or isinstance(hindrance, NoPlaceError)
        if waits:
            self._verifier.give_way()

    def _run_of(self, connector: Connector) -> VerifyRun | None:
        run = self._verifier.get(connector.name)
        return run if run is not None and run.incarnation == connector.incarnation else None

    def _due_ms(self, view: View, connector: Connector) -> int | None:
        """Returns since when, or from when on, the next comparison by schedule is due; None: there is none."""
        every, run = self._interval_ms(connector), self._run_of(connector)
        if not every or connector.target_state != "RUNNING" or (run is not None and not run.is_over):
            return None
        ended = self._ended_ms(view, connector)
        return max(connector.created_ms, run.ended_ms if run is not None else 0, ended) + every

    def _ended_ms(self, view: View, connector: Connector) -> int:
        """Returns when the comparison on record ended; 0: there is none."""
        found, incarnation = view.state.settings.get(f"{COMPARISON}{connector.name}"), connector.incarnation
        known = self._ends.get(connector.name)
        if known is None or known[0] is not found or known[1] != incarnation:
            record = record_of(view, connector) or {}
            known = (found, incarnation, int(record.get("ended") or record.get("started") or 0))
            self._ends[connector.name] = known
        return known[2]

    def _interval_ms(self, connector: Connector) -> int:
        """Returns the interval of the config, no shorter than one that is taken today: older versions took any."""
        every = _number(connector, "verify.interval.ms", 0)
        if not 0 < every < VERIFY_INTERVAL_MS_MIN:
            return every
        version = (connector.incarnation, connector.config_version)
        if self._clamped.get(connector.name) != version:
            self._clamped[connector.name] = version
            text = "verify.interval.ms is too short and counts as %d connector=%s"
            log.warning(text, VERIFY_INTERVAL_MS_MIN, connector.name)
        return VERIFY_INTERVAL_MS_MIN

    async def _begin(self, view: View, connector: Connector) -> None:
        try:
            source = scheduled_source(view.state, connector)
            check_class(self._api, connector)
            held, theirs = held_of(view, connector.name), held_by_source(view, source.name)
            asked = VerifyRequest(source.name, by=SCHEDULE, held=held, held_by_source=theirs)
            self._verifier.start(view.state, connector, asked, _timeout_s(connector))
        except CdcError as error:
            if error.code == BUSY:
                return  # its turn comes
            now = self._now()
            run = VerifyRun(connector.name, connector.incarnation, "", view.worker_id, now, 0.0, SCHEDULE)
            run.ended_ms, run.error = now, error.to_dict()
            log.warning("not compared connector=%s error=%s", connector.name, error)
            await self._put(connector.name, run.record())

    async def _put(self, name: str, record: Json) -> bool:
        return (await self._api.ask(PutSetting(f"{COMPARISON}{name}", record))).outcome == "ok"

    def _now(self) -> int:
        return round(self._api.clock() * 1000)


ENDPOINTS = (
    Endpoint(
        "POST",
        PATH,
        start,
        "Compare a sink's warehouse with its source",
        statuses=(200, 202, 400, 404, 409),
        query=("source", "table", "repair", "dry_run"),
        role="operate",
    ),
    Endpoint(
        "GET",
        PATH,
        show,
        "The comparison that runs, or the last one",
        statuses=(200, 404),
        query=("keys",),
        role="operate",
    ),
    Endpoint(
        "POST",
        f"{PATH}/repair",
        repair,
        "Bring rows that the last comparison found different from the source (role `operate` on the source too; a dry run: `read`)",
        statuses=(200, 202, 400, 404, 409),
        query=("comparison", "batch", "dry_run"),
        role="operate",
    ),
)
