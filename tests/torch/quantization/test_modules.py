"""FakeQuantize and settings: torch.ao's bits in training, its state_dicts, switches, and compiled programs."""

import copy
import pickle

import pytest
import torch
from covering import some
from quantization_support import activations, torch_ao
from support import assert_same_bits

import qtorch.quantization as ours
from qtorch._affine import qconfig

PAIRS = ["default_fake_quant", "default_weight_fake_quant", "default_per_channel_weight_fake_quant"]
PAIRS += ["default_histogram_fake_quant"]


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: other threads are only waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(name):
    with torch_ao():
        from torch.ao.quantization import fake_quantize as peer

        return getattr(qconfig, name)(), getattr(peer, name)()


def step(module, x):
    """The module's output and gradient; zeros have no sign, which torch's gradients have."""
    x = x.clone().requires_grad_()
    with torch_ao():
        y = module(x)
    (gradient,) = torch.autograd.grad(y, x, torch.linspace(-1, 1, x.numel()).reshape(x.shape))
    return y, gradient + 0.0


def same(own, peer, x):
    for mine, theirs in zip(step(own, x), step(peer, x), strict=True):
        assert_same_bits(mine, theirs)


def same_state(own, peer):
    assert own.state_dict().keys() == peer.state_dict().keys()
    for name, value in own.state_dict().items():
        assert_same_bits(value + 0, (peer.state_dict()[name] + 0).to(value.dtype), name)


@pytest.mark.heavy
@pytest.mark.parametrize("name", PAIRS)
def test_over_steps(name):
    few = "histogram" in name  # whose search takes torch long
    for steps in activations()[1:3] if few else activations():
        own, peer = pair(name)
        for number, x in enumerate(steps[:: 10 if few else 1]):
            if number == (20 if few else 200):
                for module in (own, peer):
                    module.disable_observer()
            same(own, peer, x)
        same_state(own, peer)


@pytest.mark.parametrize("name", PAIRS)
def test_state_dicts(name):
    """Those of torch load, ours load there, with switches and as many channels as were seen."""
    own, peer = pair(name)
    for x in activations()[4][:3]:
        peer(x)
    peer.disable_observer()
    own.load_state_dict(peer.state_dict())
    same_state(own, peer)
    same(own, peer, activations()[4][200])
    same_state(own, peer)
    own.enable_observer()
    own(activations()[4][200])
    _, theirs = pair(name)
    theirs.load_state_dict(own.state_dict())
    same(own, theirs, activations()[4][250])
    for twin in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        same_state(twin, own)


def test_switches():
    x = torch.randn(50)
    module = ours.FakeQuantize()
    before = module(x)
    ours.disable_fake_quant(module)
    assert module(x * 9) is not None
    assert module(x) is x
    assert module.fake_quant_enabled.tolist() == [0]
    scale = module.scale.clone()
    ours.disable_observer(module)
    ours.enable_fake_quant(module)
    assert not torch.equal(module(x * 99), x * 99)
    assert torch.equal(module.scale, scale)
    assert module.observer_enabled.tolist() == [0]
    ours.enable_observer(module)
    module(x * 99)
    assert not torch.equal(module.scale, scale)
    assert before.shape == x.shape
    ours.disable_observer(torch.nn.ReLU())  # as model.apply does
    with pytest.raises(TypeError, match="enabled=1 is a int"):
        module.enable_observer(1)


@some((0,), name=PAIRS)
def test_compiled(name):
    """Training, evaluation and switches without a break; buffers are those of the eager module."""
    torch._dynamo.reset()
    own, traced = (getattr(qconfig, name)() for _ in range(2))
    backend = "inductor" if name == PAIRS[2] else "aot_eager"
    compiled = torch.compile(traced, fullgraph=True, backend=backend)
    for number, x in enumerate(activations()[1][:6]):
        if number == 3:
            for module in (own, traced):
                module.disable_observer()
                module.eval()
        for mine, expected in zip(step(compiled, x), step(own, x), strict=True):
            assert_same_bits(mine, expected)
        same_state(traced, own)


def test_before_any_observation():
    """1 and 0; a tensor without elements is no observation."""
    for module in (ours.FakeQuantize(), qconfig.default_per_channel_weight_fake_quant()):
        assert module(torch.empty(0, 3)).shape == (0, 3)
        module.disable_observer()
        assert module(torch.tensor([[0.4, 1.6]])).tolist() == [[0, 2]]


def test_infinities_never_raise():
    for number in (torch.inf, torch.nan):
        assert ours.FakeQuantize()(torch.tensor([1.0, number])).shape == (2,)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_histograms_of_nothing_finite(compiled):
    """The parameters stay, as they do in JAX and, with a warning, in torch; then a number is seen."""
    torch._dynamo.reset()
    module = qconfig.default_histogram_fake_quant()
    call = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module
    with torch_ao() as peer:
        theirs = peer.default_histogram_fake_quant()
    for x in (torch.tensor([torch.inf, -torch.inf]), torch.tensor([0.4, torch.inf]), torch.tensor([-torch.inf, 2])):
        assert_same_bits(call(x), step(theirs, x)[0])
        same_state(module, theirs)
        if x.isinf().all():
            assert (module.scale.tolist(), module.zero_point.tolist()) == ([1], [0])
    scale = module.scale.clone()
    for _ in range(2):
        call(torch.tensor([torch.nan, torch.inf]))
        assert torch.equal(module.scale, scale)
        module.activation_post_process.reset_min_max_vals()
    with pytest.raises(ValueError, match="observe something before asking for parameters"):
        qconfig.default_histogram_fake_quant().calculate_qparams()


