"""Avro bodies to Arrow by a compiled plan: natively where the extension is there, else with fastavro; both give the same."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Offsets = npt.NDArray[np.int64]

Avro = Any
Path = tuple[str, ...]

KINDS = (  # the order is _native's
    *("null", "boolean", "int", "long", "float", "double", "bytes"),
    *("string", "fixed", "enum", "record", "array", "map", "union"),
)
_NULL, _INT, _ENUM, _RECORD, _ARRAY, _MAP, _UNION = 0, 2, 9, 10, 11, 12, 13
_WIDTH = {1: 1, 2: 4, 3: 8, 4: 4, 5: 8, 6: 0, 7: 0, 8: 0, 9: 4}
CONFLUENT_FRAME_BYTES = 5


class UndecodableRow(Exception):
    """Row `row` of the batch does not fit the schema."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


@dataclass(slots=True)
class DecodedColumn:
    """One decoded value: a leaf in `column`, or a record with `children`; leaves `by_fastavro` are handed to it as bytes."""

    name: str
    type: Avro
    column: int
    by_fastavro: bool = False
    children: list[DecodedColumn] = field(default_factory=list)
    arrow: Any = None


def strip_logical(node: Avro) -> Avro:
    """Returns the schema without logical types, so that fastavro returns the raw values."""
    if isinstance(node, list):
        return [strip_logical(branch) for branch in node]
    if isinstance(node, dict):
        kept = {name: value for name, value in node.items() if name not in ("logicalType", "default", "doc")}
        for name in ("type", "items", "values", "fields"):
            if name in kept:
                kept[name] = strip_logical(kept[name])
        return kept
    return node


class DecodePlan:
    """The plan for decoding the wanted members of one Avro schema. `paths` name the wanted members; a path covers everything
    below it."""

    def __init__(self, schema: Mapping[str, Any], paths: Iterable[Path] = ((),)) -> None:
        from fastavro.schema import parse_schema

        self.names: dict[str, Any] = {}
        self.standalone: dict[int, Any] = {}
        """Parsed schemas of members that fastavro decodes, keyed by id() of the schema's node."""
        self.parsed: Any = parse_schema(strip_logical(dict(schema)), named_schemas=self.names, _force=True)
        self._paths = set(paths)
        self._nodes: list[list[int]] = []
        self._children: list[list[int]] = []
        self._widths: list[int] = []
        self._skipped: dict[str, int] = {}
        self._open: list[str] = []
        root = self._compile(self.parsed, ())
        assert root is not None
        self.root: DecodedColumn = root
        flat: list[int] = []
        for node, children in zip(self._nodes, self._children, strict=True):
            node[2], node[3] = len(flat), len(children)
            flat += children
        self.nodes = array("q", [word for node in self._nodes for word in node]).tobytes()
        self.children = array("q", flat).tobytes()
        self.widths = array("q", self._widths).tobytes()

    @cached_property
    def arrow(self) -> pa.StructType:
        return _arrow_output(self.root, self)

    # -- compiling ----------------------------------------------------------------------------------------------------

    def definition(self, node: Avro) -> Any:
        """Follow a reference to a named type."""
        return self.names[node] if isinstance(node, str) and node in self.names else node

    def _wanted(self, path: Path) -> bool:
        """Returns whether the path is asked for, as a whole or in part."""
        return any(path[: len(want)] == want or want[: len(path)] == path for want in self._paths)

    def _compile(self, node: Avro, path: Path) -> DecodedColumn | None:
        """Adds the node's words in the order of reading. Returns the decoded column; None when the node is skipped."""
        if not self._wanted(path):
            self._skip(node)
            return None
        node, nullable = _unwrap(node)
        node = self.definition(node)
        kind = _kind(node)
        index = self._add(kind, nullable)
        name = path[-1] if path else ""
        full = node.get("name", "") if isinstance(node, dict) else ""
        if kind == _RECORD and full not in self._open:
            column = self._column(-1) if nullable or not path else -1
            self._nodes[index][5] = column
            out = DecodedColumn(name, node, column)
            self._open.append(full)
            for member in node["fields"]:
                self._children[index].append(len(self._nodes))
                child = self._compile(member["type"], (*path, member["name"]))
                if child is not None:
                    out.children.append(child)
            self._open.pop()
            return out
        by_fastavro = kind in (_RECORD, _ARRAY, _MAP, _UNION)
        column = self._column(0 if by_fastavro else _WIDTH.get(kind, -1))
        self._nodes[index][4] = _size(node)
        self._nodes[index][5], self._nodes[index][6] = column, int(by_fastavro)
        if by_fastavro:
            self._members(index, node)
        return DecodedColumn(name, node, column, by_fastavro)

    def _add(self, kind: int, nullable: int) -> int:
        # Kind, which branch of a union is null, first child, children, size, column, whether fastavro decodes it.
        self._nodes.append([kind, nullable, 0, 0, 0, -1, 0])
        self._children.append([])
        return len(self._nodes) - 1

    def _column(self, width: int) -> int:
        self._widths.append(width)
        return len(self._widths) - 1

    def _skip(self, node: Avro) -> int:
        """A node that is read over; a named type is compiled once, so that it may contain itself."""
        node, nullable = _unwrap(node)
        node = self.definition(node)
        full = f"{node['name']}/{nullable}" if isinstance(node, dict) and "name" in node else ""
        if full and full in self._skipped:
            # A second use shares the members of the first one.
            return self._copy(self._skipped[full])
        index = self._add(_kind(node), nullable)
        if full:
            self._skipped[full] = index
        self._nodes[index][4] = _size(node)
        self._members(index, node)
        return index

    def _copy(self, index: int) -> int:
        self._nodes.append(list(self._nodes[index]))
        self._children.append(self._children[index])
        return len(self._nodes) - 1

    def _members(self, index: int, node: Avro) -> None:
        kind = _kind(node)
        if kind == _RECORD:
            types = [member["type"] for member in node["fields"]]
        elif kind == _ARRAY:
            types = [node["items"]]
        elif kind == _MAP:
            types = [node["values"]]
        else:
            types = node if kind == _UNION else []
        for member in types:
            self._children[index].append(self._skip(member))


