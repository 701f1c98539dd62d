"""Engines in models of transformers: decoding, prefill, chunks and padded batches of whole models, and silent traps."""

from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from qcore.engines import Engine, KVCache
from qtorch import reproducible
from qtorch.engines import apply, generate, mismatch
from qtorch.engines.models import _attention_of

pytestmark = pytest.mark.models
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "initializer_range": 0.06,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXACT = Engine.of("exact")
CACHES = {
    "bfloat16": KVCache("bfloat16"),
    "fp8 of a token and head": KVCache("e4m3fn:saturate", "token_head"),
    "mxfp8 along the head": KVCache("mxfp8_e4m3"),
    "nvfp4 with a static outer scale": KVCache("scaled(e2m1fn,{-1:16},scale=e4m3fn)", k=0.25, v=0.25),
}


def model_of(name, **settings):
    package = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = getattr(package, f"{name}ForCausalLM")(getattr(package, f"{name}Config")(**SIZES, **settings)).eval()
    for key, weight in model.named_parameters():
        if "norm" in key:  # with weights of 1 the order of a norm's roundings cannot be seen
            weight.data.add_(0.3 * torch.randn(weight.shape))
    return model


@cache
def tokens(length):
    return torch.randint(1, 100, (1, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model, ids, **settings):
    return model(ids, **settings).logits


def test_generation_and_a_static_cache():
    package = pytest.importorskip("transformers")
    model = reproducible.convert(apply(model_of("Llama"), replace(EXACT, cache=CACHES["bfloat16"])))
    ids = tokens(30)
    settings = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    made = model.generate(ids, **settings)
    assert torch.equal(torch.stack(made.logits, 1), logits(model, made.sequences[:, :-1])[:, 29:])
    chunks = model.generate(ids, prefill_chunk_size=7, **settings)
    assert torch.equal(torch.stack(chunks.logits), torch.stack(made.logits))
    # Its keys are longer than the text: without a mask they would count from the first one on.
    static = package.StaticCache(config=model.config, max_cache_len=31)
    assert torch.equal(logits(model, ids, cache=static, use_cache=True), logits(model, ids))
    assert torch.equal(logits(model, ids[:, :1], cache=static, use_cache=True)[0, -1], in_full(model, ids)[0, -1])
    with pytest.raises(IndexError, match="index 31 is out of bounds for dimension 2 with size 31"):
        logits(model, ids[:, :1], cache=static, use_cache=True)


def in_full(model, ids):
    """The logits of a text, and of its first token after it."""
    return logits(model, torch.cat([ids, ids[:, :1]], 1))


def test_a_converted_model_rounds_what_an_engine_says():
    found = logits(reproducible.convert(apply(model_of("Llama"), "vllm.triton")), tokens(6))
    assert torch.equal(found, found.bfloat16().float())  # the head's


def test_a_mask_that_is_not_registered():
    """transformers gives no mask then, silently, even to a padded batch."""
    masks = pytest.importorskip("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    model = apply(model_of("Llama"), "exact")
    name = model.config._attn_implementation
    assert not {*"/|"} & {*name}  # of the hub, and of pages
    assert "flash" not in name  # has masks of its own
    registered = masks._global_mapping.pop(name)
    try:
        with pytest.raises(ValueError, match="LlamaAttention gave its attention no mask"):
            logits(model, tokens(4))
    finally:
        masks.register(name, registered)


def test_no_engine_takes_silently_what_it_does_not_define():
    run = _attention_of(Engine("attention(tiles=[64,16,16])"))
    q = torch.ones(1, 1, 4, 64)
    call = partial(run, torch.nn.Identity(), q, q, q, torch.ones(1, 1, 4, 4, dtype=torch.bool).tril(), dropout=0.0)
    assert call(sliding_window=None, softcap=None)[0].shape == (1, 4, 1, 64)
    for option in ({"softcap": 50.0}, {"s_aux": torch.zeros(1)}):
        with pytest.raises(ValueError, match="the engine does not define it for tiles"):
            call(**option)
    places = torch.arange(4)[None]
    assert torch.equal(call(sliding_window=4, position_ids=places)[0], call()[0])
    with pytest.raises(ValueError, match="in each row, without padding"):
        call(sliding_window=3, position_ids=places)  # whose mask has no window
    with pytest.raises(ValueError, match="models that give position_ids"):
        call(sliding_window=3)


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "GptOss"])
def test_windows_softcaps_and_sinks_of_models(name):
    """What `attention` computes, in a model whose cache drops what a window does not see."""
    settings = {"GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1}}.get(name, {})
    model = model_of(name, sliding_window=7, **settings)
    ids = tokens(44)
    wide = logits(model, ids)
    exact = logits(apply(model, "exact"), ids)
    torch.testing.assert_close(exact, wide, rtol=1e-3, atol=1e-4)
    engine = replace(Engine.of("vllm.triton"), **dict.fromkeys(("activations", "norm", "tables", "head")))
    model = apply(model, engine)
    whole = logits(model, ids, use_cache=False)
    assert 1e-5 < (whole - exact).abs().max() < 0.1
    made = model(ids[:, :40], use_cache=True)
    cache = made.cache if "cache" in made else made.past_key_values
    key = "cache" if "cache" in made else "past_key_values"
    steps = [made.logits, *(logits(model, ids[:, n : n + 1], use_cache=True, **{key: cache}) for n in range(40, 44))]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=2e-2)


