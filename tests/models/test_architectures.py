"""Architectures of torchvision, timm and transformers, small, with random weights, through all that a model meets."""

import io
import warnings

import pytest
import torch
from front_models import decibels
from torch import nn

from qcore.exchange import run_onnx
from qtorch.export import to_onnx
from qtorch.quantization import QConfig, default_dynamic_qconfig, quantize_model, report

pytestmark = pytest.mark.models


def images(size, batch=4):
    return {"x": torch.randn(batch, 3, size, size)}


def ids(length=12):
    return torch.randint(50, (2, length))


def of_torchvision(make, size=32, batch=4):
    return lambda: (make(pytest.importorskip("torchvision").models), images(size, batch))


def of_timm(name, **settings):
    def make():
        return pytest.importorskip("timm").create_model(name, num_classes=10, **settings), images(64)

    return make


def of_transformers(name, config, inputs, **settings):
    def make():
        package = pytest.importorskip("transformers")
        sizes = {"vocab_size": 50, "use_cache": False, **settings}
        return getattr(package, name)(getattr(package, config)(**sizes)), inputs()

    return make


def swin(models):
    sizes = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": [4, 4]}
    return models.swin_transformer.SwinTransformer(**sizes, num_classes=10)


_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
_WHISPER = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
} | {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0}
_WAVES = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16}

ARCHITECTURES = {
    # Their last images are small: batch norms with the statistics of few pixels enlarge all errors.
    "resnet": of_torchvision(lambda models: models.resnet18(num_classes=10), 64, 16),
    "mobilenet": of_torchvision(lambda models: models.mobilenet_v3_small(num_classes=10), 64, 16),
    "densenet": of_torchvision(lambda models: models.DenseNet(8, (2, 2), 16, num_classes=10)),
    "swin": of_torchvision(swin),
    "convnext": of_timm("test_convnext"),
    "efficientnet": of_timm("test_efficientnet"),
    "bert": of_transformers(
        "BertForSequenceClassification",
        "BertConfig",
        lambda: {"input_ids": ids(), "attention_mask": torch.ones(2, 12, dtype=torch.int64)},
        **_LAYERS,
    ),
    "gpt2": of_transformers(
        "GPT2LMHeadModel", "GPT2Config", lambda: {"input_ids": ids()}, n_embd=32, n_layer=2, n_head=4
    ),
    "llama": of_transformers(
        "LlamaForCausalLM", "LlamaConfig", lambda: {"input_ids": ids()}, **_LAYERS, num_key_value_heads=2
    ),
    "t5": of_transformers(
        "T5ForConditionalGeneration",
        "T5Config",
        lambda: {"input_ids": ids(), "decoder_input_ids": ids(6)},
        **{"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "whisper": of_transformers(
        "WhisperModel",
        "WhisperConfig",
        lambda: {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids(6)},
        **_WHISPER,
        **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "wav2vec2": of_transformers(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        lambda: {"input_values": torch.randn(2, 400)},
        **_LAYERS,
        **_WAVES,
        **{"layerdrop": 0.0, "num_conv_pos_embedding_groups": 2},
    ),
}
# Settings, and the least ratio of signal and error: 4 bits of mxfp4 have 15 dB in one layer.
SETTINGS = {
    "int8": (None, 6),
    "formats": (QConfig("e4m3fn", "e4m3fn"), 10),
    "weights": (QConfig(None, "mxfp4"), 1),
    "dynamic": (default_dynamic_qconfig, 20),
    "training": (None, 5),
}
# Copies in floats whose weights are rounded to mxfp4 by hand have 1.2 and -1.3 dB, as the quantized models.
LEAST = {
    ("mobilenet", "formats"): 1,
    ("mobilenet", "weights"): 0.5,
    ("mobilenet", "training"): 4,
    ("efficientnet", "weights"): -2,
}


def result(model, inputs):
    found = model(**inputs)
    return next((getattr(found, name) for name in ("logits", "last_hidden_state") if hasattr(found, name)), found)


def made(name):
    """The model, whose batch norms have the statistics of its inputs; else nothing of an input is left behind them."""
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        model(**inputs)
    return model.eval(), inputs


def small_one(model, inputs, name):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for _ in range(2):
            optimizer.zero_grad()
            result(model, inputs).square().mean().backward()
            optimizer.step()

    with warnings.catch_warnings():  # of layers that stay in floats, and of functions in the packages
        warnings.simplefilter("ignore")
        if name == "training":
            return quantize_model(model, train=train)
        return quantize_model(model, SETTINGS[name][0], [inputs] if name in ("int8", "formats") else None)


_QUICK = {("densenet", "int8"), ("llama", "int8"), ("swin", "int8"), ("wav2vec2", "int8")}
_ALL = [
    pytest.param(name, settings, marks=() if (name, settings) in _QUICK else pytest.mark.heavy)
    for name in ARCHITECTURES
    for settings in SETTINGS
]


@pytest.mark.parametrize(("name", "settings"), _ALL)
def test_architecture(name, settings, tmp_path):
    model, inputs = made(name)
    small = small_one(model, inputs, settings)
    with torch.no_grad():
        y, expected = result(small, inputs), result(model, inputs)
    assert any(row.state in ("quantized", "rounded") for row in report(small))
    assert decibels(expected, y) > LEAST.get((name, settings), SETTINGS[settings][1])

    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    again = small_one(made(name)[0], inputs, settings)
    again.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():  # with gradients torch itself computes T5 in other bits
        assert torch.equal(result(again, inputs), y)

    compiled = torch.compile(small, backend="aot_eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(result(compiled, inputs), y)
        if settings == "int8":
            to_onnx(small, (), tmp_path / "model.onnx", kwargs=inputs)
            found = run_onnx(tmp_path / "model.onnx", {key: value.numpy() for key, value in inputs.items()})
            assert decibels(y, torch.from_numpy(next(iter(found.values())))) > 30
