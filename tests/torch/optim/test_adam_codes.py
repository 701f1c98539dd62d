"""Adam with moments in codes, beside torchao's steps written here again with torch's functions."""

import copy
import io
import re
from fractions import Fraction
from functools import partial

import pytest
import torch
from covering import usually
from support import assert_same_bits
from torch._inductor.utils import run_and_get_code

from qcore.reproducible import StateCodes
from qcore.reproducible.state_codes import adam_codes
from qtorch import reproducible
from qtorch.optim import Adam4bit, Adam8bit, AdamFp8, AdamW4bit, AdamW8bit, AdamWFp8, FlashAdamW
from qtorch.optim.kernel import AdamStep

CLASSES = [Adam8bit, AdamW8bit, Adam4bit, AdamW4bit, AdamFp8, AdamWFp8]
SHAPES = [
    (4096,),
    (16, 256),
    (3, 100),
    (4097,),
    (33, 128),
    (0,),
]  # coded, coded, small, odd, coded by blocks of 128 only


class Roots(torch.overrides.TorchFunctionMode):
    """Square roots of float32 numbers that are rounded once; torch's vector code for CPUs does not always do it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.sqrt:
            return args[0].double().sqrt().float()
        return function(*args, **(kwargs or {}))


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(params, step):
    generator = torch.Generator().manual_seed(step)
    for p in params:
        size = torch.randn(p.shape, generator=generator) * 2
        p.grad = (torch.randn(p.shape, generator=generator) * size.exp()).to(p.dtype)


def train(optimizer, params, steps):
    for step in steps:
        set_gradients(params, step)
        optimizer.step()
    return [p.detach().clone() for p in params]


def single_param_adam(p, grad, step, m, v, largest, lr, beta1, beta2, weight_decay, eps, decoupled):
    """The order of torchao's function, with floats in the places of codes."""
    if decoupled:
        p = p - lr * weight_decay * p
    else:
        grad = grad + weight_decay * p
    c1, c2 = 1 - beta1**step, 1 - beta2**step
    m, v = m.lerp(grad, 1 - beta1), v.lerp(grad.square(), 1 - beta2)
    largest = None if largest is None else torch.maximum(largest, v)
    denom = (v if largest is None else largest).sqrt() / c2.sqrt() + eps
    return p - lr * (m / c1) / denom, m, v, largest


@pytest.mark.parametrize(
    ("kind", "amsgrad"),
    [
        pytest.param(kind, amsgrad, marks=[pytest.mark.heavy] * ((place + amsgrad) % 2 or kind is AdamW8bit))
        for place, kind in enumerate(CLASSES)
        for amsgrad in (False, True)
    ],
)
def test_steps_are_torchaos(kind, amsgrad):
    block = 128 if "4" in kind.__name__ else 256
    options = {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-7, "weight_decay": 0.1}
    params = parameters()
    optimizer = kind(params, **options, amsgrad=amsgrad)
    shadows = [p.detach().clone() for p in params]
    states = [[torch.zeros_like(p)] * (3 if amsgrad else 2) for p in params]
    kinds = [one.kind for one in optimizer._codes_of(params[0], optimizer.param_groups[0])]
    lr = torch.tensor(options["lr"])
    for step in range(1, 4):
        set_gradients(params, step)
        optimizer.step()
        for i, p in enumerate(params):
            coded = p.numel() >= 4096 and p.numel() % block == 0
            m, v, *largest = states[i]
            with Roots():
                shadows[i], *found = single_param_adam(
                    shadows[i], p.grad, torch.tensor(float(step)), m, v, *(largest or [None]), lr,
                    *options["betas"], 0.1, 1e-7, "AdamW" in kind.__name__,
                )  # fmt: skip
            found = [x for x in found if x is not None]
            for place, name in enumerate(["exp_avg", "exp_avg_sq", "max_exp_avg_sq"][: len(found)]):
                state = optimizer.state[p]
                if coded:
                    one = StateCodes(kinds[place], block)
                    given, scale = reproducible.encode_state(found[place], one)
                    assert torch.equal(state[name], given)
                    assert_same_bits(state[f"{name}_scale"], scale)
                    found[place] = reproducible.decode_state(given, scale, one, tuple(p.shape))
                else:
                    assert_same_bits(state[name], found[place])
            states[i] = found
            assert_same_bits(p, shadows[i])


