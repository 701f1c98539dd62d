"""bitsandbytes' CPU package: its files, its numbers and its bytes."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import qcore
from qcore.exchange import encode_weight, load_quantized, save_quantized

pytestmark = pytest.mark.heavy
SHAPE = (250, 1030)  # whose last block is smaller


@pytest.fixture
def functional():
    """Imported where it is used: it takes seconds."""
    return pytest.importorskip("bitsandbytes.functional")


def inputs():
    rng = np.random.default_rng(0)
    return (rng.normal(size=SHAPE) * np.exp2(rng.integers(-20, 20, (SHAPE[0], 1)))).astype(np.float32)


def bits(x):
    return np.asarray(x).view(np.int32)


def one_zero(bytes_):
    """Bytes of FP4 whose code 8, a second zero, is the first."""
    high, low = bytes_ >> 4, bytes_ & 15
    return np.where(high == 8, 0, high) << 4 | np.where(low == 8, 0, low)


def file_of(path, weight, state):
    save_file({"w": weight} | {f"w.{name}": value for name, value in state.as_dict(packed=True).items()}, path)
    return path


@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
@pytest.mark.parametrize("size", [64, 128, 4096])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_files_and_bytes(kind, size, double, functional, tmp_path):
    x = inputs()
    given = {"blocksize": size, "compress_statistics": double, "quant_type": kind}
    weight, state = functional.quantize_4bit(torch.from_numpy(x), **given)
    found = load_quantized(file_of(tmp_path / "m.safetensors", weight, state))["w"]
    numbers, expected = found.dequantize(), functional.dequantize_4bit(weight, state).numpy()
    name, nested = {"nf4": "nf4", "fp4": "fp4_bnb"}[kind], ",nested=256" * double
    assert found.number.text == f"{name}(block={size}{nested})"
    assert (numbers == expected).all()
    assert kind == "fp4" or (bits(numbers) == bits(expected)).all()  # FP4's second zero is -0.0
    codes, largest = qcore.encode(x, found.number.first if double else found.number)
    packed = qcore.pack(codes.reshape(-1), 4)
    packed, theirs = packed >> 4 | packed << 4, weight.numpy().reshape(-1)
    assert (packed == (theirs if kind == "nf4" else one_zero(theirs))).all()
    if not double:
        assert (bits(largest) == bits(state.absmax)).all()


@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
def test_bitsandbytes_reads_what_is_written(double, functional, tmp_path):
    x = inputs()
    x[3] = 0
    mine = encode_weight(x, "bitsandbytes 4 bits" + ", double" * double)
    save_quantized(tmp_path / "ours", {"w": mine})
    given = {"blocksize": 64, "quant_type": "nf4", "compress_statistics": double}
    weight, state = functional.quantize_4bit(torch.from_numpy(x), **given)
    file_of(tmp_path / "theirs", weight, state)
    from safetensors.torch import load_file

    ours, theirs = load_file(tmp_path / "ours"), load_file(tmp_path / "theirs")
    assert set(ours) == set(theirs)
    for name in ("w", "w.quant_map", "w.nested_quant_map" if double else "w.absmax"):
        assert torch.equal(ours[name], theirs[name]), name
    parts = {name.removeprefix("w."): value for name, value in ours.items() if name != "w"}
    again = functional.QuantState.from_dict(parts, torch.device("cpu"))
    assert (bits(functional.dequantize_4bit(ours["w"], again)) == bits(mine.dequantize())).all()


def test_integers_of_8_bits(functional, tmp_path):
    codes, scales, _ = functional.int8_vectorwise_quant(torch.from_numpy(inputs()).half().clamp(-6e4, 6e4))
    save_file({"x.weight": codes, "x.SCB": scales}, tmp_path / "m.safetensors")
    found = load_quantized(tmp_path)["x.weight"].dequantize()
    assert (bits(found) == bits(functional.int8_vectorwise_dequant(codes, scales))).all()


def test_the_dynamic_map_decodes(functional, tmp_path):
    """Blocks of 8 bits; its own encoding on the CPU goes by a table of 65,536 bins, so it is not the nearest number."""
    x = torch.from_numpy(inputs())
    codes, state = functional.quantize_blockwise(x, blocksize=256)
    table = qcore.Table(state.code.numpy())
    number = qcore.BlockScaled(table, {"flat": 256}, "absmax", "float32")
    found = qcore.decode(codes.numpy(), number, scales=state.absmax.numpy())
    assert (bits(found) == bits(functional.dequantize_blockwise(codes, state))).all()
    assert (bits(qcore.encode(x.numpy(), number)[1]) == bits(state.absmax)).all()


def test_new_integers_of_8_bits(functional, tmp_path):
    """Its float16 input, of which the maximum and the quotients are float32; a row of zeros."""
    x = torch.from_numpy(inputs()).half().clamp(-6e4, 6e4)
    x[3] = 0
    codes, scales, _ = functional.int8_vectorwise_quant(x)
    mine = encode_weight(x.float().numpy(), "bitsandbytes 8 bits")
    save_quantized(tmp_path / "m.safetensors", {"x.weight": mine})
    from safetensors.torch import load_file

    ours = load_file(tmp_path / "m.safetensors")
    assert torch.equal(ours["x.SCB"].view(torch.int32), scales.view(torch.int32))
    assert torch.equal(ours["x.weight"], codes)
    assert (bits(functional.int8_vectorwise_dequant(ours["x.weight"], ours["x.SCB"])) == bits(mine.dequantize())).all()
