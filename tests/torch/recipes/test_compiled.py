"""All recipes in compiled programs of all dtypes: each product, and its gradients, have the bits of eager programs."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from covering import some
from support import bits
from taps import Taps
from torch import nn

from qcore import RECIPES
from qtorch import linalg
from qtorch.recipes import lower

# Recipes keep 16 bits in the first and the last layer, which are most of so small models.
pytestmark = pytest.mark.filterwarnings("ignore:the recipe lowers")

WIDTH = 32


class Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, probe, number, gradient):
        ctx.gradient = gradient
        return x.view_as(x) if number is None else number.clone()

    @staticmethod
    def backward(ctx, arriving):
        return arriving if ctx.gradient is None else ctx.gradient, arriving, None, None


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, taps):
        x = torch.relu(taps.product("first", self.first, x))
        x = F.gelu(taps.product("middle", self.middle, x)) * 1.7
        return taps.product("last", self.last, x)


class CNN(nn.Module):
    """Two residual blocks with batch norms."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in self.convs)
        self.head = nn.Linear(8, 4)

    def forward(self, x, taps):
        x = taps.product("stem", self.stem, x.reshape(2, 4, 4, WIDTH // 4))
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + taps.product(f"convs.{i}", conv, torch.relu(norm(x)))
        return taps.product("head", self.head, x.mean((2, 3)))


class GPT(nn.Module):
    """One block of two heads."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Parameter(torch.randn(8, WIDTH))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x, taps):
        q, k, v = taps.product("qkv", self.qkv, self.norms[0](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = taps.product("attention", self.attend, q, k, v).transpose(1, 2).flatten(2)
        x = x + taps.product("out", self.out, y)
        x = x + taps.product("down", self.down, F.gelu(taps.product("up", self.up, self.norms[1](x))))
        return taps.product("head", lambda x: x @ self.head.T, x)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, x, taps):
        x = taps.product("lstm", lambda x: self.lstm(x)[0], x * 1.7)
        return taps.product("head", self.head, torch.relu(x))


class Program(nn.Module):
    """A model that returns the numbers at its taps."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, probes, forced=None):
        taps = Taps(Tap.apply, probes, forced)
        y = self.model(x, taps)
        return y, taps.numbers


def run(program, x, probes, forced=None):
    """The numbers at the taps, and the gradients there and of the parameters."""
    torch.manual_seed(1)  # keys, which both programs draw
    y, numbers = program(x, probes, forced)
    y.backward(torch.randn(y.shape).to(y.dtype))
    return [x.detach() for x in numbers], [p.grad for p in probes], dict(program.named_parameters())


def differing(model, recipe, dtype):
    """The names of the results and gradients of products that differ in eager and compiled programs."""
    torch.manual_seed(0)
    torch.compiler.reset()
    wide = model()
    x, automatic = torch.randn(2, 4, WIDTH), dtype == "autocast"
    if not automatic:
        wide, x = wide.to(dtype), x.to(dtype)
    eager = Program(lower(wide, RECIPES[recipe]))
    compiled = copy.deepcopy(eager)
    with torch.autocast("cpu", torch.bfloat16) if automatic else nullcontext():
        seen = Taps(None)
        with torch.no_grad():
            copy.deepcopy(eager).model(x, seen)
        probes = [[torch.zeros_like(x, requires_grad=True) for x in seen.numbers] for _ in range(2)]
        numbers, gradients, of_weights = run(torch.compile(compiled), x, probes[0])
        expected = run(eager, x, probes[1], list(zip(numbers, gradients, strict=True)))
    # What stays in high precision is torch's and Inductor's: such convolutions, and biases' gradients, differ.
    lowered = linalg.Linear, linalg.Conv2d
    layers = [(name, one) for name, one in eager.named_modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
    wide = {name for name, one in layers if not isinstance(one, lowered)}
    pairs = [
        (name, numbers[i], expected[0][i])
        if operand is None
        else (f"gradient of {name}'s {operand}", gradients[i], expected[1][i])
        for i, (name, operand) in enumerate(seen.places)
        if f"model.{name}" not in wide
    ]
    for name, p in expected[2].items():
        if "norm" not in name and name.rpartition(".")[0] not in wide:
            pairs.append((f"gradient of {name.removeprefix('model.')}", of_weights[f"_orig_mod.{name}"].grad, p.grad))
    return {name for name, a, b in pairs if a.dtype != b.dtype or (bits(a) != bits(b)).any()}


MODELS = [MLP, CNN, GPT, LSTM]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, "autocast"]
NAMES = list(RECIPES)

# Between its products a recurrent layer has sigmoid and tanh of Inductor: in float32 their last bits differ, in
# programs without qtorch too. Sums over them, the gradients of biases, show it where they are not rounded to 16 bits.
SEEN = "mxfp8", "fp8_chunked", "bf16_mixed"  # recipes where they differ; in others they may
BIASES = {f"gradient of lstm.bias_{name}_l0" for name in ("ih", "hh")}


# Inductor takes seconds for a model's program: CI runs a CNN beside its other steps. Ordinary runs compile with
# `aot_eager` (test_functions.py, test_models.py).
@some(model=MODELS, recipe=NAMES, dtype=DTYPES)
@pytest.mark.filterwarnings("ignore:the recipe lowers")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which Dynamo reads where it stops in front of an LSTM
def test_each_product_has_the_bits_of_eager(model, recipe, dtype):
    found = differing(model, recipe, dtype)
    if model is LSTM and dtype in (torch.float32, "autocast"):
        assert found >= BIASES or recipe not in SEEN
        found = {name for name in found if "lstm" not in name}
    assert not found
