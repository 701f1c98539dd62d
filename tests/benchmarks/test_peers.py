"""The benchmark against other packages runs, on few numbers, and says what is not installed."""

import json
from importlib.util import find_spec

import pytest

from benchmarks import peers

HERE = [peer for peer, (module, _) in peers.PEERS.items() if find_spec(module)]


def test_every_peer_has_rows_or_is_missing(tmp_path, capsys):
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
    monkeypatch.setitem(peers.PEERS, "absent", ("no_such_module", peers.torch_matches))
    assert peers.main(["--only", "absent", "--exponent", "4"]) == 0
    assert "not installed: absent" in capsys.readouterr().out
