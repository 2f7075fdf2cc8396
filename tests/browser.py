"""Chromium on this machine, driven by Playwright, for tests of the console in a browser."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(sys.prefix) / "browser"
"""Where `make browser` puts Playwright and axe."""
OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WATCH = "addEventListener('securitypolicyviolation', (e) => console.error(`CSP ${e.violatedDirective} ${e.blockedURI} ${e.sample}`))"


def program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def problem() -> str | None:
    """What is missing, None if nothing is."""
    if program() is None:
        return "chromium: it is not installed (on Debian: apt install chromium)"
    if not (FOLDER / "playwright").is_dir():
        return "chromium: Playwright is not here (make browser)"
    return None


def axe() -> str:
    """The text of axe, which looks for what hinders people with keyboards and screen readers."""
    return (FOLDER / "axe_playwright_python" / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. An event loop runs in this thread until it is closed: tests beside it begin none of their own."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    from playwright.sync_api import sync_playwright

    options = [*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program(), args=options)
        try:
            yield found
        finally:
            found.close()


class Tab:
    """One page of the console in a context of its own. What it does that it must not do is in `complaints`."""

    def __init__(
        self, browser: Any, url: str, *, width: int = 1280, scheme: str = "light", checked: bool = True
    ) -> None:
        self.url, self.complaints = url, []
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=not checked, locale="en-GB")
        self.context.set_default_timeout(30_000)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("request", self._watch)

    def _listen(self, message: Any) -> None:
        # A browser tells of each status from 400 on as an error of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _watch(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.complaints.append(f"asks {request.url}")

    def log_in(self, token: str) -> Tab:
        self.page.goto(f"{self.url}/ui/")
        self.page.get_by_label("Token", exact=True).fill(token)
        self.page.get_by_role("button", name="Log in").click()
        return self

    def show(self, place: str) -> Any:
        self.page.goto(f"{self.url}/ui/#/{place}")
        return self.page

    def text(self) -> str:
        """Everything that the page holds, its fields too."""
        told = "document.documentElement.outerHTML + [...document.querySelectorAll('input, textarea')].map((one) => one.value)"
        return str(self.page.evaluate(told))

    def serious(self) -> list[str]:
        """What axe finds on the page that hinders somebody seriously."""
        self.page.evaluate(axe())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']} ({one['impact']}): {[node['target'] for node in one['nodes']][:3]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def close(self) -> None:
        self.context.close()
