"""Authentication of requests: bearer tokens, passwords and client certificates."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cdcworker.schemas.threads import thread_pool
from cdcworker.worker.security.access import Caller, unauthenticated
from cdcworker.worker.security.credentials import hashed, matches, token_parts
from cdcworker.worker.security.users import User, UserFile, Users, UserToken

VERIFIED_MAX: Final = 1024
VERIFIED_S: Final = 300.0
CHECKS_AT_ONCE: Final = 2
"""Hashes checked at the same time: each costs 40 ms of a core and 16 MiB, without holding Python's interpreter lock."""
CHECKS_WAITING_MAX: Final = 32
CREDENTIAL_CHARS_MAX: Final = 4096

Check = Callable[[str, str], bool]


class TooManyChecks(Exception):
    """Too many credentials are being checked at this moment."""


class Authenticator:
    """Authenticates callers by the file of users. A credential that was checked is remembered for a while by a keyed
    digest."""

    def __init__(
        self, users: UserFile, *, check: Check = matches, clock: Callable[[], float] = time.time, decoy_hash: str = ""
    ) -> None:
        self._file = users
        self._check = check
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, tuple[float, User, UserToken | None]] = OrderedDict()
        self._version = users.version
        self._threads = thread_pool(CHECKS_AT_ONCE, "credentials")
        self._waiting = 0
        self._under_way: dict[bytes, asyncio.Future[bool]] = {}
        """Checks under way: requests with one credential that come together are one check."""
        self._decoy_hash = decoy_hash or hashed(secrets.token_urlsafe(16))
        """Checked for unknown names and tokens, so that the time of a refusal says nothing."""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def by_certificate(self, common_name: str) -> Caller | None:
        """Returns the user of a client certificate, None when the file lists none."""
        user = self._users().by_certificate.get(common_name)
        return None if user is None else Caller(user.name, user.grants, "certificate")

    async def by_header(self, header: str) -> Caller:
        """Returns the caller of an Authorization header. RestError 401 with the same message for every reason."""
        scheme, _, credential = header.partition(" ")
        credential = credential.strip()
        if len(credential) > CREDENTIAL_CHARS_MAX:
            raise refused()
        if scheme.lower() == "bearer":
            return await self._by_token(credential)
        if scheme.lower() == "basic":
            return await self._by_password(credential)
        raise unauthenticated("Authorization is neither Bearer nor Basic")

    def knows(self, header: str) -> bool:
        """Returns whether the credential was checked a short time ago, or is being checked, so that a request with it
        costs nothing."""
        self._users()
        digest = self._digest(header.partition(" ")[2].strip())
        verified = self._verified.get(digest)
        return digest in self._under_way or (verified is not None and self._clock() - verified[0] < VERIFIED_S)

    async def _by_token(self, token: str) -> Caller:
        users, parts = self._users(), token_parts(token)
        if parts is None:
            raise refused()
        user, stored = users.by_token.get(parts[0], (None, None))
        if user is not None and stored is not None and not stored.is_valid(self._clock()):
            raise unauthenticated(f"The token {stored.id} has expired")
        await self._verify(token, parts[1], stored.hash if stored else "", user, stored)
        assert user is not None
        assert stored is not None
        return Caller(user.name, user.grants, "token")

    async def _by_password(self, credential: str) -> Caller:
        try:
            name, colon, password = base64.b64decode(credential, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise refused() from None
        if not colon:
            raise refused()
        user = self._users().by_name.get(name)
        await self._verify(credential, password, user.password if user else "", user, None)
        assert user is not None
        return Caller(user.name, user.grants, "basic")

    async def _verify(self, whole: str, secret: str, stored: str, user: User | None, token: UserToken | None) -> None:
        digest, now = self._digest(whole), self._clock()
        known = self._verified.get(digest)
        if known is not None and now - known[0] < VERIFIED_S and known[1:] == (user, token):
            return
        under_way = self._under_way.get(digest)
        if under_way is None:
            under_way = self._under_way[digest] = self._begin(digest, secret, stored or self._decoy_hash)
        # Shielded: a client that goes away must not end the check for the others.
        fine = await asyncio.shield(under_way)
        if user is None or not stored or not fine:
            raise refused()
        self._verified[digest] = (now, user, token)
        while len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    def _begin(self, digest: bytes, secret: str, stored: str) -> asyncio.Future[bool]:
        if self._waiting >= CHECKS_WAITING_MAX:
            raise TooManyChecks
        self._waiting += 1
        check = asyncio.get_running_loop().run_in_executor(self._threads, self._check, secret, stored)

        def ended(_: object) -> None:
            self._waiting -= 1
            self._under_way.pop(digest, None)

        check.add_done_callback(ended)
        return check

    def _users(self) -> Users:
        users = self._file.content()
        if self._file.version != self._version:
            self._version = self._file.version
            self._verified.clear()
            self._under_way.clear()
        return users

    def _digest(self, whole: str) -> bytes:
        return hmac.digest(self._key, whole.encode(), "sha256")


def refused() -> Exception:
    return unauthenticated("The credentials are not valid")
