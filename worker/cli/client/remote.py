"""Requests to a cluster: several addresses tried in turn, passing refusals waited for, and the answer printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

import click
from cdcworker.schemas.errors import CODES, CdcError, declare
from cdcworker.worker.cli.client import contexts
from cdcworker.worker.cli.client.access import ClientAccess
from cdcworker.worker.cli.render.output import (
    EXIT_ENVIRONMENT,
    EXIT_OF_STATUS,
    EXIT_RUNTIME,
    CliError,
    Shown,
    clean,
    envelope,
    of_error,
    show,
    summary_of,
)
from cdcworker.worker.http.error_members import DETAILS, is_own

ANSWER_S = 100.0
"""Longer than the worker's own limit, so that the user sees the worker's answer."""
CONNECT_S = 5.0
WAIT_S = 30.0
WAITED_FOR = (409, 429, 503)
"""Statuses that pass, if they have Retry-After: no leader, too many requests, or a worker that is starting."""

UNDECIDED = ("worker.stopped", "rest.forward_failed")
"""Error codes of a worker that does not know what became of the request."""
UNDECIDED_S = 1.0

UNREACHABLE = declare(
    "rest.unreachable",
    "environment",
    "No worker answers",
    "Check the address (--url, CDC_URL, `cdcworker context list`) and that a worker runs there.",
)
NO_ANSWER = declare(
    "rest.no_answer",
    "environment",
    "A worker took the request and did not answer it",
    "The change may have happened: look before repeating it.",
)
KEY_HEADER = "Idempotency-Key"
WARNING_HEADER = "x-cdc-warning"
"""The header of answers to changes that were made and of which something should be known."""
_META = "cdcworker.cli."

Texts = Callable[[Any], Shown]


@dataclass(frozen=True)
class RemoteAnswer:
    """An answer of the REST API with its decoded JSON."""

    status: int
    content: Any
    headers: Mapping[str, str]


class RemoteCluster:
    """The cluster of one command."""

    def __init__(
        self,
        urls: tuple[str, ...],
        command: str,
        *,
        as_json: bool,
        wait_s: float = WAIT_S,
        access: ClientAccess | None = None,
    ) -> None:
        self.urls = urls
        self.command = command
        self.as_json = as_json
        self.wait_s = wait_s
        self.access = access or ClientAccess()
        self._at = 0
        for url in urls:
            if self.access.in_clear(url):
                self.note(f"the token goes to {url} unencrypted: use https")

    @property
    def url(self) -> str:
        """The address of the worker that is asked next."""
        return self.urls[self._at]

    def use_next(self) -> None:
        """Goes on to the next address."""
        self._at = (self._at + 1) % len(self.urls)

    def use_only(self, url: str) -> None:
        """Uses only this worker from now on."""
        self.urls, self._at = (url,), 0

    def call(
        self, method: str, path: str, text: Texts, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends one request and prints its result. A failure ends the program with the exit code of its kind."""
        self.tell(self.ask(method, path, body, headers).content, text)

    def get(self, path: str) -> Any:
        return self.ask("GET", path).content

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> RemoteAnswer:
        """Returns the answer, once it is neither a passing refusal nor missing because a worker is gone.

        A change whose answer was lost is sent again only with an `Idempotency-Key` among the headers.
        """
        deadline, noted = time.monotonic() + self.wait_s, False
        while True:
            answer = self._send(method, path, body, headers)
            if answer.status < 300:
                return answer
            pause = _retry_after(answer, may_repeat=method == "GET" or KEY_HEADER in (headers or {}))
            left = deadline - time.monotonic()
            if pause is None or left <= 0:
                self.refuse(answer)
            if not noted:
                self.note(f"{_message(answer)}: waiting for it, {self.wait_s:g} s at most")
                noted = True
            time.sleep(min(pause, left))

    def tell(self, content: Any, text: Texts, *, ok: bool = True) -> None:
        """Prints a result, as text or as the JSON envelope."""
        result = text(content)
        if self.as_json:
            click.echo(envelope(self.command, content, ok=ok, summary=summary_of(result)))
        else:
            show(result)

    def note(self, line: str) -> None:
        """Prints a line on stderr, so that the output stays as it is."""
        click.echo(clean(line), err=True)

    def refuse(self, answer: RemoteAnswer) -> NoReturn:
        error = dict(answer.content) if isinstance(answer.content, dict) else {}
        error = {**error, "message": _message(answer), "error_code": answer.status}
        raise self.error(error, EXIT_OF_STATUS.get(answer.status, EXIT_RUNTIME))

    def error(self, error: Mapping[str, Any], exit_code: int) -> CliError:
        return CliError(self.command, error, exit_code, as_json=self.as_json)

    def unreachable(self, urls: Sequence[str], cause: Exception) -> CliError:
        error = CdcError(UNREACHABLE, f"{', '.join(urls)}: {str(cause) or type(cause).__name__}")
        return of_error(error, self.command, as_json=self.as_json)

    def fail(self, error: CdcError) -> NoReturn:
        raise of_error(error, self.command, as_json=self.as_json) from error

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> RemoteAnswer:
        """Returns the answer of the first worker that can be reached."""
        import httpx

        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        sent = {**self.access.headers(), **(headers or {})}
        options = self.options()
        may_repeat, code = method == "GET" or KEY_HEADER in sent, UNREACHABLE
        silent: list[str] = []
        for _ in self.urls:
            url = self.url
            try:
                response = httpx.request(
                    method, url + detailed(path), json=body, headers=sent, timeout=timeout, trust_env=False, **options
                )
                if silent:
                    self.note(f"{url} answers instead of {', '.join(silent)}")
                return RemoteAnswer(response.status_code, _content(response), response.headers)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
                last: Exception = exc
            except httpx.HTTPError as exc:
                if not may_repeat:
                    raise self._unreachable(NO_ANSWER, url, exc) from exc
                last, code = exc, UNREACHABLE if method == "GET" else NO_ANSWER
            silent.append(url)
            self.use_next()
        raise self._unreachable(code, ", ".join(silent), last) from last

    def options(self) -> dict[str, Any]:
        try:
            return self.access.options()
        except CdcError as error:
            self.fail(error)

    def _unreachable(self, code: str, url: str, exc: Exception) -> CliError:
        suggestion = CODES[code].hint
        message = f"{url}: {str(exc) or type(exc).__name__}"
        return self.error({"code": code, "message": message, "suggestion": suggestion}, EXIT_ENVIRONMENT)


