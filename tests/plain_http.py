"""HTTP requests of tests that ask again and again.

All share one TLS context: httpx builds a new one for each request of its own, which takes some 40 ms of processor time.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

import httpx

_TLS = ssl.create_default_context()


def request(method: str, url: str, **options: Any) -> httpx.Response:
    return httpx.request(method, url, verify=_TLS, **options)


get = partial(request, "GET")
put = partial(request, "PUT")
post = partial(request, "POST")
patch = partial(request, "PATCH")
delete = partial(request, "DELETE")
