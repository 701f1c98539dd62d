"""Quantization-aware training as programs do it: with checkpoints, averages of weights, and what diverges."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qtorch.quantization import QuantWrapper, convert, get_default_qat_qconfig, prepare_qat, quantize_model


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


class Recomputed(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
        self.head, self.reentrant = nn.Linear(6, 4), reentrant

    def forward(self, x):
        x = x.clone().requires_grad_()  # reentrant checkpoints need it
        body = self.body if self.reentrant is None else checkpoint(self.body, x, use_reentrant=self.reentrant)
        return self.head(body(x) if self.reentrant is None else body)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_observes_a_batch_once(reentrant):
    torch.manual_seed(0)
    batches = [torch.randn(16, 2, 8) * (k + 1) for k in range(3)]
    plain, saving = Recomputed(), Recomputed(reentrant)
    saving.load_state_dict(plain.state_dict())
    made = [quantize_model(model, train=lambda model: train(model, batches)) for model in (plain, saving)]
    assert torch.equal(*(model(batches[0]) for model in made))


def prepared():
    torch.manual_seed(0)
    model = QuantWrapper(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))).train()
    model.qconfig = get_default_qat_qconfig()
    return prepare_qat(model)


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_averages_of_weights_and_buffers(decay):
    model = prepared()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    by_hand, batches = copy.deepcopy(model), [torch.randn(16, 8) for _ in range(3)]
    for x in batches:
        train(model, [x])
        average.update_parameters(model)
        with torch.no_grad():
            for old, new in zip(by_hand.state_dict().values(), model.state_dict().values(), strict=True):
                old.copy_(decay * old + (1 - decay) * new if old.is_floating_point() else new)
    for averaged in (average.module, by_hand):
        assert averaged(batches[0]).isfinite().all()
        assert convert(averaged.eval())(batches[0]).isfinite().all()


def test_training_that_diverges_is_named():
    def diverges(model):
        train(model, [torch.randn(4, 8) * 1e30] * 3)

    with pytest.raises(
        ValueError, match=r"layer '0.module': scale=nan, since its observer .*\(a smaller learning rate"
    ):
        quantize_model(nn.Sequential(nn.Linear(8, 8)), train=diverges)
