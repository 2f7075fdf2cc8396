"""The error codes of Java and its libraries."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

JAVA_MISSING = declare(
    "devstack.java_missing",
    "environment",
    "No usable Java was found",
    "Install a Java runtime of version 17 to 21, set JAVA_HOME, or `pip install 'cdcworker[devstack]'`.",
)
JAR_FETCH = declare(
    "devstack.jar_fetch",
    "environment",
    "Java libraries could not be fetched",
    "Check the network, or name a mirror in CDC_MAVEN_MIRRORS (a file:// folder works) and run `cdcworker jars fetch`.",
)
JAR_MISMATCH = declare(
    "devstack.jar_mismatch",
    "environment",
    "A Java library does not have the locked SHA-256",
    "The file was removed. Fetch again; if it happens again, do not trust the mirror.",
)
JAR_SECTION = declare(
    "devstack.jar_section", "config", "The lock has no such section", "See `cdcworker jars --help` for the sections."
)
