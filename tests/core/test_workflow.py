"""The law of flows: layers in a row, clamped results, and the tensors that may be integers, by trying all sets."""

import random
import re
from itertools import chain, combinations

import pytest

from qcore.workflow.conversion import check_seen
from qcore.workflow.flow import Call, Flow, Flows
from qcore.workflow.fusion import Kind, Norm, check_row, rows_to_fuse, why_not_fused
from qcore.workflow.settings import (
    check_effects,
    check_entries,
    dynamic_entries,
    first_and_all,
    why_no_form,
)


def flow(*steps, returned=()):
    return Flow([Call(*step) for step in steps], returned)


ROW = [("conv", [0], [1]), ("norm", [1], [2]), (None, [2], [3], False, (0.0, None)), ("fc", [3], [4])]
SHARED = [("conv", [0], [1]), ("norm", [1], [2]), ("norm", [2], [3]), ("fc", [3], [4])]
FORKED = [("conv", [0], [1]), ("norm", [1], [2]), (None, [1], [5])]
IN_PLACE = [("conv", [0], [1]), ("relu", [1], [1], True, (0.0, None)), (None, [1], [2])]


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (ROW, [(["conv", "norm"], True)]),
        (SHARED, []),
        (FORKED, []),
        (IN_PLACE, [(["conv", "relu"], False)]),
        ([("a", [0], [1]), ("b", [1], [2]), ("c", [2], [3]), ("d", [3], [4])], [(["a", "b", "c"], False)]),
    ],
)
def test_rows_are_the_longest_of_layers_that_run_once(steps, found):
    def fused(row, function):
        return function is not None if len(row) > 1 else None

    assert list(flow(*steps).rows(lambda path: path != "fc", fused)) == found


def test_layers_get_the_bounds_of_what_alone_follows():
    names = ["conv", "norm", "fc"]
    assert flow(*ROW).clamped(names) == {"norm": (0.0, None)}
    assert flow(*IN_PLACE).clamped(names) == {"conv": (0.0, None)}
    assert flow(*ROW, (None, [2], [9])).clamped(names) == {}
    assert flow(*ROW, returned=[2]).clamped(names) == {}
    assert flow(("conv", [0], [1]), (None, [1, 5], [2], False, (0.0, None))).clamped(names) == {}


JOIN = [("a", [0], [1]), ("b", [0], [2]), (None, [1, 2], [3], False, (None, None), True)]
ENDS = {"a": (True, True), "b": (True, True), "c": (True, False)}


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ([], ["a", "b"]),
        ([(None, [3], [4], False, (0.0, None)), ("drop", [4], [4], True)], ["a", "b"]),
        ([(None, [3, 9], [4], False, (None, None), True)], ["a", "b"]),
        ([(None, [3], [4])], []),
        ([(None, [1], [8])], ["b"]),
        ([(None, [3], [8])], []),
    ],
)
def test_layers_have_the_quantizer_behind_a_join(between, found):
    last = max(max(step[2]) for step in [*JOIN, *(one for one in between if one[2] != [8])])
    steps = flow(*JOIN, *between, ("c", [last], [7]))
    assert steps.joined(ENDS) == dict.fromkeys(found, "c")
    assert Flows([steps, flow(*JOIN, returned=[3])]).joined(ENDS) == {}
    assert steps.joined(ENDS | {"c": (False, False)}) == {}


def largest(steps, layers, returned):
    """The largest set of tensors that may all be integers, among all sets."""
    givers = {tensor: step for step in steps for tensor in step.gives}

    def fits(some):
        for tensor in some:
            giver, takers = givers[tensor], [step for step in steps if tensor in step.takes]
            given = giver.path in layers or (giver.keeps and some.issuperset(giver.takes))
            if not given or not all(
                step.path in layers or (step.keeps and some.issuperset(step.gives)) for step in takers
            ):
                return False
        return True

    free = [tensor for tensor in givers if tensor not in returned]
    sets = chain.from_iterable(combinations(free, count) for count in range(len(free), -1, -1))
    return next(some for some in map(set, sets) if fits(some))


@pytest.mark.parametrize("seed", range(60))
def test_stubs_stand_where_no_set_of_integers_reaches(seed):
    draw = random.Random(seed)
    steps = []
    for number in range(1, 9):
        keeps = draw.random() < 0.4
        takes = draw.sample(range(number), 1 if keeps else draw.randint(1, min(2, number)))
        layer = not keeps and draw.random() < 0.7
        steps.append(Call(f"layer{number}" if layer else None, takes, [number], keeps))
    layers = [step.path for step in steps if step.path is not None]
    returned = {8, draw.randint(1, 8)}
    integers = largest(steps, layers, returned)
    assert Flow(steps, returned).stubs(layers) == {
        step.path: (not integers.issuperset(step.takes), not integers.issuperset(step.gives))
        for step in steps
        if step.path in layers
    }


