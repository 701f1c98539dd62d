"""The table of spellings: each is read as its format or refused with its meanings, and owners really use it."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from jaxlib.mlir import ir
from support import assert_same_bits

import qcore
import qjax
import qtorch
from qcore import NAMED, parse
from qcore.formats.spellings import MEANINGS, SPELLINGS

TORCH = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def of_owner(owner):
    """The spellings of one owner, as it writes them, with the formats' texts."""
    return {one: text for text, owners in SPELLINGS.items() for one in owners.get(owner, "").split()}


def test_every_spelling_is_read_or_refused_with_its_meanings():
    for text, owners in SPELLINGS.items():
        assert parse(text).text == text
        for spelling in " ".join(owners.values()).split():
            meanings = MEANINGS[spelling.lower()].split()
            if len(meanings) == 1:
                assert parse(spelling) == parse(text)
            else:
                with pytest.raises(ValueError, match="may mean ") as caught:
                    parse(spelling)
                assert all(one in str(caught.value).partition(";")[0] for one in meanings)


def test_a_name_of_a_format_is_not_a_spelling_of_another():
    assert all(meanings == name for name, meanings in MEANINGS.items() if name in NAMED)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("BF8", "BF8 may mean e5m2 (AVX10.2) or e5m2fnuz (AMD CDNA 3); "),
        ("I8", "I8 may mean int8 (safetensors, GGUF, MLIR) or fixed(64,0) (NumPy); "),
        ("float", "float may mean binary(8,23) (torch, ONNX) or binary(11,52) (NumPy); "),
        ("fp8", "fp8 may mean e4m3fn or e4m3fnuz (AMD CDNA 3) or e5m2; "),
        ("float8e4m3fnu", "float8e4m3fnu may mean e4m3fn"),
    ],
)
def test_errors_name_the_meanings(spelling, message):
    for package in (qcore, qtorch, qjax):
        with pytest.raises(ValueError, match="allowed here are") as caught:
            package.parse(spelling)
        assert f"text={spelling!r}: {message}" in str(caught.value)


def test_torchs_dtypes():
    known = of_owner("torch")
    assert {name for name in TORCH if name.startswith(("float", "bfloat", "int", "uint"))} <= known.keys()
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in known)


@pytest.mark.parametrize("name", [name for name, dtype in TORCH.items() if name.startswith("float8")])
def test_codes_are_those_of_torchs_dtypes(name):
    codes = np.arange(256, dtype=np.uint8)
    found, expected = qcore.decode(codes, name), torch.from_numpy(codes).view(TORCH[name]).float().numpy()
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert_same_bits(np.nan_to_num(found, nan=1, posinf=np.inf), np.nan_to_num(expected, nan=1, posinf=np.inf))


def test_ml_dtypes_types():
    types = {name for name, kind in vars(ml_dtypes).items() if isinstance(kind, type)}
    others = {"finfo", "iinfo", "complex32", "bcomplex32"}
    assert types - others == {name for name in of_owner("ml_dtypes") if hasattr(ml_dtypes, name)}
    assert all(parse(name) == qcore.parse(getattr(ml_dtypes, name).__name__) for name in types - others)


def test_safetensors_names():
    files, known = safetensors.torch._TYPES, of_owner("safetensors")  # of names in files to torch's dtypes
    assert files.keys() <= known.keys() | {"BOOL", "C64"}
    for name in files.keys() & known.keys():
        assert of_owner("torch")[str(files[name]).removeprefix("torch.")] == known[name]


def test_mlirs_names():
    with ir.Context():
        for name in of_owner("MLIR"):
            assert str(ir.Type.parse(name)) == name


def test_tritons_names():
    language = pytest.importorskip("triton.language")
    for name in of_owner("Triton"):
        if name.startswith("float"):
            assert of_owner("Triton")[language.__dict__[name].name] == of_owner("Triton")[name]
