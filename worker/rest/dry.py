"""`?dry_run=true`: what a change would do. It is decided as the leader would, on this worker's picture; nothing is written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdcworker.connectors import veil
from cdcworker.connectors.api import Finding
from cdcworker.connectors.config import MASK, has_reference
from cdcworker.coordinator.api import Record
from cdcworker.coordinator.model import ChangeJob, ClusterState, Connector, PutJob, PutSetting, Restart, View
from cdcworker.coordinator.model import Request as Command
from cdcworker.coordinator.requests import Asked, decide
from cdcworker.coordinator.state import fold_all
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest import shapes
from cdcworker.worker.rest.context import Api, refusal, subject
from cdcworker.worker.validate import finding_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

log = logging.getLogger(__name__)

PARAMETER = "dry_run"
PLAN_S = 10.0
Json = dict[str, Any]


def asked(request: Request) -> bool:
    """Refused is what is neither true nor false: whoever writes `dry_run=yes` must not be taken at the change's word."""
    found = {value.lower() for value in request.query_params.getlist(PARAMETER)}
    if not found <= {"true", "false"} or len(found) > 1:
        raise e.bad_request("`dry_run` must be true or false; nothing was done", e.parameter(PARAMETER))
    return found == {"true"}


def shown(**members: Any) -> Response:
    return JSONResponse({"dry_run": True, **members})


async def preview(
    api: Api,
    command: Command,
    *,
    missing: str,
    fine: Collection[str] = ("ok",),
    remarks: Sequence[Finding] = (),
) -> Response:
    """What the change would be answered with, if it would be refused; else what it would do, with 200."""
    view = api.view()
    decision = decide(view.state, Asked("dry-run", command, round(api.clock() * 1000)))
    name = subject(command)
    if decision.reply.outcome not in fine:
        raise refusal(api, decision.reply, name, missing)
    if isinstance(command, PutJob | ChangeJob):
        return shown(connector=name, effect="changed" if decision.records else "unchanged", job=decision.reply.job)
    if isinstance(command, PutSetting):
        return shown(effect="changed", record=name)
    before = view.state.connectors.get(name)
    if isinstance(command, Restart):
        assert before is not None
        return shown(connector=name, effect="restarted", tasks=restarted(view, before, command))
    after = _after(view.state, decision.records).connectors.get(name)
    return shown(**await difference(api, view, before, after), findings=[finding_json(item) for item in remarks])


def _after(state: ClusterState, records: Iterable[Record]) -> ClusterState:
    """The state once these records would be read back."""
    return fold_all(state, [replace(record, headers={**record.headers, "e": str(state.epoch)}) for record in records])


async def difference(api: Api, view: View, before: Connector | None, after: Connector | None) -> Json:
    """The effect on a connector and on its tasks."""
    known = after or before
    assert known is not None
    effect = "created" if before is None else "deleted" if after is None else "changed"
    if before is not None and before == after:
        effect = "unchanged"
    out: Json = {"connector": known.name, "effect": effect, "type": known.kind}
    out["changes"] = changes(api.catalog.mask, before, after)
    for member in ("target_state", "labels", "version"):
        old, new = getattr(before, member, None), getattr(after, member, None)
        if old != new:
            out[member] = {"from": old, "to": new}
    if after is not None:
        out["config"] = api.catalog.mask({"name": after.name, **after.config})
    out["tasks"] = await tasks(api, view, before, after)
    return out


def changes(mask: shapes.Mask, before: Connector | None, after: Connector | None) -> list[Json]:
    """Keys of the config; a secret that changes is shown masked on both sides."""
    old, new = (dict(one.config) if one else {} for one in (before, after))
    # Under their own names, which are shown otherwise where they hold a secret.
    shown = [dict(zip(values, mask(values).values(), strict=True)) for values in (old, new)]
    secret = {name for values in shown for name, value in values.items() if value == MASK}

    def side(values: Mapping[str, str], name: str) -> str | None:
        value = values.get(name)
        return MASK if name in secret and value and not has_reference(value) else value

    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name) and after is not None)
    titles = veil.names(names)
    return [{"key": titles[name], "from": side(shown[0], name), "to": side(shown[1], name)} for name in names]


async def tasks(api: Api, view: View, before: Connector | None, after: Connector | None) -> Json:
    """Those that run now, those that are planned, and what becomes of each."""
    now = list(range(len(shapes.task_configs(view, before)))) if before else []
    if after is None or after.target_state == "STOPPED":
        return {"planned": [], "start": [], "restart": [], "stop": now}
    same = before is not None and _config(before) == _config(after) and before.target_state != "STOPPED"
    if same and before is not None:
        found: Sequence[Mapping[str, str]] = shapes.task_configs(view, before)
    else:
        try:
            found = await plan(api, after)
        except CdcError as error:
            return {"planned": [], "start": [], "restart": [], "stop": now, "error": error.to_dict()}
    numbers = range(len(found))
    return {
        "planned": planned(api, after, found),
        "start": [number for number in numbers if number not in now],
        "restart": [] if same else [number for number in numbers if number in now],
        "stop": [number for number in now if number not in numbers],
    }


def _config(connector: Connector) -> tuple[Mapping[str, str], str]:
    return dict(connector.config), connector.kind


def planned(api: Api, connector: Connector, found: Sequence[Mapping[str, str]]) -> list[Json]:
    kind = {name: connector.config[name] for name in ("connector.class",) if name in connector.config}
    out = []
    for number, share in enumerate(found):
        config = shapes.share_shown(api.catalog.mask, kind, share)
        out.append({"id": {"connector": connector.name, "task": number}, "config": config})
    return out


async def plan(api: Api, connector: Connector) -> Sequence[Mapping[str, str]]:
    """The connector's own split, off the loop; it opens nothing of the source."""
    make = api.settings.plan
    if make is None:
        return []
    try:
        return await asyncio.wait_for(asyncio.to_thread(make, connector), PLAN_S)
    except TimeoutError:
        raise CdcError(INTERNAL, f"the connector was not split within {PLAN_S:g} s") from None
    except CdcError:
        raise
    except Exception as exc:
        log.exception("split failed connector=%s", connector.name)
        raise CdcError(INTERNAL, f"{type(exc).__name__} while splitting into tasks") from exc


def restarted(view: View, connector: Connector, command: Restart) -> Json:
    """Running tasks that would be ended and started again."""
    state = shapes.connector_state(view, connector)
    wanted = [task["id"] for task in state["tasks"]] if command.include_tasks else []
    if command.only_failed:
        failed = {task["id"] for task in state["tasks"] if task["state"] == "FAILED"}
        wanted = [number for number in wanted if number in failed]
    return {"start": [], "restart": wanted if command.task is None else [command.task], "stop": []}
