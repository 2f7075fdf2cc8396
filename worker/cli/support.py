"""`cdcworker support-bundle`: everything that helps others to help, in one file, without rows and without secrets."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
from cdcworker.worker.cli.output import CliError
from cdcworker.worker.cli.remote import Remote, remote_command, segment

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
"""Members that hold, or may hold, values of rows: conditions, keys, where a snapshot stands."""
LEFT_OUT: Final = "left out: may hold values of rows"
Files = dict[str, bytes]


@remote_command(None, "support-bundle")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--no-doctor", is_flag=True, help="Do not have the connectors examined, which asks their databases.")
def support_bundle(remote: Remote, file: Path | None, no_doctor: bool) -> None:
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


def collected(remote: Remote, *, with_doctor: bool) -> tuple[Files, list[dict[str, str]]]:
    files: Files = {}
    missing: list[dict[str, str]] = []
    for name, path in _wanted(remote, with_doctor):
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


def _wanted(remote: Remote, with_doctor: bool) -> Iterator[tuple[str, str]]:
    yield from CLUSTER.items()
    for name in remote.get("/connectors"):
        folder = f"connectors/{quote(name, safe='')}"
        paths = CONNECTOR | ({"doctor.json": DOCTOR} if with_doctor else {})
        for file, path in paths.items():
            yield f"{folder}/{file}", path.format(segment(name))


def _of_worker(remote: Remote, worker: Mapping[str, Any]) -> Files:
    """From the worker itself, whichever was asked before."""
    import httpx

    folder = f"workers/{quote(worker['id'], safe='')}"
    there = Remote(
        (str(worker["url"]).rstrip("/"),), remote.command, as_json=remote.as_json, wait_s=0.0, access=remote.access
    )
    told = there.get("/v1/support")
    log = told.pop("log", [])
    found = {f"{folder}/worker.json": _json(told), f"{folder}/log.jsonl": "".join(f"{line}\n" for line in log).encode()}
    found[f"{folder}/loggers.json"] = _json(there.get("/admin/loggers"))
    try:
        headers = remote.access.headers()
        answer = httpx.get(f"{there.url}/metrics", headers=headers, timeout=30.0, trust_env=False, **remote.options())
        found[f"{folder}/metrics.txt"] = answer.content
    except httpx.HTTPError as exc:
        found[f"{folder}/metrics.txt"] = f"# {type(exc).__name__}\n".encode()
    return found


def without_rows(content: Any) -> Any:
    """Names say what may hold values of rows; everything else comes from workers that mask secrets themselves."""
    if isinstance(content, list):
        return [without_rows(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {
        name: LEFT_OUT if name in ROWS and isinstance(value, dict | list) and value else without_rows(value)
        for name, value in content.items()
    }


def write(path: Path, files: Mapping[str, bytes]) -> None:
    """For its owner alone."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(target, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as bundle:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"cdcworker-support/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            bundle.addfile(entry, io.BytesIO(data))


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
