"""Formats as text: written, and read by a parser.

    format   = ( name | kind "(" [ argument { "," argument } ] ")" ) [ ":" overflow ]
    overflow = "saturate" | "propagate" | "inf" | "nan" | "wrap"
    argument = [ parameter "=" ] ( integer | "True" | "False" | word | format | block | numbers )
    block    = "{" [ axis ":" size { "," axis ":" size } ] "}"
    axis     = integer | "..." | "flat"
    size     = integer | "None"
    numbers  = "[" number { "," number } "]"
    number   = a decimal number, as Python writes floats, without ".0", or "inf", "-inf", "nan"

A name is one of `NAMED`, what others call a format (`SPELLINGS`), or IEEE P3109's name of a format of `p3109`, such as
Binary8p4se; capitals have no meaning in it. An overflow policy takes the place of the format's own, as `overflow=` does
in `quantize`. `_KINDS` has the kinds and their parameters.
Arguments without a parameter come first, in the table's order. Spaces between tokens have no meaning; none are written.
Nor are arguments that have their defaults.
"""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from threading import Lock
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints, overload

from qcore.arguments import MOST_QUOTED, check_int, check_type, quoted
from qcore.formats.block import (
    FLOAT_RULES,
    LEVEL_RULES,
    NVFP4,
    RULES,
    UNDATED_RULES,
    BlockFloatingPoint,
    BlockNumber,
    BlockScaled,
    nvfp4_arguments,
)
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import SPECIALS, BinaryFloat, FloatingPoint
from qcore.formats.foreign import NestedNumber
from qcore.formats.names import NAMED, dtype_name, p3109
from qcore.formats.number import OVERFLOWS, FormatTexts, Number, attribute_of
from qcore.formats.posit import Posit
from qcore.formats.spellings import MEANINGS, likely_meanings
from qcore.formats.table import Table, number_list
from qcore.law.tiles import FLAT, block_text
from qcore.namespace import T

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[+-]?[0-9]{1,4000}(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|-inf|\.\.\.|\S")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|-?inf|nan")
_WORD = re.compile(r"\w+")
_P3109 = re.compile(r"binary([0-9]+)p([0-9]+)([su])([ef])")
MOST_NESTED = 24  # kinds inside each other; each takes a few frames of Python


@overload
def parse(text: str) -> Number: ...
@overload
def parse(text: str, kind: type[T]) -> T: ...
def parse(text: str, kind: type[T] | None = None) -> Number | T:
    """The format that a text stands for: the inverse of a format's `text`, and of `str`.

    Args:
        text: a name such as "e4m3fn", or another spelling of one such as "bf16", "int3" or "float8_e5m2"; or a kind
            with its arguments: "float(5,2)", "fixed(8,4,signed=False)", "binary(4,3,specials=fn)", "posit(16,1)",
            "p3109(8,4)", "table([-1,0,1])", "block(8,dim=0)", "scaled(e4m3fn,{-1:64},rule=rceil)",
            "nvfp4({-2:16,-1:16},law=torchao_0_16)", "nf4(block=64)", "gguf(q4_0)", "affine(-128,127)",
            "accumulator(float16)". The parameters are those of the classes. QPyTorch's may also be spelled as they are
            printed, and "p3109(8,4)" as IEEE P3109 does: "Binary8p4se". ":saturate", ":propagate", ":inf", ":nan" or
            ":wrap" after a format is its overflow policy: "e4m3fn:saturate".
        kind: the class of the result, such as `BlockScaled` or `Recipe`; None takes all.

    Returns:
        A `Number`; for other kinds an object of their class, which type checkers know from the argument `kind`.

    Raises:
        TypeError: if text is not a str, or kind not a class.
        ValueError: if it stands for no format, or for one of another class. The message shows the position, and what is
            allowed.

    Example:
        >>> parse("float(5,2)")
        FloatingPoint(exp=5, man=2)
        >>> parse("scaled(e2m1fn, {-2: 16, -1: 16})").text
        'scaled(e2m1fn,{-2:16,-1:16})'
        >>> parse("E4M3FN:saturate").overflow, parse("bf16").text
        ('saturate', 'bfloat16')
        >>> parse("e5m2", BinaryFloat).specials
        'ieee'
    """
    if not isinstance(text, str):
        raise TypeError(f"text={quoted(text)} is a {type(text).__name__}; allowed is a str such as 'float(5,2)'")
    if kind is not None:
        check_type("kind", kind, type, "a class")
    found = parse_argument(text, "text")
    if kind is not None and not isinstance(found, kind):
        raise ValueError(f"text={quoted(text)} is a {type(found).__name__}; allowed is the text of a {kind.__name__}")
    return found


