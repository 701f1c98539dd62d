"""GGUF files: gguf-py reads what is written and writes what is read; files that nobody's program wrote."""

import re
import struct
from contextlib import suppress

import gguf
import numpy as np
import pytest
from support import assert_same_bits

import qcore
from qcore.exchange.formats.gguf_law import LAYOUTS
from qcore.exchange.gguf import Contents, Tensor, read, write

X = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
METADATA = {
    "general.architecture": "llama",
    "a.count": 7,
    "a.small": np.int8(-3),
    "a.flag": True,
    "a.eps": 1e-5,
    "a.wide": np.float64(0.1),
    "a.negative": -(2**40),
    "a.scores": np.float32([0.5, -1]),
    "a.flags": np.array([True, False]),
    "a.tokens": ["<s>", "ä", ""],
    "a.nested": [np.int32([1, 2]), np.int32([3])],
}


def tensors():
    found = {"plain": Tensor("F32", X.shape, X), "half": Tensor("F16", (256,), X[0].astype(np.float16))}
    for kind in ("q4_0", "q8_0", "tq1_0", "mxfp4"):
        found[kind] = Tensor(kind.upper(), X.shape, qcore.encode(X, f"gguf({kind})"))
    return found


def test_another_program_reads_what_was_written(tmp_path):
    write(tmp_path / "w.gguf", tensors(), METADATA)
    reader = gguf.GGUFReader(tmp_path / "w.gguf")
    assert [tensor.name for tensor in reader.tensors] == list(tensors())
    for tensor in reader.tensors:
        kind, shape, data = tensors()[tensor.name]
        assert (tensor.tensor_type.name, tuple(tensor.shape[::-1])) == (kind, shape)
        assert tensor.data.tobytes() == data.tobytes()
    values = {key: field.contents() for key, field in reader.fields.items() if key != "a.nested"}
    assert (values["a.count"], values["a.negative"]) == (7, -(2**40))
    assert (values["a.tokens"], values["a.scores"]) == (["<s>", "ä", ""], [0.5, -1])
    assert (values["a.flag"], values["a.small"], values["general.architecture"]) == (True, -3, "llama")


def test_what_was_written_is_read(tmp_path):
    write(tmp_path / "w.gguf", tensors(), METADATA)
    contents = read(tmp_path / "w.gguf")
    for name, (kind, shape, data) in tensors().items():
        assert contents.tensors[name][:2] == (kind, shape)
        assert contents.tensors[name].data.tobytes() == data.tobytes()
    assert contents.metadata["a.tokens"] == METADATA["a.tokens"]
    assert [type(contents.metadata[key]) for key in ("a.count", "a.eps")] == [np.uint32, np.float32]
    write(tmp_path / "again.gguf", *contents)
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "w.gguf").read_bytes()