def detailed(path: str) -> str:
    """Returns a path with the flag that asks for this product's members, where it is one that Kafka Connect has, too."""
    segments = path.partition("?")[0].split("/")[1:]
    return path if is_own(segments) else f"{path}{'&' if '?' in path else '?'}{DETAILS}=true"


def _content(answer: Any) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


def _message(answer: RemoteAnswer) -> str:
    message = answer.content.get("message") if isinstance(answer.content, dict) else None
    return str(message or f"HTTP {answer.status}")


def _retry_after(answer: RemoteAnswer, *, may_repeat: bool) -> float | None:
    """Returns the seconds after which to ask again; None where that does not help, or might carry out a change twice."""
    if isinstance(answer.content, dict) and answer.content.get("code") in UNDECIDED:
        return UNDECIDED_S if may_repeat else None
    text = answer.headers.get("retry-after", "")
    return float(text) if answer.status in WAITED_FOR and text.isdigit() else None


def segment(name: str) -> str:
    """Returns a name as one path segment; dots alone are encoded too, since clients resolve them away."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


# -- options ----------------------------------------------------------------------------------------------------------


def _remember_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Remembers an option, which may stand before or after a subcommand: the last one counts."""
    if value not in (None, False, ()):
        context.meta[f"{_META}{parameter.name}"] = value