HARD = [0.0, -0.0, 2.0**-126, -(2.0**-126), 2.0**-127, 1e-45, 2.0**-63, 3e38, -1e30, 1e-20, float("inf"), float("nan")]


def steps_on_hard_inputs(kind, dtype, options, shapes, spread):
    """Parameters and states after steps: of numbers of all magnitudes, zeros, subnormal numbers, infinities, NaN.

    The last ones are in tensors of more than three blocks, as all later numbers of their blocks may be NaN.
    """
    generator = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = kind(params, **options)
    for step in range(4):
        for p in params:
            size = (torch.randn(p.shape, generator=generator) * spread * (step > 0)).exp()
            p.grad = (torch.randn(p.shape, generator=generator) * size).to(dtype)
            if step == 1 and p.numel() > 12 * 9:  # each number beside each other one
                for x in (p.data.view(-1), p.grad.view(-1)):
                    x[: 12 * 9] = torch.tensor(HARD)[torch.randint(12, (12 * 9,), generator=generator)].to(dtype)
                p.grad.view(-1)[-128:] = 0.0  # a block of zeros
        optimizer.step()
    states = [x for p in params for name, x in sorted(optimizer.state[p].items()) if name != "step"]
    return [*(p.detach() for p in params), *states]


SIZES = ((2, 4096), (1,), (31,), (32,), (33,), (1001,))  # blocks of 32 with shorter last ones; small parameters too
FLASH = {"weight_decay": 0.1, "lr": 0.1}
KERNELS = [
    (AdamW8bit, torch.float32, {}),
    (Adam8bit, torch.bfloat16, {"bf16_stochastic_round": True, "key": 5, "weight_decay": 0.1}),
    pytest.param(AdamW4bit, torch.bfloat16, {"store_param_remainders": True}, marks=pytest.mark.heavy),
    (Adam4bit, torch.float32, {"amsgrad": True, "weight_decay": 0.1, "betas": (0.3, 0.4)}),
    (AdamWFp8, torch.float16, {"lr": torch.tensor(0.5), "eps": 0.0}),
    (AdamFp8, torch.bfloat16, {"block_size": 2048, "betas": (0.0, 0.999)}),
    (FlashAdamW, torch.float32, {"weight_decay": 0.0, "betas": (0.3, 0.4)}),
    (FlashAdamW, torch.float32, {"weight_decay": 0.0, "lr": float("inf")}),  # no decay is not NaN
    (FlashAdamW, torch.bfloat16, FLASH),
    (FlashAdamW, torch.float16, FLASH | {"eps": 0.0}),
    pytest.param(FlashAdamW, torch.bfloat16, FLASH | {"master_weight_bits": 32}, marks=pytest.mark.heavy),
    pytest.param(FlashAdamW, torch.float16, FLASH | {"master_weight_bits": 32}, marks=pytest.mark.heavy),
    pytest.param(FlashAdamW, torch.bfloat16, {"master_weight_bits": None}, marks=pytest.mark.heavy),
    pytest.param(
        FlashAdamW,
        torch.bfloat16,
        {"master_weight_bits": None, "bf16_stochastic_round": True, "key": 5},
        marks=pytest.mark.heavy,
    ),
]


@pytest.mark.parametrize(("kind", "dtype", "options"), KERNELS)
def test_kernels_have_the_laws_bits(kind, dtype, options, monkeypatch):
    """A kernel steps each parameter in place, and without kernels the law's own operations have the same results."""
    runs, run = [], AdamStep.run
    monkeypatch.setattr(AdamStep, "run", lambda *arguments: runs.append(run(*arguments)) or runs[-1])
    # Scales of float16 are infinite above 65504, and the block's numbers then NaN.
    shapes, spread = (SIZES, 2) if kind is FlashAdamW else (((2, 4096), (4, 33)), 20)
    found = steps_on_hard_inputs(kind, dtype, options, shapes, spread)
    assert runs == [True] * 4 * len(shapes)
    monkeypatch.setattr(AdamStep, "run", lambda *_: False)
    for a, b in zip(found, steps_on_hard_inputs(kind, dtype, options, shapes, spread), strict=True):
        assert a.dtype is b.dtype
        assert_same_bits(a.nan_to_num(0.5), b.nan_to_num(0.5))  # torch's casts have several NaNs
        assert torch.equal(a.isnan(), b.isnan())


