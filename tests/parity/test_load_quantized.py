"""Weights from files, in all packages: each dialect beside the numbers that its description gives, bit for bit."""

import json

import jax
import numpy as np
import pytest
import torch
from covering import usually
from weight_files import CASES, write

import qcore
import qjax
import qtorch
from qcore.exchange.safetensors import read_header
from qcore.exchange.writing import ENCODERS

PACKAGES = {"qcore": qcore.exchange, "qtorch": qtorch.exchange, "qjax": qjax.exchange}


def bits(x):
    x = np.asarray(x)
    assert x.dtype == np.float32
    return x.view(np.int32)


def same(x, y):
    """Equal bits; NaNs count as equal."""
    x, y = np.asarray(x), np.asarray(y)
    return x.shape == y.shape and ((bits(x) == bits(y)) | (np.isnan(x) & np.isnan(y))).all()


# Parts of other cases: blocks without nested scales, words without an order, one scale for all.
PARTS = {"bitsandbytes nf4", "int4 in words", "int8, channels", "float8, one scale", "ModelOpt NVFP4"}


@pytest.mark.parametrize("case", usually(CASES.keys() - PARTS, CASES))
def test_numbers_of_each_dialect(case, tmp_path):
    tensors, numbers = CASES[case](np.random.default_rng(len(case)))
    write(tmp_path / "model.safetensors", tensors)
    for package in PACKAGES.values():
        found = package.load_quantized(tmp_path)
        (name,) = [name for name, value in found.items() if isinstance(value, package.Encoded)]
        assert name == ("x" if "x_blocks" in tensors else "x.weight")
        assert same(found[name].dequantize(), numbers), package.__name__
        assert set(found) - {name} <= {"x.input_scale", "x.weight_format"}


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(("int", "GPTQ", "AWQ"))])
def test_what_was_read_is_written_as_it_was(case, tmp_path):
    tensors, _ = CASES[case](np.random.default_rng(1))
    write(tmp_path / "model.safetensors", tensors)
    for package in PACKAGES.values():
        package.save_quantized(tmp_path / "again", package.load_quantized(tmp_path / "model.safetensors"))
        found, again = (read_header(tmp_path / name)[0] for name in ("model.safetensors", "again"))
        assert set(found) == set(again)
        for name, tensor in found.items():
            other = again[name]
            assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
            if name == "x.weight" and case.startswith("bitsandbytes nf4"):  # the last nibble has no number
                assert (tensor.bytes()[:-1] == other.bytes()[:-1]).all()
            else:
                assert (tensor.bytes() == other.bytes()).all(), name


@pytest.mark.parametrize("case", ["int4 in words", "GPTQ", "AWQ"])
def test_what_is_not_written_is_named(case, tmp_path):
    write(tmp_path / "model.safetensors", CASES[case](np.random.default_rng(1))[0])
    with pytest.raises(ValueError, match=r"^entry 'x.weight': .* is not written here; allowed"):
        qcore.exchange.save_quantized(tmp_path / "again", qcore.exchange.load_quantized(tmp_path))


def test_every_package_writes_the_same_file(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 96)).astype(np.float32) * np.float32(2) ** -np.arange(40)[:, None]
    x[3], x[4, :7] = 0, -0.0
    for dialect in ENCODERS:
        files = set()
        for given, package in zip((x, torch.from_numpy(x), jax.numpy.asarray(x)), PACKAGES.values(), strict=True):
            weight = package.encode_weight(given, dialect)
            package.save_quantized(tmp_path / "model.safetensors", {"w": weight})
            files.add((tmp_path / "model.safetensors").read_bytes())
            assert same(package.load_quantized(tmp_path)["w"].dequantize(), weight.dequantize())
        assert len(files) == 1


def test_plain_tensors(tmp_path):
    rng, every = np.random.default_rng(0), np.arange(256, dtype=np.uint8)
    formats = {
        **{"F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2", "F8_E8M0": "e8m0fnu"},
        **{"F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz"},
    }
    tensors = {name: (name, every.reshape(16, 16)) for name in formats}
    tensors |= {"F4": ("F4", every, (2, 256)), "F6": ("F6_E2M3", rng.integers(0, 256, 48).astype(np.uint8), (8, 8))}
    tensors |= {"F6_2": ("F6_E3M2", rng.integers(0, 256, 48).astype(np.uint8), (64,))}
    tensors |= {"bf16": ("BF16", np.uint16([0x3F80, 0xC040])), "i8": ("I8", np.int8([[-3]]))}
    tensors |= {"i64": ("I64", np.int64([-5])), "bool": ("BOOL", np.bool_([1, 0])), "u16": ("U16", np.uint16([65535]))}
    write(tmp_path / "w.safetensors", tensors, {"a": "b"})
    for package in PACKAGES.values():
        found = package.load_quantized(tmp_path / "w.safetensors")
        for name, text in formats.items():
            assert found[name].number == qcore.parse(text)
            assert same(found[name].dequantize(), qcore.decode(every, text).reshape(16, 16))
        assert found["F4"].shape == (2, 256)
        assert np.asarray(found["F4"].codes)[0, :4].tolist() == [0, 0, 1, 0]  # bytes 0 and 1, low halves first
        stream = np.unpackbits(tensors["F6"][1], bitorder="little").reshape(8, 8, 6)
        assert (np.asarray(found["F6"].codes) == (stream << np.arange(6)).sum(-1)).all()
        assert found["F6_2"].number == qcore.parse("e3m2fn")
        assert [float(one) for one in found["bf16"]] == [1, -3]
        assert "bfloat16" in str(found["bf16"].dtype)
        assert (int(found["i8"][0, 0]), int(found["i64"][0]), int(found["u16"][0])) == (-3, -5, 65535)
        package.save_quantized(tmp_path / "again", {name: value for name, value in found.items() if name != "i64"})
        assert package.load_quantized(tmp_path / "again")["F6"].number == qcore.parse("e2m3fn")


def test_shards_and_configurations(tmp_path):
    tensors, numbers = CASES["DeepSeek FP8"](np.random.default_rng(0))
    items = list(tensors.items())
    for part, item in enumerate(items):
        write(tmp_path / f"m-{part}.safetensors", dict([item]))
    places = {name: f"m-{part}.safetensors" for part, (name, _) in enumerate(items)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        assert same(qcore.exchange.load_quantized(path)["x.weight"].dequantize(), numbers)
    # 260 columns in blocks of 100, which shapes do not tell from blocks of 87 to 129.
    write(tmp_path / "one.safetensors", tensors)
    config = {"quant_method": "fp8", "weight_block_size": [65, 100]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}), encoding="utf-8")
    found = qcore.exchange.load_quantized(tmp_path / "one.safetensors")["x.weight"]
    assert found.number.block == ((-2, 65), (-1, 100))


def test_integers_of_64_bits_in_jax(tmp_path):
    write(tmp_path / "w.safetensors", {"a": ("I64", np.int64([1 << 40]))})
    with pytest.raises(TypeError, match=r"^tensor 'a' is int64; allowed after jax.config.update"):
        qjax.exchange.load_quantized(tmp_path / "w.safetensors")
