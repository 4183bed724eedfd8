"""A browser for the tests of the page: Chromium of this machine, or, where a run may install it, of Debian.

`.ci/run` may (KERNEL_TEST_BROWSER=install); a run by hand takes what there is, and skips these tests with one line where there is
none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
INSTALL_SECONDS = 300


def installed() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def path() -> str:
    """Return the browser's path; skips where there is none."""
    found = installed()
    if found is None and os.environ.get("KERNEL_TEST_BROWSER") == "install" and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": INSTALL_SECONDS}
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *command], env=environment, check=False, **quiet)  # type: ignore[call-overload]
        found = installed()
    if found is None:
        pytest.skip("no browser: install chromium to test the page")
    return found


@contextmanager
def browsing() -> Iterator[Any]:
    """Start the browser, and end it."""
    executable = path()
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
