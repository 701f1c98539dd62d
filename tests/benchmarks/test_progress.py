"""Without a terminal, progress is plain lines."""

import io
import re
import time

from benchmarks.support import progress


def test_lines(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.01)
    file = io.StringIO()
    with progress.Progress(1234, "pieces", file) as shown:
        shown.show(5, "e5m2 nearest")
        while not file.getvalue():
            time.sleep(0.01)
        shown.show(1234)
    first, *_, last = file.getvalue().splitlines()
    assert first.startswith("5 of 1,234 pieces, 0:0")
    assert re.search(r" elapsed, \d+:\d\d left; running: e5m2 nearest$", first)
    assert last.startswith("1,234 of 1,234 pieces, ")
    assert last.endswith(" elapsed, 0:00 left")


def test_a_bar_on_a_terminal(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: True, raising=False)
    with progress.Progress(4, "formats", file) as shown:
        shown.show(3, "e5m2")
    assert "3/4" in file.getvalue()
