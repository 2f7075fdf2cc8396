"""Log levels of this worker, by Kafka Connect's names."""

from __future__ import annotations

import logging

from cdcworker.worker.rest import errors as e
from cdcworker.worker.rest.body import read_object, scalar
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

ROOT = "root"
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50, "OFF": 60}
_NAMES = {number: name for name, number in LEVELS.items()}
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
        raise e.not_found(f"invalid log level '{level}'.")
    if request.query_params.get("scope", "").lower() == "cluster":
        raise e.not_available("Setting log levels for the whole cluster")
    return JSONResponse(_apply(namespace, number, int(api.clock() * 1000)))


def _apply(namespace: str, number: int, now_ms: int) -> list[str]:
    loggers = _loggers()
    below = [
        name
        for name, logger in loggers.items()
        if logger.level and (namespace == ROOT or name.startswith(namespace + "."))
    ]
    affected = sorted({namespace, *below})
    for name in affected:
        logging.getLogger(None if name == ROOT else name).setLevel(number)
        _modified[name] = now_ms
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
        (200, 400, 404, 501),
        ("scope",),
        "Level",
        role="admin",
    ),
)
