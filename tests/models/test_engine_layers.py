"""Layers of transformers around attention by an engine, beside torch's own 16-bit operations."""

from dataclasses import replace

import pytest
import torch

from qcore.engines import Engine
from qtorch import reproducible
from qtorch.engines import apply, report

from .test_engines import logits, model_of, tokens
from .test_exact_engine import in_chunks

pytestmark = pytest.mark.models
BF16 = replace(
    Engine.of("exact"), activations="bfloat16", norm="twice", tables="bfloat16", router="bfloat16", head="bfloat16"
)


def half(x):
    """The same numbers in bfloat16."""
    assert torch.equal(x, x.bfloat16().float())
    return x.bfloat16()


def passed(model, *kinds):
    """What the layers of these classes got and returned in one pass, and the logits."""
    found = {}

    def keep(layer, arguments, options, output):
        found.setdefault(type(layer).__name__, []).append((arguments, options, output))

    handles = [x.register_forward_hook(keep, with_kwargs=True) for x in model.modules() if type(x).__name__ in kinds]
    with torch.no_grad():
        found["logits"] = model(tokens(12)).logits
    for handle in handles:
        handle.remove()
    return found


def test_layers_of_llama_are_those_of_bfloat16():
    """Sums, products and rotary embeddings as torch computes them in bfloat16."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = apply(model_of("Llama"), BF16)
    given = {}

    def watched(module, query, key, *others, **options):
        given.setdefault("turned", []).append((query, key))
        return inner(module, query, key, *others, **options)

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = model.config._attn_implementation
    inner = ALL_ATTENTION_FUNCTIONS[name]
    ALL_ATTENTION_FUNCTIONS.register(name, watched)
    try:
        found = passed(model, "LlamaMLP", "LlamaDecoderLayer", "LlamaRMSNorm", "Linear", "SiLUActivation")
    finally:
        ALL_ATTENTION_FUNCTIONS.register(name, inner)
    half(found["logits"])
    linear = [output for _, _, output in found["Linear"]]
    cosines = found["LlamaDecoderLayer"][0][1]["position_embeddings"]
    q, k = (half(x).unflatten(-1, (-1, 32)).transpose(1, 2) for x in linear[:2])
    turned = apply_rotary_pos_emb(q, k, *map(half, cosines))
    for expected, x in zip(turned, given["turned"][0], strict=True):
        assert torch.equal(expected, half(x))
    gate, up, down = linear[4:7]
    assert torch.equal(half(found["SiLUActivation"][0][2]), torch.nn.functional.silu(half(gate)))
    assert torch.equal(half(model.model.layers[0].mlp.down_proj(half_product(gate, up))), half(down))
    first, middle = found["LlamaRMSNorm"][0][0][0], found["LlamaRMSNorm"][1][0][0]
    assert torch.equal(half(first) + half(linear[3]), half(middle))
    assert torch.equal(half(middle) + half(down), half(found["LlamaDecoderLayer"][0][2]))


def half_product(gate, up):
    return (torch.nn.functional.silu(half(gate)) * half(up)).float()


def test_a_wide_residual_is_read_by_norms_alone():
    found = passed(apply(model_of("Llama"), replace(BF16, residual="wide")), "LlamaRMSNorm", "Linear")
    seen = [arguments[0] for arguments, _, _ in found["LlamaRMSNorm"]]
    added = [found["Linear"][place][2] for place in (3, 6)]
    assert torch.equal(seen[1], seen[0] + added[0])
    assert not torch.equal(seen[1], seen[1].bfloat16().float())
    assert torch.equal(seen[2], seen[1].bfloat16().float() + added[1])


def test_tables_of_float32_round_the_turned_number_once():
    found = passed(apply(model_of("Llama"), replace(BF16, tables=None)), "LlamaRotaryEmbedding")
    cos, _ = found["LlamaRotaryEmbedding"][0][2]
    assert not torch.equal(cos, cos.bfloat16().float())
    assert not torch.equal(found["logits"], passed(apply(model_of("Llama"), BF16))["logits"])


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3", "Gemma", "Mixtral"])
def test_the_report_names_the_layers(name):
    model = model_of(name)
    before = logits(apply(model, "exact"), tokens(12))
    if name == "Gemma":  # its embeddings are scaled
        with pytest.warns(UserWarning, match=r"activations: model.embed_tokens.embed_scale stays a float32 number"):
            apply(model, BF16)
    else:
        apply(model, BF16)
    half(logits(model, tokens(12)))
    rows = {row.field: row for row in report(model).rows}
    assert rows["norm"].layers == sum("Norm" in type(x).__name__ for x in model.modules())
    assert rows["attention"].layers == rows["residual"].layers == 2
    assert rows["router"].layers == 2 * (name == "Mixtral")
    assert [row for row in rows.values() if row.undefined] == [rows["activations"]] * (name == "Gemma")
    assert torch.equal(logits(apply(model, "exact"), tokens(12)), before)  # nothing of the other engine is left


def test_what_a_model_does_not_have_is_said():
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    model = package.GPT2LMHeadModel(package.GPT2Config(**settings)).eval()
    with pytest.raises(ValueError, match="model is a GPT2LMHeadModel without an engine"):
        report(model)
    with pytest.warns(UserWarning, match="norm: transformer.ln_f is a LayerNorm, whose result alone is rounded"):
        apply(model, BF16)
    found = {row.field: row.layers for row in report(model).rows}
    assert found["residual"] == 2
    assert found["norm"] == found["tables"] == 0
    half(logits(model, tokens(12)))


def test_pairs_have_the_scores_of_halves_in_another_order():
    once, twice = (apply(model_of("Llama"), replace(Engine.of("hf.eager"), rope=x)) for x in ("halves", "pairs"))
    assert torch.equal(logits(once, tokens(12)), logits(twice, tokens(12)))  # exact sums have no order
    # Blocks along the head have other numbers.
    cached = replace(Engine.of("exact"), cache="kv_cache(scaled(e2m1fn,{-1:16},scale=e4m3fn))")
    found = [logits(apply(model_of("Llama"), replace(cached, rope=x)), tokens(12)) for x in ("halves", "pairs")]
    assert not torch.equal(*found)
    assert (found[0] - found[1]).abs().max() < 1


def test_products_are_a_recipe_on_a_chip():
    model = model_of("Llama")
    expected = logits(apply(model_of("Llama"), BF16), tokens(12))
    found = logits(apply(model, replace(BF16, products="bf16_mixed", on="hopper")), tokens(12))
    assert {row.field: row.layers for row in report(model).rows}["products"] == 15
    assert not torch.equal(found, expected)  # weights are rounded, and sums are the chip's
    assert (found - expected).abs().max() < 0.1


def test_gradients_go_straight_through():
    model = apply(model_of("Llama"), replace(BF16, activations=None, tables=None, head=None, router=None))
    plain = apply(model_of("Llama"), "exact")
    for one in (model, plain):
        one(tokens(12), labels=tokens(12)).loss.backward()
    for x, y in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_exact_engines_that_round_layers_decode_what_they_prefill(name):
    """Each rounding depends on one number, or on one token."""
    cached = replace(BF16, residual="wide", cache="fp8_per_token_head")
    model = reproducible.convert(apply(model_of(name), cached))
    found = logits(model, tokens(20))
    half(found)
    for size in (1, 7):
        assert torch.equal(in_chunks(model, tokens(20), size), found)
    assert torch.equal(logits(apply(model, cached), tokens(20)), found)
