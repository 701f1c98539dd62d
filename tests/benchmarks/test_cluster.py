"""Pieces on a dask scheduler that runs elsewhere; here it is a thread, behind a TCP port."""

import sys

import pytest
from distributed import LocalCluster

from benchmarks.support.cluster import ClusterError, connected, processes, results


@pytest.fixture
def cluster():
    options = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(None, 0, 1, **options) as cluster:
        yield cluster


def test_results_and_failures(cluster):
    cluster.scale(2)
    with connected(cluster.scheduler_address, 1, 30) as client:
        client.wait_for_workers(2, 30)
        assert processes(client) == 2
        found = dict(results(client, divmod, [(7, 2), (9, 3), (1, 0)]))
    assert found[7, 2] == (3, 1)
    assert found[9, 3] == (3, 0)
    assert isinstance(found[1, 0], ZeroDivisionError)


def test_no_workers(cluster):
    address = cluster.scheduler_address
    with pytest.raises(ClusterError, match=f"no worker after 0.5 s; start some with `dask worker {address}`"):
        connected(address, 1, 0.5).__enter__()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://", "tcp://"])
def test_no_scheduler(address):
    with pytest.raises(ClusterError, match=f"no scheduler answers at {address} within 0.5 s"):
        connected(address, 1, 0.5).__enter__()


def test_dask_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError, match=r"dask is not installed .*\[sweep\]"):
        connected(None, 1, 1).__enter__()
