"""Tensors of all sorts, gradients, functorch, torch.compile, and QPyTorch's functions."""

import copy

import pytest
import torch
from support import NO_GPU, assert_same_bits

import qcore
import qtorch
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Operand
from qtorch import linalg
from qtorch.quant import Quantizer, block_quantize, fixed_point_quantize, float_quantize

F = FloatingPoint(5, 2)
KEY = 9


def reference(x, number, mode):
    """The kernel on a contiguous tensor of one dimension, which tests/parity compares with NumPy."""
    return qtorch.quantize(x.contiguous().view(-1), number, mode, key=KEY).view(x.shape)


STRIDED = {
    "odd": torch.randn(7),
    "one": torch.randn(1),
    "0-d": torch.randn(()),
    "matrix": torch.randn(33, 5),
    "step": torch.randn(40)[::3],
    "transposed": torch.randn(5, 8).T,
    "expanded": torch.randn(1, 8).expand(6, 8),
    "offset": torch.randn(100)[3:],
    "slice": torch.randn(6, 8, 4)[:, 2:5],
    "flipped": torch.randn(4, 6).permute(1, 0).flip(0),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.randn(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d),
    "channels_last slice": torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)[:, :3],
    "large": torch.randn(40_001),
}


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("number", [F, FixedPoint(8, 4), BlockFloatingPoint(8)], ids=str)
@pytest.mark.parametrize("name", STRIDED)
def test_shapes_and_strides(name, number, mode):
    x = STRIDED[name]
    before = x.clone()
    y = qtorch.quantize(x, number, mode, key=KEY)
    assert_same_bits(y, reference(x, number, mode))
    assert_same_bits(x, before)
    assert (y.dtype, y.device, y.shape) == (x.dtype, x.device, x.shape)
    assert y.stride() == torch.empty_like(x).stride()
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("number", [F, FloatingPoint(8, 23), FixedPoint(8, 4, clamp=False)], ids=str)
def test_a_result_never_aliases_its_input(number):
    x = torch.ones(8)
    y = qtorch.quantize(x, number, "nearest")
    y /= 2
    assert x.eq(1).all()


def test_blocks_of_channels_last():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for dim in (-1, 0, 1, 3):
        for mode in ("nearest", "stochastic"):
            y = qtorch.quantize(x, BlockFloatingPoint(5, dim), mode, key=KEY)
            assert y.is_contiguous(memory_format=torch.channels_last)
            assert_same_bits(y, qtorch.quantize(x.contiguous(), BlockFloatingPoint(5, dim), mode, key=KEY))


def test_blocks_that_do_not_fit_into_channels_last():
    x = torch.randn(3, 5, 4, 40) * torch.logspace(-6, 6, 40)
    expected = qcore.quantize(x.numpy(), "mxfp8_e4m3", "nearest")
    assert_same_bits(qtorch.quantize(x.to(memory_format=torch.channels_last), "mxfp8_e4m3", "nearest"), expected)


@pytest.mark.parametrize("key", [torch.arange(4, dtype=torch.int32)[::2], torch.tensor(5, dtype=torch.int32).expand(2)])
def test_keys_with_gaps(key):
    x = torch.randn(100)
    expected = qcore.quantize(x.numpy(), FloatingPoint(5, 2), "stochastic", key=key.tolist())
    assert_same_bits(qtorch.quantize(x, FloatingPoint(5, 2), "stochastic", key=key), expected)


def test_zeros_without_memory():
    """Autograd's own, which have an address of nothing."""
    assert_same_bits(qtorch.quantize(torch._efficientzerotensor(64), FloatingPoint(5, 2), "nearest"), torch.zeros(64))


