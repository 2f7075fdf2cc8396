"""What is asked of a Kafka Connect cluster that holds nothing yet: every route, and the errors that clients meet.

The requests follow each other. `{folder}` in one stands for a folder of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SOURCE_CLASS = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK_CLASS = "org.apache.kafka.connect.file.FileStreamSinkConnector"
SOURCE = {"connector.class": SOURCE_CLASS, "tasks.max": "1", "file": "{folder}/in", "topic": "lines"}
SINK = {"connector.class": SINK_CLASS, "tasks.max": "1", "file": "{folder}/out", "topics": "lines"}
OTHER_SINK = {**SINK, "file": "{folder}/stopped"}
"""Ours give a file to one sink."""
STRAY = {**SINK, "file": "{folder}/none/out"}
"""A sink whose task fails: its folder is not there."""


@dataclass(frozen=True)
class Request:
    """`after`: a connector, the state of it and of each of its tasks, and how many these are; waited for before. `where`: a
    path, and the text that its answer holds by then."""

    method: str
    path: str
    body: Any = None
    raw: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    after: tuple[str, str, tuple[str, ...]] | None = None
    where: tuple[str, str] | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Tells it from every other."""
        return " ".join(filter(None, (self.method, self.path, self.why)))


def ask(request: str, body: Any = None, why: str = "", **more: Any) -> Request:
    method, _, path = request.partition(" ")
    return Request(method, path, body, why=why, **more)


def created(name: str, config: dict[str, Any], **more: Any) -> Any:
    return {"name": name, "config": config, **more}


RUNNING = ("source", "RUNNING", ("RUNNING",))
NEW = ("new", "RUNNING", ("RUNNING",))
STOPPED = ("source", "STOPPED", ())


def of_the_cluster() -> Iterator[Request]:
    yield ask("GET /")
    yield ask("GET /health")
    yield ask("HEAD /", why="head")
    yield ask("GET /nope")
    yield ask("GET /connectors/")
    yield ask("DELETE /connectors")
    yield ask("PATCH /connectors", {})
    yield ask("OPTIONS /connectors")
    yield ask("GET /connectors", why="as html", headers={"accept": "text/html"})
    yield ask("GET /connectors?expand=status", why="empty")
    yield ask("GET /connector-plugins")
    yield ask("GET /connector-plugins?connectorsOnly=false")
    yield ask("GET /connector-plugins?connectorsOnly=abc")
    yield ask("GET /connector-plugins/", why="with a slash")
    for name in (SOURCE_CLASS, SINK_CLASS, "FileStreamSource", "org.apache.kafka.connect.json.JsonConverter"):
        yield ask(f"GET /connector-plugins/{name}/config")
    yield ask("GET /connector-plugins/com.example.Nope/config")
    yield ask(f"GET /connector-plugins/{SOURCE_CLASS}/config?version=latest")
    yield ask(f"GET /connector-plugins/{SOURCE_CLASS}/config?version=9.9")


