"""Files that nobody's program wrote: a ValueError that names the tensor, before memory is taken."""

import json
import os
import re

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from weight_files import CASES, e4m3, write

from qcore.affine import checkpoint
from qcore.exchange import Encoded, encode_weight, load_quantized, save_quantized
from qcore.exchange.safetensors import read_header
from qcore.exchange.writing import ENCODERS

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def file_of(path, header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def changed(**fields):
    return {"a": GOOD["a"] | fields}


HEADERS = {
    "w.safetensors has 12 bytes, and a header of 5; allowed is": (b"", b"", b"\x05\0\0\0\0\0\0\0abcd"),
    "w.safetensors has 16 bytes, and a header of 9223372036854775807": (b"", b"", b"\xff" * 7 + b"\x7f" + b" " * 8),
    "the header of w.safetensors is not JSON": (b"{", b""),
    "the header of w.safetensors is not JSON in UTF-8: 'utf": (b"\xff", b""),
    "the header of w.safetensors is a list": (b"[]", b""),
    "__metadata__ of w.safetensors is {'a': 1}": ({"__metadata__": {"a": 1}}, b""),
    "w.safetensors has the name 'a' twice": (b'{"a":1,"a":2}', b""),
    "tensor 'a' of w.safetensors is 3; allowed are dtype": ({"a": 3}, b""),
    "tensor 'a' of w.safetensors is {'dtype': 'F32'}": ({"a": {"dtype": "F32"}}, b""),
    "tensor 'a' of w.safetensors has dtype 'F33'": (changed(dtype="F33"), b""),
    "tensor 'a' of w.safetensors has dtype [1]": (changed(dtype=[1]), b""),
    "tensor 'a' of w.safetensors has shape [-2]": (changed(shape=[-2]), b""),
    "tensor 'a' of w.safetensors has shape [True, 2]": (changed(shape=[True, 2]), b""),
    "tensor 'a' of w.safetensors has shape [2.0]": (changed(shape=[2.0]), b""),
    "tensor 'a' of w.safetensors has shape 2": (changed(shape=2), b""),
    "tensor 'a' of w.safetensors has shape [1, 1, 1": (changed(shape=[1] * 33), b""),
    "tensor 'a' of w.safetensors has shape [4611686018427387904, 4]; allowed are up to 2^59": (
        changed(shape=[1 << 62, 4], data_offsets=[0, 0]),
        b"",
    ),
    "tensor 'a' of w.safetensors has shape [0, 2305843009213693952]; allowed are up to 2^59": (
        changed(shape=[0, 1 << 61], data_offsets=[0, 0]),
        b"",
    ),
    "tensor 'a' of w.safetensors has shape [0, 9223372036854775808]": (
        changed(shape=[0, 1 << 63], data_offsets=[0, 0]),
        b"",
    ),
    "tensor 'a' of w.safetensors has data_offsets [0, 8]; allowed are a begin and an end within": (
        GOOD,
        b"",
    ),
    "tensor 'a' of w.safetensors has data_offsets [8, 0]": (changed(data_offsets=[8, 0]), b"\0" * 8),
    "tensor 'a' of w.safetensors has data_offsets [-8, 0]": (changed(data_offsets=[-8, 0]), b"\0" * 8),
    "tensor 'a' of w.safetensors has data_offsets [0, 8, 9]": (changed(data_offsets=[0, 8, 9]), b"\0" * 9),
    "tensor 'a' of w.safetensors has 8 bytes; allowed for F32 of shape [3] are 12": (changed(shape=[3]), b"\0" * 8),
    "tensor 'a' of w.safetensors has 8 bytes; allowed for F4 of shape [15] are 7.5": (
        changed(dtype="F4", shape=[15]),
        b"\0" * 8,
    ),
    "tensor 'b' of w.safetensors begins at byte 0; allowed is 8": (GOOD | {"b": GOOD["a"]}, b"\0" * 8),
    "tensor 'a' of w.safetensors begins at byte 4; allowed is 0": (changed(data_offsets=[4, 12]), b"\0" * 12),
    "w.safetensors has 12 bytes of tensors; allowed are 8": (GOOD, b"\0" * 12),
}


@pytest.mark.parametrize("words", HEADERS)
def test_wrong_headers(words, tmp_path):
    header, data, *whole = HEADERS[words]
    path = file_of(tmp_path / "w.safetensors", header, data)
    if whole:
        path.write_bytes(whole[0])
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        load_quantized(path)
    if "[0, " not in words.partition("shape")[2]:  # of no elements, which safetensors takes
        with pytest.raises(SafetensorError), safe_open(path, "numpy"):
            pass


def test_the_right_header_loads(tmp_path):
    assert load_quantized(file_of(tmp_path / "w.safetensors", GOOD))["a"].tolist() == [0, 0]


def test_deep_and_huge_json(tmp_path):
    for text in (b'{"a":' * 100000, b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'):
        with pytest.raises(ValueError, match=r"^the header of w.safetensors is not JSON"):
            load_quantized(file_of(tmp_path / "w.safetensors", text))


@pytest.mark.parametrize("case", ["ModelOpt NVFP4", "bitsandbytes nf4, double"])
def test_cut_off_anywhere(case, tmp_path):
    write(tmp_path / "whole.safetensors", CASES[case](np.random.default_rng(0))[0])
    data = (tmp_path / "whole.safetensors").read_bytes()
    for length in [*range(0, len(data), 7), len(data) - 1]:
        (tmp_path / "w.safetensors").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"w.safetensors"):
            load_quantized(tmp_path / "w.safetensors")


def test_cut_off_after_the_header_was_read(tmp_path):
    tensor = read_header(file_of(tmp_path / "w.safetensors", GOOD))[0]["a"]
    (tmp_path / "w.safetensors").write_bytes(b"\0" * 70)
    with pytest.raises(ValueError, match=r"^tensor 'a' of w.safetensors ends early"):
        tensor.array()


def test_changed_bytes(tmp_path):
    """Any byte may change: the file loads, or the error is a ValueError."""
    rng = np.random.default_rng(0)
    for case in CASES:
        write(tmp_path / "whole.safetensors", CASES[case](rng)[0])
        data = np.fromfile(tmp_path / "whole.safetensors", np.uint8)
        length = 8 + int.from_bytes(data[:8].tobytes(), "little")
        for _ in range(20):
            other = data.copy()
            other[rng.integers(0, length, 2)] = rng.integers(32, 127, 2)
            other.tofile(tmp_path / "w.safetensors")
            try:
                found = load_quantized(tmp_path / "w.safetensors")
            except ValueError:
                continue
            for value in found.values():
                value.dequantize() if isinstance(value, Encoded) else None


def other_shape(rng, count):
    """A random shape of so many elements."""
    shape = []
    for _ in range(rng.integers(0, 4)):
        sizes = [size for size in (1, 2, 3, 4, 5, 8, 16, 32, count) if size and count % size == 0]
        shape.append(int(rng.choice(sizes)))
        count //= shape[-1]
    return shape + [count] * (count != 1 or rng.random() < 0.5)


def test_changed_shapes_and_dtypes(tmp_path):
    """Any tensor may have another shape, or dtype of the same bytes: the file loads, or the error is a ValueError."""
    rng, eight = np.random.default_rng(0), ["U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL"]
    kinds = [["F32", "I32", "U32"], ["F16", "BF16", "I16"], eight, ["I64"]]
    for case in CASES:
        tensors, _ = CASES[case](rng)
        for _ in range(20):
            changed = dict(tensors)
            name = str(rng.choice(list(tensors)))
            dtype, array = tensors[name]
            if rng.random() < 0.3:
                dtype = str(rng.choice(next(kind for kind in kinds if dtype in kind)))
            changed[name] = dtype, array, other_shape(rng, array.size)
            write(tmp_path / "w.safetensors", changed)
            try:
                found = load_quantized(tmp_path / "w.safetensors")
            except ValueError:
                continue
            for value in found.values():
                value.dequantize() if isinstance(value, Encoded) else None


def replaced(case, **arrays):
    """A case's tensors with others, by the ends of names; None takes one away."""
    tensors, _ = CASES[case](np.random.default_rng(0))
    for end, tensor in arrays.items():
        (name,) = [name for name in tensors if name.endswith(end)]
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    return tensors


def zeros(dtype, *shape):
    kinds = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64}
    return dtype, np.zeros(shape, kinds.get(dtype, np.uint8))


