"""Small architectures of other packages, with random weights, in integers: the extra `models` has the packages."""

import pytest
import torch
from front_models import decibels

from qtorch.quantization import quantize_model, report

pytestmark = pytest.mark.models


def torchvision():
    models = pytest.importorskip("torchvision.models")
    return models.squeezenet1_1(weights=None, num_classes=10), {"x": torch.randn(4, 3, 64, 64)}


def timm():
    return pytest.importorskip("timm").create_model("test_resnet", pretrained=False), {"x": torch.randn(4, 3, 64, 64)}


def transformers():
    package = pytest.importorskip("transformers")
    settings = package.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = package.BertForSequenceClassification(settings)
    return model, {"input_ids": torch.randint(50, (4, 12)), "attention_mask": torch.ones(4, 12, dtype=torch.int64)}


def logits(model, inputs):
    with torch.no_grad():
        found = model(**inputs)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("made", [torchvision, timm, transformers], ids=lambda made: made.__name__)
def test_architecture_in_integers(made):
    torch.manual_seed(0)
    model, inputs = made()
    small = quantize_model(model.eval(), calibrate=[inputs])
    assert any(layer.state == "quantized" for layer in report(small))
    assert decibels(logits(model, inputs), logits(small, inputs)) > 15
