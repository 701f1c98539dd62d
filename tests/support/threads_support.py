"""What tests of threads share."""

import sys
import threading

import pytest


@pytest.fixture(autouse=True)
def threads_that_switch_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(functions, calls):
    """The results of all calls of functions, each in a thread of its own, which begin at once; raises their errors."""
    found, errors, start = [[] for _ in functions], [], threading.Barrier(len(functions))

    def work(function, results):
        try:
            start.wait()
            results.extend(function() for _ in range(calls))
        except Exception as error:  # of the thread, which the test must see
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(functions, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [one for results in found for one in results]