def of_creation() -> Iterator[Request]:
    post = "POST /connectors"
    yield ask(post, why="no body", headers={"content-type": "application/json"})
    yield ask(post, why="no JSON", raw="{", headers={"content-type": "application/json"})
    yield ask(post, why="plain text", raw="x", headers={"content-type": "text/plain"})
    yield ask(post, why="no content type", raw='{"name": "untyped", "config": {}}', headers={"content-type": ""})
    yield ask(post, [], "a list")
    yield ask(post, {}, "an empty object")
    yield ask(post, {"name": "source"}, "no config")
    yield ask(post, {"config": SOURCE}, "no name")
    yield ask(post, created("", SOURCE), "an empty name")
    yield ask(post, created(" ", SOURCE), "a name of spaces")
    yield ask(post, created("a\u0007b", SOURCE), "a control character")
    yield ask(post, created("wrong", SOURCE, more=1), "an unknown member")
    yield ask(post, created("wrong", {**SOURCE, "name": "other"}), "two names")
    yield ask(post, created("wrong", SOURCE, initial_state="ODD"), "initial_state")
    yield ask(post, created("wrong", {**SOURCE, "topic": ["a"]}), "a list as a value")
    yield ask(post, created("wrong", {**SOURCE, "topic": None}), "null as a value")
    yield ask("DELETE /connectors/wrong", why="of null")
    yield ask(post, created("wrong", {**SOURCE, "batch.size": 5, "tasks.max": "x"}), "a number as a value")
    yield ask(post, created("wrong", {"file": "x", "topic": "t"}), "no class")
    yield ask(post, created("wrong", {**SOURCE, "connector.class": ""}), "an empty class")
    yield ask(post, created("wrong", {**SOURCE, "connector.class": "com.example.Nope"}), "an unknown class")
    yield ask(post, created("wrong", {**SOURCE, "tasks.max": "abc", "batch.size": "0"}), "two errors")
    yield ask(post, created("source", SOURCE), "a source")
    yield ask(post, created("source", SOURCE), "again")
    yield ask(post, created("stopped", OTHER_SINK, initial_state="STOPPED"), "stopped")
    yield ask(post, created("paused", SINK, initial_state="PAUSED"), "paused")
    yield ask(post, created("stray", STRAY), "a sink that fails")
    yield ask("POST /connectors/", created("source", SOURCE), "with a slash")


def of_reading() -> Iterator[Request]:
    yield ask("GET /connectors", after=RUNNING)
    yield ask("GET /connectors?expand=status&expand=info", after=("stray", "RUNNING", ("FAILED",)))
    yield ask("GET /connectors?expand=info")
    yield ask("GET /connectors?expand=nonsense")
    yield ask("GET /connectors?expand=status,info")
    for name in ("source", "stopped", "paused", "stray", "nope"):
        yield ask(f"GET /connectors/{name}")
        for part in ("config", "status", "tasks", "tasks-config", "topics", "offsets"):
            yield ask(f"GET /connectors/{name}/{part}", where=WHERE.get((name, part)))
    for name, task in (
        ("source", "0"),
        ("source", "9"),
        ("source", "x"),
        ("source", "-1"),
        ("stray", "0"),
        ("nope", "0"),
    ):
        yield ask(f"GET /connectors/{name}/tasks/{task}/status")
    yield ask("GET /connectors/source/nope")
    yield ask("GET /connectors/source/tasks/0")
    yield ask("HEAD /connectors/source")


WHERE = {
    ("source", "topics"): ("/connectors/source/topics", "lines"),
    ("source", "offsets"): ("/connectors/source/offsets", "position"),
}


def of_configs() -> Iterator[Request]:
    put = "PUT /connectors/{}/config"
    yield ask(put.format("new"), SINK, "new")
    yield ask(put.format("new"), {**SINK, "errors.log.enable": "true"}, "changed", after=NEW)
    yield ask(put.format("new"), {**SINK, "name": "other"}, "two names")
    yield ask(put.format("new"), [], "a list")
    yield ask(put.format("new"), {}, "an empty object")
    yield ask(put.format("new"), why="no body", headers={"content-type": "application/json"})
    yield ask(put.format("new"), {**SINK, "file": None}, "null as a value")
    yield ask(put.format("new"), {"connector.class": SINK_CLASS}, "no topics")
    yield ask(put.format("new"), {**SINK, "topics.regex": "t.*"}, "topics twice")
    yield ask("PUT /connectors/new/config", SINK, "as before")
    patch = "PATCH /connectors/{}/config"
    yield ask(patch.format("new"), {"errors.log.enable": None, "file": "{folder}/other"}, "null takes out", after=NEW)
    yield ask(patch.format("new"), {}, "nothing")
    yield ask(patch.format("new"), {"name": "other"}, "another name")
    yield ask(patch.format("new"), {"tasks.max": "none"}, "invalid")
    yield ask(patch.format("new"), [], "a list")
    yield ask(patch.format("nope"), {"tasks.max": "1"})
    yield ask("POST /connectors/new/config", {})