def _unwrap(node: Avro) -> tuple[Avro, int]:
    """A union with null as (type, which branch is null + 1)."""
    if isinstance(node, list) and len(node) == 2 and "null" in node:
        return (node[1], 1) if node[0] == "null" else (node[0], 2)
    return node, 0


def _kind(node: Avro) -> int:
    if isinstance(node, list):
        return KINDS.index("union")
    name = node["type"] if isinstance(node, dict) else node
    return KINDS.index(name) if not isinstance(name, dict | list) else _kind(name)


def _size(node: Avro) -> int:
    if not isinstance(node, dict):
        return 0
    return int(node.get("size", 0)) if node["type"] == "fixed" else len(node.get("symbols", ()))


# -- Arrow types --------------------------------------------------------------------------------------------------------


def _arrow_output(out: DecodedColumn, plan: DecodePlan) -> Any:
    import pyarrow as pa

    if out.arrow is None and (out.children or (_kind(out.type) == _RECORD and not out.by_fastavro)):
        out.arrow = pa.struct([pa.field(child.name, _arrow_output(child, plan)) for child in out.children])
    out.arrow = arrow_type(out.type, plan) if out.arrow is None else out.arrow
    return out.arrow


def arrow_type(node: Avro, plan: DecodePlan, depth: int = 0) -> Any:
    """The Arrow type of an Avro type; what Arrow cannot represent (wide unions, recursion) becomes JSON text."""
    import pyarrow as pa

    node = plan.definition(_unwrap(node)[0])
    name = KINDS[_kind(node)]
    simple = {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
    }
    if name in simple:
        return simple[name]
    if name == "array" and depth < 8:
        return pa.list_(arrow_type(node["items"], plan, depth + 1))
    if name == "map" and depth < 8:
        return pa.map_(pa.string(), arrow_type(node["values"], plan, depth + 1))
    if name == "record" and 0 < depth < 8:
        return pa.struct([(item["name"], arrow_type(item["type"], plan, depth + 1)) for item in node["fields"]])
    return pa.string()


