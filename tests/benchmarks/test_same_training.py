"""The same weights from PyTorch, JAX and NumPy, and what keeps the results."""

import itertools
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import assert_same_bits

from benchmarks import same_training
from benchmarks.training_models import timing
from benchmarks.training_models.data import batch_of
from benchmarks.training_models.environment import open_record
from benchmarks.training_models.jax_run import JaxRun
from benchmarks.training_models.numpy_run import NumpyRun
from benchmarks.training_models.programs import PROGRAMS
from benchmarks.training_models.record import Record, RecordError, Row, disagreements
from benchmarks.training_models.state import DATA, digest, key_for
from benchmarks.training_models.torch_run import TorchRun
from benchmarks.training_models.trainings import TRAININGS
from benchmarks.training_models.worker import train, work

STEPS, HALF = 10, 5


@pytest.fixture(scope="module")
def by_numpy():
    """The states after the first and the last half, and the hash of what came between."""
    run = NumpyRun("mxfp4")
    seen, _ = train(run, "mlp", 0, HALF)
    middle = {name: x.copy() for name, x in run.state().items()}
    return middle, train(run, "mlp", HALF, STEPS, seen)[0], run.state()


@pytest.fixture(scope="module")
def jax_run():
    return JaxRun("mlp", "mxfp4")


def states_are_equal(found, expected):
    assert set(found) == set(expected)
    for name, x in expected.items():
        assert_same_bits(found[name], x, name)


@pytest.mark.heavy
def test_torch_and_jax_train_the_weights_of_numpy(by_numpy, jax_run):
    """Ten steps in MXFP4 with stochastic gradients; losses, logits and gradients too, which quantization would hide."""
    _, seen, last = by_numpy
    for run in (TorchRun("mlp", "mxfp4"), jax_run):
        assert train(run, "mlp", 0, STEPS)[0] == seen
        states_are_equal(run.state(), last)
    assert digest(run.weights()) == digest(TorchRun("mlp", "mxfp4").weights() | run.weights())


@pytest.mark.heavy
def test_a_checkpoint_goes_on_in_the_other_framework(by_numpy, jax_run, tmp_path):
    middle, _, last = by_numpy
    for first, second in itertools.permutations((TorchRun("mlp", "mxfp4"), jax_run)):
        first.load(0, NumpyRun("mxfp4").state())
        train(first, "mlp", 0, HALF)
        save_file(first.state(), tmp_path / "checkpoint.safetensors")
        state = load_file(tmp_path / "checkpoint.safetensors")
        states_are_equal(state, middle)
        second.load(HALF, state)
        train(second, "mlp", HALF, STEPS)
        states_are_equal(second.state(), last)


def test_one_bit_of_the_data_changes_the_hash(by_numpy):
    """The comparison can fail."""
    run = NumpyRun("mxfp4")
    images, digits = batch_of("mlp", key_for(DATA), 0)
    images[0, 20] = np.nextafter(images[0, 20], np.float32(2))
    run.step(0, images, digits)
    other = NumpyRun("mxfp4")
    train(other, "mlp", 0, 1)
    assert digest(run.intermediates()) != digest(other.intermediates())


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path / "same.json", {"versions": {"torch": "1"}, "machine": {}, "data": {}})


def test_results_of_several_processes_are_merged(record):
    record.put(Row("mlp", "fp8", "numpy", "abc", 5, ["1"], ["2"]))
    record.put(Row("gpt", "fp8", "jax eager", "abc", 5, ["3"], ["4"]))
    record.put(Row("mlp", "fp8", "numpy", "abc", 5, ["1", "5"], ["2", "6"]))
    assert [(row.job, row.steps) for row in record.rows()] == [
        (("gpt", "fp8", "jax eager"), 5),
        (("mlp", "fp8", "numpy"), 10),
    ]
    assert record.row(("mlp", "fp8", "numpy")).weights == ["1", "5"]
    assert json.loads(record.path.read_text())["runs"][1]["steps"] == 10


