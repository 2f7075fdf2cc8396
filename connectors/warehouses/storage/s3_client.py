"""A client of botocore's for one bucket of a connector, which reaches what the worker opens to connectors and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from cdcworker.connectors.warehouses.storage.judged_connections import judged

CONNECT_S_MAX: Final = 5.0
READ_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class S3Login:
    """The credentials of a config."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def open_client(endpoint: str, region: str, login: S3Login, *, path_style: bool, admit: Callable[[str], None]) -> Any:
    """Returns a client that logs in with these credentials alone and repeats no request by itself. `admit` is called with the URL
    of each request before it is sent; each connection is judged when it is opened, by the address that it leads to."""
    import botocore.session  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

    # The environment and files of the worker's user say nothing of a connector's bucket.
    own = {"profile": (None, None, None, None)}
    files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    session = botocore.session.Session(session_vars={**own, **files})
    settings = Config(
        region_name=region,
        connect_timeout=CONNECT_S_MAX,
        read_timeout=READ_S_MAX,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path" if path_style else "virtual"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        ignore_configured_endpoint_urls=True,
        user_agent_extra="cdcworker",
    )
    client = session.create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=login.access_key,
        aws_secret_access_key=login.secret_key,
        aws_session_token=login.session_token,
        config=settings,
    )
    client.meta.events.register("before-call.s3", _not_redirected)
    client.meta.events.register("before-send.s3", lambda request, **_: admit(request.url))
    client._endpoint.http_session._pool_classes_by_scheme.update(_judged_pools())
    return client


def _not_redirected(params: dict[str, Any], **_: Any) -> None:
    """A hook of botocore's by which it takes a request for one that it has sent to another region already."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _judged_pools() -> dict[str, Any]:
    """Returns botocore's pools of connections, by the scheme of a URL, with connections that are judged."""
    from botocore import awsrequest

    class JudgedConnection(awsrequest.AWSHTTPConnection):  # type: ignore[misc]
        def _new_conn(self) -> Any:
            return judged(super()._new_conn(), self)

    class JudgedTlsConnection(awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
        def _new_conn(self) -> Any:
            return judged(super()._new_conn(), self)

    class Pool(awsrequest.AWSHTTPConnectionPool):  # type: ignore[misc]
        ConnectionCls = JudgedConnection

    class TlsPool(awsrequest.AWSHTTPSConnectionPool):  # type: ignore[misc]
        ConnectionCls = JudgedTlsConnection

    return {"http": Pool, "https": TlsPool}