def parse_argument(text: str, argument: str) -> Any:
    """What a text of any kind stands for; messages call it by the user's argument."""
    return _parsed(text, argument, _KINDS)


def learn(text: str, argument: str) -> None:
    """Reads a text into `FormatTexts.known`; messages call it `argument`."""
    if attribute_of(text) not in vars(FormatTexts.known):
        vars(FormatTexts.known)[attribute_of(text)] = _parsed(text, argument, _NUMBER_KINDS)


def _parsed(text: str, argument: str, kinds: Mapping[str, Kind]) -> Any:
    reader = Reader(text, argument)
    number = reader.format(kinds)
    if reader.token:
        raise reader.error("allowed here is the end")
    return number


class Reader:
    """Reads a text token by token. `index` tokens were read, `depth` parentheses are open; messages name `argument`."""

    def __init__(self, text: str, argument: str) -> None:
        self.text, self.argument, self.index, self.depth = text, argument, 0, 0
        self.tokens = [(match[0], match.start()) for match in _TOKEN.finditer(text)] + [("", len(text))] * 2

    @property
    def token(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.index][0]

    def next(self) -> str:
        self.index += 1
        return self.tokens[self.index - 1][0]

    def expect(self, *allowed: str) -> str:
        """Reads a token that must be one of these."""
        if self.token not in allowed:
            raise self.error(f"allowed here is {' or '.join(allowed)}")
        return self.next()

    def next_item(self, close: str, first: bool) -> bool:
        """Reads the comma before an item of a list, or the bracket that closes the list; True if an item follows."""
        if not first:
            return self.expect(",", close) == ","
        return self.token != close or not self.next()

    def error(self, problem: str, index: int | None = None) -> ValueError:
        """The error at a token, by default at the next one."""
        position = self.tokens[self.index if index is None else index][1]
        begin = max(position - MOST_QUOTED // 2, 0) if len(self.text) > MOST_QUOTED else 0
        part = self.text[begin : begin + MOST_QUOTED]
        line = "".join(character if character.isprintable() else " " for character in part)
        place = " " * (position - begin)
        return ValueError(f"{self.argument}={quoted(self.text)}: {problem}\n    {line}\n    {place}^")

    def integer(self) -> int:
        if not _INTEGER.fullmatch(self.token):
            raise self.error("allowed here is an int")
        return int(self.next())

    def flag(self) -> bool:
        return self.expect("False", "True") == "True"

    def block(self) -> dict[Any, int | None]:
        """A mapping of axes to sizes."""
        block: dict[Any, int | None] = {}
        self.expect("{")
        while self.next_item("}", first=not block):
            start = self.index
            axis: Any = {"...": ..., FLAT: FLAT}.get(self.token)
            axis = self.integer() if axis is None else self.next() and axis
            if axis in block:
                raise self.error("allowed is each axis once", start)
            self.expect(":")
            block[axis] = None if self.token == "None" and self.next() else self.integer()
        return block

    def numbers(self) -> list[float]:
        """A list of numbers."""
        numbers: list[float] = []
        self.expect("[")
        while self.next_item("]", first=not numbers):
            numbers.append(self.decimal())
        return numbers

    def decimal(self) -> float:
        if not _DECIMAL.fullmatch(self.token):
            raise self.error("allowed here is a number")
        return float(self.next())

    def element(self) -> Number:
        return self.format(_ELEMENT_KINDS)

    def scale(self) -> Any:
        """The scale of blocks."""
        return self.next() if self.token in ("e8m0", "float32") else self.element()

    def number(self) -> Number:
        return self.format(_NUMBER_KINDS)

    def registered(self, name: str) -> Any:
        return self.format({name: _KINDS[name]})

    def format(self, kinds: Mapping[str, Kind]) -> Any:
        """A format of these kinds, or any that has a name, and its overflow policy."""
        found = self._plain_format(kinds)
        if self.token != ":":
            return found
        self.next()
        start, overflow = self.index, self.expect(*OVERFLOWS)
        if not isinstance(found, Number):
            raise self.error(f"allowed after {found.text} is no overflow policy", start)
        return self._made(found.overflowing, {"overflow": overflow}, {}, start)

    def _plain_format(self, kinds: Mapping[str, Kind]) -> Any:
        start, name = self.index, self.next()
        if self.token != "(":
            return self._named(name, kinds, start)
        _load_elsewhere(name)
        kind = kinds.get(_QPYTORCH_NAMES.get(name, name))
        if kind is None:
            raise self._unknown(name, kinds, start)
        self.next()
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.error(f"allowed are {MOST_NESTED} kinds inside each other", start)
        values, positions = self._arguments(kind)
        self.depth -= 1
        return self._made(kind.make, values, positions, start)

    def _named(self, name: str, kinds: Mapping[str, Kind], start: int) -> Number:
        small = name.lower()
        if small in NAMED:
            return NAMED[small][0]
        if standard := _P3109.fullmatch(small):
            bits, precision, sign, domain = standard.groups()
            values = {"bits": int(bits), "precision": int(precision), "signed": sign == "s", "extended": domain == "e"}
            return self._made(p3109, values, {}, start)
        meanings = MEANINGS.get(small, "").split()
        if len(meanings) != 1:
            raise self._unknown(name, kinds, start)
        return parse(meanings[0])

    def _unknown(self, name: str, kinds: Mapping[str, Kind], start: int) -> ValueError:
        """The error at an unknown or ambiguous name; what it may mean comes first."""
        _load_elsewhere(*_ELSEWHERE)
        nearest = likely_meanings(name) if name not in _KINDS or name in MEANINGS else []
        hint = f"{name} may mean {' or '.join(nearest)}; " if nearest else ""
        allowed = (
            f"{', '.join(map(_signature, list(kinds)))}, and the names {', '.join(NAMED)}"  # a list: threads add kinds
        )
        own = "; a format of your own is read in a process that called register_format" if self.token == "(" else ""
        return self.error(f"{hint}allowed here are {allowed}{own}", start)

    def _made(self, make: Callable[..., Any], values: dict[str, Any], positions: dict[str, int], start: int) -> Any:
        """Calls a function with the arguments that were read; its errors point at the argument that they name."""
        try:
            return make(**values)
        except (TypeError, ValueError) as error:  # its message begins with the argument's name
            named = _WORD.match(str(error))
            raise self.error(str(error), positions.get(named[0], start) if named else start) from error

    def _arguments(self, kind: Kind) -> tuple[dict[str, Any], dict[str, int]]:
        """The arguments up to the closing parenthesis, and the tokens of their values."""
        values: dict[str, Any] = {}
        positions: dict[str, int] = {}
        named = False
        while self.next_item(")", first=not values):
            free = [name for name in kind.parameters if name not in values]
            if not free:
                raise self.error("allowed here is )")
            named = named or self.tokens[self.index + 1][0] == "="
            parameter = self._parameter(free) if named else free[0]
            positions[parameter] = self.index
            values[parameter] = kind.parameters[parameter](self)
        missing = [name for name in list(kind.parameters)[: kind.required] if name not in values]
        if missing:
            raise self.error(f"missing here is {missing[0]}", self.index - 1)
        return values, positions

    def _parameter(self, free: list[str]) -> str:
        """A parameter and its equality sign."""
        parameter = self.token if self.token in free else _QPYTORCH_NAMES.get(self.token)
        if parameter not in free:
            raise self.error(f"allowed here are {', '.join(free)}")
        self.next()
        self.expect("=")
        return parameter


def choice(allowed: tuple[str, ...]) -> Callable[[Reader], str]:
    return lambda reader: reader.expect(*allowed)


def rule_of(allowed: Iterable[str]) -> Callable[[Reader], str]:
    """Reads a rule of blocks; the constructor answers names of torchao's laws without versions."""
    take = choice(tuple(dict.fromkeys(allowed)))
    return lambda reader: reader.next() if reader.token in UNDATED_RULES else take(reader)


class Kind(NamedTuple):
    """A kind of formats.

    Attributes:
        make: the class, or the function that makes a format.
        parameters: in order, with the functions that read their values.
        required, unnamed, always: the numbers of parameters without a default, of those that are written without their
            names, and of those that are written even if they have their defaults.
        computes: True if a default of None may stand for a number that the class computes, as in all formats.
    """

    make: Callable[..., Any]
    parameters: dict[str, Callable[[Reader], Any]]
    required: int
    unnamed: int
    always: int
    computes: bool = False


_CODEBOOKS = ("nf4", "fp4_bnb", "af4")


def _codebook(name: str) -> Callable[..., BlockNumber]:
    """The function that makes bitsandbytes' blocks of a table: cut from the elements in row-major order.

    Its argument `nested` is the number of blocks whose scales share a scale in turn; 0 is none.
    """

    def make(block: int, nested: int = 0) -> BlockNumber:
        number = BlockScaled(NAMED[name][0], {FLAT: block}, "absmax", "float32")
        if check_int("nested", nested, 0) == 0:
            return number
        _load_elsewhere("doubled")
        return _KINDS["doubled"].make(number, nested)

    return make


def _codebook_arguments(number: Any) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments with which `_codebook` makes the format; None if it cannot."""
    first = number.first if isinstance(number, NestedNumber) else number
    if not isinstance(first, BlockScaled) or not first.block or first.block[0][0] != FLAT:
        return None
    name = next((one for one in _CODEBOOKS if NAMED[one][0] == first.element), "")
    arguments = {"block": first.block[0][1], "nested": number.block if isinstance(number, NestedNumber) else 0}
    return (name, arguments) if name and _codebook(name)(**arguments) == number else None


_int, _flag, _block = Reader.integer, Reader.flag, Reader.block
_FIXED = {"wl": _int, "fl": _int, "clamp": _flag, "symmetric": _flag, "signed": _flag, "wrap": _flag}
_FLOAT = {"exp": _int, "man": _int, "bias": _int, "subnormals": _flag}
_OVERFLOW = {"overflow": choice(("saturate", "propagate", "inf", "nan"))}
_BINARY = {"exp": _int, "man": _int, "bias": _int, "specials": choice(SPECIALS), "subnormals": _flag, "signed": _flag}
_ELEMENT_KINDS = {
    "float": Kind(FloatingPoint, _FLOAT, 2, 2, 2),
    "fixed": Kind(FixedPoint, _FIXED, 2, 2, 2),
    "binary": Kind(BinaryFloat, _BINARY | _OVERFLOW, 2, 2, 2),
    "p3109": Kind(p3109, {"bits": _int, "precision": _int, "signed": _flag, "extended": _flag}, 2, 2, 2),
    "table": Kind(
        Table,
        {
            "values": Reader.numbers,
            "thresholds": Reader.numbers,
            "ties": choice(("even", "away")),
            "beyond": Reader.decimal,
        },
        1,
        1,
        1,
    ),
}
_NUMBER_KINDS = _ELEMENT_KINDS | {
    "posit": Kind(Posit, {"bits": _int, "es": _int}, 1, 2, 1),
    "block": Kind(BlockFloatingPoint, {"wl": _int, "dim": _int}, 1, 1, 2),
    "scaled": Kind(
        BlockScaled,
        {
            "element": Reader.element,
            "block": _block,
            "rule": rule_of((*RULES, *FLOAT_RULES, *LEVEL_RULES)),
            "scale": Reader.scale,
            "history": _int,
            "margin": _int,
            "reduce_amax": _flag,
            "tensor_scale": choice(("float32",)),
            "sub_block": _block,
            "four_over_six": choice(("mae", "mse")),
            "scale_max": _int,
        },
        2,
        2,
        2,
    ),
    "nvfp4": Kind(
        NVFP4,
        {
            "block": _block,
            "law": rule_of(LEVEL_RULES),
            "four_over_six": choice(("mae", "mse")),
            "scale_max": _int,
        },
        0,
        1,
        0,
    ),
    **{name: Kind(_codebook(name), {"block": _int, "nested": _int}, 1, 0, 1) for name in _CODEBOOKS},
}
_KINDS = dict(_NUMBER_KINDS)
_KIND_OF: dict[Any, str] = {kind.make: name for name, kind in _KINDS.items()}


def _names() -> dict[Number, str]:
    """The names of formats, alone and with an overflow policy; QPyTorch's are left out, as float(5,2) says more."""
    names = {number: name for name, (number, _) in NAMED.items() if not isinstance(number, FloatingPoint)}
    for number, name in list(names.items()):
        for overflow in OVERFLOWS:
            with suppress(ValueError):  # formats allow some policies
                names.setdefault(number.overflowing(overflow), f"{name}:{overflow}")
    return names


_NAME_OF = _names()
_QPYTORCH_NAMES = {  # of classes and arguments, as QPyTorch prints them
    "FixedPoint": "fixed",
    "FloatingPoint": "float",
    "BlockFloatingPoint": "block",
    "exponent": "exp",
    "mantissa": "man",
}


_REGISTERING = Lock()
_ELSEWHERE: dict[str, Callable[[], object]] = {}


def register(name: str, kind: Kind) -> None:
    """Adds a kind whose class is defined on a higher floor than formats."""
    _KINDS[name], _KIND_OF[kind.make] = kind, name
    if isinstance(kind.make, type) and issubclass(kind.make, Number):
        _NUMBER_KINDS[name] = kind


def register_elsewhere(kinds: Mapping[str, Callable[[], object]]) -> None:
    """Adds kinds that other rooms have: each with a function that imports the module which registers it.

    It is called when a text has the name, so that no program imports a room for formats that it does not use.
    """
    _ELSEWHERE.update(kinds)


def _load_elsewhere(*names: str) -> None:
    for name in names:
        if name in _ELSEWHERE and name not in _KINDS:
            _ELSEWHERE[name]()


def register_format(name: str, kind: type[Number]) -> None:
    """Gives the formats of a class of your own a text, which `parse` and all functions of the three packages take.

    The text is the name with the class's fields: "name(8,3,signed=False)". Compiled programs and JAX find formats by
    their text, so a class is registered before its formats are used there. Call this in the module that defines the
    class, once for each process: other processes read such a text only after they import that module, as pickle does.
    A name stays with its class until the process ends, because programs that were compiled for a text outlive a call.
    It is safe to call from several threads.

    Args:
        name: letters, digits and underscores; not the name or a spelling of another format.
        kind: a subclass of `Number`, a dataclass with frozen=True, whose fields are int, bool, formats, or
            Literal["one", "other"] for words; each may also be None.

    Returns:
        None.

    Raises:
        TypeError: if kind is not such a class, or a field has another type.
        ValueError: if the name is not allowed, or belongs to another class.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Halves(Number):
        ...     "Integers and halves of a width."
        ...
        ...     width: int
        ...
        ...     def reduce(self, carrier):
        ...         return FixedPoint(self.width, 1).reduce(carrier)
        >>> register_format("halves", Halves)
        >>> parse("halves(6)"), Halves(8).text
        (Halves(width=6), 'halves(8)')
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name={quoted(name)}; allowed are letters, digits and underscores")
    new = _kind_of_class(kind)
    _load_elsewhere(name)
    with _REGISTERING:
        owner = _KINDS[name].make if name in _KINDS else None
        taken = name in _QPYTORCH_NAMES or name.lower() in (*NAMED, *MEANINGS)
        if taken or owner not in (None, kind):
            raise ValueError(
                f"name={quoted(name)} belongs to another format; allowed is a name that means nothing yet, or a new "
                "process if the class was changed: compiled programs may have the old one"
            )
        if _KIND_OF.get(kind, name) != name:
            raise ValueError(f"name={quoted(name)}; allowed for {kind.__name__} is {_KIND_OF[kind]}, its name so far")
        _NUMBER_KINDS[name], _KINDS[name], _KIND_OF[kind] = new, new, name


def _kind_of_class(kind: Any) -> Kind:
    """The kind of texts that stand for a dataclass of formats: its fields are the parameters."""
    frozen = isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen or not issubclass(kind, Number) or kind.__eq__ is object.__eq__:
        raise TypeError(f"kind={quoted(kind)}; allowed is a subclass of Number that is a dataclass with frozen=True")
    hints = get_type_hints(kind)
    given = [field for field in fields(cast(Any, kind)) if field.init]
    required = sum(field.default is MISSING and field.default_factory is MISSING for field in given)
    return Kind(
        kind, {field.name: _reader(field.name, hints[field.name]) for field in given}, required, required, required
    )


def _reader(field: str, hint: Any) -> Callable[[Reader], Any]:
    """The function that reads a field's value, by its type."""
    types = [
        one for one in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)) if one is not NoneType
    ]
    read = None
    if len(types) == 1:
        words = get_args(types[0]) if get_origin(types[0]) is Literal else ()
        if words and all(isinstance(word, str) and _NAME.fullmatch(word) for word in words):
            read = choice(words)
        elif isinstance(types[0], type):
            read = _flag if types[0] is bool else _int if types[0] is int else None
            read = Reader.number if issubclass(types[0], Number) else read
    if read is None:
        raise TypeError(
            f"{field} has the type {quoted(hint)}; allowed are int, bool, Number and Literal of words, also with None"
        )
    found = read
    return lambda reader: None if reader.token == "None" and reader.next() else found(reader)


