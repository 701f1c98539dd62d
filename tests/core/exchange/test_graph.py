"""Graphs under construction: equal constants are one, without copies; large models have them in a file beside."""

import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from qcore.exchange import graph as graphs
from qcore.exchange import run_onnx
from qcore.exchange.graph import Graph


def test_equal_constants_are_one():
    graph = Graph("constants")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    first = graph.constant(rows)
    assert graph.constant(rows.copy()) == graph.constant(np.asfortranarray(rows)) == first
    others = rows.T, rows.reshape(4, 3), rows.view(np.int32), -rows, rows[:0], np.float32(0), np.int32(0), np.int8(0)
    small = [rows.astype(kind) for kind in (ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16)]
    names = [graph.constant(one) for one in (*others, *small)]
    assert len({first, *names}) == 1 + len(others) + len(small)
    assert graph.constant(np.float32(-0.0)) not in names
    assert graph.constant(rows, "own") == "own"


def test_constants_are_not_copied():
    rows, graph = np.ones(2**20, np.float32), Graph("constants")
    tracemalloc.start()
    try:
        graph.constant(rows)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < most < rows.nbytes / 8


def with_weights(rows):
    graph = Graph("weights")
    x = graph.input("x", "float32", (2, len(rows)))
    y = graph.node("MatMul", x, graph.constant(rows), dtype="float32")
    graph.output(graph.node("Add", y, graph.constant(np.float32(1)), dtype="float32"), "float32", (2, 50), name="y")
    return graph


@pytest.mark.parametrize("link", [False, True])
def test_large_constants_lie_beside_the_model(link, tmp_path, monkeypatch):
    path, rows = tmp_path / "model.onnx", np.random.default_rng(0).standard_normal((60, 50)).astype(np.float32)
    whole = with_weights(rows).model()
    monkeypatch.setattr(graphs, "_MOST", 10_000)
    with pytest.raises(ValueError, match=r"has 12004 bytes of constants; allowed are 10000: to_onnx has more"):
        with_weights(rows).model()
    x = np.ones((2, 60), np.float32)
    if link:
        (tmp_path / "real").mkdir()
        path.symlink_to(tmp_path / "real" / "model.onnx")
    with_weights(rows).save(path)
    folder = tmp_path / "real" if link else tmp_path
    assert {one.name for one in folder.iterdir()} == {"model.onnx", "model.onnx.data"}
    assert path.stat().st_size < 2000 < rows.nbytes <= (folder / "model.onnx.data").stat().st_size
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    (wanted,) = onnxruntime.InferenceSession(whole.SerializeToString()).run(None, {"x": x})
    (found,) = onnxruntime.InferenceSession(str(folder / "model.onnx")).run(None, {"x": x})
    assert found.tobytes() == wanted.tobytes()
    np.testing.assert_allclose(run_onnx(folder / "model.onnx", {"x": x})["y"], wanted, 1e-5, 1e-5)
    small = rows[:, :20] * 2
    monkeypatch.setattr(graphs, "_MOST", small.nbytes + 4)
    graph = Graph("small")
    graph.output(graph.constant(small), "float32", small.shape, name="y")
    graph.save(path)
    assert np.array_equal(run_onnx(folder / "model.onnx", {})["y"], small)


def test_what_cannot_have_a_file_beside_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST", 10_000)
    with pytest.raises(ValueError, match=r"file is '/dev/null'; allowed for a model of more than 2 GB is a file on"):
        with_weights(np.ones((60, 50), np.float32)).save("/dev/null")


def test_an_error_leaves_both_files(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "_MOST", 10_000)
    path = tmp_path / "model.onnx"
    with_weights(np.ones((60, 50), np.float32)).save(path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    monkeypatch.setattr(onnx, "save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        with_weights(np.zeros((60, 50), np.float32)).save(path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


@pytest.mark.heavy
def test_a_model_of_more_than_2_gb(tmp_path):
    graph, rows = Graph("large"), 700_000
    table = np.zeros((rows, 800), np.float32)
    table[-1] = 7
    y = graph.node("Gather", graph.constant(table), graph.input("x", "int64", (1,)), dtype="float32")
    graph.output(y, "float32", (1, 800), name="y")
    graph.save(tmp_path / "model.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": np.int64([rows - 1])})
    assert (found[0] == 7).all()
