"""Vectors of layers have the bits of PyTorch's layers with the same accumulator, operands and bias."""

import numpy as np
import pytest
import torch

from qcore import decode
from qcore.__main__ import main
from qcore.cli.layouts import read_rows
from qcore.cli.sum_files import read
from qtorch import linalg


@pytest.mark.parametrize(
    ("arguments", "function", "settings"),
    [
        (["--input", "9,40", "--weight", "6,40"], linalg.linear, {}),
        (
            ["--input", "2,4,9,7", "--weight", "6,2,3,2", "--groups", "2", "--stride", "2,1", "--padding", "1"],
            linalg.conv2d,
            {"groups": 2, "stride": (2, 1), "padding": 1},
        ),
    ],
)
def test_biased_results(tmp_path, arguments, function, settings):
    path = tmp_path / "layer.csv"
    assert main(["layer", "hopper.wgmma.e4m3", *arguments, "-o", str(path)]) == 0
    vectors = read(read_rows(path))
    x, w = (torch.from_numpy(decode(codes, "e4m3fn")) for codes in (vectors.given.a, vectors.given.b))
    y = function(x, w, torch.from_numpy(vectors.given.c), accumulator="hopper.wgmma.e4m3", **settings)
    found = vectors.found["biased"].values.astype(np.uint32)
    numbers = ~np.isnan(y.numpy().ravel())
    assert numbers.mean() > 0.5
    assert (y.numpy().view(np.uint32).ravel() == found)[numbers].all()
    assert np.isnan(found.view(np.float32)[~numbers]).all()
