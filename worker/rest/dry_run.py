"""`?dry_run=true`: what a change would do, decided as the leader would on this worker's view of the cluster. Nothing is
written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.config import secret_names
from cdcworker.connectors.config.definition import MASK, has_reference
from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.requests import PendingRequest, decide
from cdcworker.coordinator.log.config_fold import fold_all
from cdcworker.coordinator.log.connections import as_run, own_shares
from cdcworker.coordinator.model import (
    ChangeJob,
    ClusterState,
    Connection,
    Connector,
    DeleteConnection,
    PutConnection,
    PutJob,
    PutSetting,
    Restart,
    View,
)
from cdcworker.coordinator.model import Request as Command
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.http import errors as e
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.refusals import kind_of, refusal, subject
from cdcworker.worker.rest.slow_calls import AllBusy
from cdcworker.worker.validation.validate import finding_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

log = logging.getLogger(__name__)

DRY_RUN = "dry_run"
"""The query parameter that asks for a dry run."""
PLAN_S = 10.0
Json = dict[str, Any]


def is_dry_run(request: Request) -> bool:
    """Returns whether the request is a dry run. RestError 400 for any value but true or false: `dry_run=yes` must not
    carry out the change."""
    values = {value.lower() for value in request.query_params.getlist(DRY_RUN)}
    if not values <= {"true", "false"} or len(values) > 1:
        raise e.bad_request("`dry_run` must be true or false; nothing was done", e.parameter(DRY_RUN))
    return values == {"true"}


def dry_run_answer(**members: Any) -> Response:
    """Returns the answer to a dry run with these members."""
    return JSONResponse({"dry_run": True, **members})


async def preview(
    api: ApiContext,
    command: Command,
    *,
    missing: str,
    accepted: Collection[str] = ("ok",),
    remarks: Sequence[CheckFinding] = (),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Response:
    """Returns what the command would do, and what is done besides (`more`), with status 200. RestError if the command would be
    refused."""
    api.check_quotas(command)
    view = api.view()
    decision = decide(view.state, PendingRequest("dry-run", command, round(api.clock() * 1000)))
    name = subject(command)
    if decision.reply.outcome not in accepted:
        raise refusal(api, decision.reply, name, missing, kind_of(command))
    if isinstance(command, PutJob | ChangeJob):
        return dry_run_answer(
            connector=name, effect="changed" if decision.records else "unchanged", job=decision.reply.job
        )
    if isinstance(command, PutSetting):
        return dry_run_answer(effect="changed", record=name)
    if isinstance(command, PutConnection | DeleteConnection):
        changed = _after(view.state, decision.records)
        return dry_run_answer(**connection_difference(api, view.state, changed, name))
    before = view.state.connectors.get(name)
    if isinstance(command, Restart):
        assert before is not None
        return dry_run_answer(connector=name, effect="restarted", tasks=restarted(view, before, command))
    after = _after(view.state, decision.records).connectors.get(name)
    return dry_run_answer(
        **await difference(api, view, before, after), findings=[finding_json(item) for item in remarks], **more
    )


def _after(state: ClusterState, records: Iterable[LogRecord]) -> ClusterState:
    """Returns the state after the records have been written and read back."""
    return fold_all(state, [replace(record, headers={**record.headers, "e": str(state.epoch)}) for record in records])


def connection_difference(api: ApiContext, before: ClusterState, after: ClusterState, name: str) -> Json:
    """Returns the effect on a connection as JSON."""
    old, new = (state.connections.get(name) for state in (before, after))
    effect = "created" if old is None else "deleted" if new is None else "unchanged" if old == new else "changed"
    out: Json = {"connection": name, "effect": effect, "changes": config_changes(api.catalog.mask, old, new)}
    return out if new is None else {**out, "config": api.catalog.mask(new.config)}


async def difference(api: ApiContext, view: View, before: Connector | None, after: Connector | None) -> Json:
    """Returns the effect on a connector and on its tasks as JSON."""
    known = after or before
    assert known is not None
    effect = "created" if before is None else "deleted" if after is None else "changed"
    if before is not None and before == after:
        effect = "unchanged"
    out: Json = {"connector": known.name, "effect": effect, "type": known.kind}
    out["changes"] = config_changes(api.catalog.mask, before, after)
    for member in ("target_state", "labels", "version"):
        old, new = getattr(before, member, None), getattr(after, member, None)
        if old != new:
            out[member] = {"from": old, "to": new}
    if after is not None:
        out["config"] = api.catalog.mask({"name": after.name, **after.config})
    out["tasks"] = await tasks(api, view, before, after)
    return out


def config_changes(
    mask: connect_json.Mask, before: Connector | Connection | None, after: Connector | Connection | None
) -> list[Json]:
    """Returns the keys of the config that change, each with its values; a secret is masked on both sides."""
    old, new = (dict(one.config) if one else {} for one in (before, after))
    # Under their own names, which are shown otherwise where they hold a secret.
    shown = [dict(zip(values, mask(values).values(), strict=True)) for values in (old, new)]
    secret = {name for values in shown for name, value in values.items() if value == MASK}

    def side(values: Mapping[str, str], name: str) -> str | None:
        value = values.get(name)
        return MASK if name in secret and value and not has_reference(value) else value

    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name) and after is not None)
    titles = secret_names.names(names)
    return [{"key": titles[name], "from": side(shown[0], name), "to": side(shown[1], name)} for name in names]


async def tasks(api: ApiContext, view: View, before: Connector | None, after: Connector | None) -> Json:
    """Returns the planned tasks and the numbers of those that start, restart or stop."""
    now = list(range(len(connect_json.task_configs(view, before)))) if before else []
    if after is None or after.target_state == "STOPPED":
        return {"planned": [], "start": [], "restart": [], "stop": now}
    same = before is not None and _config(before) == _config(after) and before.target_state != "STOPPED"
    if same and before is not None:
        shares: Sequence[Mapping[str, str]] = connect_json.task_configs(view, before)
    else:
        try:
            shares = await plan(api, after)
        except CdcError as error:
            return {"planned": [], "start": [], "restart": [], "stop": now, "error": error.to_dict()}
    await api.mask_ahead(connect_json.whole_shares(after, shares))
    numbers = range(len(shares))
    return {
        "planned": planned(api, after, shares),
        "start": [number for number in numbers if number not in now],
        "restart": [] if same else [number for number in numbers if number in now],
        "stop": [number for number in now if number not in numbers],
    }


def _config(connector: Connector) -> tuple[Mapping[str, str], str]:
    return dict(connector.config), connector.kind


def planned(api: ApiContext, connector: Connector, shares: Sequence[Mapping[str, str]]) -> list[Json]:
    """Returns the configs of planned tasks with their secrets masked."""
    kind = {name: connector.config[name] for name in ("connector.class",) if name in connector.config}
    out = []
    for number, share in enumerate(shares):
        config = connect_json.masked_share(api.catalog.mask, kind, share)
        out.append({"id": {"connector": connector.name, "task": number}, "config": config})
    return out


async def plan(api: ApiContext, connector: Connector) -> Sequence[Mapping[str, str]]:
    """Splits the connector into tasks in a thread; the source is not connected to. CdcError when that fails or takes
    too long."""
    make = api.services.plan
    if make is None:
        return []
    try:
        state = api.view().state
        running = as_run(state, connector)
        shares = await asyncio.wait_for(api.planning.run(lambda: make(running), wait_s=PLAN_S), PLAN_S)
        return own_shares(state, connector, shares)
    except (TimeoutError, AllBusy):
        raise CdcError(INTERNAL, f"the connector was not split within {PLAN_S:g} s") from None
    except CdcError:
        raise
    except Exception as exc:
        log.exception("split failed connector=%s", connector.name)
        raise CdcError(INTERNAL, f"{type(exc).__name__} while splitting into tasks") from exc


def restarted(view: View, connector: Connector, command: Restart) -> Json:
    """Returns the tasks that a restart would stop and start again."""
    state = connect_json.connector_state(view, connector)
    numbers = [task["id"] for task in state["tasks"]] if command.include_tasks else []
    if command.only_failed:
        failed = {task["id"] for task in state["tasks"] if task["state"] == "FAILED"}
        numbers = [number for number in numbers if number in failed]
    return {"start": [], "restart": numbers if command.task is None else [command.task], "stop": []}
