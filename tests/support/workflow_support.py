"""Models that the tests of the workflow quantize, data for them, and what flows through them."""

import copy
import warnings

import torch
from record_torch_ao import FOLDER
from sklearn.datasets import load_digits
from torch import nn

from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import DeQuantStub, QTensor, QuantStub, QuantWrapper, default_qconfig


def bits(x):
    return x.detach().view(torch.int32)


def with_qconfig(model, qconfig=default_qconfig):
    model.qconfig = qconfig
    return model


def digits():
    """Images of shape (1797, 1, 8, 8) from 0 to 1, and labels; the last 400 are for tests."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)


def recorded(name, weights_only=True):
    """What tests/support/record_torch_ao.py wrote: a state_dict, an input and its output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's quantized tensors, and their storages, are deprecated
        return torch.load(FOLDER / f"{name}.pt", weights_only=weights_only)


def mlp():
    torch.manual_seed(0)
    return QuantWrapper(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))


class Residual(nn.Module):
    """Convolutions with batch norms, a sum, pools and a linear layer."""

    def __init__(self, functional=FloatFunctional, stubs=(QuantStub, DeQuantStub)):
        super().__init__()
        torch.manual_seed(0)
        self.quant, self.dequant = (stub() for stub in stubs)
        self.conv1, self.bn1, self.relu1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.add = functional()
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(128, 10)

    def forward(self, x):
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        x = self.add.add_relu(self.bn2(self.conv2(x)), x)
        return self.dequant(self.fc(torch.flatten(self.pool(x), 1)))


ROWS = [["conv1", "bn1", "relu1"], ["conv2", "bn2"]]


def trained(model, steps=100):
    """The model after a short training on digits."""
    model = copy.deepcopy(model).train()
    images, labels = digits()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(1397, (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model


def outputs(model, x, names):
    """What the layers of these names return for x; methods of functional modules are not seen."""
    found = {}
    hooks = []
    for name in names:

        def keep(module, inputs, output, name=name):
            found[name] = output

        hooks.append(model.get_submodule(name).register_forward_hook(keep))
    model(x)
    for hook in hooks:
        hook.remove()
    return found


def steps_apart(numbers, q):
    """How many steps of q's scale lie between the numbers and q's, at most."""
    assert isinstance(q, QTensor)
    return ((numbers - q.dequantize()) / q.q_scale()).abs().max().item()