_JSON = click.option(
    "--json", "as_json", is_flag=True, expose_value=False, callback=_remember_option,
    help="One JSON object: command, ok, summary, result, error.",
)  # fmt: skip
_URL = click.option(
    "--url", multiple=True, expose_value=False, callback=_remember_option, metavar="URL",
    help="REST address of any worker; several are tried in turn.  [CDC_URL]",
)  # fmt: skip
_CONTEXT = click.option(
    "--context", expose_value=False, callback=_remember_option, metavar="NAME",
    help="A named cluster of `cdcworker context`.  [CDC_CONTEXT]",
)  # fmt: skip
_CA = click.option(
    "--ca",
    expose_value=False,
    callback=_remember_option,
    metavar="FILE",
    help="Authority of the workers' certificates.  [CDC_CA]",
)
_CERT = click.option(
    "--cert",
    expose_value=False,
    callback=_remember_option,
    metavar="FILE",
    help="Your client certificate, PEM.  [CDC_CERT]",
)
_KEY = click.option(
    "--key", expose_value=False, callback=_remember_option, metavar="FILE",
    help="Its key, if it is not in the same file.  [CDC_KEY]",
)  # fmt: skip
_WAIT = click.option(
    "--wait", type=click.FloatRange(min=0), expose_value=False, callback=_remember_option, metavar="SECONDS",
    help=f"How long a refusal that passes is waited for.  [{WAIT_S:g}]",
)  # fmt: skip


def json_option(function: Any) -> Any:
    return _JSON(function)


def cluster_options(function: Any) -> Any:
    for option in (_JSON, _WAIT, _KEY, _CERT, _CA, _CONTEXT, _URL):
        function = option(function)
    return function


def wants_json(context: click.Context) -> bool:
    return bool(context.meta.get(f"{_META}as_json"))


def command_name(context: click.Context) -> str:
    """Returns the command's name, such as `connector list`."""
    names = []
    at: click.Context | None = context
    while at is not None:
        names.append(at.command.name or "")
        at = at.parent
    return " ".join(name for name in reversed(names) if name and name != "cli")


def remote_of(context: click.Context) -> RemoteCluster:
    meta, name = context.meta, command_name(context)
    try:
        urls = contexts.chosen(meta.get(f"{_META}url", ()), meta.get(f"{_META}context", ""))
        access = access_of(context)
    except CdcError as exc:
        raise of_error(exc, name, as_json=wants_json(context)) from exc
    wait_s = meta.get(f"{_META}wait", WAIT_S)
    return RemoteCluster(urls, name, as_json=wants_json(context), wait_s=wait_s, access=access)


def access_of(context: click.Context) -> ClientAccess:
    meta = context.meta
    options = {name: meta.get(f"{_META}{name}", "") for name in ("ca", "cert", "key")}
    return contexts.access_of(meta.get(f"{_META}url", ()), meta.get(f"{_META}context", ""), options)


def remote_command(
    group: click.Group | None, name: str, **attributes: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """Returns a decorator for a command that talks to a cluster: its function gets the `RemoteCluster` first."""

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(*arguments: Any, **options: Any) -> None:
            function(remote_of(click.get_current_context()), *arguments, **options)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        command_type = click.command if group is None else group.command
        command: click.Command = command_type(name, **attributes)(cluster_options(run))
        return command

    return decorate


def complete_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns names of connectors for the shell, from a worker that answers at once, else none."""
    import httpx

    try:
        urls = contexts.chosen(context.meta.get(f"{_META}url", ()), context.meta.get(f"{_META}context", ""))
        access = access_of(context)
        options = {"timeout": 1.0, "trust_env": False, "headers": access.headers(), **access.options()}
        names = httpx.get(urls[0] + "/connectors", **options).json()
        return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]
    except (CdcError, httpx.HTTPError, ValueError, TypeError):
        return []
