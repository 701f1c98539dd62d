"""The steps of the workflow, over a tree of modules that no framework made."""

import pytest

from qcore.workflow.conversion import Conversion
from qcore.workflow.preparation import Preparation
from qcore.workflow.reporting import Rounding
from qcore.workflow.tree import Tree, propagated, tie, ties_of


class Module:
    def __init__(self, kind="box", settings=None, weight=None, seen=None, **children):
        self.kind, self.settings, self.weight, self.children, self.notes = kind, settings, weight, children, {}
        self.seen = seen  # None without an observer, True or False with one


class Toys(Tree):
    """A layer of the kind "fc" is a leaf; its weight is a list of one number."""

    def class_of(self, module):
        return {"box": dict, "fc": int, "stub": str, "end": float}[module.kind]

    def named(self, model):
        def visit(path, module):
            yield path, module
            for name, child in module.children.items():
                yield from visit(f"{path}.{name}".lstrip("."), child)

        return list(visit("", model))

    def walk(self, model):
        seen = set()
        return [(path, one) for path, one in self.named(model) if not (one in seen or seen.add(one))]

    def children(self, module):
        return list(module.children.items())

    def rebuilt(self, model, change):
        done = {}

        def visit(path, module):
            if module not in done:
                for name, child in module.children.items():
                    module.children[name] = visit(f"{path}.{name}".lstrip("."), child)
                done[module] = change(path, module)
            return done[module]

        return visit("", model)

    def parameters(self, module):
        return [] if module.weight is None else [id(module.weight)]

    def weights(self, module):
        return [] if module.weight is None else [(module, "weight", module.weight)]

    def same(self, weight, other):
        return weight == other


class Preparing(Toys, Preparation):
    def settings(self, path, layer):
        return layer.settings

    def needs_no_observer(self, path, layer, settings):
        return settings == "format"

    def is_observed(self, layer, settings):
        return layer.kind == "fc"

    def is_prepared(self, layer):
        return layer.seen is not None

    def observed(self, path, layer, settings):
        layer.seen = False
        return layer


class Converting(Toys, Conversion):
    stub, dequantize, left_out = type("Stub", (), {}), type("DeQuantize", (), {}), "leave it"
    unprepared = "nothing to convert"

    def __init__(self, times=1, **calls):
        self.counts = times, calls

    def is_known(self, layer):
        return layer.settings is not None

    def is_observed(self, layer):
        return layer.settings == "integers"

    def is_rounded(self, layer):
        return layer.settings == "format"

    def observer(self, layer):
        return layer.seen

    def rounding(self, observer):
        return Rounding("Seen", form=object())

    def unseen(self, layer):
        return () if layer.seen else ("output",)

    def has_scalars(self, layer):
        return layer.notes.get("scalars", False)

    def with_some_range(self, layer, names):
        layer.notes["some"] = names
        return layer

    def runs(self, model):
        return self.counts

    def floats(self, model):
        return [("narrow", 9), ("wide", 4)]

    def rounded(self, path, layer):
        return layer

    def final(self, path, layer):
        if layer.settings is None:
            return layer
        made = Module("fc", weight=list(layer.weight))
        made.notes = layer.notes | {"made": path}
        return made

    def explain(self, path, layer, in_integers):
        layer.notes["why"] = in_integers

    def refuse(self, path, made):
        made.notes["refused"] = True


def model(first="integers", second="integers", seen=(True, True)):
    weight = [1]
    return Module(
        a=Module("fc", first, weight, seen[0]), b=Module(c=Module("fc", second, weight, seen[1])), d=Module("box")
    )


def test_settings_are_of_the_name_then_of_the_type_then_of_the_parent():
    found = propagated(Toys(), model(), {"": "all", int: "layers", "b": "part", "b.c": None}, (str,))
    assert found == {"": "all", "a": "layers", "b": "part", "b.c": None, "d": "all"}
    own = propagated(Toys(), model(), {"": "all"}, (str,), lambda path, module, got: module.settings or got)
    assert own == {"": "all", "a": "integers", "b": "all", "b.c": "integers", "d": "all"}
    with pytest.raises(ValueError, match="the entry 'z' names no module"):
        propagated(Toys(), model(), {"z": "all"}, (str,))


def test_equal_weights_that_were_one_are_one_again():
    floats = model()
    ties = ties_of(Toys(), floats)
    assert ties == [["a", "b.c"]]
    floats.children["a"].weight, floats.children["b"].children["c"].weight = [2], [2]
    tie(Toys(), floats, ties)
    assert floats.children["a"].weight is floats.children["b"].children["c"].weight
    floats.children["a"].weight = [3]
    tie(Toys(), floats, ties)
    assert floats.children["b"].children["c"].weight == [2]


def test_each_layer_with_settings_is_observed_once():
    floats = model(second="format", seen=(None, None))
    made, done = Preparing().prepared(floats)
    assert made is floats
    assert done == {"a", "b.c"}
    assert [floats.children["a"].seen, floats.children["b"].children["c"].seen] == [False, None]
    floats.children["a"].seen = True
    assert Preparing().prepared(floats)[1] == {"a", "b.c"}
    assert floats.children["a"].seen


def test_layers_get_their_forms_and_weights_stay_one():
    made = Converting().converted(model(), False)
    first, second = made.children["a"], made.children["b"].children["c"]
    assert (first.notes["made"], second.notes["made"], first.observed_by) == ("a", "b.c", "Seen")
    assert first.weight is second.weight
    assert made.children["d"].notes == {"why": True}
    made = Converting().converted(model("format", None), False)
    assert made.children["a"].settings == "format"  # in floats
    assert made.children["b"].children["c"].notes == {"why": False}


def test_what_is_not_ready_is_said():
    with pytest.raises(ValueError, match="nothing to convert"):
        Converting().converted(model(None, None), False)
    with pytest.raises(ValueError, match=r"layer 'b\.c' has no observer; call prepare"):
        Converting().converted(model(seen=(True, None)), False)
    with pytest.raises(ValueError, match=r"layer 'a', layer 'b\.c' have an observer that has seen nothing"):
        Converting().converted(model(seen=(False, False)), False)
    with pytest.warns(UserWarning, match=r"layer 'b\.c' has an observer that has seen nothing"):
        made = Converting().converted(model(seen=(True, False)), False)
    refused = made.children["b"].children["c"].notes
    assert refused == {"some": ("output",), "made": "b.c", "refused": True}
    made = Converting().converted(model(seen=(True, False)), ["b"])
    assert "refused" not in made.children["b"].children["c"].notes
    scalars = model(seen=(True, False))
    scalars.children["b"].children["c"].notes["scalars"] = True
    assert "refused" not in Converting().converted(scalars, False).children["b"].children["c"].notes
    with pytest.warns(UserWarning, match="layer 'a' ran 3 times while the model ran 2 times"):
        Converting(2, a=3).converted(model(), False)
