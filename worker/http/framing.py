"""Finds HTTP requests whose body length is ambiguous: a proxy before the worker may have read another length (request
smuggling)."""

from __future__ import annotations

import re
from typing import Final

HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
LENGTH: Final = re.compile(rb"\ncontent-length[ \t]*:([^\n]*)", re.I)
ENCODING: Final = re.compile(rb"\ntransfer-encoding[ \t]*:", re.I)
HTTP_1_0_LINE: Final = re.compile(rb"[^\r\n]* HTTP/1\.0\r?\n")


def problem_of(data: bytes) -> str:
    """Returns what is ambiguous about the length of the request that begins here; empty for nothing, and for headers that
    have not arrived as a whole."""
    begin = 0
    while data[begin : begin + 1] in (b"\r", b"\n"):
        begin += 1
    end = HEAD_END.search(data, begin)
    if end is None:
        return ""
    head = data[begin : end.start()]
    lengths, encodings = LENGTH.findall(head), len(ENCODING.findall(head))
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        return "There is more than one Content-Length"
    if lengths and encodings:
        return "There are both Content-Length and Transfer-Encoding"
    if encodings > 1:
        return "There is more than one Transfer-Encoding"
    if encodings and HTTP_1_0_LINE.match(head + b"\n"):
        return "HTTP/1.0 has no Transfer-Encoding"
    return ""
