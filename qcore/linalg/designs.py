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

ALIGNED, GROUPED, HALVES, FLOOR, PARITY = "aligned", "grouped", "halves", "floor", "parity"
PAIRS, FUSED, EXACT = "pairs", "fused", "exact"
_FLOAT32, _E8M13, _FLOAT16 = "binary(8,23)", "binary(8,13)", "float16"
_NAN, _NVIDIA_NAN, _NVIDIA_HALF_NAN = 0x7FC00000, 0x7FFFFFFF, 0x7FFFE000  # the last is float16's 0x7FFF in float32

_MMA_SIM = 'Xie et al., "MMA-Sim", arXiv:2511.10909'
_FASI = 'Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021; ' + _MMA_SIM
_KHATTAK = "Khattak and Mikaitis, arXiv:2512.07004; " + _MMA_SIM
_INTEL = 'Intel, "64 and IA-32 Architectures Software Developer\'s Manual", volume 2: VDPBF16PS'
_SUMS = 'measured sums of Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", doi 10.1145/3830409'

# Exponents of zeros, of float32 and of float16 results (mmasim 2.1.1); chips that are not named have the last pair.
_ZEROS = {"volta": (-131, -19), "turing": (-132, -20), "ampere": (-132, -20), "ada": (-132, -20)}
_NEWER_ZEROS, _LONG_ZEROS = (-133, -21), -139  # the last is that of steps of 64 terms

