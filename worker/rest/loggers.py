"""Log levels of this worker or of all, by Kafka Connect's names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cdcworker.coordinator.model import PutSetting
from cdcworker.worker import levels
from cdcworker.worker.rest import dry
from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import read_object, scalar
from cdcworker.worker.rest.context import Api, carry_out
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

ROOT = levels.ROOT
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50, "OFF": 60}
_NAMES = {number: name for name, number in LEVELS.items()}
RECORDS = "logger/"
"""Levels for the whole cluster: a record of the config log for each. Each worker follows those that are written while
it runs; one that starts later has the levels of its own settings, as in Connect."""
LOOK_EVERY_S = 0.5
_modified: dict[str, int] = {}
"""Wall-clock milliseconds of the last change over REST, per logger; levels are the process's own state too."""


async def list_loggers(api: Api, request: Request) -> Response:
    explicit = {name: logger for name, logger in _loggers().items() if name == ROOT or logger.level}
    return JSONResponse({name: _shown(name, logger) for name, logger in sorted(explicit.items())})


async def get_logger(api: Api, request: Request) -> Response:
    name = request.path_params["logger"]
    logger = _loggers().get(name)
    if logger is None:
        raise e.not_found(f"Logger {name} not found.")
    return JSONResponse(_shown(name, logger))


async def set_level(api: Api, request: Request) -> Response:
    """Also sets every logger below that has a level of its own; the rest inherit."""
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
        if dry.asked(request):
            return dry.shown(effect="changed", loggers=_affected(namespace))
        return JSONResponse(_apply(namespace, number, now_ms))
    command = PutSetting(f"{RECORDS}{namespace}", {"v": 1, "level": _NAMES[number], "ts": now_ms})
    return await carry_out(api, request, command, missing="", done=lambda _: Response(status_code=204))


class Follower:
    """Applies the cluster's levels that were written since the worker became ready."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] | None = None

    def look(self, settings: Mapping[str, Any]) -> None:
        found = {name.removeprefix(RECORDS): value for name, value in settings.items() if name.startswith(RECORDS)}
        seen, self._seen = self._seen, found
        if seen is None:
            return
        for namespace, value in found.items():
            number = LEVELS.get(str(value.get("level")))
            if value != seen.get(namespace) and number is not None:
                _apply(namespace, number, int(value.get("ts", 0)))


@contextlib.asynccontextmanager
async def followed(api: Api) -> AsyncIterator[None]:
    """As long as the server runs."""

    async def follow() -> None:
        follower = Follower()
        while True:
            if api.view().ready:
                follower.look(api.view().state.settings)
            await asyncio.sleep(LOOK_EVERY_S)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _affected(namespace: str) -> list[str]:
    below = [
        name
        for name, logger in _loggers().items()
        if logger.level and (namespace == ROOT or name.startswith(namespace + "."))
    ]
    return sorted({namespace, *below})


def _apply(namespace: str, number: int, now_ms: int) -> list[str]:
    """Also in the processes of the worker's tasks."""
    affected = _affected(namespace)
    levels.change(dict.fromkeys(affected, number))
    _modified.update(dict.fromkeys(affected, now_ms))
    return affected


def _loggers() -> dict[str, logging.Logger]:
    known = dict(logging.root.manager.loggerDict)
    return {ROOT: logging.root, **{name: item for name, item in known.items() if isinstance(item, logging.Logger)}}


def _shown(name: str, logger: logging.Logger) -> dict[str, object]:
    number = logger.getEffectiveLevel()
    return {"level": _NAMES.get(number, logging.getLevelName(number)), "last_modified": _modified.get(name)}


ENDPOINTS = (
    Endpoint("GET", "/admin/loggers", list_loggers, "Loggers with a level of their own", "loggers", role="read"),
    Endpoint("GET", "/admin/loggers/{logger}", get_logger, "Level of a logger", "loggers", (200, 404), role="read"),
    Endpoint(
        "PUT",
        "/admin/loggers/{logger}",
        set_level,
        "Set a level",
        "loggers",
        (200, 204, 400, 404, 409),
        ("scope", "dry_run"),
        "Level",
        role="admin",
    ),
)
