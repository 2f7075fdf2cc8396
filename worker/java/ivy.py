"""Runs Ivy as a program to fetch jars: settings from mirrors and proxies, a flat list of artifacts, progress by line."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from cdcworker.connectors.config.inherited_variables import of_java
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java.errors import JAR_FETCH

FETCH_TIMEOUT_S = 900.0
SOCKET_TIMEOUT_S = 60


class Artifact(Protocol):
    """The coordinates of one jar in a Maven repository."""

    @property
    def organisation(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> str: ...


def retrieve(
    java: Path, ivy_jar: Path, artifacts: Sequence[Artifact], work: Path, progress: Callable[[str], None]
) -> set[str]:
    """Fetches the artifacts into `work/out`; returns the coordinates that no repository has (`out` may be empty then)."""
    settings, module = work / "settings.xml", work / "ivy.xml"
    settings.touch(mode=0o600)
    settings.write_text(settings_xml(mirrors(os.environ, Path.home())), encoding="utf-8")
    module.write_text(module_xml(artifacts), encoding="utf-8")
    argv = [str(java), "-Xmx256m", *proxy_options(os.environ), "-jar", str(ivy_jar), "-cache", str(work / "ivy")]
    argv += ["-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    argv += ["-retrieve", str(work / "out" / "[artifact]-[revision].[ext]")]
    code, lines = _run(argv, len(artifacts), progress)
    absent = not_found(lines)
    if code != 0 and not absent:
        raise CdcError(JAR_FETCH, f"the fetcher ended with exit code {code}:\n" + "\n".join(_errors(lines)))
    return absent


def _run(argv: Sequence[str], total: int, progress: Callable[[str], None]) -> tuple[int, list[str]]:
    lines: list[str] = []
    done = 0
    environment = of_java(os.environ)
    with subprocess.Popen(  # noqa: S603  a list of arguments, without a shell
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                lines.append(line.rstrip())
                match = re.search(r"\[SUCCESSFUL \] \S+#(\S+);(\S+)!", line)
                if match:
                    done += 1
                    progress(f"[{done}/{total}] {match[1]} {match[2]}")
            return child.wait(FETCH_TIMEOUT_S), lines
        except BaseException:
            child.kill()
            raise


def not_found(lines: Sequence[str]) -> set[str]:
    """Returns the coordinates that Ivy reports as absent, from lines such as `:: org#name;1.0: not found`."""
    text = "\n".join(lines)
    absent = re.findall(r":: (\S+)#(\S+);(\S+): not found", text)
    absent += re.findall(r":: \^?\s*(\S+)#(\S+);(\S+)!\S+: not found", text)
    return {":".join(parts) for parts in absent}


def _errors(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if re.search(r"ERROR|FAILED|xception|rror:", line)][:10] or list(lines[-10:])


def settings_xml(roots: Sequence[str]) -> str:
    """Returns Ivy's settings: a chain of the mirrors, or the central repository. POMs are not read: a mirror may lack
    them."""
    kind = 'm2compatible="true" usepoms="false" useMavenMetadata="false"'
    if roots:
        inner = "".join(f'<ibiblio name="mirror{n}" root={quoteattr(r)} {kind}/>' for n, r in enumerate(roots))
    else:
        inner = f'<ibiblio name="central" {kind}/>'
    return (
        '<ivysettings><settings defaultResolver="all"/>'
        f'<timeout-constraints><timeout-constraint name="t" connectionTimeout="{SOCKET_TIMEOUT_S * 1000}"'
        f' readTimeout="{SOCKET_TIMEOUT_S * 1000}"/></timeout-constraints>'
        f'<resolvers><chain name="all" returnFirst="true">{inner}</chain></resolvers></ivysettings>'
    ).replace("<ibiblio ", '<ibiblio timeoutConstraint="t" ')


def module_xml(artifacts: Sequence[Artifact]) -> str:
    lines = "".join(
        f"<dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} rev={quoteattr(a.revision)}"
        ' transitive="false" conf="default->*">'
        f'<artifact name={quoteattr(a.name)} type="jar" ext="jar"/></dependency>'
        for a in artifacts
    )
    return (
        '<ivy-module version="2.0"><info organisation="cdcworker" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{lines}</dependencies></ivy-module>'
    )


def mirrors(env: Mapping[str, str], home: Path) -> list[str]:
    """Returns the repository roots to use in place of the central one: CDC_MAVEN_MIRRORS, else the user's Maven
    settings."""
    configured = [part.strip() for part in env.get("CDC_MAVEN_MIRRORS", "").split(",") if part.strip()]
    if not configured:
        settings = home / ".m2" / "settings.xml"
        configured = maven_mirrors(settings.read_text(encoding="utf-8")) if settings.is_file() else []
    return [root if root.endswith("/") else root + "/" for root in configured]


def maven_mirrors(text: str) -> list[str]:
    """Returns the first mirror in Maven settings that stands for the central repository."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314  settings of the user's own
    except ElementTree.ParseError:
        return []
    for mirror in root.iter():
        if mirror.tag.rpartition("}")[2] != "mirror":
            continue
        values = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in mirror}
        covers = {part.strip() for part in values.get("mirrorOf", "").split(",")}
        if values.get("blocked") != "true" and values.get("url") and covers & {"*", "central", "external:*"}:
            return [values["url"]]
    return []


def proxy_options(env: Mapping[str, str]) -> list[str]:
    """Returns the JVM's proxy options from the usual variables, without credentials: arguments are public."""
    options = []
    for scheme in ("http", "https"):
        value = env.get(f"{scheme}_proxy") or env.get(f"{scheme.upper()}_PROXY")
        if value:
            parts = urlsplit(value if "://" in value else f"http://{value}")
            if parts.hostname:
                options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    bypass = env.get("no_proxy") or env.get("NO_PROXY")
    if options and bypass:
        hosts = [host.strip() for host in bypass.split(",") if host.strip()]
        options.append("-Dhttp.nonProxyHosts=" + "|".join("*" + h if h.startswith(".") else h for h in hosts))
    return options