def test_a_module_that_is_called_twice_before_its_gradients():
    """The second call changes the scale; the first's gradient is that of its own."""
    module = ours.FakeQuantize(observer=ours.MinMaxObserver, quant_min=0, quant_max=3)
    x, y = torch.tensor([0.0, 1], requires_grad=True), torch.tensor([0.0, 100], requires_grad=True)
    (module(x).sum() + module(y).sum()).backward()
    assert x.grad.tolist() == y.grad.tolist() == [1, 1]


def test_half_a_model_in_16_bits():
    module = ours.FakeQuantize()
    for x in activations()[1][:3]:
        assert module(x.bfloat16()).dtype is torch.bfloat16
    assert module.scale.dtype is torch.float32


WRONG = [
    (lambda: ours.FakeQuantize(ours.NoopObserver), TypeError, "observer made a NoopObserver; allowed are observers of"),
    (lambda: ours.FakeQuantize(quant_min=-1, quant_max=9), ValueError, "quant_min=-1"),
    (lambda: ours.FakeQuantize(quant_min=0), ValueError, "quant_min=0 and quant_max=None"),
    (lambda: ours.FakeQuantize(bins=3), TypeError, "bins"),
    (lambda: ours.FakeQuantize(3), TypeError, "observer is a int; allowed is a class of observers, or a function that"),
    (lambda: ours.FakeQuantize()([1]), TypeError, "x is a list"),
    (lambda: ours.FakeQuantize()(torch.ones(2, dtype=torch.int32)), TypeError, "x has dtype int32"),
    (
        lambda: ours.QConfig(ours.MinMaxObserver(), ours.MinMaxObserver),
        ValueError,
        "activation is a MinMaxObserver; all",
    ),
    (lambda: ours.QConfigDynamic(weight=3), ValueError, "weight is a int; allowed is what makes one"),
    (lambda: ours.get_default_qconfig("none"), ValueError, "backend='none'; allowed are x86, fbgemm"),
    (lambda: ours.get_default_qat_qconfig(1), TypeError, "backend=1 is a int"),
    (lambda: ours.enable_observer(2.5), TypeError, "module is a float; allowed is a torch.nn.Module"),
    (lambda: ours.disable_fake_quant(None), TypeError, "module is a NoneType; allowed is a torch.nn.Module"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_other_channels_than_the_scales():
    module = qconfig.default_per_channel_weight_fake_quant()
    module(torch.ones(4, 3))
    module.disable_observer()
    with pytest.raises(ValueError, match=r"x has shape \(3, 3\); allowed are 4 channels along dimension 0"):
        module(torch.ones(3, 3))
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        module(torch.ones(()))


@pytest.mark.parametrize("backend", ["x86", "fbgemm", "qnnpack", "onednn"])
def test_settings_of_engines(backend):
    """What they make is what torch's make, in its form before fused modules."""
    with torch_ao() as peer:
        theirs = peer.get_default_qconfig(backend), peer.get_default_qat_qconfig(backend, version=0)
    for own, other in zip(
        (ours.get_default_qconfig(backend), ours.get_default_qat_qconfig(backend)), theirs, strict=True
    ):
        for mine, expected in zip(own, other, strict=True):
            with torch_ao():
                mine, expected = mine(), expected()
            assert type(mine).__name__ == type(expected).__name__
            assert (mine.quant_min, mine.quant_max) == (expected.quant_min, expected.quant_max)
            assert (mine.dtype, mine.qscheme) == (expected.dtype, expected.qscheme)


def test_settings():
    names = [name for name in ours.__all__ if name.endswith("_qconfig") and not name.startswith("get")]
    made = {name: [part() for part in getattr(ours, name)] for name in names}
    assert len(made) == 9
    assert isinstance(made["float16_dynamic_qconfig"][1], ours.NoopObserver)
    assert isinstance(made["default_debug_qconfig"][0], ours.RecordingObserver)
    assert made["default_qconfig"][0].quant_max == 127
    assert ours.default_qconfig.activation is ours.default_observer
    signed = ours.default_observer.with_args(dtype=torch.qint8, reduce_range=False)
    assert (signed().quant_min, ours.default_observer().quant_min) == (-128, 0)
    assert ours.QConfig(weight=signed, activation=signed) == ours.QConfig(signed, signed)
    assert pickle.loads(pickle.dumps(ours.default_qat_qconfig)) == ours.default_qat_qconfig


def test_dictionary_of_observers():
    """As torch's function of this name did: those of a FakeQuantize too."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    model[0].activation_post_process = ours.MinMaxObserver()
    model[1][0].activation_post_process = ours.FakeQuantize()
    found = {}
    ours.get_observer_dict(model, found, "net")
    outer, inner = model[0].activation_post_process, model[1][0].activation_post_process
    assert found == {
        "net.0.activation_post_process": outer,
        "net.1.0.activation_post_process": inner,
        "net.1.0.activation_post_process.activation_post_process": inner.activation_post_process,
    }
