"""`cdcworker support-bundle`: collects what helps others to help in one file, without rows and secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
from cdcworker.worker.cli.client.remote import RemoteCluster, remote_command, segment
from cdcworker.worker.cli.render.output import CliError

CLUSTER: Final = {
    "root.json": "/",
    "cluster.json": "/v1/cluster",
    "journal.json": "/v1/cluster/journal?limit=1000",
    "connectors.json": "/v1/connectors",
    "plugins.json": "/connector-plugins?connectorsOnly=true",
    "subjects.json": "/v1/schemas",
}
CONNECTOR: Final = {
    "info.json": "/connectors/{}",
    "status.json": "/connectors/{}/status",
    "topics.json": "/connectors/{}/topics",
    "offsets.json": "/connectors/{}/offsets",
    "snapshots.json": "/v1/connectors/{}/snapshots",
}
DOCTOR: Final = "/v1/connectors/{}/doctor"
ROWS: Final = ("filters", "keys", "values", "snapshot", "found")
"""Members that hold, or may hold, values of rows: conditions, keys, the position of a snapshot."""
LEFT_OUT: Final = "left out: may hold values of rows"
Files = dict[str, bytes]


@remote_command(None, "support-bundle")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--no-doctor", is_flag=True, help="Do not have the connectors examined, which asks their databases.")
def support_bundle(remote: RemoteCluster, file: Path | None, no_doctor: bool) -> None:
    """Write FILE (.tar.gz): configs without secrets, states, assignments, why tasks moved, metrics, the ends of the
    workers' logs, the doctor's findings, versions, settings of topics. No rows, no secrets. Needs the role admin.

    What cannot be had is named in manifest.json; look into the file before you hand it on.
    """
    path = file or Path(f"cdcworker-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    files, missing = collected(remote, with_doctor=not no_doctor)
    content = {"file": str(path), "files": len(files) + 1, "missing": missing}
    manifest = {"made": datetime.now(UTC).isoformat(timespec="seconds"), "files": sorted(files), "missing": missing}
    write(path, {**files, "manifest.json": _json(manifest)})
    lines = [f"{path}: {len(files) + 1} files", *(f"  without {item['what']}: {item['why']}" for item in missing)]
    remote.tell(content, lambda _: "\n".join(lines), ok=not missing)


def collected(remote: RemoteCluster, *, with_doctor: bool) -> tuple[Files, list[dict[str, str]]]:
    files: Files = {}
    missing: list[dict[str, str]] = []
    for name, path in _paths(remote, with_doctor):
        try:
            files[name] = _json(without_rows(remote.get(path)))
        except CliError as error:
            missing.append({"what": name, "why": str(error.error.get("code") or error.message)})
    workers = [item for item in json.loads(files.get("cluster.json", b"{}")).get("workers", ()) if item["url"]]
    for worker in workers:
        try:
            files |= _of_worker(remote, worker)
        except CliError as error:
            missing.append({"what": f"worker {worker['id']}", "why": str(error.error.get("code") or error.message)})
    return files, missing


def _paths(remote: RemoteCluster, with_doctor: bool) -> Iterator[tuple[str, str]]:
    yield from CLUSTER.items()
    for name in remote.get("/connectors"):
        folder = f"connectors/{quote(name, safe='')}"
        paths = CONNECTOR | ({"doctor.json": DOCTOR} if with_doctor else {})
        for file, path in paths.items():
            yield f"{folder}/{file}", path.format(segment(name))


def _of_worker(remote: RemoteCluster, worker: Mapping[str, Any]) -> Files:
    """Returns the files of one worker, which that worker itself answers."""
    import httpx

    folder = f"workers/{quote(worker['id'], safe='')}"
    worker_api = RemoteCluster(
        (str(worker["url"]).rstrip("/"),), remote.command, as_json=remote.as_json, wait_s=0.0, access=remote.access
    )
    report = worker_api.get("/v1/support")
    log = report.pop("log", [])
    files = {
        f"{folder}/worker.json": _json(report),
        f"{folder}/log.jsonl": "".join(f"{line}\n" for line in log).encode(),
    }
    files[f"{folder}/loggers.json"] = _json(worker_api.get("/admin/loggers"))
    try:
        headers = remote.access.headers()
        answer = httpx.get(
            f"{worker_api.url}/metrics", headers=headers, timeout=30.0, trust_env=False, **remote.options()
        )
        files[f"{folder}/metrics.txt"] = answer.content
    except httpx.HTTPError as exc:
        files[f"{folder}/metrics.txt"] = f"# {type(exc).__name__}\n".encode()
    return files


def without_rows(content: Any) -> Any:
    """Returns the content without members that may hold row values. Workers mask secrets themselves."""
    if isinstance(content, list):
        return [without_rows(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {
        name: LEFT_OUT if name in ROWS and isinstance(value, dict | list) and value else without_rows(value)
        for name, value in content.items()
    }


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes the archive, readable by its owner alone, in the place of what has its name."""
    target, scratch = tempfile.mkstemp(dir=path.absolute().parent)
    try:
        _archive(target, files)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _archive(target: int, files: Mapping[str, bytes]) -> None:
    with os.fdopen(target, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as bundle:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"cdcworker-support/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            bundle.addfile(entry, io.BytesIO(data))


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
