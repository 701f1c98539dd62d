"""Matrix instructions of chips, by name: one table of what each does with the terms of a step, and where that is from.

A name is `chip.instruction.operands`, with `.f16` behind it where the accumulator and the result are float16:
"hopper.wgmma.e4m3", "volta.mma.f16.f16". Two operands of different formats have an underscore between them. "_k8" after
an instruction is its shape with 8 terms, where that adds otherwise than the longest shape. `qcore.linalg.steps` has the
laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any

from qcore.arguments import quoted
from qcore.formats.block import BlockScaled
from qcore.formats.text import parse

ALIGNED, GROUPED, PAIRS, FUSED, FLOOR, PARITY = "aligned", "grouped", "pairs", "fused", "floor", "parity"
_FLOAT32, _E8M13, _FLOAT16 = "binary(8,23)", "binary(8,13)", "float16"
_NAN, _NVIDIA_NAN, _NVIDIA_HALF_NAN = 0x7FC00000, 0x7FFFFFFF, 0x7FFFE000  # the last is float16's 0x7FFF in float32

_MMA_SIM = 'Xie et al., "MMA-Sim", arXiv:2511.10909'
_FASI = 'Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021; ' + _MMA_SIM
_KHATTAK = "Khattak and Mikaitis, arXiv:2512.07004; " + _MMA_SIM
_BY_RULE = _MMA_SIM + ", whose rule for FP8 is applied: its code has no such operand"

_FORMATS = {
    "f16": "float16",
    "bf16": "bfloat16",
    "tf32": "tf32",
    "xf32": "tf32",
    "f32": _FLOAT32,
    "e4m3": "e4m3fn",
    "e5m2": "e5m2",
    "e2m3": "e2m3fn",
    "e3m2": "e3m2fn",
    "e2m1": "e2m1fn",
    "fp8": "e4m3fnuz",
    "bf8": "e5m2fnuz",
}


@dataclass(frozen=True)
class Design:
    """What a matrix instruction does with the terms of a step and its accumulator.

    Attributes:
        name: see the module.
        law: the law of a step: ALIGNED, GROUPED, PAIRS, FUSED, FLOOR or PARITY, see `qcore.linalg.steps`.
        operands: the texts of the two operands' formats, in either order; for scaled blocks of their elements.
        number: the text of the format of the accumulator and of the result.
        step: the number of terms that are added at once. A shorter last step is filled with zeros.
        fraction_bits: the bits of fraction that aligned terms keep; 0 for laws that do not align.
        block: the number of elements that share a scale; 0 without scales.
        scale: the text of the scales' format; None without scales.
        flushes: True if subnormal operands and addends count as +0, and subnormal sums as zeros of their sign.
        nan: the bits of a result that is NaN, in float32.
        source: where the behaviour was published.
    """

    name: str
    law: str
    operands: tuple[str, str]
    number: str
    step: int
    fraction_bits: int = 0
    block: int = 0
    scale: str | None = None
    flushes: bool = False
    nan: int = _NAN
    source: str = _MMA_SIM

    @property
    def truncates(self) -> bool:
        """True if operands wider than the format are cut off: TF32's low bits are not read."""
        return "tf32" in self.operands

    @property
    def numbers(self) -> tuple[Any, Any]:
        """The operands' formats; for scaled blocks, formats with the design's blocks along the last axis."""
        found = [parse(text) for text in self.operands]
        if self.block and self.scale is not None:
            found = [_scaled(element, self.block, self.scale) for element in found]
        return found[0], found[1]

    @property
    def text(self) -> str:
        """The operands, for messages."""
        first, second = (number.text for number in self.numbers)
        return first if first == second else f"{first} and {second}"

    def has(self, given: Sequence[Any], pair: tuple[Any, Any]) -> bool:
        """True if each operand's format is that of the pair, or None."""
        return all(number is None or self._fits(number, own) for number, own in zip(given, pair, strict=True))

    def _fits(self, number: Any, own: Any) -> bool:
        if not self.block:
            return _numbers_of(number) == _numbers_of(own)
        if not isinstance(number, BlockScaled) or _numbers_of(number.element) != _numbers_of(own.element):
            return False
        same = number.scale == own.scale or _numbers_of(number.scale) == _numbers_of(own.scale) is not None
        return same and number.block_sizes(2)[-1] == self.block


def _scaled(element: Any, block: int, scale: str) -> BlockScaled:
    """The format with a design's blocks: NVFP4's for its scales, else OCP's MX."""
    tensor = "float32" if scale == "e4m3fn" and block == 16 else None
    return BlockScaled(element, {-1: block}, scale=scale, tensor_scale=tensor)


def _numbers_of(number: Any) -> Any:
    """What tells the numbers of a float format, whatever happens beyond the largest; None for other formats."""
    found = getattr(number, "magnitudes", None)
    return None if found is None else replace(found, name="")


