"""Lines of the commands are whole, unless a test says how wide the terminal is."""

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
