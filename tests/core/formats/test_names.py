"""The types of named formats have the names of the table, each in the group of its codes."""

from typing import get_args

import numpy as np

import qcore
from qcore.formats.foreign import BytesNumber
from qcore.formats.names import NAMED, BlockName, Nested, Single, SingleName

X = np.ones((2, 32), np.float32)


def test_the_types_have_all_names_in_order():
    nested = ("nvfp4",)
    assert (*get_args(SingleName), *get_args(BlockName), *nested) == (*NAMED,)
    assert [get_args(one) for one in get_args(Nested) if get_args(one)] == [nested]


def test_names_are_in_the_group_of_their_codes():
    results = {name: qcore.encode(X, number) for name, (number, _) in NAMED.items()}
    assert all(isinstance(results[name], np.ndarray) for name in get_args(SingleName))
    for name in (*get_args(BlockName), "nvfp4"):
        _, scales = results[name]
        assert isinstance(scales, tuple if name == "nvfp4" else np.ndarray), name


def test_classes_are_in_the_group_of_their_codes():
    singles = {type(NAMED[name][0]) for name in get_args(SingleName)} | {BytesNumber}
    assert {one for one in get_args(Single) if isinstance(one, type)} == singles
    assert isinstance(qcore.encode(X, "gguf(q4_0)"), np.ndarray)
    for text, nested in (("nf4(block=64)", False), ("nf4(block=64,nested=256)", True)):
        codes, scales = qcore.encode(X, qcore.parse(text))
        assert isinstance(qcore.parse(text), get_args(Nested)[:2])
        assert isinstance(codes, np.ndarray)
        assert isinstance(scales, tuple) == nested