WRONG: tuple[tuple[str, Any], ...] = (
    ("tasks.max", "abc"),
    ("tasks.max", "1.5"),
    ("tasks.max", ""),
    ("tasks.max", "0"),
    ("tasks.max", "-3"),
    ("tasks.max", "2147483648"),
    ("tasks.max.enforce", "yes"),
    ("errors.retry.timeout", "soon"),
    ("errors.retry.timeout", "-2"),
    ("errors.retry.delay.max.ms", "x"),
    ("errors.tolerance", "some"),
    ("errors.log.enable", "1"),
    ("errors.log.include.messages", "maybe"),
    ("config.action.reload", "later"),
    ("transforms", "a,a"),
    ("transforms", "a"),
    ("predicates", "p,p"),
    ("predicates", "p"),
    ("key.converter", "com.example.Nope"),
    ("value.converter", ""),
    ("header.converter", "nope"),
    ("header.converter", "org.apache.kafka.connect.storage.SimpleHeaderConverter"),
    ("name", ""),
)
OF_SOURCES: tuple[tuple[str, Any], ...] = (
    ("file", ""),
    ("topic", ""),
    ("topic", None),
    ("batch.size", "many"),
    ("batch.size", "0"),
    ("exactly.once.support", "perhaps"),
    ("exactly.once.support", "REQUIRED"),
    ("transaction.boundary", "never"),
    ("transaction.boundary", "INTERVAL"),
    ("transaction.boundary.interval.ms", "-1"),
    ("topic.creation.groups", "a,a"),
    ("topic.creation.default.partitions", "0"),
    ("topic.creation.default.partitions", "-2"),
    ("topic.creation.default.replication.factor", "0"),
    ("topic.creation.default.replication.factor", "40000"),
    ("topic.creation.default.cleanup.policy", "odd"),
    ("unknown.key", "1"),
)
OF_SINKS: tuple[tuple[str, Any], ...] = (
    ("topics", ""),
    ("topics", None),
    ("topics", " , "),
    ("topics.regex", "t.*"),
    ("errors.deadletterqueue.topic.replication.factor", "x"),
    ("errors.deadletterqueue.context.headers.enable", "on"),
)


def of_validation() -> Iterator[Request]:
    """Both connectors with one wrong value at a time, and the requests that are wrong themselves."""
    for plugin, config, wrong in ((SOURCE_CLASS, SOURCE, (*WRONG, *OF_SOURCES)), (SINK_CLASS, SINK, OF_SINKS)):
        path = f"PUT /connector-plugins/{plugin}/config/validate"
        yield ask(path, {"name": "fine", **config}, "fine")
        yield ask(path, {"connector.class": plugin}, "nothing given")
        for key, value in wrong:
            yield ask(path, {"name": "wrong", **config, key: value}, f"{key}={value}")
    path = "PUT /connector-plugins/{}/config/validate"
    yield ask(path.format("FileStreamSource"), SOURCE, "by a short name")
    yield ask(path.format("FileStreamSource"), {**SOURCE, "connector.class": "FileStreamSource"}, "by short names")
    yield ask(path.format(SINK_CLASS), SOURCE, "another class")
    yield ask(path.format(SINK_CLASS), {"name": "x"}, "no class")
    yield ask(path.format("com.example.Nope"), SOURCE, "an unknown plugin")
    yield ask(path.format("com.example.Nope"), {"connector.class": "com.example.Nope"}, "an unknown class")
    yield ask(path.format(SINK_CLASS), [], "a list")
    yield ask(path.format(SINK_CLASS), why="no body", headers={"content-type": "application/json"})


