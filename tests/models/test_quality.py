"""What eight bits cost whole models, beside the quantizers of torch.ao and onnxruntime."""

import pytest

from website.records import results

pytestmark = pytest.mark.models


def test_the_table_has_all_models_within_half_a_decibel_of_the_best():
    quality = pytest.importorskip("benchmarks.quality")
    rows = [quality.Row(**row) for row in results("quality")["rows"]]
    assert [row.model for row in rows] == list(quality.MODELS)
    assert [row.model for row in rows if row.ours < row.best - 0.5] == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "package"), [("resnet18", "torchvision"), ("vit_tiny", "timm"), ("bert", "transformers")]
)
def test_no_other_quantizer_is_better(name, package):
    pytest.importorskip(package)
    row = pytest.importorskip("benchmarks.quality").measured(name, tests=16)
    assert row.ours > row.best - 0.5
