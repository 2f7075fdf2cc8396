"""Runs a program that dies with its parent: own session, parent-death signal, optionally another user; then exec.

Run as a script by path, with the standard library alone: `_launch.py PARENT_PID SIGNAL USER -- PROGRAM ARGS…`, where
USER is `-` (as is), `map:UID` (a user namespace in which root appears as UID) or `set:UID:GID` (become that user).
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
EXIT_NO_USER = 97
"""The exit code when the wanted user is not available here."""


def main(argv: list[str]) -> None:
    parent, signal, user = int(argv[0]), int(argv[1]), argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        become(libc, user)
    except OSError as error:
        print(f"cannot change the user ({user}): {error}", file=sys.stderr)
        os._exit(EXIT_NO_USER)
    # After the change of user: a change of credentials clears the signal.
    libc.prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.execvp(argv[4], argv[4:])  # noqa: S606  the program of an embedded server, by its path


def become(libc: ctypes.CDLL, user: str) -> None:
    kind, _, rest = user.partition(":")
    if kind == "map":
        uid, gid = os.getuid(), os.getgid()
        if libc.unshare(CLONE_NEWUSER) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{rest} {uid} 1")
        write("/proc/self/gid_map", f"{rest} {gid} 1")
    elif kind == "set":
        uid_text, _, gid_text = rest.partition(":")
        os.setgroups([])
        os.setgid(int(gid_text))
        os.setuid(int(uid_text))


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