def _to_arrow(values: Sequence[Any], kind: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array([_with_json_text(value, kind) for value in values] if _has_json_text(kind) else values, type=kind)


def _has_json_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(_has_json_text(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _has_json_text(kind.value_type if pa.types.is_list(kind) else kind.item_type)
    return bool(pa.types.is_string(kind))


def _with_json_text(value: Any, kind: Any) -> Any:
    """Wide unions and recursive records as JSON, wherever they are nested."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, default=_jsonable, sort_keys=True)
    if pa.types.is_struct(kind):
        return {
            kind.field(i).name: _with_json_text(value[kind.field(i).name], kind.field(i).type)
            for i in range(kind.num_fields)
        }
    if pa.types.is_list(kind):
        return [_with_json_text(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(name, _with_json_text(item, kind.item_type)) for name, item in value.items()]
    return value


def _jsonable(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


# -- decoding -----------------------------------------------------------------------------------------------------------


def native() -> Any:
    """The extension module, or None where it was not built."""
    try:
        from cdcworker.connectors.arrow import _native  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _native


def decode(plan: DecodePlan, data: Any, offsets: Offsets, lead: int = CONFLUENT_FRAME_BYTES) -> pa.StructArray:
    """Decode the slices of `data` that `offsets` (n + 1 int64) delimit, past `lead` bytes of frame each."""
    module = native()
    if module is None:
        return decode_pure(plan, data, offsets, lead)
    return decode_native(module, plan, data, offsets, lead)


def decode_native(module: Any, plan: DecodePlan, data: Any, offsets: Offsets, lead: int) -> pa.StructArray:
    import pyarrow as pa

    done, status, columns = module.decode(plan.nodes, plan.children, plan.widths, data, offsets, lead)
    if status:
        raise UndecodableRow(done)
    array_ = _assemble(plan.root, plan, columns, len(offsets) - 1)
    try:
        array_.validate(full=True)
    except pa.ArrowInvalid:
        # Text that is not UTF-8: fastavro finds the record.
        return decode_pure(plan, data, offsets, lead)
    return array_


def _assemble(out: DecodedColumn, plan: DecodePlan, columns: Sequence[Any], n: int) -> Any:
    import pyarrow as pa

    valid, ends, data = columns[out.column] if out.column >= 0 else (None, None, None)
    mask = pa.py_buffer(valid) if valid is not None else None
    if _kind(out.type) == _RECORD and not out.by_fastavro:
        children = [_assemble(child, plan, columns, n) for child in out.children]
        return pa.Array.from_buffers(_arrow_output(out, plan), n, [mask], children=children)
    kind = _arrow_output(out, plan)
    if out.by_fastavro:
        return _by_fastavro(out, plan, kind, pa.Array.from_buffers(pa.binary(), n, _buffers(mask, ends, data)))
    if _kind(out.type) == _NULL:
        return pa.nulls(n)
    if _kind(out.type) == _ENUM:
        codes = pa.Array.from_buffers(pa.int32(), n, [mask, pa.py_buffer(data)])
        return pa.DictionaryArray.from_arrays(codes, pa.array(out.type["symbols"], pa.string())).cast(pa.string())
    return pa.Array.from_buffers(kind, n, _buffers(mask, ends, data))


def _buffers(mask: Any, ends: bytes | None, data: Any) -> list[Any]:
    import pyarrow as pa

    return [mask, pa.py_buffer(data)] if ends is None else [mask, pa.py_buffer(ends), pa.py_buffer(data)]


def _by_fastavro(out: DecodedColumn, plan: DecodePlan, kind: Any, slices: Any) -> Any:
    from fastavro import schemaless_reader

    standalone = _standalone(out.type, plan)
    values: list[Any] = []
    for row, piece in enumerate(slices.to_pylist()):
        if piece is None:
            values.append(None)
            continue
        stream = io.BytesIO(piece)
        try:
            values.append(schemaless_reader(stream, standalone, None))
        except READ_ERRORS as exc:
            raise UndecodableRow(row) from exc
        if stream.tell() != len(piece):
            raise UndecodableRow(row)
    return _to_arrow(values, kind)


def _standalone(node: Avro, plan: DecodePlan) -> Any:
    """A schema that can be read by itself: named types it refers to come along."""
    from fastavro.schema import parse_schema

    key = id(node)
    if key not in plan.standalone:
        names = dict(plan.names)
        if isinstance(node, dict) and "name" in node:
            names.pop(node["name"], None)
        plan.standalone[key] = parse_schema(node, named_schemas=names, _force=True)
    return plan.standalone[key]


READ_ERRORS = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, StopIteration, AttributeError)
"""What fastavro raises on bytes that do not fit."""


def decode_pure(plan: DecodePlan, data: Any, offsets: Offsets, lead: int = CONFLUENT_FRAME_BYTES) -> pa.StructArray:
    """Decodes with fastavro, record by record. The native decoder has to give the same."""
    import pyarrow as pa
    from fastavro import schemaless_reader

    view = memoryview(data)
    rows = []
    for row in range(len(offsets) - 1):
        start, end = int(offsets[row]) + lead, int(offsets[row + 1])
        stream = io.BytesIO(view[start:end])
        try:
            value: Any = schemaless_reader(stream, plan.parsed, None)
        except READ_ERRORS as exc:
            raise UndecodableRow(row) from exc
        if start > end or stream.tell() != end - start:
            raise UndecodableRow(row)
        rows.append(value)
    kind = plan.arrow
    try:
        return _to_arrow(rows, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        for row, value in enumerate(rows):
            try:
                _to_arrow([value], kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as exc:
                raise UndecodableRow(row) from exc
        raise
