"""All that a worker says of its connectors, piece by piece: answers of its API, events, topics, the log, a support bundle."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence

from cdcworker.worker.cli.main import cli
from cdcworker.worker.server.application import ENDPOINTS
from click.testing import CliRunner

from .failing_worker import FailingWorker

SHOW_ROWS = {
    "/v1/connectors/{connector}/changes": "rows before and after their changes, for operators (`tail`)",
    "/v1/connectors/{connector}/explain": "the way of one row, whose key the caller names, for operators",
}
"""Operations that exist to show rows. All others are asked, by a user who may do no more than they need."""
FOLLOWED = "/v1/events"
"""Its events are followed from the start."""
NAMES = {
    "connection": "none",
    "plugin": "postgres",
    "logger": "root",
    "task": "0",
    "snapshot": "initial",
    "subject": "none",
}


def everything(failing: FailingWorker, connectors: Sequence[str]) -> list[tuple[str, str]]:
    """Returns each text with the place where it is told."""
    return [
        *failing.answers,
        *answers(failing, connectors),
        ("the events", failing.heard()),
        *topics(failing),
        *bundle(failing),
        ("the doctor's command", command(failing, "doctor", connectors[0])),
        ("the log", failing.worker.log.read_text()),
    ]


def leaks(failing: FailingWorker, heard: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Returns the values that are told, by place."""
    return {place: found for place, text in heard if (found := failing.canaries.found(text))}


def unsaid(heard: Sequence[tuple[str, str]], codes: Sequence[str]) -> list[str]:
    """Returns the codes that are told nowhere."""
    whole = "\n".join(text for _, text in heard)
    return [code for code in codes if code not in whole]


def paths(connectors: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each GET of the API with its role; what is asked of a connector for each of these connectors."""
    for endpoint in ENDPOINTS:
        is_file = endpoint.path.startswith("/ui")
        if endpoint.method != "GET" or is_file or endpoint.path in SHOW_ROWS or endpoint.path == FOLLOWED:
            continue
        of_connector = "{connector}" in endpoint.path
        for name in connectors if of_connector else connectors[:1]:
            filled = {**NAMES, "connector": name}
            yield re.sub(r"\{(\w+)(?::int)?\}", lambda found, of=filled: of[found[1]], endpoint.path), endpoint.role


def answers(failing: FailingWorker, connectors: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path, role in paths(connectors):
        user = "reader" if role in ("read", "open") else "ops"
        answer = failing.ask("GET", path, user=user)
        assert answer.status_code in (200, 400, 404, 409), (path, answer.text)
        yield path, answer.text
    for path in (
        "/connectors?expand=status&expand=info",
        *(f"/connectors/{name}/status?details=true" for name in connectors),
    ):
        yield path, failing.ask("GET", path, user="reader").text
    for subject in failing.ask("GET", "/v1/schemas", user="reader").json()["subjects"]:
        path = f"/v1/schemas/{subject['subject']}/history"
        yield path, failing.ask("GET", path, user="reader").text


def topics(failing: FailingWorker) -> Iterator[tuple[str, str]]:
    """The records of the topics that whoever reads may not learn a value from."""
    for topic in ("status", "audit", "alerts"):
        for record in failing.worker.read(f"{failing.group}.{topic}"):
            parts = (record.key(), record.value(), *(value for _, value in record.headers() or ()))
            yield f"the topic {topic}", b" ".join(part or b"" for part in parts).decode("utf-8", "backslashreplace")


def command(failing: FailingWorker, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--url", failing.worker.url], env={"CDC_TOKEN": failing.tokens["ops"]})
    return f"{done.output} {done.exception!r}"


def bundle(failing: FailingWorker) -> Iterator[tuple[str, str]]:
    path = failing.folder / "bundle.tar.gz"
    yield "what the bundle's command says", command(failing, "support-bundle", str(path), "--no-doctor")
    with tarfile.open(path) as found:
        for member in found:
            content = found.extractfile(member)
            assert content is not None
            yield f"bundle {member.name}", content.read().decode("utf-8", "backslashreplace")