def test_what_another_program_wrote_is_read(tmp_path):
    """All types that gguf-py can write raw, and an alignment of 64."""
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_custom_alignment(64)
    rows = {}
    for kind, layout in LAYOUTS.items():
        if kind in ("q1_0", "q2_0"):
            continue
        rows[kind] = np.random.default_rng(1).integers(0, 256, (5, 2 * layout.width), np.uint8)
        writer.add_tensor(kind, rows[kind], raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.add_tensor("bias", X[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    contents = read(tmp_path / "w.gguf")
    assert contents.metadata["general.alignment"] == 64
    for kind, row in rows.items():
        found = contents.tensors[kind]
        assert found[:2] == (kind.upper(), (5, 2 * LAYOUTS[kind].size))
        decoded = qcore.decode(found.data.reshape(5, -1), f"gguf({kind})")
        assert_same_bits(decoded, qcore.decode(row, f"gguf({kind})"))
    assert_same_bits(contents.tensors["bias"].data.view(np.float32), X[0])


def text(word):
    return struct.pack("<Q", len(word)) + word


def file_of(pairs=(), rows=(), data=b"", version=3, counts=None, magic=b"GGUF"):
    counts = (len(rows), len(pairs)) if counts is None else counts
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(rows)
    return head + bytes(-len(head) % 32) + data


def row(name=b"w", axes=(32,), kind=8, offset=0):
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


ALIGNMENT = text(b"general.alignment")
WRONG = {
    "the header of w.gguf does not begin with GGUF; allowed is a GGUF file": b"GGUF",
    "the header of w.gguf does not begin": file_of(magic=b"GGML"),
    "the header of w.gguf has version 1; allowed is version 2 or 3": file_of(version=1),
    "the header of w.gguf has version 50331648 in the order of bytes of big-endian": file_of(version=3 << 24),
    "the header of w.gguf has 18446744073709551615 tensors; allowed is at most": file_of(counts=(2**64 - 1, 0)),
    "the header of w.gguf has 4294967296 pairs of metadata; allowed is at most": file_of(counts=(0, 2**32)),
    "pair 0 of the metadata of w.gguf has 9223372036854775807 bytes where": file_of(
        [struct.pack("<Q", 2**63 - 1) + bytes(5)]
    ),
    "metadata 'a' of w.gguf has the type 13": file_of([text(b"a") + struct.pack("<IQ", 13, 0)]),
    "metadata 'a' of w.gguf has 1099511627776 numbers": file_of([text(b"a") + struct.pack("<IIQ", 9, 4, 2**40)]),
    "metadata 'a' of w.gguf has 1099511627776 values": file_of([text(b"a") + struct.pack("<IIQ", 9, 8, 2**40)]),
    "metadata 'a' of w.gguf has arrays inside of each other": file_of(
        [text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 6]
    ),
    "metadata 'a' of w.gguf has the byte 2; allowed is 0 and 1": file_of([text(b"a") + struct.pack("<IB", 7, 2)]),
    "metadata 'a' of w.gguf comes twice": file_of([text(b"a") + struct.pack("<II", 4, 1)] * 2),
    "pair 0 of the metadata of w.gguf has the text b'\\xff'; allowed is UTF-8": file_of(
        [text(b"\xff") + struct.pack("<II", 4, 1)]
    ),
    "general.alignment of w.gguf is 0; allowed is a power of two": file_of([ALIGNMENT + struct.pack("<II", 4, 0)]),
    "general.alignment of w.gguf is 24; allowed is a power of two": file_of([ALIGNMENT + struct.pack("<II", 4, 24)]),
    "general.alignment of w.gguf is 'x'": file_of([ALIGNMENT + struct.pack("<I", 8) + text(b"x")]),
    "tensor 'w' of w.gguf comes twice": file_of(rows=[row(), row()]),
    "tensor 'w' of w.gguf has 0 axes; allowed is 1 to 4": file_of(rows=[row(axes=())]),
    "tensor 'w' of w.gguf has 5 axes": file_of(rows=[row(axes=(1,) * 5)]),
    "tensor 'w' of w.gguf has 4294967295 axes": file_of(
        rows=[text(b"w") + struct.pack("<IQQ", 2**32 - 1, 1, 1)], data=bytes(64)
    ),
    "tensor 'w' of w.gguf has the type 4": file_of(rows=[row(kind=4)]),
    "tensor 'w' of w.gguf has the type IQ2_XXS; allowed are F32": file_of(rows=[row(kind=16)]),
    "tensor 'w' of w.gguf has rows of 33; allowed for Q8_0 are multiples of 32": file_of(rows=[row(axes=(33,))]),
    "tensor 'w' of w.gguf has the lengths [32, 4611686018427387904]": file_of(rows=[row(axes=(32, 1 << 62))]),
    "tensor 'w' of w.gguf has the lengths [0, 2305843009213693952]; allowed are up to 2^59 elements": file_of(
        rows=[row(axes=(0, 1 << 61))]
    ),
    "tensor 'w' of w.gguf has the lengths [0, 9223372036854775808]": file_of(rows=[row(axes=(0, 1 << 63))]),
    "tensor 'w' of w.gguf begins at byte 7; allowed is a multiple of 32": file_of(rows=[row(offset=7)]),
    "tensor 'w' of w.gguf has 34 bytes from byte 0 on; allowed is what lies in the file's 33": file_of(
        rows=[row()], data=bytes(33)
    ),
    "tensor 'w' of w.gguf has 34 bytes from byte 18446744073709551584 on": file_of(rows=[row(offset=2**64 - 32)]),
    "tensor 'w' of w.gguf has 37383395344384 bytes": file_of(rows=[row(axes=(1 << 20, 1 << 25))]),
    "tensor 'v' of w.gguf begins at byte 32; allowed is a place from 34 on": file_of(
        rows=[row(), row(b"v", offset=32)], data=bytes(128)
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_files(words, tmp_path):
    (tmp_path / "w.gguf").write_bytes(WRONG[words])
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        read(tmp_path / "w.gguf")


def test_every_cut_and_many_changes(tmp_path):
    """A file that was cut off anywhere raises; one with changed bytes raises a ValueError or is a file."""
    path = tmp_path / "w.gguf"
    write(path, {"a": tensors()["q8_0"], "b": tensors()["half"]}, METADATA)
    whole, rng = path.read_bytes(), np.random.default_rng(2)
    for end in range(len(whole) - 1, -1, -37):
        path.write_bytes(whole[:end])
        if whole[end:].strip(b"\0"):  # else only the filling at the end is missing
            with pytest.raises(ValueError, match=r"w\.gguf"):
                read(path)
    header = whole.index(tensors()["q8_0"].data.tobytes())
    read_again = 0
    for _ in range(400):
        changed = bytearray(whole)
        for place in rng.integers(0, header, rng.integers(1, 4)):
            changed[place] = rng.choice([0, 1, 255, changed[place] ^ 1 << int(rng.integers(8))])
        path.write_bytes(changed)
        with suppress(ValueError):
            read_again += isinstance(read(path), Contents)
    assert 50 < read_again < 390


BAD = {
    "tensor 'w' has 4 bytes; allowed for F32 of (2,) are 8": ({"w": Tensor("F32", (2,), X[0, :1])}, {}),
    "tensor 'w' has type 'Q9'": ({"w": Tensor("Q9", (2,), X[0, :2])}, {}),
    "tensor 'w' has rows of 33": ({"w": Tensor("Q8_0", (33,), X)}, {}),
    "metadata 'a' is a complex": ({}, {"a": 1j}),
    "metadata 'a' has dtype float16": ({}, {"a": np.float16(1)}),
    "metadata 'a' is 18446744073709551616": ({}, {"a": 2**64}),
    "tensor 'w' is a ndarray": ({"w": X}, {}),
}


@pytest.mark.parametrize("words", BAD)
def test_wrong_contents(words, tmp_path):
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(words)):
        write(tmp_path / "w.gguf", *BAD[words])
    assert not list(tmp_path.iterdir())
