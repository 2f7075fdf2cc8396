"""Arrow tables into MySQL by LOAD DATA LOCAL, or by statements with many rows where the server takes none so; the text is made
column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.arrow.array_ops import one
from cdcworker.connectors.sink_errors import TARGET_VALUE
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.errors import DUPLICATE
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from cdcworker.connectors.mysql_client.client import MySqlConnection

CHUNK_ROWS: Final = 65_536
CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Rows, and about how many bytes, per piece of text: bounds what is held besides the batch itself."""
STATEMENT_BYTES: Final = 1024 * 1024
_ESCAPED: Final = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"))
_HEX: Final = bytes(range(256)).hex().encode()


class RowExistsError(CdcError):
    """A row to be inserted has the key of one that is there."""

    def __init__(self) -> None:
        super().__init__(TARGET_VALUE, "a row of the same key is there already")


@dataclass(frozen=True, slots=True)
class LoadText:
    """Rows as the text of a LOAD DATA: `places` name what its columns are, and `sets` how those of bytes are read."""

    places: Sequence[str]
    sets: Sequence[str]
    rows: int
    content: memoryview


def load(connection: MySqlConnection, table: str, columns: Mapping[str, Any]) -> int:
    """Stores the columns in a table, in SQL; returns the number of rows. RowExistsError where one of their keys is there; CdcError
    `spark.target_value` where the server would have stored something else than it was given."""
    rows = 0
    for chunk in _chunks(columns):
        if connection.server.loads:
            rows += send(connection, table, text_of(chunk))
        else:
            rows += _insert(connection, table, chunk)
    return rows


def is_one_piece(rows: pa.Table) -> bool:
    """Returns whether the text of rows is held whole anyway."""
    return bool(rows.num_rows <= CHUNK_ROWS and rows.nbytes <= CHUNK_BYTES // 4)


def _chunks(columns: Mapping[str, Any]) -> Iterator[dict[str, pa.Array]]:
    import pyarrow as pa

    if not columns:
        return
    rows = pa.table({name: pa.chunked_array([column]) for name, column in columns.items()})
    size = max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, size):
        yield {name: one(rows[name].slice(start, size)) for name in rows.column_names}


def text_of(columns: Mapping[str, pa.Array]) -> LoadText:
    """Returns the text of rows; any thread may make it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places, sets, texts = [], [], []
    for number, (name, column) in enumerate(columns.items()):
        if pa.types.is_string(column.type):
            places.append(statements.quote(name))
            texts.append(_escaped(column.view(pa.binary())))
        else:
            places.append(f"@c{number}")
            sets.append(f"{statements.quote(name)} = unhex(@c{number})")
            texts.append(hexes(column))
    texts = [pc.fill_null(text, b"\\N") if text.null_count else text for text in texts]
    texts[-1] = pc.binary_join_element_wise(texts[-1], pa.scalar(b""), pa.scalar(b"\n"))
    lines = pc.binary_join_element_wise(*texts, pa.scalar(b"\t")) if len(texts) > 1 else texts[0]
    ends, content = parts(lines)
    return LoadText(places, sets, len(lines), memoryview(content)[ends[0] : ends[-1]])


def send(connection: MySqlConnection, table: str, text: LoadText) -> int:
    """Stores rows as text in a table, as `load` does."""
    statement = (
        f"load data local infile 'rows' into table {table} character set utf8mb4"
        r" fields terminated by '\t' escaped by '\\' lines terminated by '\n'"
        f" ({', '.join(text.places)})" + (f" set {', '.join(text.sets)}" if text.sets else "")
    )
    stored, warnings = connection.load(statement, text.content)
    if warnings or stored != text.rows:
        _judge(connection)
    return text.rows


def _judge(connection: MySqlConnection) -> None:
    """LOAD DATA LOCAL warns where a statement fails. Raises what the warnings say."""
    import pymysql

    numbers = {int(row[1]) for row in connection.ask("show warnings")}
    if not numbers or numbers.intersection(DUPLICATE):
        raise RowExistsError
    cause = pymysql.err.DataError(min(numbers), "while rows were loaded")
    raise CdcError(TARGET_VALUE, f"error {min(numbers)} (while rows were loaded)") from cause


def _insert(connection: MySqlConnection, table: str, columns: Mapping[str, pa.Array]) -> int:
    """The same by INSERT, which is slower."""
    head = f"insert into {table} ({statements.listed(list(columns))}) values ".encode()
    limit = min(STATEMENT_BYTES, connection.server.packet - len(head) - 1024)
    rows = _rows(columns)
    for piece in _pieces(rows, limit):
        _run(connection, head + piece)
    return len(rows)


def _run(connection: MySqlConnection, statement: bytes) -> None:
    import pymysql

    try:
        connection.do(statement)
    except pymysql.Error as exc:
        if exc.args and exc.args[0] in DUPLICATE:
            raise RowExistsError from exc
        raise


def _rows(columns: Mapping[str, pa.Array]) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for column in columns.values():
        if pa.types.is_string(column.type):
            text = column.view(pa.binary())
            for plain, escaped in ((b"\\", b"\\\\"), (b"'", b"\\'")):
                text = pc.replace_substring(text, plain, escaped)
            quoted = pc.binary_join_element_wise(pa.scalar(b"'"), text, pa.scalar(b"'"), pa.scalar(b""))
        else:
            quoted = pc.binary_join_element_wise(pa.scalar(b"x'"), hexes(column), pa.scalar(b"'"), pa.scalar(b""))
        texts.append(pc.fill_null(quoted, b"null"))
    lines = pc.binary_join_element_wise(*texts, pa.scalar(b","))
    found: list[bytes] = pc.binary_join_element_wise(
        pa.scalar(b"("), lines, pa.scalar(b")"), pa.scalar(b"")
    ).to_pylist()
    return found


def _pieces(rows: list[bytes], limit: int) -> Iterator[bytes]:
    """Rows together as far as they fit into a statement; one that does not fit is a statement of its own."""
    some: list[bytes] = []
    size = 0
    for row in rows:
        if some and size + len(row) > limit:
            yield b",".join(some)
            some, size = [], 0
        some.append(row)
        size += len(row) + 1
    if some:
        yield b",".join(some)


# -- bytes --------------------------------------------------------------------------------------------------------------


def parts(values: pa.Array) -> tuple[np.ndarray[Any, Any], Any]:
    """Returns the ends of an array's values, from its own first one on, and the bytes that they are ends in."""
    import numpy as np

    _, ends, content = values.buffers()
    offsets = np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4)
    return offsets, content if content is not None else b""


def _escaped(values: pa.Array) -> pa.Array:
    import numpy as np
    import pyarrow.compute as pc

    ends, content = parts(values)
    used = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]] if len(values) else np.zeros(0, np.uint8)
    for plain, escaped in _ESCAPED:
        if (used == plain[0]).any():
            values = pc.replace_substring(values, plain, escaped)
    return values


def hexes(values: pa.Array) -> pa.Array:
    """Returns bytes as their hexadecimal text."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    ends, content = parts(values)
    if not len(values):
        return pa.array([], pa.binary())
    table = np.frombuffer(_HEX, np.uint16)
    text = table[np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]].tobytes()
    places = ((ends - ends[0]).astype(np.int64) * 2).astype(np.int32)
    mask = None if values.null_count == 0 else values.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(values), [mask, pa.py_buffer(places), pa.py_buffer(text)])