def _signature(name: str) -> str:
    return f"{name}({','.join(list(_KINDS[name].parameters)[: _KINDS[name].unnamed])})"


def write(number: Any) -> str:
    """The text of a format, or a TypeError if its class has none."""
    if number in _NAME_OF:
        return _NAME_OF[number]
    if type(number) not in _KIND_OF:
        raise TypeError(
            f"number={quoted(number)} has no text; allowed are {', '.join(make.__name__ for make in list(_KIND_OF))}, "
            "and a class of your own after register_format(name, class)"
        )
    name = _KIND_OF[type(number)]
    if (design := getattr(number, "design", None)) is not None:
        return f"{name}(design={design.name})"  # all other fields follow from it
    values: dict[str, Any] = {parameter: getattr(number, parameter) for parameter in _KINDS[name].parameters}
    for part in ("element", "scale"):  # which saturate anyway
        if name == "scaled" and isinstance(values[part], BinaryFloat):
            values[part] = replace(values[part], overflow=None)
    if arguments := nvfp4_arguments(number):
        name, values = "nvfp4", arguments
    name, values = _codebook_arguments(number) or (name, values)
    if type(number) is BinaryFloat and number.specials.startswith("p3109"):
        name, values = _p3109_arguments(number) or (name, values)
    return _call(name, values, number)


