"""Lowered models remain models: they are copied, pickled, saved, loaded, compiled and exported."""

import copy
import io
import pickle

import pytest
import torch
from covering import usually
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.utils.hooks import RemovableHandle
from torch_auto_low_support import BOTH, FIXED, IMAGE, WAYS, F, network, quantizers_of, rounded, value_and_gradients

from qtorch.recipes import GROUPS, lower, sequential_lower


@pytest.mark.parametrize("way", WAYS)
def test_copies_and_pickles_are_models_of_their_own(way):
    low = way(network(), ["conv", "linear"], F, FIXED, *BOTH)
    expected = value_and_gradients(low, IMAGE)
    buffer = io.BytesIO()
    torch.save(low, buffer)
    buffer.seek(0)
    taken, RemovableHandle.next_id = RemovableHandle.next_id, 0  # as in another process
    twins = [copy.deepcopy(low), pickle.loads(pickle.dumps(low)), torch.load(buffer, weights_only=False)]
    calls = []
    for twin in twins:
        for layer in (twin.conv, twin.fc):
            layer.register_forward_hook(lambda *_: calls.append(1))
        assert_all_same_bits(value_and_gradients(twin, IMAGE), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert twin(IMAGE).eq(0).all()
    assert len(calls) == 12
    RemovableHandle.next_id = max(taken, RemovableHandle.next_id)
    assert_all_same_bits(value_and_gradients(low, IMAGE), expected)


@pytest.mark.parametrize("way", WAYS)
def test_every_layer_has_its_own_quantizer(way):
    low = way(network(), ["conv", "linear"], F)
    twin = copy.deepcopy(low)
    assert len({id(q) for q in quantizers_of(low) + quantizers_of(twin)}) == 4


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_lowering_twice_is_refused_and_changes_nothing(first, second):
    low = first(network(), ["linear"], F, None, *BOTH)
    expected = low(IMAGE)
    for model in (low, copy.deepcopy(low)):
        with pytest.raises(ValueError, match=r"fc\S* is lowered already"):
            second(model, ["conv", "linear"], FIXED)
        assert_same_bits(model(IMAGE), expected)
    again = second(low, ["conv"], F, None, *BOTH)
    assert_same_bits(again(IMAGE), first(network(), ["conv", "linear"], F, None, *BOTH)(IMAGE))
    weighted = first(network(), ["linear"], weight_number=F)
    with pytest.raises(ValueError, match="fc is lowered already"):
        second(weighted, ["linear"], F)


def test_lower_keeps_names_and_kinds():
    model, low = network(), lower(network(), list(GROUPS), F)
    assert low.state_dict().keys() == model.state_dict().keys()
    assert all(isinstance(m, type(one)) for m, one in zip(low.modules(), model.modules(), strict=True))
    low.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(low.state_dict(), strict=True)


@pytest.mark.parametrize("types", [["conv", "normalization"], ["linear"], [nn.Conv2d]])
def test_old_and_new_checkpoints_load_into_pairs(types):
    torch.manual_seed(1)
    old = network()
    for parameter in old.parameters():
        nn.init.normal_(parameter)
    low = sequential_lower(network(), types, F, None, *BOTH)
    assert low.state_dict().keys() != old.state_dict().keys()
    before = old.state_dict()
    low.load_state_dict(before, strict=True)
    assert before.keys() == old.state_dict().keys()
    expected = sequential_lower(old, types, F, None, *BOTH)
    assert_same_bits(low.eval()(IMAGE), expected.eval()(IMAGE))
    other = sequential_lower(network(), types, F, None, *BOTH)
    other.load_state_dict(low.state_dict(), strict=True)
    assert_same_bits(other.eval()(IMAGE), expected(IMAGE))
    with pytest.raises(RuntimeError, match="Missing"):
        other.load_state_dict({name: value for name, value in before.items() if "weight" not in name})
    with pytest.raises(RuntimeError, match="nonsense"):
        other.load_state_dict({**before, "fc.nonsense": torch.ones(1)})


def test_pairs_have_the_attributes_of_their_layers():
    old = network()
    low = sequential_lower(old, ["conv", "linear"], F, None, *BOTH)
    assert low.fc.weight is low.fc[0].weight
    assert (low.fc.in_features, low.conv.stride) == (144, (1, 1))
    assert not hasattr(low.fc, "nothing")
    assert_same_bits(nn.Sequential(low.conv[0], low.bn, low.act, low.flat, low.fc[0])(IMAGE), old(IMAGE))
    assert [type(m) for m in old] == [nn.Conv2d, nn.BatchNorm2d, nn.GELU, nn.Flatten, nn.Linear]
    assert not quantizers_of(old)


@pytest.mark.parametrize("way", WAYS)
def test_the_model_itself_may_be_a_layer(way):
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    expected = rounded(layer(x))
    low = way(layer, ["linear"], F, None, *BOTH)
    assert_same_bits(low(x), expected)
    if way is sequential_lower:
        assert isinstance(low[0], nn.Linear)
        low.load_state_dict(layer.state_dict(), strict=True)
    with pytest.raises(ValueError, match="lowered already"):
        way(low, ["linear"], F)


@pytest.mark.parametrize("way", usually((lower,), WAYS))
def test_compiled_and_exported(way):
    low = way(network().eval(), ["linear", "activation"], F, FIXED, "stochastic", "nearest")
    torch._dynamo.reset()
    compiled = torch.compile(low, fullgraph=True, backend="aot_eager")
    results = []
    for model in (low, compiled):
        torch.manual_seed(2)
        results.append(value_and_gradients(model, IMAGE))
    assert_same_bits(results[1][0], results[0][0])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)  # torch's own convolutions may sum gradients in another order
    exported = torch.export.export(low, (IMAGE,)).module()
    torch.manual_seed(2)
    assert_same_bits(exported(IMAGE), results[0][0])
