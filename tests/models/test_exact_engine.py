"""The engine "exact" in whole models: decoding, one pass, chunks, batches, padding and programs have equal bits.

Models of transformers are computed by torch, eagerly and compiled. The same decoders are written again below, on the
functions with defined bits of any package, and run in one program of XLA.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support import assert_same_bits
from torch._dynamo.testing import CompileCounterWithBackend

import qjax.engines
import qjax.reproducible
from qcore.engines import Engine, KVCache
from qtorch import reproducible
from qtorch.engines import apply

pytestmark = pytest.mark.models
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "initializer_range": 0.06,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
CACHES = {
    "bfloat16": KVCache("bfloat16"),
    "fp8 of a token and head": KVCache.of("fp8_per_token_head"),
    "mxfp8 along the head": KVCache("mxfp8_e4m3"),
    "nvfp4 with a static outer scale": replace(KVCache.of("nvfp4"), k=0.25, v=0.25),
}


def engine_of(cache):
    return replace(Engine.of("exact"), cache=CACHES[cache])


def model_of(name, layers, cache):
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(package, f"{name}Config")(**SIZES, num_hidden_layers=layers)
    model = getattr(package, f"{name}ForCausalLM")(config).eval()
    for key, weight in model.named_parameters():
        if "norm" in key:  # with weights of 1 the order of a norm's roundings cannot be seen
            weight.data.add_(0.3 * torch.randn(weight.shape))
    return reproducible.convert(apply(model, engine_of(cache)))


def tokens(length):
    return torch.randint(1, 100, (1, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model, ids, **settings):
    return model(ids, **settings).logits


@torch.no_grad()
def in_chunks(model, ids, size):
    past, found = {}, []
    for begin in range(0, ids.shape[1], size):
        step = model(ids[:, begin : begin + size], use_cache=True, **past)
        # Its name is "cache" from transformers 5.24 on.
        past = {"cache": step.cache} if "cache" in step else {"past_key_values": step.past_key_values}
        found.append(step.logits)
    return torch.cat(found, 1)


def padded_batch(ids, lengths, side):
    """The first tokens of a text, by so many lengths, beside each other."""
    width = max(lengths) + 5
    rows, mask, places = (torch.zeros(len(lengths), width, dtype=torch.int64) for _ in range(3))
    parts = [slice(width - length, None) if side == "left" else slice(length) for length in lengths]
    for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        rows[row, part], mask[row, part], places[row, part] = ids[0, :length], 1, torch.arange(length)
    return parts, {"ids": rows, "attention_mask": mask, "position_ids": places}


def compare_with_one_pass(model, ids, chunks, batches):
    """The logits of one pass, with which those of chunks and of padded batches agree."""
    whole = logits(model, ids, use_cache=False)  # as a trainer calls it
    for size in chunks:
        assert_same_bits(in_chunks(model, ids, size), whole, f"chunks of {size}")
    for count in batches:
        lengths = [ids.shape[1] - 17 * row for row in range(count)]
        for side in ("left", "right"):
            parts, batch = padded_batch(ids, lengths, side)
            found = logits(model, **batch, use_cache=False)
            for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
                assert_same_bits(found[row, part], whole[0, :length], f"row {row} of {count}, padded on the {side}")
    return whole


def decoder(r, attention, weights, config, frequencies, ids, places, mask):
    """Logits of a Llama or a Qwen3, by the functions of a package's `reproducible`."""

    def norm(x, name):
        x = r.multiply(x, r.rsqrt(r.add(r.mean(r.multiply(x, x), -1, keepdims=True), np.float32(config.rms_norm_eps))))
        return r.multiply(weights[f"{name}.weight"], x)

    def linear(x, name):
        return r.linear(x, weights[f"{name}.weight"])

    def heads(x, name):
        x = linear(x, name).reshape((*x.shape[:2], -1, config.head_dim))
        name = name.replace("_proj", "_norm")
        return (norm(x, name) if f"{name}.weight" in weights else x).swapaxes(1, 2)

    angles = r.multiply(places[:, None, :, None], np.concatenate([frequencies, frequencies]))
    cos, sin = r.cos(angles), r.sin(angles)

    def rotated(x):
        half = x.shape[-1] // 2
        return r.add(r.multiply(x, cos), r.multiply(jnp.concatenate([-x[..., half:], x[..., :half]], -1), sin))

    x = r.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        h = norm(x, f"{at}input_layernorm")
        q, k, v = (heads(h, f"{at}self_attn.{one}_proj") for one in "qkv")
        found = attention(rotated(q), rotated(k), v, mask=mask).swapaxes(1, 2).reshape((*x.shape[:2], -1))
        x = r.add(x, linear(found, f"{at}self_attn.o_proj"))
        h = norm(x, f"{at}post_attention_layernorm")
        gate = r.silu(linear(h, f"{at}mlp.gate_proj"))
        x = r.add(x, linear(r.multiply(gate, linear(h, f"{at}mlp.up_proj")), f"{at}mlp.down_proj"))
    return r.linear(norm(x, "model.norm"), weights["lm_head.weight"])


