"""compressed-tensors 0.20, vLLM's package: it reads what is written here, and encodes new weights alike.

The extra `peers` brings it along, with transformers, which loads whole models by it.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from qcore import BlockScaled
from qcore.exchange import encode_weight, load_quantized, save_quantized
from qtorch.export import to_compressed_tensors
from qtorch.quantization import (
    QConfig,
    QConfigDynamic,
    default_per_channel_weight_observer,
    get_default_qconfig,
    quantize_model,
)

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


ROWS = BlockScaled("e4m3fn", {-1: None}, scale="float32")
MODELS = {
    "W4A16": QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")),
    "W3A16": QConfig(None, BlockScaled("int3", {-1: 32}, scale="float32")),
    "W8A16": QConfig(None, default_per_channel_weight_observer),
    "W8A8": QConfigDynamic(weight=default_per_channel_weight_observer),
    "W8A8 static": get_default_qconfig(),
    "FP8 weights": QConfig(None, "e4m3fn"),
    "FP8 blocks": QConfig(None, BlockScaled("e4m3fn", {-2: 32, -1: 32}, scale="float32")),
    "FP8": QConfigDynamic(ROWS, ROWS),
    "FP8 static": QConfig("e4m3fn", "e4m3fn"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_owner_reads_whole_models(name, tmp_path):
    """Its configuration takes ours, and its decompression has the layers' numbers."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).eval(), torch.randn(8, 64)
    data = [x] if "static" in name else None
    small = quantize_model(model, MODELS[name], calibrate=data)
    to_compressed_tensors(small, tmp_path, data)
    known = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    config, state = QuantizationConfig.model_validate(known), load_file(tmp_path / "model.safetensors")
    kind = BaseCompressor.get_value_from_registry(config.format)
    for path in ("0", "2"):
        own = {name.removeprefix(f"{path}."): value for name, value in state.items() if name.startswith(f"{path}.")}
        found = kind.decompress(own, config.config_groups["group_0"])["weight"]
        layer = small.get_submodule(path)
        assert torch.equal(found, getattr(layer, "module", layer).weight.numbers())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_models(name, tied, tmp_path):
    """With weights alone the results are equal; a server's own law rounds activations, near ours."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = transformers.LlamaConfig(vocab_size=128, num_key_value_heads=2, tie_word_embeddings=tied, **sizes)
    model, ids = transformers.LlamaForCausalLM(settings).eval(), torch.randint(0, 128, (2, 7))
    data = [{"input_ids": ids, "use_cache": False}] if "static" in name else None
    small = quantize_model(model, MODELS[name] if tied else {"": MODELS[name], "lm_head": None}, calibrate=data)
    to_compressed_tensors(small, tmp_path, data)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        found, right, floats = (one(input_ids=ids).logits for one in (again, small, model))
    if "A16" in name or name in ("FP8 weights", "FP8 blocks"):
        assert torch.equal(found, right)
    else:
        assert (found - floats).norm() < 2 * (right - floats).norm()


JAX_SETTINGS = {
    "W4A16": lambda jq: (jq.QConfig(None, BlockScaled("int4", {-1: 32}, scale="float32")), None),
    "W8A8": lambda jq: (jq.QConfigDynamic(weight=jq.default_per_channel_weight_observer), None),
    "W8A8 static": lambda jq: (jq.get_default_qconfig(), "data"),
    "FP8": lambda jq: (jq.QConfigDynamic(*[BlockScaled("e4m3fn", {-1: None}, scale="float32")] * 2), None),
}


@pytest.mark.parametrize("name", JAX_SETTINGS)
def test_the_owner_reads_models_of_jax(name, tmp_path):
    nnx, qnn, jq = (pytest.importorskip(module) for module in ("flax.nnx", "qjax.nnx", "qjax.quantization"))
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    from qjax.export import to_compressed_tensors as of_jax

    settings, data = JAX_SETTINGS[name](jq)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    inputs = data and [x]
    rngs = nnx.Rngs(0)
    floats = nnx.Sequential(nnx.Linear(64, 96, rngs=rngs), nnx.LinearGeneral(96, (2, 32), rngs=rngs))
    small = qnn.quantize_model(floats, settings, calibrate=inputs)
    of_jax(small, tmp_path, inputs)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    read = QuantizationConfig.model_validate(config).config_groups["group_0"]
    state, found = load_file(tmp_path / "model.safetensors"), load_quantized(tmp_path)
    for path in ("0", "1"):
        own = {key.removeprefix(f"{path}."): value for key, value in state.items() if key.startswith(f"{path}.")}
        numbers = BaseCompressor.get_value_from_registry(config["format"]).decompress(own, read)["weight"]
        assert torch.equal(numbers.float(), torch.from_numpy(found[f"{path}.weight"].dequantize()))
        layer = small.layers[int(path)]
        while not hasattr(layer, "weight"):
            layer = layer.module
        right = layer.weight()
        right = right.dequantize() if hasattr(right, "dequantize") else right
        assert torch.equal(numbers.float(), torch.from_numpy(np.array(right)))
