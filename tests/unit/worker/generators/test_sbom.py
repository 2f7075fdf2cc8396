"""The bill of materials: every locked package and archive once, with its hashes and who wants it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cdcworker.worker.generators import sbom
from cdcworker.worker.java import jars

LOCKS = Path(__file__).resolve().parents[4] / "locks"

LOCK = """\
click==8.5.1 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   -c locks/all.txt
    #   cdcworker (pyproject.toml)
    #   uvicorn
psycopg-binary==3.3.9 ; implementation_name != 'pypy' \\
    --hash=sha256:{a}
    # via psycopg
uvicorn==0.54.0 \\
    --hash=sha256:{a}
    # via cdcworker (pyproject.toml)
""".format(a="a" * 64, b="b" * 64)


def test_a_lock_is_read_with_hashes_and_who_wants_a_package() -> None:
    click, binary, uvicorn = sbom.read(LOCK)
    assert (click.name, click.version, click.hashes) == ("click", "8.5.1", ("a" * 64, "b" * 64))
    assert click.required_by == ("cdcworker", "uvicorn")
    assert (binary.version, binary.required_by) == ("3.3.9", ("psycopg",))
    assert uvicorn.required_by == ("cdcworker",)


def test_what_is_wanted_hangs_below_what_wants_it() -> None:
    made = sbom.sbom(sbom.read(LOCK), {})
    needs = {entry["ref"]: entry["dependsOn"] for entry in made["dependencies"]}
    own = made["metadata"]["component"]["bom-ref"]
    assert needs["pkg:pypi/uvicorn@0.54.0"] == ["pkg:pypi/click@8.5.1"]
    assert {"pkg:pypi/click@8.5.1", "pkg:pypi/uvicorn@0.54.0"} <= set(needs[own])


@pytest.mark.parametrize("name", ["worker.txt", "spark.txt", "all.txt"])
def test_every_pin_and_every_archive_is_in_it_once(name: str) -> None:
    text = (LOCKS / name).read_text()
    made = sbom.sbom(sbom.read(text), jars.lock())
    components = made["components"]
    refs = [component["bom-ref"] for component in components]
    assert len(refs) == len(set(refs))
    pinned = set(re.findall(r"^([A-Za-z0-9-]+)==", text, re.MULTILINE))
    assert {c["name"] for c in components if c["purl"].startswith("pkg:pypi/")} == pinned
    archives = {(jar.organisation, jar.name, jar.revision) for section in jars.lock().values() for jar in section}
    found = [c for c in components if c["purl"].startswith("pkg:maven/")]
    assert {(c["group"], c["name"], c["version"]) for c in found} == archives
    for component in components:
        assert re.fullmatch(r"pkg:(pypi/[a-z0-9._-]+|maven/[^/@]+/[^/@]+)@[^@]+", component["purl"])
        assert component["hashes"]
        assert all(re.fullmatch(r"[0-9a-f]{64}", item["content"]) for item in component["hashes"])
    known = {*refs, made["metadata"]["component"]["bom-ref"]}
    assert {ref for entry in made["dependencies"] for ref in (entry["ref"], *entry["dependsOn"])} <= known


def test_the_same_locks_give_the_same_bill(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        assert sbom.main([str(LOCKS / "worker.txt")]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    made = json.loads(texts[0])
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
