"""The public functions, once, for all packages."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_broadcast
from qcore.arithmetic import signatures
from qcore.arithmetic.call import OperationCall, Question, call_of_codes, call_of_numbers, question_of
from qcore.arithmetic.operations import OPERATIONS
from qcore.binding import NUMPY, bind, public

_NAMES = ("x", "y", "z")


class Functions:
    """The operations on a package's arrays: numbers and codes."""

    def __init_subclass__(cls, package: str = "", words: dict[str, str] = NUMPY) -> None:
        """Gives the class of a package its own functions; `package` is their public module, "" for an inner class."""
        if package:
            bind(cls, package, words)

    def floats(self, name: str, x: Any) -> tuple[Any, str]:
        """An array of floats of the package, and the name of its dtype; raises a TypeError for anything else."""
        raise NotImplementedError

    def codes(self, name: str, x: Any) -> Any:
        """An array of integers of the package; raises a TypeError for anything else."""
        raise NotImplementedError

    def on_numbers(self, call: OperationCall, arrays: tuple[Any, ...], dtype: str, key: Any) -> Any:
        """The results of numbers, in an array of a dtype."""
        raise NotImplementedError

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> Any:
        """The codes of the results of codes."""
        raise NotImplementedError

    def on_question(self, question: Question, given: tuple[Any, ...]) -> Any:
        """The answers about numbers, or about codes if the question has their formats."""
        raise NotImplementedError

    def _asked(self, name: str, given: tuple[Any, ...], operands: Any = None) -> Any:
        found = [self.floats(name, x) for name, x in zip(_NAMES, given, strict=False)]
        arrays = tuple(x for x, _ in found)
        _check_shapes(arrays)
        formats = found[0][1] if operands is None else operands
        return self.on_question(question_of(name, len(given), formats, False), arrays)

    def _asked_of_codes(self, name: str, given: tuple[Any, ...], operands: Any) -> Any:
        codes = tuple(self.codes(name, x) for name, x in zip(_NAMES, given, strict=False))
        _check_shapes(codes)
        return self.on_question(question_of(name, len(given), operands, True), codes)

    def _numbers(
        self,
        operation: str,
        given: tuple[Any, ...],
        result: Any,
        modes: tuple[Any, ...],
        key: Any,
        operands: Any = None,
    ) -> Any:
        found = [self.floats(name, x) for name, x in zip(_NAMES, given, strict=False)]
        arrays = tuple(x for x, _ in found)
        _check_shapes(arrays)
        call, dtype = call_of_numbers(operation, [dtype for _, dtype in found], operands, result, *modes)
        return self.on_numbers(call, arrays, dtype, key)

    def _codes(
        self, operation: str, given: tuple[Any, ...], operands: Any, result: Any, modes: tuple[Any, ...], key: Any
    ) -> Any:
        codes = tuple(self.codes(name, x) for name, x in zip(_NAMES, given, strict=False))
        _check_shapes(codes)
        return self.on_codes(call_of_codes(operation, operands, result, *modes), codes, key)


def _check_shapes(arrays: tuple[Any, ...]) -> None:
    for i, y in enumerate(arrays):
        for name, x in zip(_NAMES, arrays[:i], strict=False):
            if x.shape != y.shape:
                check_broadcast(name, x.shape, _NAMES[i], y.shape)


_ARGUMENTS = """result: the result's format, or its text; None is {default}.
    rounding, key, random_bits, start, overflow: as for `quantize`; random words are those of the result's elements."""

_OPERANDS = """operands: the format of the operands, or a tuple with one for each; None is their dtype's, of float16 or
        bfloat16. Codes of all operands have at most 16 bits together. Other numbers are rounded to it first.
    """

_NUMBERS = """{sentence}

Args:
    {names}: array{s} of float32, float16 or bfloat16{broadcast}.
    {arguments}

Returns:
    An array of the common dtype, or of float32 if dtypes differ. Every NaN is the same. {gradient}

Raises:
    ValueError: if the result's format has numbers that the dtype has not, or stochastic rounding has no key.

Example:
    >>> {names} = np.float32({example})
    >>> arithmetic.{name}({names}, "e4m3fn"{given}).tolist()
    {shows}
"""

_NEIGHBOURS = """{sentence}

It rounds {mode}, so of a number that is not in the format it is the nearest one on that side.

Args:
    x: array of float32, float16 or bfloat16.
    result: the result's format, or its text; None is the dtype's.
    overflow: what is beyond the largest numbers, as for `quantize`.

Returns:
    An array of the dtype. Every NaN is the same.

Raises:
    ValueError: if the result's format has numbers that the dtype has not.

Example:
    >>> x = np.float32({example})
    >>> arithmetic.{name}(x, "e4m3fn").tolist()
    {shows}
"""

_NEIGHBOURS_OF_CODES = """`{name}` of numbers that are given and returned as codes.

Args:
    x: integer array: codes, whose higher bits are ignored.
    operands: the format of the operand.
    result: the result's format, or its text; None is that of the operand.
    overflow: what is beyond the largest numbers, as for `quantize`.

Returns:
    An array of codes, as `encode` returns them.

Raises:
    ValueError: if a format has no codes of single numbers or too many bits.

Example:
    >>> codes = np.array([56, 60, 64])  # 1.0, 1.5 and 2.0 in e4m3fn
    >>> arithmetic.{name}_codes(codes, "e4m3fn").tolist()
    {shows}
"""