def of_life() -> Iterator[Request]:
    for verb in ("pause", "resume", "stop"):
        yield ask(f"PUT /connectors/nope/{verb}")
    yield ask("GET /connectors/source/pause")
    yield ask("PUT /connectors/source/pause", after=RUNNING)
    yield ask("GET /connectors/source/status", why="paused", after=("source", "PAUSED", ("PAUSED",)))
    yield ask("PUT /connectors/source/pause", why="again")
    yield ask("PUT /connectors/source/resume", why="paused")
    yield ask("PUT /connectors/source/resume", why="running", after=RUNNING)
    yield from of_restarts()
    yield ask("PUT /connectors/source/stop", after=RUNNING)
    yield ask("GET /connectors/source/status", why="stopped", after=STOPPED)
    yield ask("GET /connectors/source/tasks", why="stopped", where=("/connectors/source/tasks", "[]"))
    yield ask("GET /connectors/source", why="stopped")
    yield ask("PUT /connectors/source/stop", why="again")
    yield ask("POST /connectors/source/tasks/0/restart", why="stopped")
    yield ask("POST /connectors/source/restart?includeTasks=true", why="stopped")


def of_restarts() -> Iterator[Request]:
    yield ask("POST /connectors/source/restart")
    yield ask("POST /connectors/nope/restart")
    yield ask("POST /connectors/nope/restart?includeTasks=true")
    yield ask("POST /connectors/source/restart?includeTasks=abc", after=RUNNING)
    yield ask("POST /connectors/source/restart?onlyFailed=true", after=RUNNING)
    yield ask("POST /connectors/source/restart?includeTasks=true&onlyFailed=true", after=RUNNING)
    yield ask("POST /connectors/source/restart?includeTasks=true", after=RUNNING)
    stray = ("stray", "RUNNING", ("FAILED",))
    yield ask("POST /connectors/stray/restart?includeTasks=true&onlyFailed=true", after=stray)
    yield ask("POST /connectors/stray/tasks/0/restart", after=stray)
    yield ask("POST /connectors/source/tasks/0/restart", after=RUNNING)
    yield ask("POST /connectors/source/tasks/9/restart")
    yield ask("POST /connectors/source/tasks/x/restart")
    yield ask("POST /connectors/nope/tasks/0/restart")
    yield ask("PUT /connectors/source/topics/reset", after=RUNNING)
    yield ask("PUT /connectors/nope/topics/reset")
    yield ask("POST /connectors/source/tasks", [], "internal")
    yield ask("PUT /connectors/source/fence", why="internal")


def offsets(*items: Any) -> dict[str, Any]:
    return {"offsets": list(items)}


def item(partition: Any, offset: Any) -> dict[str, Any]:
    return {"partition": partition, "offset": offset}


FILE = {"filename": "{folder}/in"}


def of_offsets() -> Iterator[Request]:
    """`source` is stopped by then, and its task, which ends later, has stored what it had read."""
    path = "PATCH /connectors/source/offsets"
    read = ("/connectors/source/offsets", '"position": 8')
    yield ask("PATCH /connectors/paused/offsets", offsets(item(FILE, None)), "paused", where=read)
    yield ask("DELETE /connectors/paused/offsets", why="paused")
    yield ask("PATCH /connectors/nope/offsets", offsets(item(FILE, None)))
    yield ask("DELETE /connectors/nope/offsets")
    for body, why in (
        ({}, "an empty object"),
        ([], "a list"),
        (offsets(), "none"),
        ({"offsets": None}, "null"),
        ({"offsets": "x"}, "a text"),
        (offsets("x"), "a text as an item"),
        (offsets(item(None, {"position": 1})), "no partition"),
        (offsets({"offset": {"position": 1}}), "a missing partition"),
        (offsets(item("x", {"position": 1})), "a text as a partition"),
        (offsets({**item(FILE, None), "more": 1}), "an unknown member"),
        ({**offsets(item(FILE, None)), "more": 1}, "an unknown member at the top"),
        (offsets(item({"nope": "x"}, {"position": 1})), "another partition"),
        (offsets(item(FILE, {"position": "x"})), "no number"),
        (offsets(item(FILE, {"position": -1})), "a negative number"),
        (offsets(item(FILE, {"nope": 1})), "no position"),
        (offsets(item(FILE, {"position": 0})), "at the beginning"),
        (offsets(item(FILE, None)), "taken out"),
    ):
        yield ask(path, body, why)
    yield ask("GET /connectors/source/offsets", why="taken out")
    yield ask("DELETE /connectors/source/offsets")
    yield from of_offsets_of_sinks()


