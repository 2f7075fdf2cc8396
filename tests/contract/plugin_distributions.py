"""Distributions with plugins, as pip leaves them in a folder: a module, and metadata that names entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CONNECTORS, TRANSFORMS = "cdcworker.connectors", "cdcworker.connectors.transforms"

SOURCE = """
from cdcworker.connectors.api.kit import SourceField, SourcePage, SourcePlugin, SourceRecord, SourceTable

class Numbers:
    def __init__(self, place):
        pass

    def tables(self):
        return [SourceTable("numbers", [SourceField("n", "int64")], key=["n"])]

    def read(self, cursor):
        n = cursor["n"] if cursor else 0
        if n >= 60:
            return SourcePage([], {"n": n})
        return SourcePage([SourceRecord("numbers", {"n": n})], {"n": n + 1}, wait_s=0.02)

plugin = SourcePlugin(Numbers)
"""
TRANSFORM = """
from cdcworker.connectors.api.kit import ConfigKey, TransformPlugin

plugin = TransformPlugin(lambda record, config: record.with_topic(record.topic + config["suffix"]),
                         keys=(ConfigKey("suffix", required=True),))
"""


def installed(
    folder: Path, name: str, code: str, entries: Mapping[str, Mapping[str, str]], version: str = "1.2"
) -> str:
    """Writes a distribution into a folder; its module is the name with underscores. Returns the name."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{entry} = {module}:{thing}\n" for entry, thing in named.items())
        for group, named in entries.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return name