_QUESTION = """{sentence}

Args:
    {names}: array{s} of float32, float16 or bfloat16{broadcast}.{of_format}

Returns:
    An array of {kind}.

Raises:
    TypeError: if an argument is no array of these dtypes.

Example:
    >>> {names} = np.float32({example})
    >>> arithmetic.{name}({names}{given}).tolist()
    {shows}
"""

_QUESTION_OF_CODES = """`{name}` of numbers that are given as codes.

Args:
    {names}: integer array{s}{broadcast}: codes, whose higher bits are ignored.
    operands: the format of the operands{each}.

Returns:
    An array of {kind}.

Raises:
    ValueError: if a format has no codes of single numbers, or too many bits.

Example:
    >>> codes = np.array([0, 1, 56, 255])  # 0.0, 2^-9, 1.0 and NaN in e4m3fn
    >>> arithmetic.{name}_codes({codes}, "e4m3fn").tolist()
    {shows}
"""

_CODES = """`{name}` of numbers that are given and returned as codes.

Args:
    {names}: integer array{s}{broadcast}: codes, whose higher bits are ignored.
    operands: the format of the operands, or a tuple with one for each.
    {arguments}

Returns:
    An array of codes, as `encode` returns them. Codes of up to 16 bits together are looked up in a table.

Raises:
    ValueError: if a format has no codes of single numbers or too many bits, or stochastic rounding has no key.

Example:
    >>> codes = np.array([56, 60, 64])  # 1.0, 1.5 and 2.0 in e4m3fn
    >>> arithmetic.{name}_codes({codes}, "e4m3fn").tolist()
    {shows}
"""


def _named(name: str, numbers: Any, codes: Any) -> tuple[Any, Any]:
    numbers.__name__, codes.__name__ = name, f"{name}_codes"
    return public(numbers), public(codes)


def row(name: str, sentence: str, example: str, shows: str, of_codes: str) -> tuple[Any, Any]:
    """Both functions of an operation; `example` are the operands, and `of_codes` the codes of the codes' example."""
    count = OPERATIONS[name].operands
    words = {"name": name, "names": ", ".join(_NAMES[:count]), "sentence": sentence, "example": example}
    words |= {"s": "s" if count > 1 else "", "broadcast": " that broadcast" if count > 1 else ""}
    words["gradient"] = "The gradient is that of the real function."
    is_table = OPERATIONS[name].law is None
    words["given"] = ', operands="e4m3fn"' if is_table else ""
    numbers, codes = (signatures.of_table if is_table else signatures.of_numbers)(name), signatures.of_codes(name)
    words["arguments"] = (_OPERANDS if is_table else "") + _ARGUMENTS.format(default="the dtype's")
    numbers.__doc__ = _NUMBERS.format(shows=shows, **words)
    words["arguments"] = _ARGUMENTS.format(default="that of the operands")
    words["codes"] = ", ".join(["codes", "codes[-1:]", "codes"][:count])
    codes.__doc__ = _CODES.format(shows=of_codes, **words)
    return _named(name, numbers, codes)


def neighbours(name: str, sentence: str, mode: str, example: str, shows: str, of_codes: str) -> tuple[Any, Any]:
    """Both functions of a number's neighbour, whose rounding is given."""
    numbers, codes = signatures.of_neighbour(name, mode)
    numbers.__doc__ = _NEIGHBOURS.format(name=name, sentence=sentence, mode=mode, example=example, shows=shows)
    codes.__doc__ = _NEIGHBOURS_OF_CODES.format(name=name, shows=of_codes)
    return _named(name, numbers, codes)


def question(name: str, sentence: str, example: str, shows: str, of_codes: str, count: int = 1) -> tuple[Any, Any]:
    """Both functions of a comparison, or of a predicate of numbers of a format."""
    words = {"name": name, "sentence": sentence, "example": example, "names": ", ".join(_NAMES[:count])}
    words |= {"s": "s" if count > 1 else "", "broadcast": " that broadcast" if count > 1 else ""}
    words["kind"] = "uint8: places in `CLASSES`" if name == "classify" else "bools"
    words["each"] = ", or a tuple with one for each" if count > 1 else ""
    words["of_format"] = "" if count > 1 else _OF_FORMAT
    words["given"] = ', "e4m3fn"' if name in ("is_normal", "is_subnormal", "classify") else ""
    words["codes"] = ", ".join(["codes", "codes[2:3]"][:count])
    numbers, codes = (signatures.of_comparison if count > 1 else signatures.of_predicate)(name)
    numbers.__doc__, codes.__doc__ = (
        _QUESTION.format(shows=shows, **words),
        _QUESTION_OF_CODES.format(shows=of_codes, **words),
    )
    return _named(name, numbers, codes)


_OF_FORMAT = """
    operands: the format whose normal numbers are meant, where this matters; None is the dtype's."""
