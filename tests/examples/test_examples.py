"""The examples run as their users run them, and the images are what they should be."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from examples import data

ROOT = Path(__file__).parent.parent.parent
ROWS = {
    "overview_torch": ["fp32", "low precision"],
    "overview_jax": ["fp32", "low precision"],
    "mx_linear_torch": ["fp32", "mxfp8", "nvfp4"],
    "mx_linear_jax": ["fp32", "mxfp8", "nvfp4"],
    "cifar10_torch": ["fp32", "low precision"],
    "cifar10_jax": ["fp32", "low precision"],
    "wage_torch": ["fp32", "fixed point"],
    "wage_jax": ["fp32", "fixed point"],
    "swalp_torch": ["fp32", "block floating point", "averaged"],
    "swalp_jax": ["fp32", "block floating point", "averaged"],
}
QUANTIZED = {  # models of the closing table
    "static_torch": ["fp32", "int8", "int4"],
    "dynamic_torch": ["fp32", "float16", "int8", "int4"],
    "qat_torch": ["fp32", "int8", "int4"],
    "static_jax": ["fp32", "int8", "int4"],
    "dynamic_jax": ["fp32", "float16", "int8", "int4"],
    "qat_jax": ["fp32", "int8", "int4"],
    "torch_to_jax": ["fp32", "int8", "int8 in JAX", "int4", "int4 in JAX"],
}
RECIPES = {"recipes_torch", "recipes_jax", "recipes_report"}  # see test_recipes.py
INSIGHT = {f"{name}_{framework}" for name in ("find_the_fault", "choose_formats") for framework in ("torch", "jax")}
INSIGHT |= {"choosing_report"}
OPTIONAL = {"json", "plot"}  # options without a default: nothing is written
WRONG = [
    ("overview_torch", ["--epochs", "0"], "'0'; allowed are ints of at least 1"),
    ("static_torch", ["--limit", "few"], "'few'; allowed are ints of at least 1"),
    ("cifar10_jax", ["--plot", "curves.pdf"], "'curves.pdf'; allowed are files that end in .svg, .png, .json"),
    ("choose_formats_torch", ["--budget", "3"], "'3'; allowed are numbers of at least 4.0"),
    ("recipes_jax", ["--recipe", "mxfp7"], "'mxfp7'; allowed are fp32, mxfp8, "),
    ("recipes_torch", ["--recipe", "float(6,"], "text='float(6,'"),
    ("pictures", ["--results", "nowhere"], "'nowhere' is not there; allowed are folders that exist"),
]
PICTURES = {"pictures"}  # see test_pictures.py
PROGRAMS = {file.stem for file in (ROOT / "examples").glob("*.py") if "__main__" in file.read_text(encoding="utf-8")}


def test_every_example_is_tested():
    assert set(ROWS) | set(QUANTIZED) | RECIPES | INSIGHT | PICTURES == PROGRAMS


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_help_says_what_an_example_does_and_the_defaults(name, capsys):
    program = importlib.import_module(f"examples.{name}")
    with pytest.raises(SystemExit) as done:
        program.main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert program.__doc__.partition("\n")[0] in text
    options = text.partition("options:")[2].split("\n  --")[1:]
    assert len(options) == len(re.findall("^  --", text, re.M)) > 0
    silent = [option for option in options if "(default:" not in option and option.split()[0] not in OPTIONAL]
    assert silent == []


@pytest.mark.parametrize(("name", "options", "words"), WRONG)
def test_a_wrong_option_is_named_with_what_is_allowed(name, options, words, capsys):
    with pytest.raises(SystemExit) as done:
        importlib.import_module(f"examples.{name}").main(options)
    assert done.value.code == 2
    assert f"error: argument {options[-2]}: {words}" in capsys.readouterr().err


def run(name, plot, rows):
    """What an example prints before its closing table, and the table's lines for these rows."""
    command = [sys.executable, "-m", f"examples.{name}", "--epochs", "1", "--limit", "32", "--plot", str(plot)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait for each other are slow beside other tests
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    progress, table = done.stdout.split("test accuracy")
    what = (importlib.import_module(f"examples.{name}").__doc__ or "").partition("\n")[0]
    assert progress.startswith(f"{what}\n")
    outcome = [f"{row} has [0-9.]+ %" for row in rows]
    assert re.search(
        f"^Of the test images {', '.join(outcome).replace('%', '% right', 1)}; curves saved to", table, re.M
    )
    assert "epoch 1: loss" in progress
    assert plot.read_bytes().startswith(b"\x89PNG")
    lines = [[line for line in table.splitlines() if line.strip().startswith(f"{row}  ")] for row in rows]
    return progress, [line.rstrip() for (line,) in lines]


@pytest.mark.heavy  # they compile, above all
@pytest.mark.parametrize("name", ROWS)
def test_an_example_ends_with_a_table_and_a_plot(name, tmp_path):
    for line in run(name, tmp_path / "curves.png", ROWS[name])[1]:
        assert line.count("%") == 2
        assert line.endswith(" s")


@pytest.mark.heavy
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_models_are_smaller_the_fewer_bits(name, tmp_path):
    progress, lines = run(name, tmp_path / "widths.png", QUANTIZED[name])
    sizes = [float(re.search(r"\d %  +([\d.]+) kB  +[\d.]+ ms$", line)[1]) for line in lines]
    size = dict(zip(QUANTIZED[name], sizes, strict=True))
    assert size["fp32"] > 3 * size["int8"]
    assert size["int8"] > 1.3 * size["int4"]
    if name == "torch_to_jax":
        assert re.findall(r"(int\d): \d{6,} integers of 12 layers, 0 differ", progress) == ["int8", "int4"]


# Images


def test_digits_are_split_once_and_for_all():
    digits = data.load()
    assert (digits.name, digits.images.shape, digits.test_images.shape) == (
        "digits",
        (1297, 3, 32, 32),
        (500, 3, 32, 32),
    )
    assert digits.images.dtype == np.float32
    assert np.array_equal(digits.labels, data.load().labels)
    blocks = digits.images.reshape(-1, 3, 8, 4, 8, 4)
    assert (blocks == blocks[:, :1, :, :1, :, :1]).all()  # each pixel is one of scikit-learn's
    every = np.concatenate([digits.images, digits.test_images])
    assert len(np.unique(every[:, 0].reshape(len(every), -1), axis=0)) == 1797


def test_a_limit_is_of_training_images_only():
    few = data.load(100)
    assert (len(few.images), len(few.labels), len(few.test_images), few.steps) == (100, 100, 500, 1)
    assert np.array_equal(few.images, data.load().images[:100])


def test_batches_are_shuffled_by_the_seed_and_full():
    digits = data.load(150)
    epoch = digits.batches(np.random.default_rng(0))
    assert [len(labels) for _, labels in epoch] == [64, 64]
    again, other = (digits.batches(np.random.default_rng(seed)) for seed in (0, 1))
    assert np.array_equal(epoch[0][0], again[0][0])
    assert not np.array_equal(epoch[0][0], other[0][0])
    assert sum(len(labels) for _, labels in digits.test_batches()) == 500


def test_cifar10_is_used_where_it_is(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 32, 32, 3), dtype=np.uint8)

    def files(root, train):
        assert root == "./data/CIFAR10"
        count = 200 if train else 100
        return SimpleNamespace(data=pixels[:count], targets=list(range(count)))

    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchvision.datasets", SimpleNamespace(CIFAR10=files))
    cifar = data.load()
    assert (cifar.name, cifar.batch, cifar.images.shape) == ("CIFAR10", 128, (200, 3, 32, 32))
    assert cifar.test_images[3, 1, 5, 7] == pytest.approx((pixels[3, 5, 7, 1] / 255 - 0.4822) / 0.1994, abs=1e-5)
    ((images, labels),) = cifar.batches(np.random.default_rng(0))
    for image, label in zip(images, labels, strict=True):
        padded = np.pad(cifar.images[label], ((0, 0), (4, 4), (4, 4)))
        shifts = [padded[:, i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
        assert any(np.array_equal(image, shift) or np.array_equal(image, shift[..., ::-1]) for shift in shifts)

    def missing(root, train):
        raise RuntimeError("Dataset not found or corrupted.")

    monkeypatch.setitem(sys.modules, "torchvision.datasets", SimpleNamespace(CIFAR10=missing))
    assert data.load().name == "digits"
