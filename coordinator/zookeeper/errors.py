"""Translates kazoo's errors into CdcErrors by one table."""

from __future__ import annotations

from cdcworker.schemas.errors import CdcError, Where, declare

UNREACHABLE = declare(
    "zookeeper.unreachable",
    "environment",
    "No ZooKeeper server answers",
    "Check zookeeper.connect, and that more than half of the ensemble's servers are up.",
)
AUTHORIZATION = declare(
    "zookeeper.authorization",
    "config",
    "ZooKeeper does not allow this operation",
    "Check zookeeper.digest, and the ACLs of the nodes under the chroot in zookeeper.connect.",
)
CONNECT_STRING = declare(
    "zookeeper.connect_string",
    "config",
    "zookeeper.connect is not a connect string",
    "Write host:port pairs separated by commas, at the end a path if wanted: zk1:2181,zk2:2181/cdc.",
)
TRANSIENT = declare(
    "zookeeper.transient", "transient", "ZooKeeper answered with a passing error", "It is tried again by itself."
)

_CODES: dict[str, str] = {
    "ConnectionLoss": UNREACHABLE,
    "ConnectionClosedError": UNREACHABLE,
    "ConnectionDropped": UNREACHABLE,
    "OperationTimeoutError": UNREACHABLE,
    "KazooTimeoutError": UNREACHABLE,
    "SessionExpiredError": TRANSIENT,
    "NoAuthError": AUTHORIZATION,
    "AuthFailedError": AUTHORIZATION,
    "InvalidACLError": AUTHORIZATION,
}
"""Error codes by class name: importing the classes would load kazoo in every worker."""


def translate(error: BaseException, doing: str, *, where: Where | None = None) -> CdcError:
    """Returns the CdcError for a kazoo error; `doing` names the failed operation. Use it with `raise … from exc`."""
    names = [kind.__name__ for kind in type(error).__mro__]
    code = next((_CODES[name] for name in names if name in _CODES), TRANSIENT)
    return CdcError(code, f"{doing}: {names[0]}", where=where)