def state(**fields):
    """A quant_state, with changed fields."""
    text = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [5, 77]} | fields
    return "U8", np.frombuffer(json.dumps(text).encode(), np.uint8)


WRONG = {
    "tensor 'x.weight_scale' has shape (5, 1); allowed is (5, 2)": (
        replaced("ModelOpt NVFP4", weight_scale=zeros("F8_E4M3", 5, 1)),
        replaced("compressed-tensors nvfp4", weight_scale=zeros("F8_E4M3", 5, 1)),
        replaced("compressed-tensors mxfp8", weight_scale=zeros("U8", 5, 1)),
    ),
    "tensor 'x.weight_scale' has 1 blocks for 32 bytes; allowed are 16 or 24": (
        replaced("compressed-tensors mxfp4", weight_scale=zeros("U8", 5, 1)),
    ),
    "tensor 'x.weight_scale' has shape (4, 2); allowed are rows as in (5, 32)": (
        replaced("compressed-tensors mxfp4", weight_scale=zeros("U8", 4, 2)),
    ),
    "tensor 'x.weight_scale_2' has shape (5,)": (replaced("ModelOpt NVFP4", weight_scale_2=zeros("F32", 5)),),
    "tensor 'x.weight_global_scale' has shape (2,)": (
        replaced("compressed-tensors nvfp4", weight_global_scale=zeros("F32", 2)),
    ),
    "tensor 'x.weight' has 30 elements in a row; allowed are multiples of 16": (
        replaced("ModelOpt NVFP4", weight=zeros("U8", 5, 15)),
    ),
    "tensor 'x_scales' has shape (2, 3, 3); allowed is (2, 3, 2)": (
        replaced("GPT-OSS MXFP4", x_scales=zeros("U8", 2, 3, 3)),
    ),
    "tensor 'x_blocks' has shape (2, 17); allowed is (..., blocks, 16)": (
        replaced("GPT-OSS MXFP4", x_blocks=zeros("U8", 2, 17)),
    ),
    "tensor 'x.weight_scale_inv' has 9 scales along axis 0": (
        replaced("DeepSeek FP8", weight_scale_inv=zeros("F32", 9, 3)),
    ),
    "tensor 'x.weight_scale_inv' has shape (2, 3, 1); allowed are one scale": (
        replaced("DeepSeek FP8", weight_scale_inv=zeros("F32", 2, 3, 1)),
    ),
    "tensor 'x.weight_shape' is [8, 1000000]; allowed is a shape that the words": (
        replaced("int4 in words", weight_shape=("I64", np.int64([8, 10**6]))),
    ),
    "tensor 'x.weight_shape' is [8, -1]": (replaced("int4 in words", weight_shape=("I64", np.int64([8, -1]))),),
    "tensor 'x.weight_shape' has shape (3,)": (replaced("int4 in words", weight_shape=zeros("I64", 3)),),
    "tensor 'x.weight_g_idx' has groups 0 to 7; allowed are 0 to 2": (
        replaced("int4 in words, by g_idx", weight_g_idx=("I32", np.arange(96, dtype=np.int32) % 8)),
    ),
    "tensor 'x.qzeros' has 3 groups; allowed are 2": (replaced("GPTQ", qzeros=zeros("I32", 3, 4)),),
    "tensor 'x.g_idx' has shape (63,)": (replaced("AWQ") | {"x.g_idx": zeros("I32", 63)},),
    "tensor 'x.qweight' has 7 words in a row; allowed are 8": (replaced("GPTQ", qweight=zeros("I32", 7, 32)),),
    "tensor 'x.weight' has 192 bytes; allowed are 193 for the shape (5, 77)": (
        replaced("bitsandbytes nf4", weight=zeros("U8", 192, 1)),
    ),
    "tensor 'x.weight.absmax' has shape (6,); allowed is (7,)": (replaced("bitsandbytes nf4", absmax=zeros("F32", 6)),),
    "tensor 'x.weight.quant_map' has numbers that are not finite": (
        replaced("bitsandbytes nf4", quant_map=("F32", np.full(16, np.nan, np.float32))),
        replaced("bitsandbytes nf4", quant_map=("F32", np.zeros(16, np.float32))),
    ),
    "tensor 'x.weight.quant_state.bitsandbytes__nf4' is not JSON": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=zeros("U8", 3)),
    ),
    "tensor 'x.weight.quant_state.bitsandbytes__nf4' is [1]": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=("U8", np.frombuffer(b"[1]", np.uint8))),
    ),
    "tensor 'x.weight.quant_state.bitsandbytes__nf4' has blocksize=0": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=state(blocksize=0)),
    ),
    "tensor 'x.weight.quant_state.bitsandbytes__nf4' has quant_type=['nf4']": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=state(quant_type=["nf4"])),
    ),
    "tensor 'x.weight.nested_absmax' needs": (
        replaced("bitsandbytes nf4, double", bitsandbytes__nf4=state(nested_blocksize=4, nested_offset=10**400)),
        replaced("bitsandbytes nf4, double", bitsandbytes__nf4=state(nested_blocksize=4, nested_offset=True)),
    ),
    "tensor 'x.weight' has shape (80,); allowed are two axes or more": (
        replaced("ModelOpt NVFP4", weight=zeros("U8", 80)),
    ),
    "tensor 'x.weight.quant_state.bitsandbytes__nf4' has shape=[-1]": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=state(shape=[-1])),
    ),
    "tensor 'x.weight' has 193 bytes; allowed are 549755813888 for the shape": (
        replaced("bitsandbytes nf4", bitsandbytes__nf4=state(shape=[1 << 20, 1 << 20])),
    ),
    "tensor 'x.weight.nested_absmax' needs nested_blocksize": (
        replaced("bitsandbytes nf4, double", bitsandbytes__nf4=state()),
    ),
    "tensor 'x.weight.nested_quant_map' has shape (255,)": (
        replaced("bitsandbytes nf4, double", nested_quant_map=zeros("F32", 255)),
    ),
    "tensor 'x.SCB' has shape (5,)": (replaced("bitsandbytes int8", SCB=zeros("F32", 5)),),
    "the file has parts of weights in a dialect that is not known, quant_method=None: 'x.weight' (U8, [5, 16])": (
        replaced("ModelOpt NVFP4", weight_scale_2=None),
    ),
    "the file has parts of weights in a dialect that is not known, quant_method=None: 'x.weight' (U8, [4, 4])": (
        {"x.weight": zeros("U8", 4, 4)},
    ),
    "there are two weights named 'x.weight'": (
        replaced("GPTQ") | {"x.weight": zeros("F32", 4)},
        replaced("GPTQ") | replaced("ModelOpt NVFP4"),
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_tensors(words, tmp_path):
    for tensors in WRONG[words]:
        write(tmp_path / "w.safetensors", tensors)
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            load_quantized(tmp_path / "w.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_any_tensor_may_be_missing(case, tmp_path):
    """The rest is plain arrays, another dialect, or an error that names a tensor of the file."""
    tensors = CASES[case](np.random.default_rng(0))[0]
    for name in tensors:
        write(tmp_path / "w.safetensors", {one: tensors[one] for one in tensors if one != name})
        try:
            load_quantized(tmp_path / "w.safetensors")
        except ValueError as error:
            assert any(repr(one) in str(error) for one in (*tensors, "x.weight")), error  # noqa: PT017


def test_pipes_and_devices_are_refused(tmp_path):
    for place in ("w.safetensors", "w.gguf", "model.safetensors.index.json"):
        os.mkfifo(tmp_path / place)
        with pytest.raises(ValueError, match=f"{place}' is a pipe or a device; allowed is a file on a disk"):
            load_quantized(tmp_path / place)
        with pytest.raises(ValueError, match=f"{place}' is a pipe or a device; allowed is a file on a disk"):
            checkpoint.load_file(tmp_path / place)
        (tmp_path / place).unlink()
    write(tmp_path / "a.safetensors", {"x": zeros("F32", 2)})
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"config\.json' is a pipe or a device"):
        load_quantized(tmp_path / "a.safetensors")
    (tmp_path / "w.safetensors").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is a pipe or a device"):
        load_quantized(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("case", "fields", "message"),
    [
        ("int4 in words", {"num_bits": 8}, "words for [0-9]+ integers; the configuration has 8 bits each"),
        ("int4 in words", {"group_size": 8}, "scales along axis 1 of [0-9]+; the configuration has blocks of 8"),
        ("DeepSeek FP8", {"weight_block_size": [64, 64]}, "the configuration has blocks of 64"),
        ("GPTQ", {"bits": 8}, "the configuration has 8 bits each"),
    ],
)
def test_configurations_that_contradict_shapes(case, fields, message, tmp_path):
    name = next(one for one in CASES if one.startswith(case))
    write(tmp_path / "w.safetensors", CASES[name](np.random.default_rng(0))[0])
    load_quantized(tmp_path / "w.safetensors")
    method = "gptq" if "bits" in fields else "compressed-tensors"
    text = json.dumps({"quantization_config": {"quant_method": method, **fields}})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_quantized(tmp_path / "w.safetensors")


def test_wrong_indices_and_configurations(tmp_path):
    write(tmp_path / "a.safetensors", {"x": zeros("F32", 2)})
    index = tmp_path / "model.safetensors.index.json"
    place = "weight_map of model.safetensors.index.json"
    for text, words in {
        "[": "model.safetensors.index.json is not JSON",
        "[]": "model.safetensors.index.json is a list",
        "{}": f"{place} is None",
        '{"weight_map": {"x": "../a.safetensors"}}': f"{place} has the file '../a.safetensors'",
        '{"weight_map": {"x": "/etc/passwd"}}': f"{place} has the file '/etc/passwd'",
        '{"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}': "tensor 'y' is not in a.safetensors",
        '{"weight_map": {}}': None,
    }.items():
        index.write_text(text, encoding="utf-8")
        if words is None:
            assert load_quantized(tmp_path) == {}
            continue
        with pytest.raises(ValueError, match="^" + re.escape(words)):
            load_quantized(tmp_path)
    index.unlink()
    for text in ("[", "[]"):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"^config.json is "):
            load_quantized(tmp_path / "a.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "hqq"}}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"quant_method='hqq': none by name; allowed are compressed-tensors"):
        load_quantized(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError):
        load_quantized(tmp_path / "b.safetensors")
    (tmp_path / "config.json").unlink()
    write(tmp_path / "c.safetensors", {"x": zeros("F32", 2)})
    with pytest.raises(FileNotFoundError, match=r"has 2 files .safetensors and no"):
        load_quantized(tmp_path)


WRITTEN = [name for name in ENCODERS if not name.startswith(("compressed-tensors nvfp4", "bitsandbytes 4"))]


@pytest.mark.parametrize("dialect", WRITTEN)
def test_scales_of_weights_that_were_encoded_by_hand(dialect, tmp_path):
    """They are written, though the weight comes from no file; each file is the one of `encode_weight`."""
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    mine = encode_weight(x, dialect)
    hand = Encoded(mine.codes, mine.number, mine.scales, mine.factor, dialect)
    for name, value in (("mine", mine), ("hand", hand)):
        save_quantized(tmp_path / f"{name}.safetensors", {"x.weight": value})
    assert (tmp_path / "mine.safetensors").read_bytes() == (tmp_path / "hand.safetensors").read_bytes()
    assert (load_quantized(tmp_path / "hand.safetensors")["x.weight"].dequantize() == mine.dequantize()).all()
    assert abs(mine.dequantize() - x).max() < 1  # of numbers up to 5


@pytest.mark.parametrize("dialect", ["compressed-tensors nvfp4", "bitsandbytes 4 bits"])
def test_scales_that_cannot_be_written(dialect, tmp_path):
    mine = encode_weight(np.ones((64, 64), np.float32), dialect)
    hand = Encoded(mine.codes, mine.number, mine.scales, mine.factor, dialect)
    with pytest.raises(ValueError, match=r"^entry 'w': '.*' without tensors of scales; allowed is what encode_weight"):
        save_quantized(tmp_path / "w.safetensors", {"w": hand})


def test_wrong_arguments(tmp_path):
    x = np.ones((2, 16), np.float32)
    for call, kind, words in (
        (lambda: load_quantized(3), TypeError, "path is a int; allowed is a str or os.PathLike"),
        (lambda: save_quantized(tmp_path / "w", [x]), TypeError, "entries is a list; allowed is a dict"),
        (lambda: save_quantized(tmp_path / "w", {3: x}), TypeError, "the name 3 of entries is a int"),
        (lambda: save_quantized(tmp_path / "w", {"a": 3}), TypeError, "entry 'a' is a int; allowed is an Encoded"),
        (lambda: save_quantized(tmp_path / "w", {"a": np.array("x")}), ValueError, "entry 'a': an array of <U1"),
        (lambda: encode_weight(x, "int4"), ValueError, "dialect='int4'; allowed are ModelOpt NVFP4"),
        (
            lambda: encode_weight(x[:, :8], "ModelOpt NVFP4"),
            ValueError,
            "x has shape (2, 8); allowed are rows",
        ),
        (lambda: encode_weight(x[0], "DeepSeek FP8"), ValueError, "x has shape (16,); allowed are two axes or more"),
    ):
        with pytest.raises(kind, match="^" + re.escape(words)):
            call()
    both = {"a": encode_weight(x, "ModelOpt NVFP4"), "a_scale": x}
    with pytest.raises(ValueError, match=r"^there are two tensors named 'a_scale'; allowed is one"):
        save_quantized(tmp_path / "w", both)


def test_safetensors_reads_what_is_written(tmp_path):
    rng = np.random.default_rng(0)
    dtypes = ["f4", "f2", "f8", "i8", "u4", "u2", "i1", "u1", "?"]
    arrays = {f"a{i}": rng.integers(0, 9, (i, 3)).astype(dtype) for i, dtype in enumerate(dtypes)}
    save_quantized(tmp_path / "ours", arrays)
    save_file(arrays, tmp_path / "theirs")
    with safe_open(tmp_path / "ours", "numpy") as file:
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            assert file.get_tensor(name).dtype == array.dtype
            assert (file.get_tensor(name) == array).all()
    found = load_quantized(tmp_path / "theirs")
    assert all((found[name] == array).all() and found[name].dtype == array.dtype for name, array in arrays.items())
    codes = encode_weight(np.ones((128, 128), np.float32), "DeepSeek FP8")
    save_quantized(tmp_path / "codes", {"w": codes})
    with safe_open(tmp_path / "codes", "torch") as file:
        assert str(file.get_tensor("w").dtype) == "torch.float8_e4m3fn"
        assert e4m3(codes.codes).max() == 448
