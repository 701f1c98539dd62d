"""The site in a browser: playwright (extra `browser`) and Chromium, the system's or the one that `CHROMIUM` names.

Tests that take `page` are heavy. They are skipped where playwright or Chromium is missing.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
from documents import DESK, ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site, built once."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return folder


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


NOTHING = {"config": {"fields": {}, "lang": ["en"], "pipeline": [], "separator": " "}, "docs": []}


class WithoutSearch(Silent):
    """Every page reads the index of the search at once, which takes a third of its time: this one is empty."""

    def do_GET(self):
        if self.path != "/search/search_index.json":
            return super().do_GET()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(NOTHING).encode())


@contextlib.contextmanager
def served(site, handler):
    """The address of a folder."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def address(site):
    """The address of the site, whose search finds nothing."""
    with served(site, WithoutSearch) as address:
        yield address


@pytest.fixture(scope="session")
def searched(site):
    """The address of the site with its search."""
    with served(site, Silent) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page as wide as a desk's screen; its `complaints` are errors on the console and files that are missing."""
    page = browser.new_page(viewport=DESK)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("response", lambda response: page.complaints.append(response.url) if response.status >= 400 else None)
    yield page
    page.close()