# Terms k with k mod 4 in {0, 1}, then those with 2 and 3; even terms, then odd ones; each odd term, then the even one.
_BY_FOURS = tuple(k for first in (0, 2) for k in range(32) if k % 4 - first in (0, 1))
_EVEN_ODD = (*range(0, 16, 2), *range(1, 16, 2))
_ODD_FIRST = (1, 0)
_OF_CPU = "x86.avx512_bf16"
_LEAST_HALF = -14  # the least exponent of float16

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
        law: the law of a step, see `qcore.linalg.steps`.
        operands: the texts of the two operands' formats, in either order; for scaled blocks of their elements.
        number: the text of the format of the accumulator and of the result.
        step: the number of terms that are added at once. A shorter last step is filled with zeros.
        fraction_bits: the bits of fraction that aligned terms keep; 0 for laws that do not align.
        block: the number of elements that share a scale; 0 without scales.
        scale: the text of the scales' format; None without scales.
        flushes: True if subnormal operands and addends count as zeros, and subnormal sums as zeros of their sign.
        signed_flushes: True if those zeros have the signs of operands and addends; else they are +0.
        nan: the bits of a result that is NaN, in float32.
        source: where the behaviour was published.
        zeros: the exponent of terms and accumulators that are zero; None if zeros do not count.
        evidence: what the law was compared with, and what is inferred.
        order: the order in which terms are taken; () is the order of the matrices.
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
    zeros: int | None = None
    evidence: str = ""
    order: tuple[int, ...] = ()
    signed_flushes: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments with which an `Accumulator` has this law, but for scales, groups, flushing and NaN's bits."""
        nearest = self.number == _FLOAT16 or self.law not in (ALIGNED, GROUPED)
        found = {
            "number": self.number,
            "chunk": self.step,
            "rounding": "nearest" if nearest else "toward_zero",
            "fraction_bits": self.fraction_bits or None,
            "subnormals": "least",
            "zeros": self.zeros,
            "overflow": "inf" if self.law in (ALIGNED, GROUPED) else None,
            "positive_zero": self.law in (ALIGNED, GROUPED),
            "order": self.order,
        }
        if self.law in (FLOOR, PARITY):
            found |= {"align": "twice", "sum_bits": 31, "sum_cut": "down", "sets": 2 if self.law == PARITY else 1}
        if self.law == HALVES:  # whose terms are aligned inside
            found |= {"fraction_bits": None, "zeros": None, "subnormals": "normalized"}
        return found

    @property
    def inside(self) -> dict[str, Any] | None:
        """The same of an accumulator that sums the terms of a step first; None if there is none."""
        if self.law != HALVES:
            return None
        half = replace(self, law=ALIGNED, step=self.step // 2, order=())
        return half.parameters | {"subnormals": _LEAST_HALF}

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
    return getattr(number, "magnitudes", None)


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
    law: str = ALIGNED,
) -> list[Design]:
    """Aligned sums of an instruction; with `halves` also those in float16, for f16 and narrower operands."""
    found = []
    for pair in pairs:
        operands = _FORMATS[pair[0]], _FORMATS[pair[1]]
        zeros, of_halves = _ZEROS.get(instruction.partition(".")[0], _NEWER_ZEROS)
        row = Design(
            f"{instruction}.{_joined(pair)}",
            law,
            operands,
            number,
            step,
            bits,
            nan=_NVIDIA_NAN,
            source=source,
            zeros=zeros,
            order=_BY_FOURS if law == HALVES else (),
        )
        found.append(row)
        if halves:
            half = {"name": f"{row.name}.f16", "number": _FLOAT16, "nan": _NVIDIA_HALF_NAN, "zeros": of_halves}
            found.append(replace(row, **half))
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
        zeros = _NEWER_ZEROS[0]
        row = Design(
            f"{instruction}.{name}", ALIGNED, operands, _FLOAT32, 32, 25, 32, "e8m0", nan=_NVIDIA_NAN, zeros=zeros
        )
        found.append(row)
    kinds = [("mxf4", 32, "e8m0"), ("mxf4_16", 16, "e8m0"), ("nvf4", 16, "e4m3fn")]
    for name, block, scale in [*kinds, ("nvf4_32", 32, "e4m3fn")] if more else kinds:
        pair = ("e2m1fn", "e2m1fn")
        found.append(
            Design(
                f"{instruction}.{name}",
                GROUPED,
                pair,
                _FLOAT32,
                64,
                35,
                block,
                scale,
                nan=_NVIDIA_NAN,
                zeros=_LONG_ZEROS,
            )
        )
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
    # Turing runs Volta's shape with Volta's law.
    volta, turing_k4 = _nvidia("volta.mma", f16, 4, 23, _FASI), _nvidia("turing.mma_k4", f16, 4, 23, _MMA_SIM)
    return [
        *volta,
        *_nvidia("turing.mma", f16, 8, 24, _FASI),
        *(replace(row, zeros=of_volta.zeros) for row, of_volta in zip(turing_k4, volta, strict=True)),
        *_mma("ampere", 24, _FASI, False),
        *_mma("ada", 24, _KHATTAK, False),
        *(row for row in _nvidia("ada.mma", fp8, 16, 13, _KHATTAK, True, _E8M13)),
        *_mma("hopper", 25, _KHATTAK, True),
        *_nvidia("hopper.mma", fp8, 32, 25, _SUMS, law=HALVES),
        *_nvidia("hopper.wgmma", f16, 16, 25, _KHATTAK),
        *_nvidia("hopper.wgmma", wide[1], 16, 25, _KHATTAK, False),
        *_nvidia("hopper.wgmma", wide[2], 8, 25, _KHATTAK, False),
        *_nvidia("hopper.wgmma", fp8, 32, 13, _KHATTAK, True, _E8M13),
        *_mma("blackwell", 25, _MMA_SIM, True),
        *_nvidia("blackwell.mma", fp8, 32, 25, _SUMS, law=HALVES),
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
        _amd("cdna1", "mfma.f16", EXACT, 4),
        _amd("cdna1", "mfma.bf16", EXACT, 2),
        _amd("cdna2", "mfma.f32", FUSED, 1),
        _amd("cdna2", "mfma.f16", PAIRS, 4, flushes=True),
        _amd("cdna2", "mfma.bf16_1k", PAIRS, 4, flushes=True),
        _amd("cdna2", "mfma.bf16", PAIRS, 2, flushes=True),
        _amd("cdna3", "mfma.f32", FUSED, 1),
        _amd("cdna3", "mfma.xf32", FLOOR, 4, **floor),
        *(_amd("cdna3", f"mfma.{name}", FLOOR, 8, **floor) for name in ("f16", "bf16")),
        *(_amd("cdna3", f"mfma_k4.{name}", FLOOR, 4, **floor) for name in ("f16", "bf16")),
        Design(
            _OF_CPU,
            FUSED,
            ("bfloat16", "bfloat16"),
            _FLOAT32,
            1,
            flushes=True,
            source=_INTEL,
            order=_ODD_FIRST,
            signed_flushes=True,
        ),
        *(_amd("cdna3", f"mfma.{name}", PARITY, 16, order=_EVEN_ODD, **floor) for name in ("fp8", "bf8", "fp8_bf8")),
    ]


