"""Requests whose length a proxy may have read in another way."""

from __future__ import annotations

import pytest
from cdcworker.worker.http.framing import problem_of


def request(*headers: str, version: str = "1.1") -> bytes:
    return "\r\n".join((f"PUT /c HTTP/{version}", "Host: w", *headers, "", "")).encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (request("Content-Length: 3"), ""),
        (request("Transfer-Encoding: chunked"), ""),
        (request("Content-Length: 3", "content-length: 3"), "more than one Content-Length"),
        (request("Content-Length: 3, 3"), "more than one Content-Length"),
        (request("Content-Length: 3", "Transfer-Encoding: chunked"), "both"),
        (request("Transfer-Encoding: gzip", "TRANSFER-ENCODING : chunked"), "more than one Transfer-Encoding"),
        (request("Transfer-Encoding: chunked", version="1.0"), "HTTP/1.0"),
        (b"\r\n\n" + request("Content-Length: 1", "Content-Length: 2"), "more than one Content-Length"),
        (request("X-Text: content-length: 3", "Content-Length: 3"), ""),
        (request("Content-Length: 1", "Content-Length: 2")[:-1], ""),
    ],
)
def test_a_length_with_two_meanings_is_found_once_the_headers_are_there(data, problem):
    found = problem_of(data)
    assert problem in found
    assert bool(found) is bool(problem)
