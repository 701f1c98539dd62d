"""ModelOpt 0.47.0 (NVFP4) and transformers 5.24.0 (GPT-OSS MXFP4, DeepSeek FP8) read what is written here.

The extra `peers` brings both along. They compute on CPUs here; no model is loaded.
"""

import importlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qcore.exchange import encode_weight, load_quantized, save_quantized

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]


def weights():
    """Numbers of all scales, ties, and rows of zeros."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 256)) * np.exp2(rng.integers(-20, 20, (256, 1)))
    x[:32] = np.round(x[:32] * 4) / 4  # ties
    x[32:36] = 0
    return x.astype(np.float32)


def owner(module):
    """A package's module; the test is skipped without the package."""
    pytest.importorskip(module.partition(".")[0])
    return importlib.import_module(module)


def written(folder, x, dialect):
    """What is encoded, and the tensors of the file that holds it, which is also read back here."""
    mine = encode_weight(x, dialect)
    save_quantized(folder / "w.safetensors", {"weight": mine})
    again = load_quantized(folder / "w.safetensors")["weight"]
    assert same(torch.from_numpy(again.dequantize()), torch.from_numpy(mine.dequantize())).all()
    assert again.dialect == dialect
    return torch.from_numpy(mine.dequantize()), load_file(folder / "w.safetensors")


def same(left, right):
    assert left.dtype == right.dtype
    kind = {1: torch.uint8, 4: torch.int32}[left.element_size()]
    return left.contiguous().view(kind) == right.contiguous().view(kind)


def test_modelopt(tmp_path):
    """Its bytes of new weights are ours; it reads the code of -0.0 as 0.0, and all others alike."""
    kind = owner("modelopt.torch.quantization.qtensor").NVFP4QTensor
    x = torch.from_numpy(weights())
    mine, state = written(tmp_path, x.numpy(), "ModelOpt NVFP4")
    codes, scale, whole = kind.quantize(x.clone(), 16)
    assert same(codes._quantized_data, state["weight"]).all()
    assert same(scale, state["weight_scale"]).all()
    assert same(whole, state["weight_scale_2"])
    settings = {"scale": scale, "double_scale": whole, "block_sizes": {-1: 16}}
    found = kind(x.shape, torch.float32, state["weight"]).dequantize(torch.float32, **settings)
    assert same(found, mine + 0.0).all()


def test_gpt_oss(tmp_path):
    convert = owner("transformers.integrations.mxfp4").convert_moe_packed_tensors
    mine, state = written(tmp_path, weights().reshape(4, 64, 256), "GPT-OSS MXFP4")
    found = convert(state["weight_blocks"], state["weight_scales"], dtype=torch.float32)
    assert same(found.transpose(1, 2), mine).all()


def test_deepseek(tmp_path):
    reader = owner("transformers.integrations.finegrained_fp8").Fp8Dequantize(None)
    mine, state = written(tmp_path, weights(), "DeepSeek FP8")
    assert same(reader._dequantize_one(state["weight"], state["weight_scale_inv"], torch.float32), mine).all()
