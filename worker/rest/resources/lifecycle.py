"""The life cycle of connectors: status, pause, resume, stop, restart, tasks and topics in use."""

from __future__ import annotations

from cdcworker.coordinator.model import PutConnector, Reply, Restart, TargetState, TaskId
from cdcworker.worker.http import errors as e
from cdcworker.worker.http.error_members import DETAILS
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.commands import carry_out
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.dry_run import dry_run_answer, is_dry_run
from cdcworker.worker.rest.resources.connectors import if_match
from cdcworker.worker.rest.routing import Endpoint, flag, wants_details
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

C = "/connectors/{connector}"
DRY = ("dry_run",)


async def status(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"], "No status found for connector {}")
    state = connect_json.connector_state(api.view(), connector)
    return JSONResponse(state if wants_details(request) else connect_json.plain_state(state))


async def pause(api: ApiContext, request: Request) -> Response:
    return await _target(api, request, "PAUSED", 202)


async def resume(api: ApiContext, request: Request) -> Response:
    return await _target(api, request, "RUNNING", 202)


async def stop(api: ApiContext, request: Request) -> Response:
    return await _target(api, request, "STOPPED", 204)


async def _target(api: ApiContext, request: Request, state: TargetState, code: int) -> Response:
    name = request.path_params["connector"]
    _, version = if_match(request, name, api.view().state.connectors.get(name))
    command = PutConnector(name, None, target_state=state, must_exist=True, if_version=version)
    missing = f"Unknown connector {name}"
    return await carry_out(api, request, command, missing=missing, done=lambda _: Response(status_code=code))


async def restart(api: ApiContext, request: Request) -> Response:
    """Restarts the connector: 204 for the connector alone, 202 with the restart plan if either flag is set."""
    name = request.path_params["connector"]
    query = request.query_params
    include_tasks, only_failed = flag(query, "includeTasks"), flag(query, "onlyFailed")
    command = Restart(name, include_tasks=include_tasks, only_failed=only_failed)
    before = api.view()

    def done(_: Reply) -> Response:
        connector = before.state.connectors.get(name) or api.connector(name, "Status for connector {} not found")
        if not include_tasks and not only_failed:
            return Response(status_code=204)
        state = connect_json.connector_state(before, connector)
        plan = connect_json.restart_plan(state, include_tasks=include_tasks, only_failed=only_failed)
        return JSONResponse(plan if wants_details(request) else connect_json.plain_state(plan), 202)

    # Nothing runs of a stopped connector, so there is nothing to refuse; only a restart of one of its tasks is a conflict.
    missing, accepted = f"Unknown connector: {name}", ("ok", "conflict")
    return await carry_out(api, request, command, missing=missing, done=done, accepted=accepted)


async def tasks(api: ApiContext, request: Request) -> Response:
    connector = api.connector(request.path_params["connector"])
    return JSONResponse(connect_json.task_infos(api.view(), connector, api.mask_for(request.scope, connector.name)))


async def tasks_config(api: ApiContext, request: Request) -> Response:
    """Answers the deprecated form of `/tasks`."""
    connector = api.connector(request.path_params["connector"])
    infos = connect_json.task_infos(api.view(), connector, api.mask_for(request.scope, connector.name))
    return JSONResponse({f"{connector.name}-{info['id']['task']}": info["config"] for info in infos})


async def task_status(api: ApiContext, request: Request) -> Response:
    task = TaskId(request.path_params["connector"], request.path_params["task"])
    view = api.view()
    connector = view.state.connectors.get(task.connector)
    if connector is None or not 0 <= task.task < len(connect_json.task_configs(view, connector)):
        raise e.not_found(f"No status found for task {task}")
    state = connect_json.task_state(view, task, connect_json.task_owners(view))
    return JSONResponse(state if wants_details(request) else connect_json.plain_task(state))


async def restart_task(api: ApiContext, request: Request) -> Response:
    task = TaskId(request.path_params["connector"], request.path_params["task"])
    known = task.connector in api.view().state.connectors
    missing = f"Unknown task: {task}" if known else f"Unknown connector: {task.connector}"
    command = Restart(task.connector, task=task.task)
    return await carry_out(api, request, command, missing=missing, done=lambda _: Response(status_code=204))


async def topics(api: ApiContext, request: Request) -> Response:
    """Answers the topics in use. An unknown connector has none, as in Kafka Connect."""
    if not api.settings.topic_tracking:
        raise e.RestError(403, "Topic tracking is disabled.", e.FORBIDDEN)
    name = request.path_params["connector"]
    return JSONResponse({name: {"topics": sorted(api.view().topics.get(name, ()))}})


async def reset_topics(api: ApiContext, request: Request) -> Response:
    """Forgets the topics in use; any worker does it. Topics that tasks still use are back at once."""
    if not api.settings.topic_tracking:
        raise e.RestError(403, "Topic tracking is disabled.", e.FORBIDDEN)
    if not api.settings.topic_tracking_reset:
        raise e.RestError(403, "Topic tracking reset is disabled.", e.FORBIDDEN)
    name = request.path_params["connector"]
    if is_dry_run(request):
        return dry_run_answer(connector=name, effect="reset", topics=sorted(api.view().topics.get(name, ())))
    api.herder.forget_topics(name)
    await api.until(lambda: not api.view().topics.get(name))
    return Response(status_code=202)


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{C}/status",
        status,
        "State of a connector and its tasks",
        statuses=(200, 404),
        query=(DETAILS,),
        role="read",
    ),
    Endpoint(
        "PUT", f"{C}/pause", pause, "Pause a connector", statuses=(200, 202, 404, 409, 412), query=DRY, role="operate"
    ),
    Endpoint(
        "PUT",
        f"{C}/resume",
        resume,
        "Resume a connector",
        statuses=(200, 202, 404, 409, 412),
        query=DRY,
        role="operate",
    ),
    Endpoint(
        "PUT",
        f"{C}/stop",
        stop,
        "Stop a connector, give up its tasks",
        statuses=(200, 204, 404, 409, 412),
        query=DRY,
        role="operate",
    ),
    Endpoint(
        "POST",
        f"{C}/restart",
        restart,
        "Restart a connector, its tasks, or what failed",
        statuses=(200, 202, 204, 404, 409),
        query=("includeTasks", "onlyFailed", DETAILS, *DRY),
        role="operate",
    ),
    Endpoint("GET", f"{C}/tasks", tasks, "Configs of the tasks", tag="tasks", statuses=(200, 404), role="read"),
    Endpoint(
        "GET", f"{C}/tasks-config", tasks_config, "Configs of the tasks (deprecated)", "tasks", (200, 404), role="read"
    ),
    Endpoint(
        "GET",
        f"{C}/tasks/{{task:int}}/status",
        task_status,
        "State of a task",
        "tasks",
        (200, 404),
        (DETAILS,),
        role="read",
    ),
    Endpoint(
        "POST",
        f"{C}/tasks/{{task:int}}/restart",
        restart_task,
        "Restart a task",
        "tasks",
        (200, 204, 404, 409),
        DRY,
        role="operate",
    ),
    Endpoint("GET", f"{C}/topics", topics, "Topics in use", statuses=(200, 403), role="read"),
    Endpoint(
        "PUT",
        f"{C}/topics/reset",
        reset_topics,
        "Forget the topics in use",
        statuses=(200, 202, 403),
        query=DRY,
        role="operate",
    ),
)
