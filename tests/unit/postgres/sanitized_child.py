"""Feeds broken messages to a native core that was built with sanitizers: `python -m … CORE.so COUNT SEED`."""

from __future__ import annotations

import importlib.util
import random
import struct
import sys

NAME = "cdcworker.connectors.postgres._core"


def main() -> None:
    path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    import cdcworker.connectors.postgres as package

    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec
    assert spec.loader
    core_module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = core_module
    spec.loader.exec_module(core_module)
    package._core = core_module  # type: ignore[attr-defined]
    from cdcworker.connectors.postgres import lane
    from cdcworker.connectors.postgres.config import Filters
    from cdcworker.connectors.postgres.types import Modes

    from . import messages as m
    from . import test_copied as copied
    from . import test_core as t

    assert lane.native() is core_module
    head = struct.pack(">cI", b"R", 1) + b"public\0t\0d" + struct.pack(">H", len(t.SAMPLE_COLUMNS))
    for name, oid, typmod, in_key, _ in t.SAMPLE_COLUMNS:
        head += bytes([in_key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    rows = [
        m.insert(1, *t.SAMPLE),
        m.update(1, t.SAMPLE),
        m.update(1, t.SAMPLE, t.SAMPLE, b"O"),
        m.delete(1, t.SAMPLE, b"O"),
    ]
    changes = t.decoder(t.SAMPLE_COLUMNS, Modes(), Filters())
    quick = lane.Lane(changes, t.Registry(), core_module)
    for data in (m.begin(1000), m.frame(head), *rows):
        quick.feed(data)
    core, chosen, done = quick._core, random.Random(seed), 0
    for number in range(count):
        data = t.mutated(chosen, chosen.choice(rows))
        if number % 8 == 0:
            framed = b"d" + struct.pack(">I", chosen.choice((len(data) + 4, chosen.randrange(2**32)))) + data
            done += core.feed(framed[: chosen.randrange(len(framed) + 1)], 0, 0) + core.feed(framed, 0, len(framed)) > 0
        else:
            done += core.one(data)
        if number % 1000 == 0:
            core.take()
    for number in range(count // 10):
        copied.shaken(number)
    print(f"inputs={count} decoded={done}")


if __name__ == "__main__":
    main()
