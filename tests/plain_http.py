"""HTTP requests of tests that ask again and again, each over a connection of its own.

All share one client: httpx builds a new one for each request of its own, with a new TLS context, which takes some 40 ms of
processor time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx

_CLIENT = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def request(method: str, url: str, **options: Any) -> httpx.Response:
    answer = _CLIENT.request(method, url, **options)
    _CLIENT.cookies.clear()
    return answer


get = partial(request, "GET")
put = partial(request, "PUT")
post = partial(request, "POST")
patch = partial(request, "PATCH")
delete = partial(request, "DELETE")
