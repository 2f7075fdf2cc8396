"""Reads what a batch of the query covers by tasks of Spark's with a reader of our own, and brings it here as Arrow."""

from __future__ import annotations

import logging
import struct
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from cdcworker.connectors.sink_errors import from_spark
from cdcworker.connectors.spark.runtime.kafka_source import EARLIEST, FETCH_WAIT_MS, POLL_RECORDS, read_to
from cdcworker.schemas.untrusted.driver_text import kept

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

Partition = tuple[str, int]
SOURCE: Final = Path(__file__).with_name("Reader.java")
NAME: Final = "cdcworker.Reader"
QUIET_MS_MAX: Final = 120_000
"""How long a task waits for records that its range names; Spark's own source waits as long."""
PIECE_BYTES_MAX: Final = 32 * 1024 * 1024
BYTES: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
FIXED: Final = {
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
    "isolation.level": "read_committed",
    # Nothing is lost silently, and nothing is read that was not asked for.
    "auto.offset.reset": "none",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "fetch.max.wait.ms": FETCH_WAIT_MS,
    "max.poll.records": POLL_RECORDS,
}


class RangeReader:
    """Reads ranges of offsets in Spark's tasks. Where its Java part cannot be compiled, Spark's own source reads, with the
    same result."""

    def __init__(self, session: SparkSession, folder: Path, kafka: Mapping[str, str], cores: int) -> None:
        self._session = session
        self._cores = cores
        self._kafka = kafka
        self._first = _first(session, folder)
        self._job: Any = None
        self._at: dict[Partition, int] = {}

    @property
    def own(self) -> bool:
        return self._first is not None

    def begin(self, offsets: Mapping[Partition, int]) -> None:
        """A new query starts there; a partition without an offset at its first record."""
        self._at = dict(offsets)
        if self._first is not None:
            self._job = self._first.of(uuid.uuid4().hex, {**self._kafka, **FIXED}, QUIET_MS_MAX, PIECE_BYTES_MAX)

    def read(self, frame: DataFrame, checkpoint: Path, number: int) -> pa.Table:
        """The records of the query's batch, with the columns of `frame`."""
        if self._job is None:
            # A task of Spark's for each core, not for each partition of Kafka's.
            return frame.coalesce(self._cores).toArrow()
        ends = read_to(checkpoint, number)
        wanted = shares({place: (self._at.get(place, EARLIEST), end) for place, end in ends.items()}, self._cores)
        self._at.update(ends)
        return table(self._pieces(wanted) if wanted else [])

    def _pieces(self, wanted: str) -> list[bytes]:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.serializers import NoOpSerializer
        from pyspark.util import local_connect_and_auth

        context: Any = self._session.sparkContext
        try:
            job = self._job.over(context._jsc, wanted)
            place = context._jvm.PythonRDD.collectAndServe(job.rdd())
            file, connection = local_connect_and_auth(place[0], place[1])
            # The job is done: what is slow from here on is this process itself.
            connection.settimeout(None)
            with connection, file:
                return list(NoOpSerializer().load_stream(file))
        except Py4JJavaError as exc:
            log.error("reading failed error=%s", kept(str(exc.java_exception)))
            raise from_spark(exc) from exc


def shares(ranges: Mapping[Partition, tuple[int, int]], count: int) -> str:
    """Returns what each task reads, as Java's part takes it; empty: nothing. A partition is always in the same share,
    where its consumer is: so each has its place among all, those without records too."""
    parts: dict[int, list[str]] = {}
    for number, ((topic, partition), (start, end)) in enumerate(sorted(ranges.items())):
        if start < end:
            parts.setdefault(number % count, [str(number % count)]).append(f"{topic} {partition} {start} {end}")
    return "\n\n".join("\n".join(part) for part in parts.values())


_made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""By Spark's context: py4j knows one class of a name only."""


def _first(session: SparkSession, folder: Path) -> Any:
    """An instance of Java's part, whose classes every executor gets; None where that does not work."""
    context: Any = session.sparkContext
    if context in _made:
        return _made[context]
    try:
        compiler = context._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(SOURCE.read_text(encoding="utf-8"))
        path = folder / f"reader-{uuid.uuid4().hex}.jar"
        with zipfile.ZipFile(path, "w") as jar:
            for name, content in dict(compiler.getBytecodes()).items():
                jar.writestr(name.replace(".", "/") + ".class", bytes(content))
        context._jsc.addJar(str(path))
        _made[context] = compiler.getClassLoader().loadClass(NAME).newInstance()
    except Exception as exc:  # noqa: BLE001 - py4j's own, and whatever a JVM that is older or other says
        log.warning("Kafka is read by Spark's own source error=%s", kept(str(exc)))
        return None
    return _made[context]


# -- what comes back ----------------------------------------------------------------------------------------------------


def table(pieces: Sequence[bytes]) -> pa.Table:
    """Pieces of partitions as one table, in the order of topic, partition and offset."""
    import pyarrow as pa

    columns = (
        ("topic", pa.dictionary(pa.int32(), pa.string())), ("partition", pa.int32()), ("offset", pa.int64()),
        ("key", pa.binary()), ("value", pa.binary()), ("headers", _headers()),
    )  # fmt: skip
    schema = pa.schema(columns)
    parts = sorted((_piece(piece, schema) for piece in pieces), key=lambda part: part[0])
    return pa.Table.from_batches([batch for _, batch in parts], schema)


def _headers() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _piece(piece: bytes, schema: pa.Schema) -> tuple[tuple[str, int, int], pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    cursor = _Cursor(piece)
    length, partition, n, named = cursor.ints(4)
    topic = cursor.take(length).to_pybytes().decode()
    offsets, ends = cursor.take(8 * n), cursor.take(4 * (n + 1))
    key, value = cursor.column(pa.binary(), n), cursor.column(pa.binary(), n)
    pairs = [cursor.column(kind, named) for kind in (pa.string(), pa.binary())]
    if named:
        headers = pa.Array.from_buffers(
            schema.field("headers").type,
            n,
            [None, ends],
            children=[pa.StructArray.from_arrays(pairs, ["key", "value"])],
        )
    else:
        headers = pa.nulls(n, schema.field("headers").type)
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([topic])),
        pa.array(np.full(n, partition, np.int32)),
        pa.Array.from_buffers(pa.int64(), n, [None, offsets]),
        key,
        value,
        headers,
    ]
    found = pa.RecordBatch.from_arrays(columns, schema=schema)
    return (topic, partition, found["offset"][0].as_py()), found


class _Cursor:
    """Goes through the bytes of a piece; each part begins at a multiple of eight."""

    def __init__(self, data: bytes) -> None:
        import pyarrow as pa

        self._data = data
        self._buffer = pa.py_buffer(data)
        self._at = 0

    def take(self, size: int) -> Any:
        found = self._buffer.slice(self._at, size)
        self._at += (size + 7) & ~7
        return found

    def ints(self, count: int) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{count}i", self._data, self._at)
        self._at += 4 * count
        return found

    def column(self, kind: Any, n: int) -> Any:
        import pyarrow as pa

        nulls, used = self.ints(2)
        ends = self.take(4 * (n + 1))
        valid = self.take((n + 7) // 8) if nulls else None
        return pa.Array.from_buffers(kind, n, [valid, ends, self.take(used)])
