"""Writes .proto files as Confluent's registry shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cdcworker.connectors.formats.protobuf.message_type import FieldType, MessageType, ProtoFile


def proto_text(file: ProtoFile) -> str:
    """Returns the text of a file."""
    lines = [f'syntax = "{file.syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    if file.imports:
        lines += ["", *(f'import "{name}";' for name in file.imports)]
    for message in file.messages:
        lines += ["", *_message(message)]
    return "\n".join(lines) + "\n"


def _message(message: MessageType) -> Iterator[str]:
    yield f"message {message.name} {{"
    for field in message.fields:
        yield from (f"  {line}" for line in _field(field))
    for inner in message.messages:
        yield ""
        yield from (f"  {line}" if line else "" for line in _message(inner))
    yield "}"


def _field(field: FieldType) -> Iterator[str]:
    kind = f"map<{field.map_types[0]}, {field.map_types[1]}>" if field.map_types else field.type
    label = f"{field.label} " if field.label else ""
    head = f"{label}{kind} {field.name} = {field.number}"
    if not field.params:
        yield f"{head};"
        return
    yield f"{head} [(confluent.field_meta) = {{"
    yield from (f"  {line}" for line in _params(field.params))
    yield "}];"


def _params(params: Mapping[str, str]) -> Iterator[str]:
    yield "params: ["
    last = len(params) - 1
    for number, (key, value) in enumerate(params.items()):
        yield "  {"
        yield f'    key: "{key}",'
        yield f'    value: "{value}"'
        yield "  }" if number == last else "  },"
    yield "]"
