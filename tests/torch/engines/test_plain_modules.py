"""Modules that are not of transformers, by an engine."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from qcore.engines import Engine
from qtorch import quantize
from qtorch.engines import apply, attention, report

EAGER = Engine.of("hf.eager")


class Layer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.qkv, self.options = nn.Linear(8, 24), options

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, 1)
        return nn.functional.scaled_dot_product_attention(q, k, v, **self.options) * 0.3


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer = Layer(**options)

    def forward(self, x):
        return self.layer(x)


def model_of(**options):
    torch.manual_seed(0)
    return Model(**options), torch.randn(2, 5, 8)


@pytest.mark.parametrize(
    ("options", "causal"),
    [
        ({"is_causal": True}, True),
        ({}, False),
        ({"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril(), "scale": 0.7}, True),
    ],
)
def test_torchs_attention_is_the_engines(options, causal):
    model, x = model_of(**options)
    q, k, v = model.layer.qkv(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, 1)
    before = model(x)
    found = apply(model, EAGER)(x)
    assert torch.equal(found, attention(q, k, v, EAGER, causal, scale=options.get("scale")) * 0.3)
    assert not torch.equal(found, before)
    assert torch.equal(apply(model, "exact")(x), attention(q, k, v, "exact", causal, scale=options.get("scale")) * 0.3)


def test_layers_round():
    model, x = model_of(is_causal=True)
    found = apply(model, replace(EAGER, activations="bfloat16"))(x)
    assert torch.equal(found, quantize(found, "bfloat16"))
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="aot_eager")(x), found)
    assert {row.field: row.layers for row in report(model).rows} == {"attention": 1, "activations": 2, "residual": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": 0.5}, "dropout_p=0.5 of scaled_dot_product_attention"),
        (
            {"attn_mask": torch.ones(5, 5)},
            "attn_mask has dtype torch.float32; allowed are bools, and numbers 0 and -inf",
        ),
    ],
)
def test_what_engines_do_not_define_raises(options, message):
    model, x = model_of(**options)
    with pytest.raises(ValueError, match=message):
        apply(model, EAGER)(x)


def test_torchs_multihead_attention():
    """It makes numbers of masks, and its function is one for modes."""
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    engine = replace(Engine.of("exact"), cache="fp8_e4m3")
    q, k, v = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).unflatten(-1, (3, 2, 4)).unbind(2)
    inner = attention(*(part.transpose(1, 2) for part in (q, k, v)), engine).transpose(1, 2).flatten(2)
    before = layer(x, x, x)[0]
    apply(layer, engine)
    for mask in (torch.ones(5, 5, dtype=torch.bool).triu(1), nn.Transformer.generate_square_subsequent_mask(5)):
        found, _ = layer(x, x, x, attn_mask=mask, need_weights=False)
        torch.testing.assert_close(found, layer.out_proj(inner), rtol=1e-6, atol=1e-7)
    assert (found - before).abs().max() > 1e-3
    with pytest.raises(ValueError, match="need_weights=True of MultiheadAttention; allowed is False"):
        layer(x, x, x)
    with pytest.warns(UserWarning, match="is a MultiheadAttention, whose own sums and products are not rounded"):
        apply(nn.Sequential(layer), replace(engine, activations="bfloat16"))


def test_a_module_without_attention_raises():
    with pytest.raises(ValueError, match="Linear did not call"):
        apply(nn.Linear(2, 2), EAGER)(torch.ones(1, 2))