def by_jax(model, cache):
    """The model as a function of tokens, their places in their texts, and a mask."""
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    attention = partial(qjax.engines.attention, engine=engine_of(cache))
    frequencies = model.model.rotary_emb.inv_freq.numpy()
    run = partial(decoder, qjax.reproducible, attention, config=model.config, frequencies=frequencies)
    program = jax.jit(lambda weights, *texts: run(weights, ids=texts[0], places=texts[1], mask=texts[2]))
    return lambda ids, places, mask: np.asarray(program(weights, ids.numpy(), places.numpy().astype(np.float32), mask))


def compare_with_jax(model, cache, ids, count, whole):
    """Its logits of one pass, and of shorter texts beside each other."""
    run, lengths = by_jax(model, cache), [ids.shape[1] - 17 * row for row in range(count)]
    assert_same_bits(run(ids, torch.arange(ids.shape[1])[None], None), whole, "jit")
    for side in ("left", "right"):
        parts, batch = padded_batch(ids, lengths, side)
        counts = batch["attention_mask"].numpy().astype(bool)[:, None, None]
        found = run(batch["ids"], batch["position_ids"], counts)
        for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            assert_same_bits(found[row, part], whole[0, :length], f"jit, row {row} of {count}, padded on the {side}")


def test_a_small_model():
    model, ids = model_of("Qwen3", 1, "fp8 of a token and head"), tokens(40)
    whole = compare_with_one_pass(model, ids, (1, 16), (2,))
    compare_with_jax(model, "fp8 of a token and head", ids, 2, whole)


@pytest.mark.heavy
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_models_of_224_tokens(name, cache):
    model, ids = model_of(name, 4, cache), tokens(224)
    whole = compare_with_one_pass(model, ids, (1, 7, 16, 64), (1, 3, 8))
    compare_with_jax(model, cache, ids, 3, whole)


def test_compiled_programs_serve_all_lengths():
    """Laws are single operators of a program, and decoding has one for all lengths: Inductor would need minutes."""
    torch._dynamo.reset()
    operators, programs = Counter(), CompileCounterWithBackend("eager")
    model, ids = model_of("Llama", 1, "bfloat16"), tokens(24)
    whole = logits(model, ids, use_cache=False)
    assert_same_bits(in_chunks(torch.compile(model, backend=programs), ids, 1), whole, "tokens one by one")
    assert programs.frame_count == 3  # without a cache, with one token in it, and with more
    for graph in programs.graphs:
        operators.update(str(node.target) for node in graph.graph.nodes)
    assert operators["qtorch.reproduce"] > 3 * 30
    assert not operators["floor"]  # of a power


# Each model meets each cache, chunk and batch; a program of four layers takes Inductor half a minute.
COMPILED = [
    (name, cache, (1, 7, 16, 64)[(row + shift) % 4], (1, 3, 8, 3)[(row + shift) % 4])
    for shift, name in enumerate(["Llama", "Qwen3"])
    for row, cache in enumerate(CACHES)
]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "cache", "chunk", "batch"), COMPILED)
def test_compiled_models_of_224_tokens(name, cache, chunk, batch):
    torch._dynamo.reset()
    model, ids = model_of(name, 4, cache), tokens(224)
    whole = logits(model, ids, use_cache=False)
    found = compare_with_one_pass(torch.compile(model), ids, (chunk,), (batch,))
    assert_same_bits(found, whole, "torch.compile")
