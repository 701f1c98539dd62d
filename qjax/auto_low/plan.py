"""Plans: the values of a traced program that are rounded, and their rules, determined before the program runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from jax.extend import core

from qcore import Recipe, Rounding, Rule
from qcore.accumulate.product import Products
from qjax.auto_low.groups import group_of, is_carrier
from qjax.auto_low.origins import CAPTURED, COMPUTED, CONSTANT, is_input, result_origin
from qjax.auto_low.products import weight_of
from qjax.auto_low.programs import INLINED, inner_programs, is_backward, name_of

SCOPE = "qjax.lower"  # the name scope of all operations of a lowered function

_OPAQUE = frozenset(("custom_linear_solve", "pallas_call"))
_MOVES = frozenset(("reshape", "squeeze", "transpose"))
BACKWARD = "a derivative"


class Site(NamedTuple):
    """A layer of the program.

    Attributes:
        number: the number that is folded into the key for its roundings.
        rule: how it is rounded.
    """

    number: int
    rule: Rule


class ProductSite(NamedTuple):
    """A layer that multiplies as a recipe says.

    Attributes:
        number: the number that is folded into the key for its products.
        weight: the operand that is the weight.
        products: the layer's products.
        state: the number of its state of delayed scales, or None.
    """

    number: int
    weight: int
    products: Products
    state: int | None


@dataclass
class Plan:
    """How a jaxpr is rounded.

    Attributes:
        planner: the planner that made the plan.
        jaxpr, consts: the program and the arrays that it captured.
        scope, origins: the jaxpr's name scope, and the origins of its inputs.
        end: the number of the next layer.
        place: how many layers that a recipe may apply to come before.
        outputs: the variables that are rounded.
        weights: by the index of an equation: the operand that is rounded.
        products: by the index of an equation: how it multiplies.
        inner: by the index of an equation that contains programs with layers: their plans, and the number that is
            folded into their key (None for programs that are inlined).
        results: the origins of the jaxpr's results.
    """

    planner: Planner
    jaxpr: Any
    consts: Sequence[Any]
    scope: str
    origins: Sequence[int]
    end: int
    place: int
    outputs: dict[Any, Site] = field(default_factory=dict)
    weights: dict[int, tuple[int, Site]] = field(default_factory=dict)
    products: dict[int, ProductSite] = field(default_factory=dict)
    inner: dict[int, tuple[int | None, list[Plan]]] = field(default_factory=dict)
    results: Sequence[int] = ()

    def __bool__(self) -> bool:
        return bool(self.outputs or self.weights or self.products or self.inner)

    def of_variant(self, traced: Any) -> Plan:
        """The plan of another program for the same arguments and the same scope, with layers numbered from 0."""
        self.planner.place = self.place
        return self.planner.plan(traced.jaxpr, traced.consts, self.origins, self.scope)


@dataclass
class _Layer:
    """A layer whose output may still move: behind a transposition, its bias, its division."""

    site: Site
    primitive: str
    output: Any

    def is_completed_by(self, equation: Any, position: int, origins: Sequence[int]) -> bool:
        """True if an equation with the layer's output as operand number `position` is the layer's last."""
        if self.primitive.startswith("reduce_window"):
            return self.primitive == "reduce_window_sum" and equation.primitive.name == "div" and position == 0
        if equation.primitive.name != "add" or not is_input(origins[1 - position]):
            return False
        shape, bias = equation.outvars[0].aval.shape, equation.invars[1 - position].aval.shape
        return prod(bias) < prod(shape) or sum(size > 1 for size in bias) <= 1


class Planner:
    """Makes plans from rules, of which the first that matches a layer applies, or from a recipe.

    Attributes:
        stochastic: True if roundings need a key.
        layers, sizes: the names and types of the layers that a recipe may apply to, in order, and their weights' sizes.
        scaling: the states of the layers with delayed scales, while a program runs.
        histories: how many past tensors each of these states has.
        place: the number of the next layer in `layers`.
        around: the primitives around what is planned: derivatives, and those that are not inlined.
    """

    def __init__(
        self, rules: Sequence[Rule], recipe: Recipe | None = None, layers: Sequence[tuple[str, str]] | None = None
    ) -> None:
        """A recipe is planned twice: first for the `layers`, then with them, as it counts them from both ends."""
        self.rules, self.recipe = rules, recipe
        self.stochastic = any(map(_is_stochastic, rules)) if recipe is None else recipe.stochastic
        self.layers: list[tuple[str, str]] = []
        self.sizes: list[int] = []
        self.chosen = None if recipe is None or layers is None else recipe.products_of(layers)
        self.scaling: Sequence[Any] = ()
        self.histories: list[int] = []
        self.place = 0
        self.around: list[str] = []

    def plan(self, jaxpr: Any, consts: Sequence[Any], origins: Sequence[int], scope: str = "", first: int = 0) -> Plan:
        """The plan of a jaxpr.

        Args:
            jaxpr, consts: the program.
            origins: of its inputs; see `qjax.auto_low.origins`.
            scope: the name scope that it runs in.
            first: the number of its first layer.

        Raises:
            ValueError: if a layer cannot be rounded where it is, or another call of `lower` has rounded it.
        """
        plan = Plan(self, jaxpr, consts, scope, origins, first, self.place)
        _Walk(self, plan).run()
        return plan

    def rule_for(self, group: str, name: str) -> Rule | None:
        """The rule of a layer; None if no rule matches, or the first that matches rounds nothing."""
        fits = (rule for rule in self.rules if rule.layer_type in (None, group) and rule.names(name))
        rule = next(fits, None)
        return rule if rule is not None and (rule.weight_number is not None or rounds_outputs(rule)) else None


def rounds_outputs(rule: Rule) -> bool:
    outputs = rule.outputs
    return bool(outputs.forward_number is not None or outputs.backward_number is not None or outputs.backward_hooks)


def _is_stochastic(rule: Rule) -> bool:
    weights = rule.weight_number is not None and rule.weight_rounding is Rounding.STOCHASTIC
    return weights or rule.outputs.stochastic


class _Walk:
    """One pass over the equations of a jaxpr."""

    def __init__(self, planner: Planner, plan: Plan) -> None:
        self.planner, self.plan = planner, plan
        jaxpr = plan.jaxpr
        self.origins = dict.fromkeys(jaxpr.constvars, CAPTURED) | dict(zip(jaxpr.invars, plan.origins, strict=True))
        operands = [atom for equation in jaxpr.eqns for atom in equation.invars] + list(jaxpr.outvars)
        self.uses = Counter(atom for atom in operands if isinstance(atom, core.Var))
        self.layers: list[_Layer] = []
        self.open: dict[Any, _Layer] = {}  # layers by the variable that may become their output

    def run(self) -> None:
        for index, equation in enumerate(self.plan.jaxpr.eqns):
            origins = [self.origin(atom) for atom in equation.invars]
            results = self.equation(index, equation, origins)
            self.origins.update(zip(equation.outvars, results, strict=True))
        for layer in self.layers:
            self.plan.outputs[layer.output] = layer.site
        self.plan.results = [self.origin(atom) for atom in self.plan.jaxpr.outvars]

    def origin(self, atom: Any) -> int:
        return self.origins[atom] if isinstance(atom, core.Var) else CONSTANT

    def equation(self, index: int, equation: Any, origins: Sequence[int]) -> Sequence[int]:
        """Plans an equation and returns the origins of its results."""
        name = name_of(self.plan.scope, equation)
        if SCOPE in name:
            raise ValueError("fn calls a lowered function; lower once, with rules= for layers of different formats")
        group = group_of(equation, origins)
        rule = None if group is None else self.planner.rule_for(group, name)
        if rule is not None:
            self.layer(index, equation, origins, group, rule)
            return [COMPUTED] * len(equation.outvars)
        if group is not None and self.multiply(index, equation, origins, group, name):
            return [COMPUTED]
        results = self.inside(index, equation, origins, name)
        self.extend_layers(equation, origins)
        return results or [result_origin(equation, origins)] * len(equation.outvars)

    def layer(self, index: int, equation: Any, origins: Sequence[int], group: str | None, rule: Rule) -> None:
        outputs = [variable for variable in equation.outvars if is_carrier(variable)]
        if group in ("conv", "linear") and rule.weight_number is not None:
            operand = 0 if origins[0] < origins[1] else 1
            if is_input(origins[operand]) and is_carrier(equation.invars[operand]):
                self.plan.weights[index] = operand, Site(self.plan.end, rule)
        for variable in outputs:
            layer = _Layer(Site(self.plan.end, rule), equation.primitive.name, variable)
            self.plan.end += 1
            if not rounds_outputs(rule):
                continue
            self.layers.append(layer)
            if group in ("conv", "linear", "pool") and self.uses[variable] == 1:
                self.open[variable] = layer

    def multiply(self, index: int, equation: Any, origins: Sequence[int], group: str, name: str) -> bool:
        """Plans an equation's product by the recipe; True if it is not left wide."""
        planner = self.planner
        weight = None if planner.recipe is None else weight_of(equation, origins)
        if weight is None:
            return False
        planner.layers.append((name, group))
        planner.sizes.append(prod(equation.invars[weight].aval.shape))
        products = None if planner.chosen is None else planner.chosen[planner.place]
        planner.place += 1
        if products is None:
            return False
        if is_backward(equation) or BACKWARD in planner.around:
            raise ValueError(
                f"fn has a derivative, whose product in scope {name!r} a recipe would take for a forward one; allowed "
                "is the derivative of what lower returns: jax.grad(lower(fn, recipe)), not lower(jax.grad(fn), recipe)"
            )
        self.plan.products[index] = ProductSite(self.plan.end, weight, products, self.state(products, name))
        self.plan.end += 1
        return True

    def state(self, products: Products, name: str) -> int | None:
        """The number of a layer's state of delayed scales."""
        if products.history is None:
            return None
        if self.planner.around:
            inside = f"inside {self.planner.around[-1]}, where it has no state; allowed are jit and checkpoint"
            raise ValueError(f"the layer in scope {name!r} has delayed scales {inside}")
        self.planner.histories.append(products.history)
        return len(self.planner.histories) - 1

    def extend_layers(self, equation: Any, origins: Sequence[int]) -> None:
        """Moves a layer's output behind an equation that belongs to the layer."""
        for position, atom in enumerate(equation.invars):
            layer = self.open.pop(atom, None) if isinstance(atom, core.Var) else None
            if layer is None:
                continue
            if equation.primitive.name in _MOVES:
                (result,) = equation.outvars
                if equation.primitive.name == "transpose" and layer.output is atom:
                    layer.output = result
                if self.uses[result] == 1:
                    self.open[result] = layer
            elif layer.is_completed_by(equation, position, origins):
                (layer.output,) = equation.outvars

    def inside(self, index: int, equation: Any, origins: Sequence[int], name: str) -> Sequence[int] | None:
        """Plans the programs that an equation contains; returns the origins of its results if they are known."""
        primitive = equation.primitive.name
        if primitive in _OPAQUE:
            return None
        inlined = primitive in INLINED
        programs = inner_programs(equation, origins)
        if programs is None:
            opaque = ((jaxpr, (), [COMPUTED] * len(jaxpr.invars)) for jaxpr in core.jaxprs_in_params(equation.params))
            if any(self.planner.plan(*program, name) for program in opaque):
                raise ValueError(
                    f"{primitive} in scope {name!r} holds layers, which cannot be rounded there; allowed are jit, "
                    "checkpoint, scan, while_loop, cond, switch, custom_jvp, custom_vjp and shard_map. A Rule that has "
                    "this name and says nothing leaves it as it is"
                )
            return None
        plans, first = [], self.plan.end if inlined else 0
        around = [BACKWARD] if is_backward(equation) else [] if inlined else [primitive]
        self.planner.around += around
        for jaxpr, consts, inputs in programs:
            plans.append(self.planner.plan(jaxpr, consts, inputs, name, first))
            if primitive == "while":
                first = plans[-1].end
        del self.planner.around[len(self.planner.around) - len(around) :]
        if any(plans):
            self.plan.inner[index] = None if inlined else self.plan.end, plans
            self.plan.end = plans[0].end if inlined else self.plan.end + 1
        return plans[0].results if inlined else None
