"""Log levels of this worker or of the whole cluster, by the names of Kafka Connect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from cdcworker.coordinator.log.setting_records import LOGGER_LEVEL, logger_level, readable
from cdcworker.coordinator.model import PutSetting
from cdcworker.schemas.threads import repeated
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.body import read_object, scalar
from cdcworker.worker.logs import levels
from cdcworker.worker.rest.commands import carry_out
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import dry_run_answer, is_dry_run
from cdcworker.worker.rest.read_consistency import check_ready
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

ROOT = levels.ROOT
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50, "OFF": 60}
_NAMES = {number: name for name, number in LEVELS.items()}
LOOK_EVERY_S = 0.5
_modified_ms: dict[str, int] = {}
"""The time of the last change over REST of each logger, in milliseconds since 1970."""


async def list_loggers(api: ApiContext, request: Request) -> Response:
    explicit = {name: logger for name, logger in _loggers().items() if name == ROOT or logger.level}
    return JSONResponse({name: _shown(name, logger) for name, logger in sorted(explicit.items())})


async def get_logger(api: ApiContext, request: Request) -> Response:
    name = request.path_params["logger"]
    logger = _loggers().get(name)
    if logger is None:
        raise e.not_found(f"Logger {name} not found.")
    return JSONResponse(_shown(name, logger))


async def set_level(api: ApiContext, request: Request) -> Response:
    """Sets the level of a logger and of each logger below that has a level of its own; the others inherit it."""
    namespace = request.path_params["logger"]
    level = scalar((await read_object(request)).get("level"), "level")
    if level is None:
        raise e.bad_request("Desired 'level' parameter was not specified in request.", "/level")
    number = LEVELS.get(level.strip().upper())
    if number is None:
        hint = f"The levels are {', '.join(LEVELS)}."
        raise e.RestError(404, f"invalid log level '{level}'.", e.NOT_FOUND, suggestion=hint, configPath="/level")
    now_ms = int(api.clock() * 1000)
    if request.query_params.get("scope", "").lower() != "cluster":
        if is_dry_run(request):
            return dry_run_answer(effect="changed", loggers=_changed(namespace, number))
        return JSONResponse(_apply(namespace, number, now_ms))
    # Only this level is the cluster's, which a worker that starts does not know yet.
    await check_ready(api, reads=False)
    command = PutSetting(f"{LOGGER_LEVEL}{namespace}", {"v": 1, "level": _NAMES[number], "ts": now_ms})
    return await carry_out(api, request, command, missing="", done=lambda _: Response(status_code=204))


class LogLevelFollower:
    """Applies the cluster-wide levels that were written after the worker became ready: one that starts later has the levels
    of its own properties, as in Kafka Connect."""

    def __init__(self) -> None:
        self._last_levels: dict[str, Any] | None = None

    def apply_changes(self, settings: Mapping[str, Any]) -> None:
        """Applies the levels in these settings that differ from those seen before."""
        written = {
            name.removeprefix(LOGGER_LEVEL): value for name, value in settings.items() if name.startswith(LOGGER_LEVEL)
        }
        seen, self._last_levels = self._last_levels, written
        if seen is None:
            return
        for namespace, value in written.items():
            level = readable(logger_level, value) if value != seen.get(namespace) else None
            if level is not None and level.level in LEVELS:
                _apply(namespace, LEVELS[level.level], level.modified_ms)


def following_log_levels(api: ApiContext) -> AbstractAsyncContextManager[None]:
    """Applies cluster-wide levels as long as the server runs."""
    follower = LogLevelFollower()

    async def follow() -> None:
        view = api.view()
        if view.ready:
            follower.apply_changes(view.state.settings)

    return repeated(follow, LOOK_EVERY_S, name="log-levels")


def _affected(namespace: str) -> list[str]:
    below = [
        name
        for name, logger in _loggers().items()
        if logger.level and (namespace == ROOT or name.startswith(namespace + "."))
    ]
    return sorted({namespace, *below})


def _changed(namespace: str, number: int) -> list[str]:
    """Returns the loggers for which another level would hold then; those that have it are left alone, as in Kafka Connect."""
    known = _loggers()

    def holds(name: str) -> int:
        while name not in known:
            name = name.rpartition(".")[0] or ROOT
        return known[name].getEffectiveLevel()

    return [name for name in _affected(namespace) if holds(name) != number]


def _apply(namespace: str, number: int, now_ms: int) -> list[str]:
    """Sets the level in this process and in those of the worker's tasks."""
    changed = _changed(namespace, number)
    if changed:
        levels.change(dict.fromkeys(changed, number))
        _modified_ms.update(dict.fromkeys(changed, now_ms))
    return changed


def _loggers() -> dict[str, logging.Logger]:
    known = dict(logging.root.manager.loggerDict)
    return {ROOT: logging.root, **{name: item for name, item in known.items() if isinstance(item, logging.Logger)}}


def _shown(name: str, logger: logging.Logger) -> dict[str, object]:
    number = logger.getEffectiveLevel()
    return {"level": _NAMES.get(number, logging.getLevelName(number)), "last_modified": _modified_ms.get(name)}


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/loggers",
        list_loggers,
        "Loggers with a level of their own",
        "loggers",
        role="read",
        needs_cluster=False,
    ),
    Endpoint(
        "GET",
        "/admin/loggers/{logger}",
        get_logger,
        "Level of a logger",
        "loggers",
        (200, 404),
        role="read",
        needs_cluster=False,
    ),
    Endpoint(
        "PUT",
        "/admin/loggers/{logger}",
        set_level,
        "Set a level",
        "loggers",
        (200, 204, 400, 404, 409, 503),
        ("scope", "dry_run"),
        "Level",
        role="admin",
        needs_cluster=False,
    ),
)
