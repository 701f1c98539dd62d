"""The mismatch of two engines in models: by which of their differences, and what routers choose."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qcore.engines import Attention, Engine, Factor, KVCache
from qcore.engines import mismatch as divergence
from qtorch import reproducible
from qtorch.engines import apply, mismatch

from .test_engines import logits, model_of, tokens

pytestmark = pytest.mark.models
HALF = {"activations": "bfloat16", "norm": "twice", "tables": "bfloat16", "head": "bfloat16"}
TRAINER = replace(Engine.of("fa3.hopper.bf16"), **HALF)
FP8 = Engine.of("fa3.hopper.fp8")
SERVER = replace(TRAINER, attention=FP8.attention, cache=FP8.cache, norm="once", head=None)


@pytest.fixture(scope="module")
def found():
    return mismatch(model_of("Llama"), TRAINER, SERVER, tokens(40), prompt=36)


def test_factors_go_one_at_a_time_from_the_precise_side(found):
    names = ["attention: tiles", "attention: products and P", "cache", "norm", "head", "decoding", "floor"]
    assert [one.name for one in found.factors] == names
    by_name = {one.name: one for one in found.factors}
    assert by_name["attention: tiles"] == Factor("attention: tiles", 0, 0, None)  # of 40 keys there is one
    assert by_name["cache"].first is not None
    assert by_name["norm"].kl > 0
    alone = mismatch(
        model_of("Llama"), TRAINER, replace(TRAINER, norm="once"), tokens(40), prompt=39, attribution=False
    )
    assert by_name["norm"].rms == alone.rms
    assert alone.factors == ()
    # From the other side the same factors are exchanged, from the same engine.
    swapped = mismatch(model_of("Llama"), SERVER, TRAINER, tokens(40), prompt=36)
    assert swapped.factors == found.factors


def test_the_table_says_what_is_below_the_floor(found):
    lines = str(found).splitlines()
    floor = found.factors[-1]
    for one in found.factors:
        (line,) = [line for line in lines if line.startswith(f"{one.name} ")]
        assert line.endswith("below the floor") == (one.rms < floor.rms)
        assert f"{one.rms:.5f}   {one.kl:.2e}" in line
    assert any(line.endswith("below the floor") for line in lines)
    assert floor.rms > 0


def test_the_plot(found, tmp_path):
    pytest.importorskip("matplotlib")
    found.draw(tmp_path / "factors.svg")
    text = (tmp_path / "factors.svg").read_text()
    assert all(f"<!-- {one.name} -->" in text for one in found.factors)
    with pytest.raises(ValueError, match=r"factors=\(\)"):
        replace(found, factors=()).draw(tmp_path / "none.svg")


def test_the_floor_moves_one_number_of_each_embedding_by_a_unit(found):
    model = model_of("Llama")
    weight = model.get_input_embeddings().weight.data
    base = model.get_input_embeddings().weight.data.clone()
    weight.copy_(base.bfloat16().float())
    steps = weight[:, 0].bfloat16().view(torch.int16)
    weight[:, 0] = (steps + 1).view(torch.bfloat16).float()  # the next magnitude has the next bits
    moved = logits(apply(model, TRAINER), tokens(40)[:, :-1], use_cache=False)
    whole = logits(apply(model_of("Llama"), TRAINER), tokens(40)[:, :-1], use_cache=False)
    expected = divergence(whole.numpy(), moved.numpy(), tokens(40)[:, 1:].numpy())
    assert found.factors[-1].rms == expected.rms


def test_routers():
    model = model_of("Mixtral")
    routed = mismatch(model, TRAINER, replace(TRAINER, router="e2m1fn"), tokens(40), prompt=39, attribution=False)
    assert routed.routed.shape == (2, 1, 39)
    assert 0 < routed.router_flips < 78
    assert f"{routed.router_flips} of 78" in str(routed)
    seen = []
    for number in (None, "e2m1fn"):
        one = apply(model_of("Mixtral"), replace(TRAINER, router=number))
        handles = [
            layer.mlp.gate.register_forward_hook(lambda _, __, output: seen.append(output[2].sort(-1)[0].numpy()))
            for layer in one.model.layers
        ]
        logits(one, tokens(40)[:, :-1], use_cache=False)
        assert len(handles) == 2
    assert (np.stack(seen[:2]) != np.stack(seen[2:])).any(-1).sum() == routed.router_flips


def test_a_model_in_fa3_differs_by_decoding_alone():
    model = model_of("Llama")
    model.config.head_dim = 128
    model = reproducible.convert(type(model)(model.config).eval())
    factors = mismatch(model, "fa3.hopper.fp8", "fa3.hopper.fp8", tokens(99), prompt=95).factors
    assert [one.name for one in factors] == ["decoding", "floor"]
    assert factors[0].first == 97


def in_format(number):
    """A trainer and a server that differ in the order of attention alone, all in one format."""
    rounds = {"activations": number, "norm": "twice", "tables": number}
    trainer = Engine(Attention(None, number, number, number, scale="rounded", end="weights"), **rounds)
    server = Engine(Attention(None, number, number, number, tiles=(256, 32, 32)), KVCache(number), **rounds)
    return trainer, server


def test_float16_is_eight_times_nearer_than_bfloat16():
    """arXiv 2510.26788: three more bits make d smaller by about 8, and the divergence by about its square."""
    model = model_of("Llama")
    model.config.num_hidden_layers = 4
    torch.manual_seed(0)
    model = type(model)(model.config).eval()
    for weight in model.parameters():  # numbers of both formats
        weight.data = (weight.data + 0.1 * (weight.dim() == 1) * torch.randn(weight.shape)).bfloat16().half().float()
    text = torch.randint(1, 100, (1, 65), generator=torch.Generator().manual_seed(3))
    bf16, fp16 = (
        mismatch(model, *in_format(number), text, prompt=60, attribution=False) for number in ("bfloat16", "float16")
    )
    assert 0.001 < bf16.rms < 0.1
    assert 6 < bf16.rms / fp16.rms < 11
    assert 36 < bf16.kl.mean() / fp16.kl.mean() < 121