def _p3109_arguments(number: BinaryFloat) -> tuple[str, dict[str, Any]] | None:
    """The arguments with which `p3109` makes the format; None if it cannot."""
    values: dict[str, Any] = {"bits": number.bits, "precision": number.man + 1, "signed": number.signed}
    values["extended"] = number.specials == "p3109"
    try:
        return ("p3109", values) if p3109(**values) == number else None
    except ValueError:
        return None


def _call(name: str, values: dict[str, Any], number: Any) -> str:
    """A kind with its arguments, without those that have their defaults."""
    kind = _KINDS[name]
    texts: list[str] = []  # Dynamo traces no list[str](), and warns of functions with caches
    parameters = inspect.signature(kind.make).parameters
    for index, (parameter, value) in enumerate(values.items()):
        if index < kind.always or not _is_default(kind, parameters[parameter], value, number):
            texts.append(_value(value) if index < kind.unnamed else f"{parameter}={_value(value)}")
    return f"{name}({','.join(texts)})"


def _is_default(kind: Kind, parameter: inspect.Parameter, value: Any, number: Any) -> bool:
    """True if the format is the same without the argument; a default of None may stand for a computed number."""
    default = parameter.default
    if value == default or default is not None or not (kind.computes or isinstance(number, Number)):
        return value == default
    with suppress(ValueError):  # raised where others need the argument
        return replace(number, **{parameter.name: None}) == number  # type: ignore[type-var]
    return False


def _value(value: Any) -> str:
    if isinstance(value, tuple):  # a table's numbers, an order, or the mapping of axes to sizes, in order
        items = cast("tuple[Any, ...]", value)
        if items and isinstance(items[0], int):  # an order
            return f"[{','.join(map(str, items))}]"
        return number_list(items) if items and isinstance(items[0], float) else block_text(items).replace(" ", "")
    if isinstance(value, float):
        return number_list([value])[1:-1]
    return value.text if type(value) in _KIND_OF else str(getattr(value, "value", value))  # an Enum's


FormatTexts.learn, FormatTexts.write, FormatTexts.name_of_dtype = learn, write, dtype_name
