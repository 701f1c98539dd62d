"""The benchmark of GPUs takes its arguments, and says where there is no GPU."""

import json

import pytest
import torch

from benchmarks import gpu, speed


def test_without_a_gpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "gpu.json"
    assert gpu.main(["--json", str(file)]) == gpu.NO_GPU == 2
    assert "there is no GPU" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("arguments", [["--max-exponent", "5"], ["--device", "cpu"], ["--seconds", "soon"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as status:
        gpu.main(arguments)
    assert status.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(("same_bits", "status"), [(True, 0), (False, 1), (None, 0)])
def test_arguments_and_results(monkeypatch, tmp_path, capsys, same_bits, status):
    asked = []

    def measure(max_exponent, seconds, log):
        asked.append((max_exponent, seconds))
        yield gpu.Row("e4m3fn", "nearest", 20, 2e-6, 1e-6, 30.0, same_bits)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "machine", lambda device: {"gpu": "none"})
    monkeypatch.setattr(gpu, "measure", measure)
    file = tmp_path / "gpu.json"
    assert gpu.main(["--max-exponent", "20", "--seconds", "0.1", "--json", str(file)]) == status
    assert asked == [(20, 0.1)]
    report = json.loads(file.read_text())
    assert set(report) == {"versions", "machine", "rows"}
    assert report["rows"][0]["share_of_copy"] == 0.5
    assert "50%" in capsys.readouterr().out


@pytest.mark.heavy
def test_rows_are_those_of_speed_and_more():
    cases = speed.cases("torch", speed.LARGE)
    numbers = [case for case in cases if case.dtype == "float32" and case.operation != speed.PACKAGE]
    assert len(list(gpu.calls(speed.LARGE))) == len(numbers) + 4
    for _, operation, exponent, call, shape in gpu.calls(speed.MIDDLE):
        x = torch.randn(1 << exponent).view(shape)
        result = call(x)()
        assert (result[0] if isinstance(result, tuple) else result).shape == x.shape, operation
