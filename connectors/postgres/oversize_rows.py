"""Rows that the server holds and cannot write as text: a bytea of more than half of a GiB is one, in hexadecimal.

In a snapshot the table is known, and held back. Where the stream meets such a row, it would meet it again for ever: it is
read in binary instead, from the last committed position on until that transaction has been handed on. In binary each value
takes the way of its text form, so that nothing else differs; what has no such form here holds its table back."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare

ROW_TOO_LARGE: Final = declare(
    "postgres.row_too_large",
    "data",
    "The server cannot write a row as text, which is limited to 1 GiB",
    "Make the row smaller or exclude the table; SELECT the key of the rows whose values are too large with octet_length. "
    "Where the stream has met it and binary.columns=never, the log keeps it: set that to auto, or drop the slot and start "
    "again with position.lost.policy=resnapshot once the row is smaller.",
)
TURNS_BINARY: Final = declare(
    "postgres.turns_binary",
    "transient",
    "The server cannot write a row as text, and is asked for its binary form",
    "Nothing to do: the task starts anew at its last position, and goes back to text behind that row.",
)
NO_BINARY_FORM: Final = declare(
    "postgres.type_without_binary_form",
    "data",
    "A column's type cannot be read while the stream is in binary, which a row too large for text calls for",
    "A snapshot of the table, or a changed config, takes it back and reads its rows anew. Leave the column out with "
    "column.exclude.list where that happens again.",
)
NO_SEND_FUNCTION: Final = declare(
    "postgres.type_without_send_function",
    "data",
    "The server has no binary form of a type inside of an array, a range or a composite type, and names no table; the "
    "stream is in binary, which a row too large for text calls for",
    "Drop the table from the publication, which counts for what is written from then on. Rows that the log holds already "
    "are read in text with binary.columns=never, which halts at the row that is too large; where the log has "
    "both, drop the slot and start again with position.lost.policy=resnapshot.",
)
NO_SEND_PATTERN: Final = r"no binary output function available for type"
PATTERN: Final = r"invalid memory alloc request size|[Cc]annot enlarge string buffer|string buffer exceeds"