def _pairs(*names: str) -> list[tuple[str, str]]:
    return list(combinations_with_replacement(names, 2))


def _joined(pair: tuple[str, str]) -> str:
    return pair[0] if pair[0] == pair[1] else "_".join(pair)


def _nvidia(
    instruction: str,
    pairs: list[tuple[str, str]],
    step: int,
    bits: int,
    source: str,
    halves: bool = True,
    number: str = _FLOAT32,
) -> list[Design]:
    """Aligned sums of an instruction; with `halves` also those in float16, for f16 and narrower operands."""
    found = []
    for pair in pairs:
        operands = _FORMATS[pair[0]], _FORMATS[pair[1]]
        from_ = _BY_RULE if {"e2m1", "e2m3", "e3m2"} & {*pair} else source
        row = Design(
            f"{instruction}.{_joined(pair)}", ALIGNED, operands, number, step, bits, nan=_NVIDIA_NAN, source=from_
        )
        found.append(row)
        if halves:
            found.append(replace(row, name=f"{row.name}.f16", number=_FLOAT16, nan=_NVIDIA_HALF_NAN))
    return found


def _mma(chip: str, bits: int, source: str, undivided: bool) -> list[Design]:
    """The instructions `mma` that Ampere has, on this chip; before Hopper the longest shapes add in two steps."""
    f16, bf16, tf32 = _pairs("f16"), _pairs("bf16"), _pairs("tf32")
    step = 16 if undivided else 8
    found = [
        *_nvidia(f"{chip}.mma", f16, step, bits, source),
        *_nvidia(f"{chip}.mma", bf16, step, bits, source, False),
        *_nvidia(f"{chip}.mma", tf32, step // 2, bits, source, False),
    ]
    if undivided:
        found += [
            *_nvidia(f"{chip}.mma_k8", f16, 8, bits, source),
            *_nvidia(f"{chip}.mma_k8", bf16, 8, bits, source, False),
            *_nvidia(f"{chip}.mma_k4", tf32, 4, bits, source, False),
        ]
    return found


def _block_scaled(instruction: str, more: bool) -> list[Design]:
    """Blackwell's instructions for MX and NVFP4 operands; with `more` a second block size of NVFP4's scales."""
    elements = "e4m3", "e5m2", "e2m1", "e2m3", "e3m2"
    found = []
    for pair in _pairs(*elements):
        operands = _FORMATS[pair[0]], _FORMATS[pair[1]]
        name = _joined((f"mx{pair[0]}", f"mx{pair[1]}"))
        source = _BY_RULE if {"e2m1", "e2m3", "e3m2"} & {*pair} else _MMA_SIM
        row = Design(
            f"{instruction}.{name}", ALIGNED, operands, _FLOAT32, 32, 25, 32, "e8m0", False, _NVIDIA_NAN, source
        )
        found.append(row)
    kinds = [("mxf4", 32, "e8m0"), ("mxf4_16", 16, "e8m0"), ("nvf4", 16, "e4m3fn")]
    for name, block, scale in [*kinds, ("nvf4_32", 32, "e4m3fn")] if more else kinds:
        pair = ("e2m1fn", "e2m1fn")
        row = Design(f"{instruction}.{name}", GROUPED, pair, _FLOAT32, 64, 35, block, scale, False, _NVIDIA_NAN)
        found.append(row)
    return found


def _amd(chip: str, name: str, law: str, step: int, **more: Any) -> Design:
    operands = name.partition(".")[2].removesuffix("_1k").split("_")
    formats = _FORMATS[operands[0]], _FORMATS[operands[-1]]
    return Design(f"{chip}.{name}", law, formats, _FLOAT32, step, **more)


def _rows() -> list[Design]:
    f16, fp8 = _pairs("f16"), _pairs("e4m3", "e5m2")
    narrow = _pairs("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
    wide = [*f16, ("f16", "bf16")], _pairs("bf16"), _pairs("tf32")
    floor = {"fraction_bits": 24}
    return [
        *_nvidia("volta.mma", f16, 4, 23, _FASI),
        *_nvidia("turing.mma", f16, 8, 24, _FASI),
        *_nvidia("turing.mma_k4", f16, 4, 24, _MMA_SIM),
        *_mma("ampere", 24, _FASI, False),
        *_mma("ada", 24, _KHATTAK, False),
        *(row for row in _nvidia("ada.mma", fp8, 16, 13, _KHATTAK, True, _E8M13)),
        *_mma("hopper", 25, _KHATTAK, True),
        *_nvidia("hopper.wgmma", f16, 16, 25, _KHATTAK),
        *_nvidia("hopper.wgmma", wide[1], 16, 25, _KHATTAK, False),
        *_nvidia("hopper.wgmma", wide[2], 8, 25, _KHATTAK, False),
        *_nvidia("hopper.wgmma", fp8, 32, 13, _KHATTAK, True, _E8M13),
        *_mma("blackwell", 25, _MMA_SIM, True),
        *_nvidia("blackwell.tcgen05", f16, 16, 25, _KHATTAK),
        *_nvidia("blackwell.tcgen05", [("f16", "bf16"), ("bf16", "bf16")], 16, 25, _KHATTAK, False),
        *_nvidia("blackwell.tcgen05", wide[2], 8, 25, _KHATTAK, False),
        *_nvidia("blackwell.tcgen05", narrow, 32, 25, _KHATTAK),
        *_block_scaled("blackwell.tcgen05", False),
        *_mma("rtx_blackwell", 25, _MMA_SIM, True),
        *_nvidia("rtx_blackwell.mma", narrow, 32, 25, _MMA_SIM),
        *_nvidia("rtx_blackwell.mma_k16", fp8, 16, 25, _MMA_SIM),
        *_block_scaled("rtx_blackwell.mma", True),
        _amd("cdna1", "mfma.f32", FUSED, 1),
        _amd("cdna1", "mfma.f16", PAIRS, 4),
        _amd("cdna1", "mfma.bf16", PAIRS, 2),
        _amd("cdna2", "mfma.f32", FUSED, 1),
        _amd("cdna2", "mfma.f16", PAIRS, 4, flushes=True),
        _amd("cdna2", "mfma.bf16_1k", PAIRS, 4, flushes=True),
        _amd("cdna2", "mfma.bf16", PAIRS, 2, flushes=True),
        _amd("cdna3", "mfma.f32", FUSED, 1),
        _amd("cdna3", "mfma.xf32", FLOOR, 4, **floor),
        *(_amd("cdna3", f"mfma.{name}", FLOOR, 8, **floor) for name in ("f16", "bf16")),
        *(_amd("cdna3", f"mfma_k4.{name}", FLOOR, 4, **floor) for name in ("f16", "bf16")),
        *(_amd("cdna3", f"mfma.{name}", PARITY, 16, **floor) for name in ("fp8", "bf8", "fp8_bf8")),
    ]


DESIGNS = {row.name: row for row in _rows()}


# The instruction that kernels use, where a chip has an older one as well.
_NEWEST = {"hopper": "hopper.wgmma.", "blackwell": "blackwell.tcgen05."}


def design_for(on: Any, first: Any, second: Any) -> Design:
    """The instruction of a machine, with a float32 accumulator, for operands of two formats.

    Args:
        on: a chip, or a chip and an instruction: "hopper", "hopper.mma".
        first, second: the formats; None is float32.

    Raises:
        TypeError: if on is not a str.
        ValueError: if there is no such machine, or it has no instruction for these formats.
    """
    if not isinstance(on, str):
        raise TypeError(f"on={quoted(on)} is a {type(on).__name__}; allowed is a chip such as hopper")
    known = [row for row in DESIGNS.values() if row.name.startswith(f"{on}.") and row.number != _FLOAT16]
    if not known:
        raise ValueError(f"on={quoted(on)}; {nearest_designs(on)}")
    given = [parse(_FLOAT32) if number is None else number for number in (first, second)]
    for row in sorted(known, key=lambda row: not row.name.startswith(_NEWEST.get(on, on))):
        if any(row.has(given, pair) for pair in (row.numbers, row.numbers[::-1])):
            return row
    formats = dict.fromkeys(number.text for row in known for number in row.numbers)
    raise ValueError(
        f"on={quoted(on)} has no instruction for {' and '.join(number.text for number in given)}; allowed are "
        f"{', '.join(formats)}, in the pairs that `qbits designs {on}` lists"
    )


def design_of(name: Any) -> Design:
    """The design with a name; operands of two formats may stand in either order."""
    if isinstance(name, Design):
        return name
    if not isinstance(name, str):
        raise TypeError(
            f"design={quoted(name)} is a {type(name).__name__}; allowed is a name such as hopper.wgmma.e4m3"
        )
    found = DESIGNS.get(name) or DESIGNS.get(_turned(name))
    if found is None:
        raise ValueError(f"design={quoted(name)}; {nearest_designs(name)}")
    return found


def _turned(name: str) -> str:
    parts = name.split(".")
    if len(parts) > 2:
        parts[2] = "_".join(reversed(parts[2].split("_")))
    return ".".join(parts)


def nearest_designs(name: str) -> str:
    """What is allowed, the most similar names first."""
    near = get_close_matches(name.lower(), DESIGNS, 4, 0.5)
    chips = dict.fromkeys(known.partition(".")[0] for known in DESIGNS)
    hint = f"near it are {', '.join(near)}; " if near else ""
    return f"{hint}allowed are names that `qbits designs` lists, of {', '.join(chips)}"


@lru_cache(maxsize=512)
def least_exponent(number: Any) -> int:
    """The exponent of a float format's least normal number, which subnormal numbers share."""
    bits, step, _ = number.span
    return step + bits - 1
