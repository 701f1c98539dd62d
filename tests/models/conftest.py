"""torchvision is imported where its operators are built for another torch, as PyPI's are beside torch for CPUs."""

import pytest

from benchmarks.support.torchvision import describe_operators


@pytest.fixture(autouse=True, scope="session")
def torchvision():
    describe_operators()  # tests that need what is not installed are skipped
