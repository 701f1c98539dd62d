"""Plans: the values of a traced program that are rounded, and their rules, determined before the program runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from jax.extend import core

from qcore import Recipe, Rule
from qcore.arguments import quoted
from qcore.linalg.product import Products
from qcore.recipes.recipe import CONV, LINEAR, MATMUL, OUTPUT, SCORES
from qcore.report import FunctionReport, numbered
from qjax._jaxprs import CUSTOM, INLINED, counters, inner_programs, scan_parts, walk
from qjax._parameters import parameters
from qjax.arithmetic.composed import Arrays
from qjax.recipes.layers import (
    CAPTURED,
    COMPUTED,
    CONSTANT,
    Origin,
    Path,
    common_owner,
    function_name,
    group_of,
    is_backward,
    is_bare,
    is_carrier,
    is_constant,
    is_input,
    kernel_trips,
    name_of,
    product_name,
    result_origin,
    trips,
    weight_among,
)
from qjax.recipes.outlined import function_call, outlined
from qjax.recipes.products import factors_of, is_product, last_factor, multiply_adds, shapes_of, why_not
from qjax.recipes.stacks import WHILE, Loop, ProgramProduct, Stacks, State

SCOPE = "qjax.lower"  # the name scope of all operations of a lowered function

_OPAQUE = frozenset(("custom_linear_solve", "pallas_call", "core_map"))
_FOREIGN = frozenset(("ffi_call", "pure_callback"))
_MOVES = frozenset(("reshape", "squeeze", "transpose"))
_STATEFUL = frozenset(("scan", "cond", "shard_map"))  # where delayed scales may be, beside inlined programs
BACKWARD = "a derivative"


class LayerSite(NamedTuple):
    """A layer of the program.

    Attributes:
        path: its name, as a product has it in reports.
        number: the number that is folded into the key for its roundings.
        rule: how it is rounded.
        state: the number of its state of delayed scales, or None.
    """

    path: str
    number: int
    rule: Rule
    state: int | None = None


class ProductSite(NamedTuple):
    """A layer whose product a recipe lowers.

    Attributes:
        path: its name, with a number behind it if it is not the first product of this name, as in reports.
        number: the number that is folded into the key for its products.
        weight: the operand that is the weight.
        products: the layer's products.
        state: the number of its state of delayed scales, or None.
    """

    path: str
    number: int
    weight: int
    products: Products
    state: int | None


class FunctionSite(NamedTuple):
    """A function whose steps have formats, its further arguments, and how many parameters at the end are None."""

    steps: Arrays
    options: dict[str, Any]
    missing: int


class Inner(NamedTuple):
    """The programs that an equation contains.

    Attributes:
        number: the number that is folded into their key; None for programs that are inlined.
        plans: their plans; of a scan one for each of its runs.
        runs: the iterations of a scan whose layers have the same formats, in order: (begin, end) of each run.
        states: the numbers of the states of delayed scales of which each iteration of a scan has its own.
    """

    number: int | None
    plans: list[LoweringPlan]
    runs: Sequence[tuple[int, int]] = ()
    states: Sequence[int] = ()


@dataclass
class LoweringPlan:
    """The roundings of a jaxpr.

    Attributes:
        planner: the planner that made the plan.
        jaxpr, consts: the program and the arrays that it captured.
        scope, origins: the jaxpr's name scope, and the origins of its inputs.
        end: the number of the next layer.
        position, last: the numbers of products before the program, and up to its end.
        outputs: the variables that are rounded.
        weights: the operand that is rounded, by the index of the equation.
        products: the product that replaces an equation, by the index of the equation.
        functions: the function that replaces an equation, by the index of the equation.
        inner: the plans of programs with layers, by the index of the equation that contains them.
        loops: the scans around the program.
        results: the origins of the jaxpr's results.
    """

    planner: Planner
    jaxpr: Any
    consts: Sequence[Any]
    scope: str
    origins: Sequence[Origin]
    end: int
    position: int
    last: int = 0
    outputs: dict[Any, LayerSite] = field(default_factory=dict)
    weights: dict[int, tuple[int, LayerSite]] = field(default_factory=dict)
    products: dict[int, ProductSite] = field(default_factory=dict)
    functions: dict[int, FunctionSite] = field(default_factory=dict)
    inner: dict[int, Inner] = field(default_factory=dict)
    loops: Sequence[Loop] = ()
    results: Sequence[Origin] = ()

    def __bool__(self) -> bool:
        return bool(self.outputs or self.weights or self.products or self.functions or self.inner)

    @property
    def holds_products(self) -> bool:
        """True if a recipe lowers a product, at any depth."""
        return bool(self.products) or any(plan.holds_products for inner in self.inner.values() for plan in inner.plans)

    def of_variant(self, traced: Any) -> LoweringPlan:
        """The plan of another program for the same arguments and the same scope, with layers numbered from 0."""
        self.planner.position, self.planner.limit = self.position, self.last
        self.planner.loops = list(self.loops)
        return self.planner.plan(traced.jaxpr, traced.consts, self.origins, self.scope)


@dataclass
class _Layer:
    """A layer whose output may still move: behind a transposition, its bias, its division."""

    site: LayerSite
    primitive: str
    output: Any

    def is_completed_by(self, equation: Any, position: int, origins: Sequence[Origin]) -> bool:
        """True if an equation with the layer's output as operand number `position` is the layer's last."""
        if self.primitive.startswith("reduce_window"):
            return self.primitive == "reduce_window_sum" and equation.primitive.name == "div" and position == 0
        if equation.primitive.name != "add" or not is_input(origins[1 - position]):
            return False
        # A bias is smaller than the result, or has one axis. An input of the same shape is a residual connection.
        shape, bias = equation.outvars[0].aval.shape, equation.invars[1 - position].aval.shape
        return prod(bias) < prod(shape) or sum(size > 1 for size in bias) <= 1


class Planner:
    """Makes plans from rules, where the first rule that matches a layer applies, or from a recipe.

    Attributes:
        stochastic: True if roundings need a key.
        found: the products of the program, in order, each once: a derivative that runs a program again adds no
            products.
        numbers: how many products before each of them have its name.
        stacks: the scans among them whose iterations count as layers of their own; None in the first pass, which finds
            the products.
        chosen: for each product the recipe's products by the iterations of its stacks, or None in high precision;
            None as a whole without a recipe, and in the first pass.
        matched: the rules that match a layer.
        layers: the names and groups of all layers that rules may match.
        own_derivatives: the names of functions with a derivative of their own and lowered products.
        captured: the owners of captured arrays, by `id`; `owners` are the modules that are layers.
        states: the states of the layers with delayed scales.
        position, limit: the number of the next product, and the number up to which `chosen` has products.
        around: the primitives around the planned program: derivatives, and programs that are not inlined.
        loops: the scans around it.
        times: the number of runs of the planned program; None if it depends on values.
        functions: the calls of functions for which the recipe has formats, in order.
    """

    def __init__(
        self, rules: Sequence[Rule], recipe: Recipe | None = None, found: Sequence[ProgramProduct] | None = None
    ) -> None:
        """Recipes, and delayed scales, need two passes: the first finds the products, as entries may count them."""
        self.rules, self.recipe = rules, recipe
        self.stochastic = any(map(_is_stochastic, rules)) if recipe is None else recipe.stochastic
        self.found = [] if found is None else list(found)
        self.stacks = None if found is None else Stacks(found)
        self.numbers: list[int] = []
        self.names = Counter[str]()  # of products
        self.others = Counter[str]()  # of other layers that rules round
        self._count_names(self.found)
        self.chosen = None if recipe is None or self.stacks is None else self.stacks.choose(recipe)
        self.matched: list[Rule] = []
        self.layers: list[tuple[str, str]] = []
        self.own_derivatives: list[str] = []
        self.captured: dict[int, Path] = {}
        self.owners: set[Path] = set()
        self.states: list[State] = []
        self._state_of = self._states_of_products()
        self.position, self.limit = 0, len(self.found)
        self.around: list[str] = []
        self.loops: list[Loop] = []
        self.times: int | None = 1
        self.functions: list[FunctionReport] = []
        self.has_functions = recipe is not None and any(entry.arithmetic for entry in recipe.entries)

    def plan(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        origins: Sequence[Origin],
        scope: str = "",
        first: int = 0,
        of_function: bool = False,
    ) -> LoweringPlan:
        """The plan of a jaxpr.

        Args:
            jaxpr, consts: the program.
            origins: the origins of its inputs, see `Origin`.
            scope: the name scope that it runs in.
            first: the number of its first layer.
            of_function: True for the program of a function that entries of a recipe name.

        Raises:
            ValueError: if a layer cannot be rounded where it is, or another call of `lower` has rounded it.
        """
        jaxpr = outlined(jaxpr) if self.has_functions and not of_function else jaxpr
        plan = LoweringPlan(self, jaxpr, consts, scope, origins, first, self.position, loops=tuple(self.loops))
        _Walk(self, plan).run()
        plan.last = self.position
        return plan

    def rule_for(self, group: str, scope: str, name: str) -> Rule | None:
        """The rule of a layer, by its name or its scope; None if no rule matches, or the first one has no formats."""
        self.layers.append((name, group))
        named = (rule for rule in self.rules if rule.names(name) or rule.names(scope))
        fits = (rule for rule in named if rule.layer_type in (None, group))
        rule = next(fits, None)
        if rule is None:
            return None
        self.matched.append(rule)
        return rule if rule._rounds else None

    def name_scores(self, position: int | None) -> None:
        """Marks an earlier product as attention's scores: softmax of its result is a factor of another product."""
        if self.stacks is None and position is not None:
            self.found[position].kind = SCORES

    def next_product(self, found: ProgramProduct) -> Products | None:
        """The recipe's products for the next product of the program; None leaves it unchanged."""
        position, self.position = self.position, self.position + 1
        if self.stacks is None:
            found.loops = tuple(self.loops)
            self.found.append(found)
            self._count_names([found])
            return None
        if self.chosen is None:
            return None
        if position < self.limit:
            return self.chosen[position].get(tuple(self.loops[depth].at for depth in self.stacks.depths[position]))
        entry = None if self.recipe is None or found.reason else self.recipe._entry_at(found.name, found.kind)
        return None if entry is None else entry.products

    def runs(self, length: int) -> list[tuple[int, int]]:
        """The runs of iterations with the same products, of a scan that begins here."""
        if self.stacks is None or self.chosen is None:
            return [(0, length)]
        return self.stacks.runs(self.chosen, self.position, self.loops, length)

    def state(self, rows: int, history: int, product: int | None = None) -> int:
        """The number of a layer's state of delayed scales."""
        if product is not None:
            return self._state_of[product]
        depths = [] if self.stacks is None else self.stacks.around(self.loops)
        self.states.append(State(tuple((depth, self.loops[depth]) for depth in depths), rows, history))
        return len(self.states) - 1

    def count(self, path: str) -> str:
        """The path of a layer that is no product, with a number behind the first one of its name."""
        self.others[path] += 1
        return numbered(path, self.others[path] - 1)

    def _count_names(self, found: Sequence[ProgramProduct]) -> None:
        for one in found:
            self.numbers.append(self.names[one.name])
            self.names[one.name] += 1

    def _states_of_products(self) -> dict[int, int]:
        """Makes the states of all products with delayed scales: one for all iterations of the scans around it."""
        numbers: dict[int, int] = {}
        for place, (found, chosen) in enumerate(zip(self.found, self.chosen or (), strict=False)):
            products = [one for one in chosen.values() if one is not None]
            histories = {one.history for one in products if one.history is not None}
            if len(histories) > 1:
                raise ValueError(
                    f"the layer in scope {quoted(found.name)} has delayed scales of histories "
                    f"{', '.join(map(str, sorted(histories)))} in iterations of a scan; allowed is one history"
                )
            for history in histories:
                depths = [] if self.stacks is None else self.stacks.depths[place]
                numbers[place] = len(self.states)
                self.states.append(State(tuple((depth, found.loops[depth]) for depth in depths), 3, history))
        return numbers


