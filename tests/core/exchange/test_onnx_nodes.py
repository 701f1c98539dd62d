"""onnx's own tests of nodes: its evaluator is wired as it should be, with our operators among its own."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from qcore.exchange import run_onnx
from qcore.exchange.types import returned

OTHERWISE = {
    "bernoulli": "draws numbers",
    "FLOAT4E2M1": "of NaN, which ONNX does not define for float4",
    "quantizelinear_float4e2m1": "keeps the sign of -0.0, as Cast does",
    "attention_4d_causal_fp16_expanded": "has a Softmax of float16, which we round once",
    "attention_4d_causal_bf16_expanded": "likewise",
    "scatter_with": "is an operator that the evaluator lacks: ScatterElements replaced it",
    "scan_sum": "is version 8, with batches",
}


def array(x):
    return numpy_helper.to_array(x) if isinstance(x, TensorProto) else x


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_nodes_have_the_standards_results():
    from onnx.backend.test.case.node import collect_testcases  # which makes the numbers of all tests

    compared = 0
    for case in collect_testcases():
        if any(name in case.name for name in OTHERWISE):
            continue
        for inputs, outputs in case.data_sets:
            inputs, outputs = map(array, inputs), [*map(array, outputs)]
            given = dict(zip([one.name for one in case.model.graph.input], inputs, strict=False))
            if not all(isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "fiubV" for x in given.values()):
                continue  # sequences, texts and complex numbers
            if any(not one.type.HasField("tensor_type") for one in case.model.graph.input):
                continue
            found = run_onnx(case.model, {name: np.asarray(x) for name, x in given.items()}).values()
            for theirs, ours in zip(outputs, found, strict=False):
                if not isinstance(theirs, np.ndarray | np.generic) or theirs.dtype.kind not in "fiubV":
                    continue
                theirs = returned(np.asarray(theirs))
                assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape), case.name
                rtol = case.rtol
                if ours.dtype.name == "bfloat16":
                    ours, theirs, rtol = ours.astype(np.float32), theirs.astype(np.float32), 2**-6
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=case.atol, err_msg=case.name)
                compared += 1
    assert compared > 1700