def of_offsets_of_sinks() -> Iterator[Request]:
    path = "PATCH /connectors/stopped/offsets"

    def part(**more: Any) -> dict[str, Any]:
        return {"kafka_topic": "lines", "kafka_partition": 0, **more}

    for partition, offset, why in (
        (None, {"kafka_offset": 1}, "no partition"),
        ({}, {"kafka_offset": 1}, "an empty partition"),
        ({"kafka_topic": "lines"}, {"kafka_offset": 1}, "no number of a partition"),
        (part(kafka_topic=None), {"kafka_offset": 1}, "no topic"),
        (part(kafka_partition=None), {"kafka_offset": 1}, "null as a partition"),
        (part(kafka_partition="x"), {"kafka_offset": 1}, "a text as a partition"),
        (part(kafka_partition=-1), {"kafka_offset": 1}, "a negative partition"),
        (part(), {}, "an empty offset"),
        (part(), {"kafka_offset": None}, "null as an offset"),
        (part(), {"kafka_offset": "x"}, "a text as an offset"),
        (part(), {"kafka_offset": -1}, "a negative offset"),
        (part(), {"kafka_offset": "1"}, "a number as a text"),
        (part(), None, "taken out"),
    ):
        yield ask(path, offsets(item(partition, offset)), why)
    yield ask("GET /connectors/stopped/offsets", why="of a sink")
    yield ask("DELETE /connectors/stopped/offsets", why="of a sink")


def of_loggers() -> Iterator[Request]:
    logger = "org.apache.kafka.connect"
    yield ask("GET /admin/loggers")
    yield ask("GET /admin/loggers/root")
    yield ask("GET /admin/loggers/no.such.logger")
    put = f"PUT /admin/loggers/{logger}"
    yield ask(put, {}, "no level")
    yield ask(put, {"level": None}, "null")
    yield ask(put, {"level": "LOUD"}, "an unknown level")
    yield ask(put, [], "a list")
    yield ask(put, why="no body", headers={"content-type": "application/json"})
    yield ask(put, {"level": "debug"}, "lower case")
    yield ask(put, {"level": "INFO", "more": "x"}, "an unknown member")
    yield ask(f"{put}?scope=worker", {"level": "WARN"})
    # A level for the cluster comes by its log, and would overwrite a later one of the same logger on a busy machine.
    yield ask("PUT /admin/loggers/org.apache.kafka.clients?scope=cluster", {"level": "ERROR"})
    yield ask(f"{put}?scope=galaxy", {"level": "INFO"})
    yield ask(
        "GET /admin/loggers/org.apache.kafka.connect",
        why="set",
        where=("/admin/loggers/org.apache.kafka.connect", "level"),
    )
    yield ask("PUT /admin/loggers/made.up", {"level": "TRACE"}, "a made up one")
    yield ask("PUT /admin/loggers/root", {"level": "INFO"}, "the root")
    yield ask("DELETE /admin/loggers/root")


def of_the_end() -> Iterator[Request]:
    for name in ("source", "stopped", "paused", "stray", "new"):
        yield ask(f"DELETE /connectors/{name}")
    yield ask("DELETE /connectors/nope")
    yield ask("GET /connectors", why="none left", where=("/connectors", "[]"))
    yield ask("GET /connectors/source/status", why="gone")


def requests() -> list[Request]:
    """In the order in which they are asked."""
    return [
        *of_the_cluster(),
        *of_creation(),
        *of_reading(),
        *of_configs(),
        *of_validation(),
        *of_life(),
        *of_offsets(),
        *of_loggers(),
        *of_the_end(),
    ]
