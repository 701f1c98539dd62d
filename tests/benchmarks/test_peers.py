"""The benchmark against other packages runs, on few numbers, and says what is not installed."""

import json

import numpy as np
import pytest
import torch
from support import assert_same_bits

import qcore
from benchmarks import peers
from benchmarks.support import peers_newest, timing
from benchmarks.support.peers_mx import mx_by_floats

HERE = [name for name, peer in peers.PEERS.items() if peer.version()]


@pytest.mark.heavy
def test_every_peer_has_rows_or_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(timing, "_BATCH_SECONDS", 0)
    file = tmp_path / "peers.json"
    assert peers.main(["--exponent", "6", "--seconds", "0", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["elements"] == 64
    assert set(report["versions"]) >= {"python", "numpy", "commit", *HERE}
    assert set(report["not installed"]) == set(peers.PEERS) - set(HERE)
    assert {row["peer"] for row in report["rows"]} == set(HERE)
    for row in report["rows"]:
        assert set(row) == {"peer", "call", "framework", "number", "rounding", "theirs", "ours", "ratio"}
        assert row["ratio"] == pytest.approx(row["theirs"] / row["ours"])
    assert "theirs / ours" in capsys.readouterr().out


def test_missing_peers_are_listed(monkeypatch, capsys):
    monkeypatch.setitem(peers.PEERS, "absent", peers.Peer(lambda: None, peers.torch_matches))
    assert peers.main(["--only", "absent", "--exponent", "4"]) == 0
    assert "not installed: absent" in capsys.readouterr().out


@pytest.mark.heavy
def test_what_is_compiled(capsys):
    """Ours beside what Inductor compiles, where it can."""
    assert peers.main(["--only", "torch", "torchao", "--exponent", "10", "--seconds", "0"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ", compiled" in line]
    assert sum("microxcaling-like" in line for line in lines) == 2


def test_newest_versions_of_peers(monkeypatch, capsys):
    """What cannot be installed is said, and a newer version's tests are run; nothing is downloaded here."""

    def install(distributions, folder):
        if distributions == ("gfloat",):
            return "ERROR: no such version"
        made = folder / "softposit-99.dist-info"
        made.mkdir()
        (made / "METADATA").write_text("Metadata-Version: 2.1\nName: softposit\nVersion: 99\n")
        return ""

    monkeypatch.setattr(peers_newest, "_install", install)
    monkeypatch.setattr(peers_newest, "_tested", lambda newest, folder: ["FAILED tests/a.py::b - Error", "1 failed"])
    assert peers.main(["--newest", "gfloat", "softposit"]) == 1
    out = capsys.readouterr().out
    assert "gfloat: pinned 0.5.2, newest -: cannot be installed: ERROR: no such version" in out
    assert "softposit: pinned 0.3.4.4, newest 99: 1 failed\n    moved: tests/a.py::b" in out


def test_every_peer_is_pinned_and_every_test_of_peers_exists():
    pins = (peers_newest.ROOT / "constraints.txt").read_text()
    for peer, newest in peers_newest.NEWEST.items():
        assert all(f"\n{name}==" in pins for name in newest.distributions or (peer,))
        assert all((peers_newest.ROOT / "tests" / "peers" / name).exists() for name in newest.tests)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4"])
def test_float_operations_are_the_format(name):
    scales = 2.0 ** np.arange(-40, 40)[:, None]
    x = (np.random.default_rng(0).standard_normal((80, 32)) * scales).astype(np.float32)
    x[7], x[8, 3] = 0, -0.0
    actual = mx_by_floats(torch.from_numpy(x), qcore.NAMED[name][0])
    assert_same_bits(actual, qcore.quantize(x, name, "nearest"))