MODEL = "mmasim 2.1.1"  # on PyPI; tests compare 10,000 hard sums of each design that it has
_DATA = "doi 10.1145/3830409"
# The chips whose sums were compared with a design: tests/data/silicon has them.
_MEASURED = {
    "V100": ("volta.mma.f16", "volta.mma.f16.f16"),
    "A100, A2": ("ampere.mma.f16", "ampere.mma.f16.f16", "ampere.mma.bf16", "ampere.mma.tf32"),
    "RTX 1000 Ada, L40S": tuple(f"ada.mma.{one}" for one in ("f16", "f16.f16", "bf16", "tf32", "e4m3", "e5m2")),
    "RTX 1000 Ada": ("ada.mma.e4m3.f16", "ada.mma.e5m2.f16"),
    "H100, H200": (
        *(f"hopper.mma.{one}" for one in ("f16", "f16.f16", "bf16", "e4m3.f16", "e5m2.f16")),
        "hopper.mma_k4.tf32",
    ),
    "H100, H200, without an addend": ("hopper.wgmma.e4m3", "hopper.wgmma.e5m2"),
    "B200": (
        *(f"blackwell.mma.{one}" for one in ("f16", "f16.f16", "bf16", "e4m3", "e4m3.f16", "e5m2", "e5m2.f16")),
        "blackwell.mma_k4.tf32",
    ),
    "AMD Zen 4, and the CPU that runs the tests, if it has the instruction": (_OF_CPU,),
}
_BY_RULE = {
    "hopper.mma.e4m3": "as B200, which was measured",
    "hopper.mma.e5m2": "as B200, which was measured",
    "blackwell.tcgen05.f16_bf16": "as f16 and bf16",
    "rtx_blackwell.mma.nvf4_32": f"as nvf4; {MODEL} calls it invalid",
}


def _evidence(row: Design) -> str:
    measured = next((chips for chips, names in _MEASURED.items() if row.name in names), None)
    rule = _BY_RULE.get(row.name)
    if rule is None and row.law == HALVES:
        rule = None if measured else "as e4m3 and e5m2, which were measured"
    if measured and row.name != _OF_CPU:
        measured += f" ({_DATA})"
    modelled = rule is None and row.law != HALVES and row.name != _OF_CPU
    found = {"measured": measured, "model": MODEL if modelled else None, "by rule": rule}
    return "; ".join(f"{kind}: {what}" for kind, what in found.items() if what)


DESIGNS = {row.name: replace(row, evidence=_evidence(row)) for row in _rows()}


# The instruction that kernels use, where a chip has an older one as well.
_NEWEST = {"hopper": "hopper.wgmma.", "blackwell": "blackwell.tcgen05."}


def design_for(on: Any, first: Any, second: Any) -> Design:
    """The instruction of a machine, with a float32 accumulator, for operands of two formats.

    Args:
        on: a chip, or a chip and an instruction: "hopper", "hopper.mma".
        first, second: the formats; None is float32.

    Raises:
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