def test_results_of_other_versions_are_refused(record):
    record.put(Row("mlp", "fp8", "numpy", "abc", 5, ["1"], ["2"]))
    other = Record(record.path, record.environment | {"versions": {"torch": "2"}})
    with pytest.raises(RecordError, match="versions"):
        other.rows()


def test_other_hashes_are_found():
    rows = [Row("mlp", "fp8", name, "abc", 5, [*"123"], [*"456"]) for name in ("a", "b", "c")]
    assert not disagreements(rows)
    rows[1].weights[1], rows[2].intermediates = "x", ["4"]
    assert disagreements(rows) == ["mlp, fp8, b: other weights after 10 steps"]
    rows[0].intermediates[2] = "y"
    assert len(disagreements(rows)) == 2


def test_times_are_kept(monkeypatch, tmp_path, capsys):
    rows = [timing.Row("mlp", "fp8", "jax jit", 0.5, 0.2), timing.Row("mlp", "mxfp4", "jax jit", 0.5, 0.2)]
    monkeypatch.setattr(timing, "measure", lambda models, kinds, seconds: rows)
    file = tmp_path / "time.json"
    assert same_training.main(["--time", "--json", str(file)]) == 0
    assert "1 of 1 limits missed: mlp in fp8, jax jit" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert [(row["ratio"], row["limit"]) for row in found["rows"]] == [(2.5, 2.0), (2.5, None)]
    assert {"versions", "machine"} <= set(found)


@pytest.mark.heavy
def test_the_program_goes_on_where_it_was_stopped(tmp_path, capfd):
    """NumPy alone: four steps, then four more."""
    path, job = tmp_path / "same.json", ("mlp", "fp8", "numpy")
    record, commit = open_record(path)
    work(record, tmp_path, job, 4, 4, commit)
    options = ["--models", "mlp", "--arithmetic", "fp8", "--programs", "numpy", "--every", "4", "--steps", "8"]
    assert same_training.main([*options, "--json", str(path), "--states", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert out.count("step 4:") == out.count("step 8:") == 1
    assert "1 runs: one hash for each model and arithmetic" in out
    run = NumpyRun("fp8")
    seen, _ = train(run, "mlp", 0, 8)
    (row,) = json.loads(path.read_text())["runs"]
    assert (row["weights"][-1], row["intermediates"][-1]) == (digest(run.weights()), seen)


@pytest.mark.heavy
@pytest.mark.parametrize("model", ["gpt_adamw8bit", "gpt_flashadamw", "gpt_muon"])
def test_states_in_codes_go_on_in_the_other_framework(model):
    whole, other = TorchRun(model, "float32"), JaxRun(model, "float32")
    start = other.state()
    train(whole, model, 0, HALF)
    middle = whole.state()
    train(whole, model, HALF, STEPS)
    for first, second in itertools.permutations((TorchRun(model, "float32"), other)):
        first.load(0, start)
        train(first, model, 0, HALF)
        states_are_equal(first.state(), middle)
        second.load(HALF, middle)
        train(second, model, HALF, STEPS)
        states_are_equal(second.state(), whole.state())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "arithmetic"), [(name, kind) for name, one in TRAININGS.items() for kind in one.arithmetic]
)
def test_all_programs_have_one_hash(tmp_path, model, arithmetic):
    """Each in a process of its own, some with fewer threads, one on four devices."""
    command = ["--models", model, "--arithmetic", arithmetic, "--steps", "2", "--every", "2"]
    command += ["--json", str(tmp_path / "same.json"), "--states", str(tmp_path)]
    assert same_training.main(command) == 0
    rows = json.loads((tmp_path / "same.json").read_text())["runs"]
    assert {row["program"] for row in rows} == {
        name for name, one in PROGRAMS.items() if TRAININGS[model].network in one.networks
    }
    assert len({row["weights"][-1] for row in rows}) == len({row["intermediates"][-1] for row in rows}) == 1