def _is_stochastic(rule: Rule) -> bool:
    weights = rule.weight_number is not None and rule.weight_rounding.stochastic
    return weights or rule.outputs.stochastic


class _Walk:
    """One pass over the equations of a jaxpr."""

    def __init__(self, planner: Planner, plan: LoweringPlan) -> None:
        self.planner, self.plan = planner, plan
        jaxpr = plan.jaxpr
        operands = [atom for equation in jaxpr.eqns for atom in equation.invars] + list(jaxpr.outvars)
        self.uses = Counter(atom for atom in operands if isinstance(atom, core.Var))
        self.moves = {eqn.invars[0]: eqn for eqn in jaxpr.eqns if eqn.primitive.name == "transpose"}
        self.layers: list[_Layer] = []
        self.open: dict[Any, _Layer] = {}  # layers by the variable that may become their output

    def run(self) -> None:
        plan, owners = self.plan, self.planner.captured
        captured = [CAPTURED._replace(owner=owners.get(id(const))) for const in plan.consts]
        plan.results = walk(plan.jaxpr, captured, plan.origins, self.equation, lambda literal: CONSTANT)
        for layer in self.layers:
            plan.outputs[layer.output] = layer.site

    def equation(self, index: int, equation: Any, origins: Sequence[Origin]) -> Sequence[Origin]:
        """Plans an equation and returns the origins of its results."""
        name = name_of(self.plan.scope, equation)
        if SCOPE in name:
            raise ValueError(
                "fn calls a lowered function; lower once, with rules= for layers of different formats, and report the "
                "lowered function itself, not its derivative"
            )
        group = group_of(equation, origins)
        owner = common_owner(origins)
        product, called = None, product_name(name, owner, origins[0].argument if group == "embedding" else "")
        path = "" if group is None else ".".join(filter(None, (called, group)))
        if is_product(equation) and not all(map(is_constant, origins)):
            product, called, path = self.product(index, equation, origins, name)
        rule = None if group is None else self.planner.rule_for(group, name, called)
        if rule is not None:
            self.layer(index, equation, origins, group, rule, path if product else self.planner.count(path))
            return [COMPUTED._replace(owner=owner) if product is None else product] * len(equation.outvars)
        if product is not None:
            self.extend_layers(equation, origins)
            return [product] * len(equation.outvars)
        if self.planner.has_functions and (kind := self.function(index, equation, origins, called)):
            result = result_origin(equation, origins)
            results = [result._replace(is_exponential=result.is_exponential or kind in ("softmax", "exp"))]
        else:
            results = self.inside(index, equation, origins, name)
        self.extend_layers(equation, origins)
        return results or [result_origin(equation, origins)] * len(equation.outvars)

    def layer(
        self, index: int, equation: Any, origins: Sequence[Origin], group: str | None, rule: Rule, path: str
    ) -> None:
        """Plans the roundings of a layer's outputs and weight by a rule."""
        outputs = [variable for variable in equation.outvars if is_carrier(variable)]
        if group in ("conv", "linear") and rule.weight_number is not None:
            operand = weight_among(origins[0], origins[1], 1)
            if operand is not None and is_carrier(equation.invars[operand]):
                self.plan.weights[index] = operand, LayerSite(path, self.plan.end, rule)
        for variable in outputs:
            if not rule.outputs._rounds:
                self.plan.end += 1
                continue
            state = self.state(2, rule.outputs.history, path, of_derivative=is_backward(equation))
            layer = _Layer(LayerSite(path, self.plan.end, rule, state), equation.primitive.name, variable)
            self.plan.end += 1
            self.layers.append(layer)
            # An output that something else reads as well is rounded where it is.
            if group in ("conv", "linear", "pool") and self.uses[variable] == 1:
                self.open[variable] = layer

    def product(self, index: int, equation: Any, origins: Sequence[Origin], name: str) -> tuple[Origin, str, str]:
        """Plans a product by the recipe, if there is one; returns the origin of its result, its name and its path."""
        planner, position = self.planner, self.planner.position
        found, owner = self.describe(equation, origins, name)
        products = planner.next_product(found)
        path = numbered(found.name, planner.numbers[position])
        if products is not None:
            self.plan_product(index, equation, found, products, position, path)
        # Results of a layer belong to the module around it, in which the next product without a weight is named.
        outside = owner[:-1] if owner in planner.owners else owner
        # A product with a bare argument may be one of activations: of such results softmax makes attention's scores.
        of_weight = origins[factors_of(equation)[found.weight]]
        weak = found.kind == MATMUL or (found.kind == LINEAR and is_bare(of_weight))
        result = result_origin(equation, [origins[place] for place in factors_of(equation)])
        return Origin(result.order, outside, position if weak else None, loops=result.loops), found.name, path

    def function(self, index: int, equation: Any, origins: Sequence[Origin], name: str) -> str:
        """Plans a function's steps by the recipe, and returns its kind; "" if the recipe has none for them."""
        call, recipe = function_call(equation), self.planner.recipe
        if call is None or recipe is None or all(map(is_constant, origins)):
            return ""
        entry = recipe._entry_at(name, call.kind)
        if entry is None or entry.arithmetic is None:
            return ""
        reason = call.reason or ("it is a part of a derivative" if is_backward(equation) else "")
        text, shape = "" if reason else entry.arithmetic.text, tuple(equation.outvars[0].aval.shape)
        self.planner.functions.append(FunctionReport(name, call.kind, shape, text, reason))
        if not reason:
            self.plan.functions[index] = FunctionSite(Arrays(call.kind, entry.arithmetic), call.options, call.missing)
        return "" if reason else call.kind

    def describe(self, equation: Any, origins: Sequence[Origin], name: str) -> tuple[ProgramProduct, Path | None]:
        """The description of a product, and the path of the module that multiplies."""
        places = factors_of(equation)
        factors, kind = [origins[place] for place in places], LINEAR
        if equation.primitive.name == "conv_general_dilated":
            kind, weight = CONV, 1
        elif equation.primitive.name == "ragged_dot_general":
            weight = 1
        else:
            tie = last_factor(equation, self.order_behind(equation.outvars[0]))
            weight = weight_among(factors[0], factors[1], tie)
            softmax = [one.is_exponential and one.scores is not None for one in factors]
            # A factor that came through softmax is attention's weights, unless the other one is a parameter.
            if any(softmax) and (weight is None or is_bare(factors[weight])):
                kind, weight = OUTPUT, 1 - softmax.index(True)
                self.planner.name_scores(factors[1 - weight].scores)
            elif weight is None:
                kind, weight = MATMUL, tie
        of_layer = kind in (LINEAR, CONV)
        owner = factors[weight].owner if of_layer else common_owner(factors)
        times, count = self.planner.times, multiply_adds(equation)
        found = ProgramProduct(
            product_name(name, owner, factors[weight].argument if of_layer else ""),
            kind,
            weight,
            shapes_of(equation),
            prod(equation.invars[places[weight]].aval.shape) if of_layer else 0,
            None if times is None else times * count,
            why_not(equation),
            sliced=factors[weight].loops if of_layer else frozenset(),
        )
        return found, owner

    def order_behind(self, variable: Any) -> list[int]:
        """The order of a result's axes behind the transpositions that alone use it."""
        order = list(range(variable.aval.ndim))
        while self.uses[variable] == 1 and variable in self.moves:
            order = [order[axis] for axis in parameters(self.moves[variable]).permutation]
            (variable,) = self.moves[variable].outvars
        return order

    def plan_product(
        self, index: int, equation: Any, found: ProgramProduct, products: Products, position: int, path: str
    ) -> None:
        """Plans an equation's product by a recipe."""
        if is_backward(equation) or BACKWARD in self.planner.around:
            raise ValueError(
                f"fn has a derivative, whose product {quoted(found.name)} a recipe would take for a forward "
                "one; allowed "
                "is the derivative of what lower returns: jax.grad(lower(fn, recipe)), not lower(jax.grad(fn), recipe)"
            )
        state = self.state(3, products.history, found.name, position)
        self.plan.products[index] = ProductSite(path, self.plan.end, found.weight, products, state)
        self.plan.end += 1

    def state(
        self, rows: int, history: int | None, name: str, product: int | None = None, of_derivative: bool = False
    ) -> int | None:
        """The number of a layer's state of delayed scales; None without a history."""
        if history is None:
            return None
        around = [BACKWARD] if of_derivative else [one for one in self.planner.around if one not in _STATEFUL]
        if around:
            inside = "in a derivative" if around[-1] == BACKWARD else f"inside {around[-1]}"
            raise ValueError(
                f"the layer in scope {quoted(name)} has delayed scales {inside}, where it has no state; allowed are "
                "jit, checkpoint, scan, cond and shard_map, and derivatives of the lowered function"
            )
        return self.planner.state(rows, history, product)

    def extend_layers(self, equation: Any, origins: Sequence[Origin]) -> None:
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

    def inside(self, index: int, equation: Any, origins: Sequence[Origin], name: str) -> Sequence[Origin] | None:
        """Plans the programs that an equation contains; returns the origins of its results if they are known."""
        primitive, planner = equation.primitive.name, self.planner
        if primitive in _OPAQUE:
            times = kernel_trips(equation)
            times = None if planner.times is None or times is None else planner.times * times
            weight = next((origin for origin in origins if origin.order < COMPUTED.order), COMPUTED)
            for jaxpr in core.jaxprs_in_params(equation.params):
                self.leave(jaxpr, name, primitive, weight, times)
            return None
        if primitive in _FOREIGN and not all(map(is_constant, origins)):
            kind = parameters(equation).target_name or primitive
            shapes = tuple(tuple(atom.aval.shape) for atom in equation.invars)
            reason = f"{primitive} of the program, whose products are not known"
            planner.next_product(ProgramProduct(name, kind, 1, shapes, 0, None, reason))
            return None
        inlined = primitive in INLINED
        carried = CONSTANT if all(map(is_constant, origins)) else COMPUTED
        programs = inner_programs(equation, origins, carried)
        if programs is None:
            opaque = ((jaxpr, (), [COMPUTED] * len(jaxpr.invars)) for jaxpr in core.jaxprs_in_params(equation.params))
            if any(planner.plan(*program, name) for program in opaque):
                raise ValueError(
                    f"{primitive} in scope {quoted(name)} holds layers, which cannot be rounded there; "
                    "allowed are jit, "
                    "checkpoint, scan, while_loop, cond, switch, custom_jvp, custom_vjp and shard_map. A Rule that has "
                    "this name and says nothing leaves it as it is"
                )
            return None
        # An inlined program goes on with the numbers of layers here; any other one counts as one layer, with numbers
        # from 0 inside.
        position = planner.position
        around = [BACKWARD] if is_backward(equation) else [] if inlined else [primitive]
        if primitive == "shard_map" and not parameters(equation).check_vma:  # then JAX adds up states of devices
            around.append("shard_map with check_vma=False")
        planner.around += around
        outer, more = planner.times, trips(equation)
        planner.times = None if outer is None or more is None else outer * more
        if primitive == "scan":
            inner = self.scan(equation, origins, programs[0], name)
        else:
            inner = Inner(None if inlined else self.plan.end, self.programs(equation, programs, name, inlined))
        planner.times = outer
        del planner.around[len(planner.around) - len(around) :]
        plans = inner.plans
        if any(plans):
            self.plan.inner[index] = inner
            self.plan.end = plans[0].end if inlined else self.plan.end + 1
        own = primitive in CUSTOM
        if own:
            for one in planner.found[position : planner.position]:
                one.own = function_name(equation) or primitive
        if own and any(plan.holds_products for plan in plans):
            planner.own_derivatives.append(function_name(equation) or primitive)
        return plans[0].results if inlined or own else None

    def programs(self, equation: Any, programs: Sequence[Any], name: str, inlined: bool) -> list[LoweringPlan]:
        """The plans of the programs of an equation that is not a scan."""
        plans, first = [], self.plan.end if inlined else 0
        is_while = equation.primitive.name == "while"
        counts = {i - parameters(equation).cond_nconsts for i in counters(equation)} if is_while else ()
        for jaxpr, consts, inputs in programs:
            if is_while and plans:  # the body, whose layers come after the condition's
                first = plans[-1].end
                inputs = [one.of_loop(WHILE) if i in counts else one for i, one in enumerate(inputs)]
            of_function = self.planner.has_functions and function_call(equation) is not None
            plans.append(self.planner.plan(jaxpr, consts, inputs, name, first, of_function))
        return plans

    def scan(self, equation: Any, origins: Sequence[Origin], program: Any, name: str) -> Inner:
        """The plans of a scan's runs: of iterations whose layers have the same formats."""
        planner, begin, depth = self.planner, self.planner.position, len(self.planner.loops)
        jaxpr, consts, inputs = program
        own = {*counters(equation), *range(scan_parts(equation)[1], len(inputs))}
        inputs = [origins[i].of_loop(depth) if i in own else one for i, one in enumerate(inputs)]
        length, plans = parameters(equation).length, []
        runs = planner.runs(length)
        for start, _ in runs:
            planner.position = begin
            planner.loops.append(Loop(begin, length, start))
            plans.append(planner.plan(jaxpr, consts, inputs, name))
            planner.loops.pop()
        stacked = (depth, Loop(begin, length))
        states = [number for number, state in enumerate(planner.states) if stacked in state.stack]
        return Inner(self.plan.end, plans, runs, states)

    def leave(self, jaxpr: Any, name: str, around: str, weight: Origin, times: int | None) -> None:
        """Counts the products of a program that is not changed, of an operand with an origin."""
        for equation in jaxpr.eqns:
            if is_product(equation):
                found, _ = self.describe(
                    equation, [COMPUTED] * len(equation.invars[:-1]) + [weight], name_of(name, equation)
                )
                found.multiply_adds = None if times is None else times * multiply_adds(equation)
                found.reason = f"{around} stays as it is"
                self.planner.next_product(found)
            more = trips(equation)
            inside = None if times is None or more is None else times * more
            for inner in core.jaxprs_in_params(equation.params):
                self.leave(inner, name_of(name, equation), around, weight, inside)
