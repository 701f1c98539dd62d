"""compressed-tensors 0.20.0, vLLM's package: it reads what is written here, and encodes new weights alike.

The extra `peers` brings it along, with transformers, of which it imports configurations, and no model.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from qcore.exchange import encode_weight, load_quantized, save_quantized

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
DIALECTS = {
    "compressed-tensors nvfp4": ("nvfp4-pack-quantized", 4, {"strategy": "tensor_group", "group_size": 16}),
    "compressed-tensors mxfp4": ("mxfp4-pack-quantized", 4, {"strategy": "group", "group_size": 32}),
    "compressed-tensors mxfp6": ("mxfp6-pack-quantized", 6, {"strategy": "group", "group_size": 32}),
    "compressed-tensors mxfp8": ("mxfp8-quantized", 8, {"strategy": "group", "group_size": 32}),
    "float8": ("float-quantized", 8, {"strategy": "channel"}),
}


def weights():
    """Numbers of all scales, ties and rows of zeros, whose zeros have both signs."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 128)) * np.exp2(rng.integers(-20, 20, (96, 1)))
    x[:32] = np.round(x[:32] * 4) / 4  # ties
    x[32:36] = 0
    x[36:40, 0::32] = 1.75 * 2.0 ** np.arange(4)[:, None]
    x[36:40, 1:] = np.minimum(abs(x[36:40, 1:]), 0.5)
    return x.astype(np.float32)


def scheme(dialect):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    _, bits, settings = DIALECTS[dialect]
    more = {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8} if "mxfp" in dialect else {}
    more |= {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn} if "nvfp4" in dialect else {}
    args = QuantizationArgs(num_bits=bits, type="float", symmetric=True, **settings, **more)
    return QuantizationScheme(targets=["Linear"], weights=args)


def bits(x):
    return x.contiguous().view({1: torch.uint8, 4: torch.int32}[x.element_size()])


def compressor(dialect):
    from compressed_tensors.compressors import BaseCompressor

    return BaseCompressor.get_value_from_registry(DIALECTS[dialect][0])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_owner_reads_what_is_written(dialect, tmp_path):
    mine = encode_weight(weights(), dialect)
    save_quantized(tmp_path / "w.safetensors", {"weight": mine})
    state = load_file(tmp_path / "w.safetensors")
    found = compressor(dialect).decompress(state, scheme(dialect))["weight"]
    right = torch.from_numpy(mine.dequantize()).to(found.dtype)  # it has bfloat16 for nvfp4
    assert torch.equal(found, right)
    again = load_quantized(tmp_path / "w.safetensors")["weight"]
    assert (again.dequantize() == mine.dequantize()).all()
    assert again.dialect == dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_new_weights_are_encoded_as_the_owner_does(dialect, tmp_path):
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    x, settings = torch.from_numpy(weights()), DIALECTS[dialect][2]
    size = settings.get("group_size", x.shape[1])
    groups = x.reshape(len(x), -1, size)
    low, high = groups.amin(-1), groups.amax(-1)
    whole = generate_gparam(x.min(), x.max()) if "nvfp4" in dialect else None
    scale, _ = calculate_qparams(low, high, scheme(dialect).weights, global_scale=whole)
    given = {"weight": x, "weight_scale": scale} | ({} if whole is None else {"weight_global_scale": whole})
    state = compressor(dialect).compress(given, scheme(dialect))
    save_quantized(tmp_path / "w.safetensors", {"weight": encode_weight(x.numpy(), dialect)})
    mine = load_file(tmp_path / "w.safetensors")
    for name, right in state.items():
        if right is not None and name in mine:
            same = bits(mine[name]) == bits(right.to(mine[name].dtype)).reshape(bits(mine[name]).shape)
            assert same.all(), (name, (~same).sum())