def random_bits(shape, dtype, generator):
    size = dtype.itemsize * 8
    words = torch.randint(-(1 << size - 1), 1 << size - 1, shape, generator=generator)
    return words.to(getattr(torch, f"int{size}")).view(dtype)


WEIGHTS = [(torch.bfloat16, 24), (torch.float32, 24), (torch.bfloat16, 32), (torch.float16, 24), (torch.float16, 32)]


@pytest.mark.parametrize("form", usually(WEIGHTS[:1], WEIGHTS))
def test_flash_steps_of_any_bits_have_the_laws_bits(form, monkeypatch):
    """Parameters, gradients, codes, scales and errors are random bits: subnormal and infinite ones too."""
    (dtype, bits), found = form, []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(AdamStep, "run", lambda *_: False)
        generator = torch.Generator().manual_seed(11)
        p = torch.nn.Parameter(random_bits((8209,), dtype, generator))
        p.grad = random_bits((8209,), dtype, generator)
        optimizer = FlashAdamW([p], lr=1e-2, weight_decay=0.1, master_weight_bits=bits)
        optimizer._begin(state := optimizer.state[p], p, optimizer._codes_of(p, optimizer.param_groups[0]))
        states = [x for name, x in sorted(state.items()) if name != "step"]
        for x in states:
            x.copy_(random_bits(x.shape, x.dtype, generator))
        # Of bfloat16: its sum with the error, from which decay takes a part, is rounded to the least normal number.
        p.data[0], p.grad[0], state["exp_avg"][0] = 2.0**-126 * (1 + 2.0**-7), 0, 0
        for name in ("exp_avg_scale", "exp_avg_sq_scale"):
            state[name][0] = 1
        if "remainder" in state:
            state["remainder"][0] = -100
        optimizer.step()
        found.append([p.detach(), *states])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        assert_same_bits(a.masked_fill(a.isnan(), 0), b.masked_fill(b.isnan(), 0))


@pytest.mark.parametrize("least", [-130, -124, -66, -62, -54])
def test_blocks_next_to_the_usual_ones_have_the_laws_bits(least, monkeypatch):
    """Where numbers are so small that a result may be subnormal, a kernel takes the law's operations."""
    runs = []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(AdamStep, "run", lambda *_: False)
        generator = torch.Generator().manual_seed(3)
        sizes = 2.0 ** (least + 4 * torch.rand(2, 16, 256, generator=generator))
        sizes[1, 1::4], sizes[0, 2::4], sizes[:, 3::4] = (
            1.0,
            1.0,
            1.0,
        )  # of four blocks one has both small, two one of them
        sizes[0, :, ::5] = sizes[1, :, 2::5] = 0.0
        signs = torch.randint(0, 2, (2, 16, 256), generator=generator) * 2 - 1
        p, gradient = sizes * signs
        p = torch.nn.Parameter(p)
        optimizer = AdamW8bit([p], eps=2.0**-80)
        for step in range(3):
            p.grad = gradient * (1 - 2 * (step == 1))
            optimizer.step()
        runs.append([p.detach(), *(x for _, x in sorted(optimizer.state[p].items()))])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("kind", [Adam8bit, Adam4bit, AdamFp8])