def drawn(draw, names):
    """A run of some of the layers, each of one tensor and once, with functions between them."""
    steps = []
    for number, name in enumerate(draw.sample(names, draw.randint(2, len(names))), 1):
        takes = [draw.choice(range(max(0, 3 * number - 7), 3 * number - 2))]
        steps.append(Call(name, takes, [3 * number - 2]))
        for tensor in (3 * number - 1, 3 * number):
            steps.append(Call(None, [draw.choice(range(max(0, tensor - 3), tensor))], [tensor], draw.random() < 0.7))
    return Flow(steps, {steps[-1].gives[0]})


def runs(flow, stubs):
    """True if each layer and function gets the kind of tensors that it takes: floats, or integers if it has no stub."""
    integers = set()
    for step in flow.calls:
        has = {tensor in integers for tensor in step.takes}
        if step.path is not None and has != {not stubs[step.path][0]}:
            return False
        if step.path is None and not step.keeps and True in has:
            return False
        gives = True in has if step.path is None else not stubs[step.path][1]
        integers |= set(step.gives) if gives else set()
    return not integers & flow.returned


@pytest.mark.parametrize("seed", range(60))
def test_stubs_suit_all_runs(seed):
    draw, names = random.Random(seed), list("abcde")
    flows = [drawn(draw, names) for _ in range(draw.randint(1, 3))]
    stubs = Flows(flows).stubs(names)
    assert all(runs(flow, stubs) for flow in flows)
    assert all(stubs[name] == (True, True) for name in names if not any(name in flow.by_path for flow in flows))
    for flow in flows:  # what one run refuses, all do
        alone = flow.stubs(names)
        for name in flow.by_path:
            assert all(one <= both for one, both in zip(alone[name], stubs[name], strict=True))
    assert Flows(flows[:1]).stubs(names) == flows[0].stubs(names)


def test_rows_and_bounds_are_those_of_all_runs():
    def rows(*flows):
        return list(Flows(flows).rows(lambda path: True, lambda row, function: len(row) > 1 or None))

    first, other = flow(*ROW), flow(("conv", [0], [1]), ("norm", [1], [2]), ("fc", [2], [3]))
    assert rows(first) == rows(first, first) == rows(first, flow(("fc", [0], [1]))) == [(["conv", "norm"], True)]
    assert rows(first, flow(*FORKED)) == rows(first, flow(*SHARED)) == []
    assert Flows([first, first]).clamped(["norm", "fc"]) == {"norm": (0.0, None)}
    assert Flows([first, flow(("fc", [0], [1]))]).clamped(["norm", "none"]) == {"norm": (0.0, None)}
    assert Flows([first, other]).clamped(["norm"]) == Flows([other, first]).clamped(["norm"]) == {}
    assert first.way() == flow(*ROW).way() != other.way()


def test_only_the_calls_that_give_integers_give_them():
    made = flow(("a", [0], [1]), (None, [1], [2], True), ("b", [2], [3]))
    assert made.stubs(["a", "b"]) == {"a": (True, False), "b": (False, False)}
    assert made.stubs(["a", "b"], [made.calls[0]]) == {"a": (True, True), "b": (True, True)}
    assert flow(("a", [0], [1]), ("a", [1], [2]), ("b", [2], [3])).stubs(["a", "b"])["a"] == (True, True)


def test_floats_stay_floats_where_a_layer_writes_over_them():
    made = flow((None, [0], [1]), ("a", [1], [1]), ("b", [1], [2]))
    assert made.stubs(["a", "b"]) == {"a": (True, True), "b": (True, False)}