@pytest.mark.parametrize("number", [F, FixedPoint(4, 2), BlockFloatingPoint(4, 0)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_straight_through_gradient(number, mode):
    x = torch.randn(4, 5, requires_grad=True)
    y = qtorch.quantize(x, number, mode, key=KEY)
    assert_same_bits(y, qtorch.quantize(x.detach(), number, mode, key=KEY))
    weights = torch.randn(4, 5)
    (y * weights).sum().backward()
    assert_same_bits(x.grad, weights)
    assert not qtorch.quantize(x.detach(), number, mode, key=KEY).requires_grad
    with torch.no_grad():
        assert not qtorch.quantize(x, number, mode, key=KEY).requires_grad


def test_gradient_is_exact_where_adding_the_difference_is_not():
    x = torch.tensor([1e30], requires_grad=True)
    y = qtorch.quantize(x, FloatingPoint(4, 3), "nearest")
    assert y.item() == 480
    y.backward()
    assert x.grad.item() == 1


def test_tensors_that_outlive_a_transform():
    kept = []

    def loss(x):
        kept.append(x)
        return x.sum()

    x = torch.randn(5)
    torch.func.grad(loss)(x)
    for result in (qtorch.quantize(kept[0], "e5m2", "nearest"), Quantizer("e5m2", "e5m2", "nearest")(kept[0])):
        assert_same_bits(result.detach(), qtorch.quantize(x, "e5m2", "nearest"))


def test_functorch():
    x = torch.randn(3, 4)
    each = torch.stack([qtorch.quantize(row, F, "stochastic", key=KEY) for row in x])
    assert_same_bits(torch.func.vmap(lambda row: qtorch.quantize(row, F, "stochastic", key=KEY))(x), each)
    keys = torch.tensor([[0, 1], [0, 2], [0, 3]])
    each = torch.stack([qtorch.quantize(row, F, "stochastic", key=key) for row, key in zip(x, keys, strict=True)])
    assert_same_bits(torch.func.vmap(lambda row, key: qtorch.quantize(row, F, "stochastic", key=key))(x, keys), each)
    blocks = torch.stack([qtorch.quantize(row, BlockFloatingPoint(4), "nearest") for row in x])
    assert_same_bits(torch.func.vmap(lambda row: qtorch.quantize(row, BlockFloatingPoint(4), "nearest"))(x), blocks)

    def loss(row):
        return (3 * qtorch.quantize(row, F, "nearest")).sum()

    assert torch.func.grad(loss)(x[0]).eq(3).all()
    assert torch.func.vmap(torch.func.grad(loss))(x).eq(3).all()
    assert torch.func.grad(lambda rows: torch.func.vmap(loss)(rows).sum())(x).eq(3).all()


STOCHASTIC = {
    "quantize": lambda x: qtorch.quantize(x, F, "stochastic"),
    "blocks": lambda x: qtorch.quantize(x, "mxfp8_e4m3", "stochastic"),
    "Quantizer": Quantizer("e5m2", "e5m2"),
    "gradient": lambda x: torch.func.grad(lambda x: (Quantizer(None, "e5m2")(x) * 0.3).sum())(x),
    "product": lambda x: linalg.matmul(x, torch.eye(200), operands=[Operand("e5m2", "stochastic")] * 2),
}


@pytest.mark.parametrize("name", STOCHASTIC)
def test_vmap_decides_about_keys_that_are_drawn(name):
    x, function = torch.full((3, 1, 200), 0.3), STOCHASTIC[name]
    with pytest.raises(RuntimeError, match="randomness is 'error'; allowed are randomness='different' and 'same'"):
        torch.func.vmap(function)(x)
    torch.manual_seed(KEY)
    keys = torch.empty(3, 2, dtype=torch.int32).random_()
    torch.manual_seed(KEY)
    first, *others = torch.func.vmap(function, randomness="different")(x)
    assert not any(torch.equal(first, other) for other in others)
    if name == "quantize":  # by the law of keys
        assert_same_bits(others[0], qtorch.quantize(x[1], F, "stochastic", key=keys[1]))
    torch.manual_seed(KEY)
    expected = function(x[0])
    torch.manual_seed(KEY)
    for each in torch.func.vmap(function, randomness="same")(x):
        assert_same_bits(each, expected)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmaps_in_vmaps_and_in_compiled_programs_decide_about_keys(randomness):
    x = torch.full((2, 2, 200), 0.3)

    def program(x):
        inner = torch.func.vmap(STOCHASTIC["quantize"], randomness=randomness)
        return torch.func.vmap(inner, randomness="different")(x)

    torch.compiler.reset()
    torch.manual_seed(KEY)
    y = program(x)
    assert torch.equal(y[0, 0], y[0, 1]) == (randomness == "same")
    assert not torch.equal(y[0, 0], y[1, 0])
    torch.manual_seed(KEY)
    assert_same_bits(torch.compile(program, backend="aot_eager", fullgraph=True)(x), y)


def test_fake_tensors_and_subclasses():
    with torch._subclasses.FakeTensorMode():
        fake = qtorch.quantize(torch.empty(3, 4), F, "nearest")
        assert fake.shape == (3, 4)

    class Marked(torch.Tensor):
        pass

    x = torch.randn(6)
    y = qtorch.quantize(x.as_subclass(Marked), F, "nearest")
    assert_same_bits(y.as_subclass(torch.Tensor), qtorch.quantize(x, F, "nearest"))
    parameter = torch.nn.Parameter(x.clone())
    assert_same_bits(qtorch.quantize(parameter, F, "nearest"), qtorch.quantize(x, F, "nearest"))
    assert copy.deepcopy(parameter).eq(parameter).all()


def test_inference_mode_and_meta():
    with torch.inference_mode():
        x = torch.randn(5)
        assert_same_bits(qtorch.quantize(x, F, "nearest"), qtorch.quantize(x.clone(), F, "nearest"))
    assert qtorch.quantize(torch.empty(2, 3, device="meta"), F, "nearest").shape == (2, 3)


def test_manual_seed_repeats_a_run_eager_or_compiled():
    x = torch.randn(1000)

    def program(x):
        return qtorch.quantize(x, F, "stochastic") + qtorch.quantize(x, FixedPoint(8, 4), "stochastic")

    torch.manual_seed(3)
    eager = program(x), torch.rand(2)
    torch._dynamo.reset()
    torch.manual_seed(3)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")(x), torch.rand(2)
    torch.manual_seed(3)
    assert_same_bits(program(x), eager[0])
    assert_same_bits(compiled[0], eager[0])
    assert_same_bits(compiled[1], eager[1])
    assert bool((program(x) != eager[0]).any())


def test_compiled_gradient():
    x = torch.randn(50, requires_grad=True)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(x):
        return (qtorch.quantize(x * 2, F, "stochastic", key=KEY) * 3).sum()

    loss(x).backward()
    assert x.grad.eq(6).all()


def test_qpytorch_calls():
    """Arguments as programs written for QPyTorch pass them."""
    x = torch.randn(4, 6)
    assert_same_bits(float_quantize(x, 5, 2, "nearest"), qtorch.quantize(x, F, "nearest"))
    assert_same_bits(float_quantize(x, exp=5, man=2, rounding="nearest"), qtorch.quantize(x, F, "nearest"))
    fixed = FixedPoint(8, 4, True, True)
    assert_same_bits(fixed_point_quantize(x, 8, 4, True, True, "nearest"), qtorch.quantize(x, fixed, "nearest"))
    for call in (
        lambda: fixed_point_quantize(x, wl=8, fl=4, clamp=True, symmetric=True, rounding="stochastic", key=KEY),
        lambda: fixed_point_quantize(x, 8, 4, symmetric=True, key=KEY),
    ):
        assert_same_bits(call(), qtorch.quantize(x, fixed, "stochastic", key=KEY))
    block = BlockFloatingPoint(8, 0)
    assert_same_bits(block_quantize(x, 8, 0, "nearest"), qtorch.quantize(x, block, "nearest"))
    assert_same_bits(block_quantize(x, wl=8, dim=0, rounding="nearest"), qtorch.quantize(x, block, "nearest"))
    torch.manual_seed(0)
    a = float_quantize(x, 5, 2)
    torch.manual_seed(0)
    assert_same_bits(float_quantize(x, 5, 2, rounding="stochastic"), a)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [F, BlockFloatingPoint(4)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_more_than_2_to_the_31_elements(number, mode):
    """bfloat16, since that many float32 numbers with their results need 17 GB."""
    size = 2**31 + 5000
    x = torch.arange(size // 1000, dtype=torch.int16).view(torch.bfloat16).repeat(1000)
    x = torch.cat([x, x[: size - x.numel()]]).nan_to_num_(0, 1, -1).clamp_(-8, 8)
    y = qtorch.quantize(x, number, mode, key=KEY)
    for begin in (0, 2**30 - 7, 2**31 - 100, size - 5000):
        piece = x[begin : begin + 5000].clone()
        piece[0] = 8 if isinstance(number, BlockFloatingPoint) else piece[0]
        expected = qtorch.quantize(piece, number, mode, key=KEY, start=begin)
        assert_same_bits(y[begin + 1 : begin + 5000], expected[1:])


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("number", [F, FixedPoint(8, 4), BlockFloatingPoint(8), BlockFloatingPoint(8, 0)], ids=str)
def test_cuda(number, mode):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(37, 501, dtype=dtype)
        for tensor in (x, x[:, 1:], x.T):
            expected = qtorch.quantize(tensor, number, mode, key=KEY)
            assert_same_bits(qtorch.quantize(tensor.cuda(), number, mode, key=KEY), expected)


@pytest.mark.heavy
@pytest.mark.parametrize("dynamic", [True, None, False])
def test_compiled_programs_take_other_formats_keys_and_starts(dynamic):
    """As arguments of one compiled function, whose integers dynamic shapes would turn into symbols."""
    x = torch.randn(100)
    torch._dynamo.reset()
    settings = {"fullgraph": True, "dynamic": dynamic, "backend": "aot_eager"}
    by_number = torch.compile(lambda x, number: qtorch.quantize(x * 1, number, "nearest"), **settings)
    for number in (F, FloatingPoint(4, 3), FixedPoint(8, 4), FixedPoint(8, 4, False), BlockFloatingPoint(4)):
        assert_same_bits(by_number(x, number), qtorch.quantize(x, number, "nearest"))
    by_width = torch.compile(lambda x, exp, man: float_quantize(x * 1, exp, man, "nearest"), **settings)
    for exp, man in ((5, 2), (5, 3), (6, 9)):
        assert_same_bits(by_width(x, exp, man), float_quantize(x, exp, man, "nearest"))
    by_key = torch.compile(
        lambda x, key, start: qtorch.quantize(x * 1, F, "stochastic", key=key, start=start), **settings
    )
    for key, start in ((1, 0), (2, 0), (2, 7), ((3, 4), 2**40), (2**63 + 5, 0)):
        assert_same_bits(by_key(x, key, start), qtorch.quantize(x, F, "stochastic", key=key, start=start))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (torch.Tensor.to_sparse, "torch.sparse_coo"),
        (torch.Tensor.to_sparse_csr, "torch.sparse_csr"),
        (torch.Tensor.to_mkldnn, "torch._mkldnn"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1, :2]]), "nested"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged), "nested"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(nested|CSR)")
def test_what_is_not_dense_is_refused(make, kind):
    x = make(torch.eye(3))
    for function in (qtorch.quantize, qtorch.encode, lambda x, *_: qtorch.quant.Quantizer("e5m2")(x)):
        with pytest.raises(TypeError, match=f"x is a {kind} tensor; allowed are dense ones"):
            function(x, "e5m2", "nearest")
