"""Settings and dtypes of layers beside those that saw no data; tests/parity/test_workflow_steps.py has the latter."""

import jax.numpy as jnp
import pytest
from flax import nnx
from flax_support import layer_of, run

import qjax.nnx as qnn
from qjax.quantization import QConfig, default_qconfig
from qjax.quantization.functional import ConvBnParams, ConvBnState, conv_bn


class Two(nnx.Module):
    def __init__(self):
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        dtypes = {"param_dtype": jnp.bfloat16, "dtype": jnp.bfloat16}
        self.used, self.one = (layer_of(nnx.Linear, 4, 4, **dtypes) for _ in range(2))

    def __call__(self, x):
        return self.dequant(self.used(self.quant(x)))


def test_flattened_layers_have_the_name_of_the_layer_in_them():
    prepared = qnn.prepare(
        nnx.Sequential(layer_of(nnx.LinearGeneral, 2, 3), layer_of(nnx.Linear, 3, 3)), default_qconfig
    )
    made = qnn.convert(prepared, allow_uncalibrated=True)
    assert [row.state for row in qnn.report(made)] == ["quantized"] * 2


def test_settings_that_a_recurrent_layer_cannot_have_are_refused_when_it_is_prepared():
    model = nnx.Sequential(layer_of(nnx.Linear, 2, 2), layer_of(qnn.LSTM, 2, 2))
    mixed = QConfig(default_qconfig.activation, "mxfp4")
    for wrong in (lambda: qnn.prepare(model, mixed), lambda: qnn.quantize_dynamic(model, {qnn.LSTM: mixed})):
        with pytest.raises(
            TypeError, match=r"layer '1': settings have as activation MinMaxObserver .* allowed are a format"
        ):
            wrong()
    prepared = qnn.prepare(model, {"": mixed, "1": None})
    assert "there is no quantized LSTM" in qnn.report(prepared)["1"].reason


@pytest.mark.parametrize(
    "qconfig", [default_qconfig, pytest.param(QConfig("e4m3fn", "mxfp4"), marks=pytest.mark.heavy)]
)
def test_models_of_bfloat16(qconfig):
    model, x = Two(), jnp.ones((2, 4), jnp.bfloat16)
    model.a_norm = nnx.LayerNorm(4, rngs=nnx.Rngs(0))  # of float32
    prepared = qnn.prepare(model, qconfig)
    prepared(x)
    with pytest.warns(UserWarning, match="seen nothing"):
        assert qnn.convert(prepared)(x).dtype == jnp.bfloat16


@pytest.mark.heavy
def test_batch_norms_trained_in_bfloat16():
    rngs, x = nnx.Rngs(0), jnp.ones((2, 3, 2), jnp.bfloat16)
    parts = layer_of(nnx.Conv, 2, 4, (1,), param_dtype=jnp.bfloat16), nnx.BatchNorm(4, rngs=rngs)
    model = qnn.prepare_qat(qnn.fuse_modules(nnx.Sequential(*parts), ["0", "1"]), QConfig(None, None))
    results = [run(model, x)]
    model.eval()
    results.append(run(model, x))
    params = ConvBnParams(jnp.ones((4, 2, 1), jnp.bfloat16), None, jnp.ones(4), jnp.zeros(4))
    state = ConvBnState(jnp.zeros(4), jnp.ones(4))
    results += [conv_bn(x, params, state, channels_last=True, training=training)[0] for training in (True, False)]
    assert [y.dtype for y in results] == [jnp.bfloat16] * 4