def test_wrong_settings_and_data_are_named():
    modules = [("", 1), ("fc", 2.0)]
    check_entries({"": 0, "fc": None, float: 0}, modules, type, [int])
    for key, words in (
        ("x", "'x' names no module; there are fc"),
        (bool, "exact type of no module"),
        (3, "the entry 3 is a int"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            check_entries({key: 0}, modules, type, [int])
    first, batches = first_and_all(iter([1, 2]), lambda one: False)
    assert (first, list(batches)) == (1, [1, 2])
    with pytest.raises(ValueError, match="calibrate has no inputs"):
        first_and_all([], lambda one: False)


class Leaf:
    pass


class Tree(Leaf):
    pass


MODULES = [("", Tree()), ("a", Tree()), ("a.0", Leaf()), ("b", Leaf())]


@pytest.mark.parametrize(
    ("entries", "done", "message"),
    [
        ({"": 1, "b": None}, ["a.0"], None),
        ({"a": 1, Leaf: 1}, ["a.0"], None),
        ({Tree: 1}, ["b"], None),
        ({"": 1}, [], r"^model has no layer; there are .*Leaf, .*Tree; more$"),
        ({"b": 1}, ["a.0", "b2"], "^the entry 'b' has no layer$"),
        ({Leaf: 1, "": 1}, ["a"], "^the entry Leaf has no layer$"),
    ],
)
def test_each_entry_changes_a_layer(entries, done, message):
    def check():
        check_effects(entries, MODULES, type, pytest, done, "layer", "; more")

    if message is None:
        return check()
    with pytest.raises(ValueError, match=message):
        check()


@pytest.mark.parametrize("wrong", ["0", Leaf, 3, [3]])
def test_settings_of_dynamic_layers(wrong):
    assert dynamic_entries({"a": 2}, 1) == {"a": 2}
    assert dynamic_entries(iter(["a", Leaf]), 1) == {"a": 1, Leaf: 1}  # which is read once
    with pytest.raises(
        TypeError, match="each of qconfig_spec" if wrong == [3] else "is a .*; allowed are None, a dict"
    ):
        dynamic_entries(wrong, 1)


CONV, NORM, RELU, LINEAR, TRANSPOSED = map(Kind, ("convolution", "norm", "relu", "linear", "transposed"))
FITS = Norm(4, 4, True, True, "scale=True")
# Rows, whether they are fused in evaluation, and in training.
FUSED_ROWS = [
    ((CONV, NORM), True, True),
    ((CONV, NORM, RELU), True, True),
    ((CONV, RELU), True, True),
    ((LINEAR, RELU), True, True),
    ((LINEAR, NORM), True, False),
    ((LINEAR, NORM, RELU), True, False),
    ((TRANSPOSED, NORM), True, False),
    ((TRANSPOSED, NORM, RELU), False, False),
    ((TRANSPOSED, RELU), False, False),
    ((NORM, RELU), True, True),
    ((Kind("norm", 1), RELU), False, False),
    ((Kind("convolution", 2), Kind("norm", 2)), True, True),
    ((Kind("convolution", 2), Kind("norm", 1)), False, False),
    ((CONV,), False, False),
    ((CONV, RELU, RELU), False, False),
    ((RELU, CONV), False, False),
    ((NORM, NORM, RELU), False, False),
    ((CONV, Kind("")), False, False),
]


@pytest.mark.parametrize(("row", "evaluated", "trained"), FUSED_ROWS)
def test_rows_that_become_one_layer(row, evaluated, trained):
    names, norm = [kind.name for kind in row], FITS if NORM in row[1:] else None
    assert [not why_not_fused(names, row, training, norm) for training in (False, True)] == [evaluated, trained]


@pytest.mark.parametrize(
    ("norm", "training", "message"),
    [
        (FITS._replace(features=3), False, "num_features=3; allowed is 4, as the layer's outputs"),
        (FITS._replace(has_statistics=False), False, "no running statistics or, .*; allowed are scale=True"),
        (FITS._replace(has_scale=False), True, "no running statistics or, .*; allowed are scale=True"),
        (FITS._replace(has_scale=False), False, "^$"),
    ],
)
def test_a_norm_fits_the_layer_before_it(norm, training, message):
    assert re.search(message, why_not_fused(["Conv", "Norm"], [CONV, NORM], training, norm))


SHARED_LEAF = Leaf()
NAMES = {"": Tree(), "a": Leaf(), "b": Leaf(), "c": SHARED_LEAF, "d": SHARED_LEAF}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("ab", "has 'ab'; allowed are lists of names"),
        ([["a"], 3], "has 3; allowed are lists of names"),
        ([["a", 3]], "has 3; allowed are lists of names"),
        (["a", "9"], "has '9', which names no module; there are a, b, c, d"),
        ([], r"has \[\]; allowed are two or more layers"),
        (["a", "a"], ".*allowed are two or more layers"),
        (["a", "d"], r"has 'd', which is one layer with the names \['c', 'd'\]"),
    ],
)
def test_names_of_rows(rows, message):
    with pytest.raises((TypeError, ValueError), match=f"^modules_to_fuse {message}"):
        [check_row(row, NAMES) for row in rows_to_fuse(rows)]


def test_rows_are_one_list_or_a_list_of_lists():
    assert [*rows_to_fuse(["a", "b"])] == [["a", "b"]]
    assert [*rows_to_fuse((("a", "b"), ["c"]))] == [("a", "b"), ["c"]]
    check_row(["a"], NAMES, least=1)  # with a function behind it


def test_layers_that_saw_nothing_are_said():
    check_seen([], False, "leave it out")
    with pytest.raises(
        ValueError, match=r"^layer 'a', the model itself have an observer .*, leave it out, or pass allow_un"
    ):
        check_seen(["a", ""], False, "leave it out")
    with pytest.warns(
        UserWarning, match=r"^layer 'a' has an observer that has seen nothing, and will raise when called; "
    ):
        check_seen(["a"], True, "leave it out")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((["Base"], ["p"], "nn.A", True, ": x"), "it is of a subclass of Base, and only exact types are swapped: x"),
        (([], ["p", "q"], "nn.A", True), "code of its own uses its p, q"),
        (([], [], "", True), "there is no dynamic A: a QConfig, and data, quantize it"),
        (
            ([], [], "nn.A"),
            "there is no quantized A with fixed ranges: the settings {nn.A: default_dynamic_qconfig} have one",
        ),
        (([], []), "there is no quantized A"),
    ],
)
def test_reasons_have_an_order(facts, reason):
    assert why_no_form("A", *facts) == reason