def test_a_window_is_a_mask_where_keys_are_one_block():
    model = model_of("Mistral", sliding_window=7)
    ids = tokens(24)
    whole = logits(model.eval(), ids)
    exact = reproducible.convert(apply(model, replace(EXACT, cache=CACHES["bfloat16"])))
    found = logits(exact, ids, use_cache=False)
    torch.testing.assert_close(found, whole, rtol=0.1, atol=0.02)
    past, steps = None, []
    for place in range(24):
        with torch.no_grad():
            step = exact(ids[:, place : place + 1], use_cache=True, **({} if past is None else {"cache": past}))
        past = step.cache
        steps.append(step.logits)
    assert torch.equal(torch.cat(steps, 1), found)


def test_a_model_in_fa3_first_differs_at_97():
    """Layers around attention have bits that do not depend on the number of tokens: so attention alone differs."""
    model = model_of("Llama")
    model.config.head_dim = 128
    model = reproducible.convert(type(model)(model.config).eval())
    found = mismatch(model, "fa3.hopper.fp8", "fa3.hopper.fp8", tokens(101), prompt=90)
    assert found.first == 97
    assert found.positions[0, 96:].all()
    assert 0 < found.rms < 0.01
    assert model.config._attn_implementation == "sdpa"
    assert mismatch(model, "exact", "exact", tokens(20), prompt=5).first is None
    with pytest.raises(ValueError, match="prompt=20"):
        mismatch(model, "exact", "exact", tokens(20), prompt=20)


def test_the_cache_counts_without_a_cache_of_transformers():
    """A trainer calls with use_cache=False, where no cache of transformers is asked."""
    model = model_of("Llama")
    wide = logits(apply(model, EXACT), tokens(20), use_cache=False)
    rounded = logits(apply(model, replace(EXACT, cache=CACHES["bfloat16"])), tokens(20), use_cache=False)
    assert not torch.equal(wide, rounded)


def test_what_engines_do_not_define_raises():
    package = pytest.importorskip("transformers")
    mask, layers = torch.tensor([[0, 1, 1, 1, 1]]), {"layer_types": ["full_attention"] * 2}
    with pytest.raises(ValueError, match="in each row, without padding, and a cache that grows"):
        logits(apply(model_of("Mistral", sliding_window=3), "vllm.triton"), tokens(5), attention_mask=mask)
    with pytest.raises(ValueError, match=r"softcap=50\.0: the engine does not define it for tiles"):
        logits(apply(model_of("Gemma2", **layers), "engine(attention(tiles=[64,16,16]))"), tokens(4))
    with pytest.raises(ValueError, match=r"dropout=0\.5 in LlamaAttention"):
        apply(model_of("Llama", attention_dropout=0.5), "exact").train()(tokens(4))
    packed = torch.cat([torch.arange(3), torch.arange(3)])[None]
    with pytest.raises(ValueError, match="several texts in one row"):
        logits(apply(model_of("Llama"), "vllm.triton"), tokens(6), position_ids=packed, use_cache=False)
    with pytest.raises(ValueError, match=r"depend on later tokens"):
        apply(model_of("Llama"), Engine("attention()", KVCache("nvfp4")))
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    other = package.T5ForConditionalGeneration(package.T5Config(**sizes))
    with pytest.raises(ValueError, match="whose attention transformers does not exchange"):
        apply(other, "exact")


@pytest.mark.parametrize("name", ["GPT2", "Qwen2", "Mixtral", "Gemma"])
def test_other_models(name):
    package = pytest.importorskip("transformers")
    if name == "GPT2":
        torch.manual_seed(0)
        settings = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 64}
        model = package.GPT2LMHeadModel(package.GPT2Config(**settings)).eval()
    else:
        model = model_of(name)
    ids = tokens(12)
    model.set_attn_implementation("eager")
    drawing = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected, drawn = logits(model, ids), model.generate(ids, **drawing)
    torch.testing.assert_close(logits(apply(model, "exact"), ids), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.generate(ids, **drawing), drawn)
    loss = model.train()(ids, labels=ids).loss if name != "GPT2" else model.eval()(ids, labels=ids).loss
    loss.backward()
    assert all(torch.isfinite(x.grad).all() for x in model.parameters() if x.grad is not None)


def test_texts_do_not_depend_on_batches_chunks_and_padding():
    model = reproducible.convert(apply(model_of("Qwen3"), replace(EXACT, cache=CACHES["bfloat16"])))
    prompts = [tokens(40)[0, begin : begin + length].tolist() for begin, length in ((0, 5), (7, 1), (11, 14))]
    settings = {"key": 3, "temperature": 2.0, "top_p": 0.95, "max_new_tokens": 5}
    made = generate(model, prompts, **settings)
    for batch, padding, chunk in ((1, "left", None), (3, "right", None), (3, "left", 4), (2, "right", 6)):
        found = generate(model, prompts, batch=batch, padding=padding, chunk=chunk, **settings)
        assert found.tokens == made.tokens, (batch, padding, chunk)
        assert all(
            map(torch.equal, map(torch.tensor, found.log_probabilities), map(torch.tensor, made.log_probabilities))
        )
    text = torch.tensor([prompts[0] + made.tokens[0]])
    one_pass = logits(model, text[:, :-1])[0, 4:].double().log_softmax(-1)
    drawn = one_pass[range(5), made.tokens[0]]
    torch.testing.assert_close(drawn, torch.from_numpy(made.log_probabilities[0]), rtol=1e-12, atol=1e-12)
