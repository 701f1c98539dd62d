"""The option `--go-on`: a long run goes on where an earlier one stopped, however that ended.

pytest's own `--lf` and `--stepwise` write what failed when a run ends; a run that is killed leaves nothing there.
"""

from datetime import datetime
from pathlib import Path

import pytest

PASSED = pytest.StashKey[frozenset]()


def pytest_addoption(parser):
    parser.addoption("--go-on", action="store_true", help="leave out what passed since --cache-clear; note what passes")


def _file(config):
    """Lines of a time and a test that passed then, or was skipped."""
    return Path(config.cache.mkdir("go-on")) / "passed.txt"


def pytest_configure(config):
    """Workers get the tests from the process that began them: all must find the same tests, a later one as well."""
    if not config.option.go_on:
        return
    if hasattr(config, "workerinput"):
        config.stash[PASSED] = frozenset(config.workerinput["passed"])
        return
    file = _file(config)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    config.stash[PASSED] = frozenset(line.split(" ", 1)[1] for line in lines)
    config.pluginmanager.register(_Notes(file))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    if node.config.option.go_on:
        node.workerinput["passed"] = sorted(node.config.stash[PASSED])


def pytest_collection_modifyitems(config, items):
    passed = config.stash.get(PASSED, frozenset())
    left_out = [item for item in items if item.nodeid in passed]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.nodeid not in passed]


class _Notes:
    """Notes each test that passed at once, so that no end of the run loses it."""

    def __init__(self, file):
        self.file, self.bad = file, set()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.bad.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self.bad:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().isoformat(timespec='seconds')} {report.nodeid}\n")
