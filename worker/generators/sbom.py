"""A software bill of materials (CycloneDX) of everything that is locked: Python packages with their hashes, and jars."""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from cdcworker.worker.java import jars

Json = dict[str, Any]
LOCK: Final = Path("locks/spark.txt")
PIN: Final = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
NAMESPACE: Final = uuid.UUID("5f0c1a52-4d58-5b3e-9d43-6a1f6f3c8c11")
SPEC: Final = "1.5"


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock; `required_by` holds packages of the lock, or this one."""

    name: str
    version: str
    hashes: tuple[str, ...]
    required_by: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{quote(self.name.lower())}@{quote(self.version)}"


def read(text: str) -> list[LockedPackage]:
    """Returns the pins of a lock in the form that `uv pip compile` writes."""
    packages: list[LockedPackage] = []
    name, number, hashes, required = "", "", [""], [""]
    for line in [*text.splitlines(), "end==0"]:
        pin = PIN.match(line)
        if pin is None:
            hashes += HASH.findall(line)
            required += re.findall(r"^\s+#\s+(?:via\s+)?([A-Za-z0-9_.-]+)(?:\s|$)", line)
            continue
        if name:
            packages.append(
                LockedPackage(
                    name, number, tuple(hashes), tuple(word for word in required if word not in ("via", "-c", "-r"))
                )
            )
        name, number, hashes, required = pin[1], pin[2], [], []
    return packages


def sbom(pins: Sequence[LockedPackage], archives: Mapping[str, Sequence[jars.Jar]]) -> Json:
    """Returns the bill of materials; equal locks give an equal one."""
    own = f"pkg:pypi/cdcworker@{version('cdcworker')}"
    libraries = {_purl(jar): jar for section in archives.values() for jar in section}
    components = [_package(pin) for pin in pins] + [_archive(jar) for _, jar in sorted(libraries.items())]
    refs = {pin.name: pin.purl for pin in pins}
    needs: dict[str, set[str]] = {own: set(libraries)} | {pin.purl: set() for pin in pins}
    for pin in pins:
        for name in pin.required_by:
            needs.setdefault(refs.get(name, own), set()).add(pin.purl)
    content: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "cdcworker",
                "version": version("cdcworker"),
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(needs.items())],
    }
    return {"serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))}", **content}


def _package(pin: LockedPackage) -> Json:
    hashes = [{"alg": "SHA-256", "content": digest} for digest in pin.hashes]
    return _component(pin.purl, {"name": pin.name, "version": pin.version, "hashes": hashes})


def _purl(jar: jars.Jar) -> str:
    return f"pkg:maven/{quote(jar.organisation)}/{quote(jar.name)}@{quote(jar.revision)}"


def _archive(jar: jars.Jar) -> Json:
    hashes = [{"alg": "SHA-256", "content": jar.sha256}]
    return _component(
        _purl(jar), {"group": jar.organisation, "name": jar.name, "version": jar.revision, "hashes": hashes}
    )


def _component(purl: str, more: Json) -> Json:
    return {"type": "library", "bom-ref": purl, "purl": purl, **more}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write a bill of materials of a lock and of the Java archives.")
    parser.add_argument("lock", nargs="?", default=LOCK, type=Path)
    given = parser.parse_args(arguments)
    content = sbom(read(given.lock.read_text(encoding="utf-8")), jars.lock())
    print(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
