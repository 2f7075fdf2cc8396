"""Feeds broken messages to a decoder that was built with sanitizers: `python -m … DECODER NATIVE.so SHAKER.so COUNT SEED`."""

from __future__ import annotations

import importlib.util
import io
import random
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

NAMES = {
    "stream": "postgres.decode._core",
    "rows": "postgres.decode._core",
    "bodies": "arrow._native",
    "row_events": "mysql.decode._core",
    "log_events": "mysql.decode._core",
    "selected": "mysql.decode._core",
}
WORDS = [
    *(b"", b"-", b"0", b"n", b"u", b"t", b"N", b"K", b"O", b"\0", b"\t", b"\n", b"\\", b"\\N", b"\xff", b"\x80", b"\xc3"),
    *(b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\xff" * 9 + b"\1", b"\x80" * 9 + b"\1", b"\xfe\xff\xff\xff\x0f"),
    *(b"9" * 30, b"1e400", b"-0.00", b"NaN", b"Infinity", b"infinity", b" BC", b"24:00:00", b"+15:59", b"\xed\xa0\x80"),
]  # fmt: skip


def loaded(name: str, path: str) -> ModuleType:
    """The module of this file under that name, for everyone who imports it from now on."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), leaf, module)
    return module


class Shaker:
    def __init__(self, module: ModuleType, seed: int) -> None:
        self._module, self._seed = module, seed

    def __call__(
        self, take: Callable[[memoryview], Any], samples: Sequence[bytes], count: int, *, head: int = 0,
        then: Callable[[], Any] = lambda: None,
    ) -> int:  # fmt: skip
        """How many inputs were taken."""
        self._seed += 1
        return int(self._module.shake(take, then, list(samples), WORDS, head, count, self._seed))


def framed(*rows: bytes) -> bytes:
    return b"".join(b"d" + struct.pack(">I", len(row) + 4) + row for row in rows)


def stream(core_module: ModuleType, shake: Shaker, count: int) -> int:
    """Messages of rows, one by one, and a tenth as many buffers of frames."""
    from cdcworker.connectors.capture.config.filters import TableFilters
    from cdcworker.connectors.postgres.decode import native_path
    from cdcworker.connectors.postgres.types.mapping import HandlingModes

    from tests.unit.connectors.postgres import messages as m
    from tests.unit.connectors.postgres.decode.test_native_path import HEADER_BYTES, SAMPLE, SAMPLE_COLUMNS
    from tests.unit.connectors.postgres.oracle import Registry, decoder, description

    assert native_path.native() is core_module
    holes = [value if i in (0, 2) else None for i, value in enumerate(SAMPLE)]
    unsent = [value if i % 3 == 0 else "u" for i, value in enumerate(SAMPLE)]
    rows = [
        m.insert(1, *SAMPLE),
        m.insert(1, *holes),
        m.update(1, SAMPLE),
        m.update(1, unsent),
        m.update(1, unsent, SAMPLE, b"O"),
        m.delete(1, SAMPLE, b"O"),
        m.delete(1, holes, b"K"),
    ]
    quick = native_path.NativePath(decoder(SAMPLE_COLUMNS, HandlingModes(), TableFilters()), Registry(), core_module)
    for data in (m.begin(1000), description(SAMPLE_COLUMNS), *rows):
        quick.feed(data)
    core = quick._core
    done = shake(core.one, rows, count, head=HEADER_BYTES + 5, then=core.take)
    buffers = [framed(one, other) for one in rows for other in rows[:2]]
    feed = lambda view: core.feed(view, 0, len(view))  # noqa: E731
    return done + shake(feed, buffers, count // 10, head=HEADER_BYTES + 10, then=core.take)


def rows(core_module: ModuleType, shake: Shaker, count: int) -> int:
    """Rows of COPY, one in a buffer, and a tenth as many buffers of several."""
    from cdcworker.connectors.capture.config.filters import TableFilters
    from cdcworker.connectors.capture.snapshot.progress import SnapshotProgress
    from cdcworker.connectors.postgres.decode import native_path
    from cdcworker.connectors.postgres.decode.table_plan import source_template
    from cdcworker.connectors.postgres.snapshot.row_emitter import FrameRowEmitter, TableRowPositions
    from cdcworker.connectors.postgres.types.mapping import HandlingModes

    from tests.unit.connectors.postgres.decode.test_native_path import SAMPLE, SAMPLE_COLUMNS
    from tests.unit.connectors.postgres.oracle import Registry
    from tests.unit.connectors.postgres.snapshot.test_copy_frames import VIEW, line_of, plan_of

    assert native_path.native() is core_module
    plan = plan_of(SAMPLE_COLUMNS, HandlingModes(), TableFilters())
    stamp = TableRowPositions(SnapshotProgress(), source_template("shop", "db"), plan, VIEW, 1 << 32)
    layout = FrameRowEmitter(Registry(), core_module).layout(stamp)
    escaped = [b"a\tb\\c\n" if i == 2 else value if i % 3 == 0 else None for i, value in enumerate(SAMPLE)]
    lines = [line_of(SAMPLE), line_of(escaped)]
    core = core_module.Copied()
    write = lambda view: core.write(view, 0, len(view), layout, (b"s", b"t"), 0)[0]  # noqa: E731
    done = shake(write, [framed(line) for line in lines], count, head=5, then=core.take)
    buffers = [framed(one, *lines) for one in lines]
    done += shake(write, buffers, count // 10, then=core.take)
    return done + shake(lambda view: core_module.walk(view, 0, len(view))[1], buffers, count // 10)


SCHEMA: dict[str, Any] = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": [
            {"name": "id", "type": "long"},
            {"name": "n", "type": ["null", "int"]},
            {"name": "v", "type": ["string", "null"]},
            {"name": "amount", "type": ["null", "bytes"]},
            {"name": "ok", "type": ["null", "boolean"]},
            {"name": "ratio", "type": ["null", "double"]},
            {"name": "share", "type": "float"},
            {"name": "mood", "type": {"type": "enum", "name": "Mood", "symbols": ["sad", "glad"]}},
            {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 5}},
            {"name": "many", "type": {"type": "array", "items": ["null", "long"]}},
            {"name": "named", "type": {"type": "map", "values": "bytes"}},
            {"name": "either", "type": ["null", "long", "string"]},
            {"name": "none", "type": {"type": "array", "items": "null"}},
        ]}]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip
BODY = {
    "id": -(2**40), "n": 7, "v": "gr\u00fc\u00df", "amount": b"\x01\xff", "ok": True, "ratio": -2.5e300, "share": 0.5,
    "mood": "glad", "mark": b"12345", "many": [1, None, -3], "named": {"a": b"x", "b": b""}, "either": "text", "none": [None],
}  # fmt: skip


def bodies(native: ModuleType, shake: Shaker, count: int) -> int:
    """Bodies of Avro records under three plans, and a tenth as many broken offsets."""
    from cdcworker.connectors.arrow import decode
    from fastavro import parse_schema, schemaless_writer

    assert decode.native() is native
    parsed, samples = parse_schema(SCHEMA, named_schemas={}), []
    holes = BODY | dict.fromkeys(("n", "v", "amount", "ok", "ratio", "either")) | {"many": [], "named": {}, "none": []}
    for row in ((BODY, holes), (None, BODY), (holes, None)):
        out = io.BytesIO()
        schemaless_writer(out, parsed, {"before": row[0], "after": row[1], "op": "u"})
        samples.append(b"\0" * 5 + out.getvalue())
    done, ends = 0, array("q", (0, 0))
    for paths in (((),), (("after",), ("op",)), (("before", "many"), ("after", "v"))):
        plan = decode.DecodePlan(SCHEMA, paths)
        words = plan.nodes, plan.children, plan.widths

        def take(view: memoryview, words: tuple[bytes, ...] = words) -> bool:
            ends[1] = len(view)
            return bool(native.decode(*words, view, ends, 5)[1] == 0)

        done += shake(take, samples, count // 3 + 1, head=5)
        offsets(native, words, count // 100)
    return done


def offsets(native: ModuleType, words: tuple[bytes, ...], count: int) -> None:
    """Any offsets are refused or lie within the data."""
    chosen, data = random.Random(count), bytes(range(64))
    for _ in range(count):
        numbers = sorted(chosen.randrange(70) for _ in range(chosen.randrange(5)))
        if not chosen.randrange(3):
            numbers = [chosen.choice((-1, -(2**31), 2**31 - 1, number)) for number in numbers]
        for call in (
            lambda some: native.decode(*words, data, array("q", some), chosen.randrange(-1, 9)),
            lambda some: native.hexes(data, array("i", some)),
            lambda some: native.decimals(data, array("i", some)),
        ):
            try:
                call(numbers)
            except ValueError as exc:
                assert "bad offsets" in str(exc), exc  # noqa: PT017


def row_events(core_module: ModuleType, shake: Shaker, count: int) -> int:
    """Images of rows of every kind of column: new ones, old and new ones, old ones, and those that lack columns."""
    from cdcworker.connectors.mysql.decode import native_rows

    from tests.unit.connectors.mysql.decode.row_events import SAMPLE, SAMPLE_TABLE, bits, image, layout_of

    assert native_rows.native() is core_module
    layout, counted = (
        layout_of(SAMPLE_TABLE, core_module),
        core_module.RowLayout([kind.width for kind in SAMPLE_TABLE.kinds]),
    )
    core, every = core_module.Core(), [True] * len(SAMPLE)
    core.set_event(b"head", b"middle", b"tail")
    part = [i in SAMPLE_TABLE.key or i % 3 == 0 for i in range(len(SAMPLE))]
    holes = [value if i in SAMPLE_TABLE.key else None for i, value in enumerate(SAMPLE)]
    cases = [
        ("c", [image(SAMPLE, every), image(holes, every)], (b"", bits(every))),
        ("u", [image(SAMPLE, every) + image(new, every) for new in (SAMPLE, holes)], (bits(every), bits(every))),
        ("d", [image(SAMPLE, every), image(holes, every)], (bits(every), b"")),
        ("d", [image(SAMPLE, part), image(holes, part)], (bits(part), b"")),
    ]
    done = 0
    for number, (op, samples, present) in enumerate(cases):
        take = lambda view: core.rows(layout, ord(op), view, 0, present, 0, 0)[1] > 0  # noqa: B023, E731
        done += shake(take, samples, count // len(cases) + (count % len(cases) if not number else 0), then=core.take)
        take = lambda view: core.rows(counted, ord(op), view, 0, present, 0, 0)[1] > 0  # noqa: B023, E731
        shake(take, [both + both for both in samples], count // 20)
    return done


ROOM = 1 << 30
"""Bytes of a turn: as many as a sample has, and as its records have."""


def log_events(core_module: ModuleType, shake: Shaker, count: int) -> int:
    """Packets of whole transactions of both servers, one transaction in a buffer."""
    from cdcworker.connectors.mysql.transport.packets import packets

    from tests.unit.connectors.mysql.decode import log_streams as logs
    from tests.unit.connectors.mysql.decode.row_events import SAMPLE, SAMPLE_TABLE, image, layout_of, rows_event

    core, every = core_module.LogCore((), lambda collation: collation < 100), [True] * len(SAMPLE)
    core.set_pieces((b"head", b"between", b"more"))
    core.set_tails(b"create", b"update", b"delete")
    core.stand(4, b"file", [])
    shown, other = logs.map_of(9, len(SAMPLE)), logs.map_of(logs.OTHER_ID, 1, "other")
    core.know(shown[19:], layout_of(SAMPLE_TABLE, core_module), b"shop", b"t", False)
    core.know(other[19:], core_module.RowLayout([4]), b"", b"", False)
    part = [i in SAMPLE_TABLE.key or i % 3 == 0 for i in range(len(SAMPLE))]
    pieces = (
        ("c", image(SAMPLE, every), every),
        ("U", image(SAMPLE, every) * 2, every),
        ("d", image(SAMPLE, part), part),
    )
    rows = [part for kind, data, has in pieces for part in (shown, rows_event(kind, SAMPLE_TABLE, data, has, has))]
    status = b"\0\1\2\3\4\6\3std\x0b\1a\1b\x0c\1shop\0\x83\1abcd\x02\3std\0\x04\x2d\0"
    begins = (
        [logs.mysql_gtid(5, logs.MICROS | 1 << 55), logs.query("BEGIN", status=status)],
        [logs.mysql_gtid(0, None), logs.query("BEGIN")],
        [logs.mariadb_gtid(6)],
        [logs.mariadb_gtid(7, flags=2)],
    )
    ends = (logs.xid(), logs.query("COMMIT", status=status))
    samples = [
        b"".join(packets(b"\0" + event, i) for i, event in enumerate((*begin, *some, end)))
        for begin in begins
        for end in ends
        for some in (rows, [*logs.other_rows(3), *rows[:2]])
    ]

    def whole(sample: bytes) -> int:
        core.enter(logs.MICROS, 0, None)
        core.sequence = -1
        at = core.feed(sample, 0, len(sample), ROOM)
        assert core.taken()[2] is not None
        return int(at)

    def take(view: memoryview) -> bool:
        core.enter(logs.MICROS, 0, None)
        core.sequence, core.checksums = -1, len(view) % 16 == 0
        taken = core.feed(view, 0, len(view), ROOM) > len(view) // 4
        core.taken()
        return taken

    assert all(len(sample) == whole(sample) for sample in samples)
    return shake(take, samples, count, head=30)


def selected(core_module: ModuleType, shake: Shaker, count: int) -> int:
    """Rows of a SELECT, one in a buffer, and a tenth as many buffers of several, which are walked and looked up too."""
    from cdcworker.connectors.mysql.snapshot.row_emitter import SelectedRowWriter

    from tests.unit.connectors.mysql.snapshot.selected import answer, payload, sample, stamp_of
    from tests.unit.connectors.native_records import Registry

    plan, values = sample()
    layout = SelectedRowWriter(Registry(), core_module).layout(stamp_of(plan))
    core = core_module.Selected()
    holes = [value if i % 3 == 0 else None for i, value in enumerate(values)]
    rows = [payload(values), payload(holes)]
    write = lambda view: core.write(view, 0, len(view), layout, (b"s", b"t"), 0)[1]  # noqa: E731
    done = shake(write, [answer([row]) for row in rows], count, head=4, then=core.take)
    buffers = [answer([one, *rows, b"\xfe\0\0\2\0"]) for one in rows]
    done += shake(write, buffers, count // 10, then=core.take)
    key = ((0, 0, 1), (len(values) - 2, 1, 0), (len(values) - 1, 2, 2))
    shake(lambda view: core_module.keyed(view, 0, len(view), key) is not None, buffers, count // 10)
    return done + shake(lambda view: core_module.walk_rows(bytearray(view), 0, len(view), 0)[1], buffers, count // 10)


DECODERS = {
    "stream": stream,
    "rows": rows,
    "bodies": bodies,
    "row_events": row_events,
    "log_events": log_events,
    "selected": selected,
}


def main() -> None:
    which, path, shaker, count, seed = sys.argv[1:]
    module = loaded(f"cdcworker.connectors.{NAMES[which]}", path)
    done = DECODERS[which](module, Shaker(loaded("shaker", shaker), int(seed)), int(count))
    print(f"inputs={count} decoded={done}")


if __name__ == "__main__":
    main()