def test_numbers_next_to_the_bounds_of_codes_have_the_laws_codes(kind, monkeypatch):
    """Kernels may read other tables than the law does."""
    block = 128 if kind is Adam4bit else 256
    gradients = []
    for first, one in enumerate(reversed(adam_codes(kind.storage, block, 4096, False))):
        codes = torch.arange(1 << one.bits, dtype=torch.uint8)
        given = codes if one.bits == 8 else codes[::2] << 4 | codes[1::2]
        scale = torch.ones(one.counts(codes.numel())[1])
        numbers = reproducible.decode_state(given, scale, StateCodes(one.kind, codes.numel()), tuple(codes.shape))
        numbers = numbers[numbers.isfinite()].sort().values
        middles = ((numbers[1:] + numbers[:-1]) / 2).view(torch.int32) + torch.arange(-3, 4)[:, None]
        z, largest = middles.to(torch.int32).view(torch.float32).reshape(-1), numbers.max()
        # From moments of zeros, with factors of 3/4, a moment is a quarter of a gradient, or of its square.
        gradients.append(4 * z if first else 4 * largest * (z.abs() / largest).sqrt())
    gradient = torch.cat(gradients)
    gradient = torch.nn.functional.pad(gradient, (0, -len(gradient) % (block - 1))).reshape(-1, block - 1)
    gradient = torch.cat([torch.full((len(gradient), 1), 4 * largest.item()), gradient], 1)
    found = []
    for kernel in (True, False):
        if not kernel:
            monkeypatch.setattr(AdamStep, "run", lambda *_: False)
        p = torch.nn.Parameter(torch.ones(max(len(gradient), 4096 // block), block))
        p.grad = torch.zeros_like(p)
        p.grad[: len(gradient)] = gradient
        (optimizer := kind([p], betas=(0.75, 0.75))).step()
        found.append([p.detach(), *(x for _, x in sorted(optimizer.state[p].items()))])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


# Factors and gradients whose moment, of a moment of 1, float64 rounds to the middle of two float32 numbers; these were
# searched by the products of integers.
MIDDLES = [(0.99704, 3.5057108402252197), (0.99843, 3.1840736865997314)]


@pytest.mark.parametrize(("beta", "gradient"), MIDDLES)
def test_a_moment_in_the_middle_of_two_numbers_is_rounded_twice(beta, gradient):
    """One rounding has the other neighbour."""
    weight = float(torch.tensor(1 - beta))
    exact = 1 + Fraction(weight) * Fraction(gradient - 1)
    twice = torch.tensor(float(exact)).float()  # a float of Python is the nearest float64 number
    neighbours = [twice, *(torch.nextafter(twice, torch.tensor(end)) for end in (0.0, 9.0))]
    assert min(neighbours, key=lambda x: abs(Fraction(x.item()) - exact)) != twice
    p = torch.nn.Parameter(torch.ones(4096))
    p.grad = torch.ones(4096)
    optimizer = Adam8bit([p], betas=(beta, 0.99))
    optimizer.step()
    optimizer.state[p]["exp_avg"].fill_(255)  # the code of 1
    optimizer.state[p]["exp_avg_scale"].fill_(1)
    p.grad[::256] = gradient
    optimizer.step()
    assert (optimizer.state[p]["exp_avg_scale"] == twice).all()


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_steps_are_one_function(backend):
    """`adam_step_with_codes` is traced as a whole, and Inductor makes one function in C++ of it, with the same bits."""
    torch.compiler.reset()
    codes = adam_codes("8bit", 256, 4096, False)
    step = partial(reproducible.adam_step_with_codes, codes=codes, weight_decay=0.1, decoupled=True)
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    (p,) = parameters(shapes=[(4096,)])
    set_gradients([p], 0)
    found = p.detach(), tuple((torch.zeros(4096, dtype=torch.uint8), torch.zeros(16)) for _ in codes)
    for count in (1.0, 2.0):
        given = (found[0], p.grad, found[1], torch.tensor(count), torch.tensor(1e-2))
        found = step(*given)
        if count == 1:
            same, sources = run_and_get_code(compiled, *given)
            functions = [one for source in sources for one in re.findall(r"^cpp_fused\w* = ", source, re.MULTILINE)]
            assert len(functions) == (backend == "inductor")
        else:
            same = compiled(*given)
        for a, b in zip([found[0], *sum(found[1], ())], [same[0], *sum(same[1], ())], strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_other_strides_have_the_same_bits():
    """Blocks are neighbours in row-major order, whatever the order in memory is."""
    (p,) = parameters(shapes=[(8, 16, 8, 8)])
    q = torch.nn.Parameter(p.detach().clone(memory_format=torch.channels_last))
    for x in (p, q):
        set_gradients([x], 0)
        if x is q:
            x.grad = x.grad.mT.contiguous().mT
        optimizer = AdamW8bit([x])
        optimizer.step()
        optimizer.step()
    assert q.is_contiguous(memory_format=torch.channels_last)
    assert_same_bits(p, q)


def test_states_that_users_changed_are_checked():
    """A kernel would read beyond them."""
    (p,) = parameters(shapes=[(4096,)])
    set_gradients([p], 0)
    optimizer = AdamW8bit([p])
    optimizer.step()
    optimizer.state[p]["exp_avg_scale"] = torch.zeros(2)
    with pytest.raises(ValueError, match=re.escape("states[0][1] has shape (2,); allowed is (16,)")):
        optimizer.step()


def test_print_says_which_parameters_have_codes():
    optimizer = AdamW8bit(parameters())
    said = "States in codes (8bit, blocks of 256): 2 of 6 parameters, 8192 of 16813 numbers; "
    assert said + "floats are the states of parameters 2, 3, 4, 5" in repr(optimizer)
    assert "States in codes (4bit, blocks of 128): 1 of 1 parameters" in repr(AdamW4bit([torch.zeros(4096)]))


@pytest.mark.parametrize(("kind", "dtype"), [(AdamW8bit, torch.bfloat16), (AdamW4bit, torch.float32)])
def test_goes_on_from_its_state_dict(kind, dtype):
    params = parameters(dtype)
    whole = train(kind(params, bf16_stochastic_round=True, key=5), params, range(4))
    params = parameters(dtype)
    first = kind(params, bf16_stochastic_round=True, key=5)
    train(first, params, range(2))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = kind(params, bf16_stochastic_round=True, key=5)
    second.load_state_dict(torch.load(file, weights_only=True))
    for a, b in zip(train(second, params, range(2, 4)), whole, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize(("kind", "bytes_"), [(AdamW8bit, 2.0625), (Adam4bit, 1.0625), (AdamFp8, 3.09375)])
def test_large_parameters_go_in_parts(kind, bytes_):
    """With the bits that they have in one part; a state has one byte or half a byte for each number, and scales."""
    (p,) = parameters(shapes=[(3, 128 * 400)])  # more than two parts, and no multiple of one
    options = {"block_size": 128, "amsgrad": kind is AdamFp8}
    optimizer = kind([p], **options)
    set_gradients([p], 0)
    rows = [torch.nn.Parameter(row) for row in p.detach().clone()]
    others = kind(rows, **options)
    for row, slope in zip(rows, p.grad.clone(), strict=True):
        row.grad = slope
    optimizer.step()
    others.step()
    assert_same_bits(p, torch.stack([row.detach() for row in rows]))
    state = {name: x for name, x in optimizer.state[p].items() if name != "step"}
    for name, x in state.items():
        assert_same_bits(x.reshape(-1), torch.cat([others.state[row][name].reshape(-1) for row in rows]))
    assert sum(x.numel() * x.element_size() for x in state.values()) / p.numel() == bytes_


def test_float32_states_become_codes():
    params = parameters()
    plain = torch.optim.AdamW(params)
    train(plain, params, range(2))
    optimizer = AdamW8bit(params)
    optimizer.load_state_dict(plain.state_dict())
    one = StateCodes("dynamic")
    given, scale = reproducible.encode_state(plain.state[params[0]]["exp_avg"], one)
    assert torch.equal(optimizer.state[params[0]]["exp_avg"], given)
    assert torch.equal(optimizer.state[params[0]]["exp_avg_scale"], scale)
    assert torch.equal(optimizer.state[params[2]]["exp_avg"], plain.state[params[2]]["exp_avg"])
    assert optimizer.state[params[0]]["step"] == 2
    train(optimizer, params, range(2, 3))


def test_16_bit_parameters():
    """Rounded to nearest they are the float32 step's results, rounded; stochastically they are neighbours of these."""
    (wide,), (narrow,), (noisy,) = (parameters(shapes=[(4096,)]) for _ in range(3))
    wide.data = wide.bfloat16().float()
    narrow.data, noisy.data = wide.bfloat16(), wide.bfloat16()
    for p, options in ((wide, {}), (narrow, {}), (noisy, {"bf16_stochastic_round": True, "key": 1})):
        p.grad = torch.linspace(-1, 1, 4096).to(p.dtype)
        if p is wide:
            p.grad = p.grad.bfloat16().float()
        optimizer = AdamW8bit([p], lr=1e-2, **options)
        optimizer.step()
    assert_same_bits(narrow, wide.bfloat16())
    bits = wide.detach().view(torch.int32)
    below, above = ((bits & -0x10000) + up for up in (0, 0x10000))
    found = noisy.detach().float().view(torch.int32)
    assert ((found == below) | (found == above)).all()
    ups = (found == above).float().mean() / ((bits & 0xFFFF).float() / 65536).mean()
    assert 0.9 < ups < 1.1


@pytest.mark.parametrize("kind", usually((AdamW8bit,), (AdamW8bit, Adam4bit)))
def test_remainders_keep_all_bits_of_float32_weights(kind):
    """And the weights are these numbers rounded to nearest, ties away from zero."""
    shapes = [(4096,), (70,)]
    wide, narrow = (parameters(shapes=shapes) for _ in range(2))
    for p, q in zip(wide, narrow, strict=True):
        q.data = p.data.bfloat16()
        p.data = q.data.float()
    plain, kept = kind(wide), kind(narrow, store_param_remainders=True)
    for step in range(4):
        set_gradients(narrow, step)
        for p, q in zip(wide, narrow, strict=True):
            p.grad = q.grad.float()
        if step == 2:
            other = kind(narrow, store_param_remainders=True)
            other.load_state_dict(copy.deepcopy(kept.state_dict()))
            kept = other
        for optimizer in (plain, kept):
            optimizer.step()
        # The small parameter's states are of its dtype.
        for name in ("exp_avg", "exp_avg_sq"):
            plain.state[wide[1]][name] = plain.state[wide[1]][name].bfloat16().float()
    for p, q in zip(wide, narrow, strict=True):
        low = kept.state[q]["remainder"].to(torch.int32)
        whole = (q.detach().view(torch.int16).to(torch.int32) << 16) + low
        assert_same_bits(whole.view(torch.float32), p)
        away = (p.detach().view(torch.int32) + 0x8000) >> 16
        assert torch.equal(q.detach().view(torch.int16), away.to(torch.int16))
        assert low.count_nonzero() > low.numel() / 2


def test_draws_from_torchs_generator_without_a_key():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        params = parameters(torch.bfloat16, [(4096,)])
        found += train(AdamW8bit(params, bf16_stochastic_round=True), params, range(2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_closures_groups_and_rates():
    a, b, c = parameters(shapes=[(4096,)] * 3)
    optimizer = Adam8bit([{"params": [a], "lr": torch.tensor(0.0)}, {"params": [b, c]}], lr=0.5)
    before = a.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = (a + b).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert torch.equal(a, before)
    assert c not in optimizer.state
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == 0.25
    copy.deepcopy(optimizer).step()


@pytest.mark.parametrize("kind", [AdamW4bit, FlashAdamW])
def test_groups_step_as_optimizers_of_their_own(kind):
    """With all options of torch's groups; `foreach` says how torch's steps run, and changes nothing here."""
    options = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.2}
    together, alone = parameters(shapes=[(4096,), (4096,)]), parameters(shapes=[(4096,), (4096,)])
    group = {"params": [together[1]], "foreach": True, **options}
    optimizers = kind([together[0]]), kind([alone[0]]), kind([alone[1]], **options)
    optimizers[0].add_param_group(group)
    for step in range(2):
        for params in (together, alone):
            set_gradients(params, step)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        assert_same_bits(p, q)


def loaded(p, **options):
    p = torch.nn.Parameter(p)
    plain = torch.optim.AdamW([p], **options)
    p.grad = torch.ones(4096)
    plain.step()
    AdamW8bit([p]).load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("lr=-1; allowed is a number >= 0", lambda p: Adam8bit([p], lr=-1)),
        ("unexpected keyword argument 'foreach'", lambda p: Adam8bit([p], foreach=True)),
        ("maximize=True; allowed is False", lambda p: Adam8bit([{"params": [p], "maximize": True}])),
        ("state_dict['param_groups'][0]: maximize=True; allowed is False", lambda p: loaded(p, maximize=True)),
        ("params has a tensor of torch.complex64; allowed are", lambda p: Adam8bit([p.to(torch.complex64)])),
        ("params has a tensor of torch.int8; allowed are", lambda p: FlashAdamW([p.to(torch.int8)])),
        ("betas[1]=1.0; allowed is a number from 0 to below 1", lambda p: Adam8bit([p], betas=(0.9, 1.0))),
        ("block_size=0; allowed is an int >= 1", lambda p: Adam8bit([p], block_size=0)),
        ("block=3; allowed for codes of 4 bits is an even number", lambda p: Adam4bit([p], block_size=3)),
        ("amsgrad=1 is a int", lambda p: Adam8bit([p], amsgrad=1)),
        ("params has a tensor of torch.float64; allowed are torch.float32", lambda p: Adam8bit([p.double()])),
        (
            "state_dict has 2 parameters; allowed are 1",
            lambda p: Adam8bit([p]).load_state_dict(Adam8bit([p, p + 1]).state_dict()),
        ),
        ("state_dict['param_groups'][0]: storage='4bit', of another class", lambda p: of_another_form(p, Adam4bit)),
        ("storage='Fp8', of another class; allowed is '8bit'", lambda p: of_another_form(p, AdamFp8)),
        (
            "state_dict['state'][0]['exp_avg'] has torch.uint8 of shape (4096,) and 32 scales",
            lambda p: of_another_form(p, Adam8bit, block_size=128),
        ),
    ],
)
def test_wrong(message, call):
    with pytest.raises((TypeError, ValueError)) as error:
        call(torch.ones(4096))
    assert message in str(error.value)


def of_another_form(p, kind, **options):
    p.grad = torch.ones(4096)
    other = kind([p], **options)
    other.step()
    Adam8bit([p]).load_state_dict(other.state_dict())


def test_groups_and_parameters_that_an_optimizer_cannot_step():
    p = torch.nn.Parameter(torch.ones(64, 64))
    with pytest.raises(ValueError, match="block_size=64 in a group; allowed is it as the optimizer's argument"):
        AdamW8bit([{"params": [p], "block_size": 64}])
    by_tensors = AdamW8bit([p], betas=(torch.tensor(0.5), torch.tensor(0.75)))
    assert by_tensors.param_groups[0]["betas"] == (0.5, 0.75)
    p.grad = torch.ones(64, 64)
    by_tensors.step()
    by_tensors.param_groups[0]["amsgrad"] = True
    with pytest.raises(ValueError, match="parameter 0 has a state without max_exp_avg_sq"):
        by_tensors.step()
    p.data = p.data.double()
    p.grad = torch.ones(64, 64, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"parameter 0 became torch.float64; allowed are"):
        by_tensors.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exp_avg_scale": None}, "'exp_avg_scale' is a NoneType"),  # codes were read as numbers
        ({"exp_avg_scale": "a"}, "'exp_avg_scale' is a str"),
        ({"step": None}, r"step.*allowed is a whole number"),
        ({"step": torch.ones(2)}, r"step.*allowed is a whole number"),
        ({"step": -3}, r"step.*allowed is a whole number"),
        ({"remainder": torch.ones(64, 64, dtype=torch.int16)}, "allowed is an optimizer that keeps it"),
    ],
)
def test_states_that_do_not_load(change, message):
    p = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = AdamW8bit([p])
    p.grad = torch.ones(64, 64)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0] = {name: x for name, x in (saved["state"][0] | change).items() if x is not None}
    with pytest.raises((TypeError, ValueError), match=message):
        AdamW8bit([p]).load_state_dict(saved)
