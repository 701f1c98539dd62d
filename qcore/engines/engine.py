"""Engines: programs that train or serve, as data; and their names."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from qcore.arguments import check_type, quoted
from qcore.engines.cache import STATIC, KVCache
from qcore.engines.fold import EXACT_SUM, EXPONENT, Attention
from qcore.formats.number import call_text
from qcore.formats.text import Kind, parse_argument, register, write


@dataclass(frozen=True, repr=False)
class Engine:
    """A program that trains or serves: what decides the bits of its attention, and of the cache of keys and values.

    Args:
        attention: an `Attention`, or its text.
        cache: a `KVCache`, or its text, through which all keys and values pass, also in one pass over a whole text;
            None stores them as they are.

    Attributes:
        text: the text form, which `qcore.parse` reads.

    Raises:
        ValueError: if the attention cannot read the cache.

    Example:
        >>> engine = Engine.of("fa3.hopper.fp8")
        >>> engine.cache.text, engine.attention.tile(128, queries=1), engine.attention.tile(128, queries=97)
        ('kv_cache(e4m3fn:saturate)', 96, 192)
        >>> Engine("attention(row_sum=exact,end=weights)").text
        'engine(attention(row_sum=exact,end=weights))'
    """

    attention: Attention
    cache: KVCache | None = None
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(self, attention: Attention | str, cache: KVCache | str | None = None) -> None: ...

    @classmethod
    def of(cls, name: str) -> Engine:
        """The engine with a name of `ENGINES`, which has its source and version.

        Args:
            name: such as "fa3.hopper.fp8" or "exact".

        Raises:
            ValueError: if no engine has this name; the message has the nearest names.

        Example:
            >>> Engine.of("exact").cache is None
            True
        """
        check_type("name", name, str, "a str, such as 'fa3.hopper.fp8'")
        return _named("name", name)

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        for name, kind in (("attention", Attention), ("cache", KVCache)):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, parse_argument(given, name))
            if getattr(self, name) is not None or kind is Attention:
                check_type(name, getattr(self, name), kind, f"a {kind.__name__}, or its text")
        self._check_pair()
        object.__setattr__(self, "text", write(self))

    def _check_pair(self) -> None:
        """Raises if the attention cannot read the cache, or would no longer be free of what follows a token."""
        law, cache = self.attention, self.cache
        if cache is not None and law.scale == EXPONENT and cache.scale != STATIC:
            raise ValueError(f"cache={cache.text} with scale=exponent; allowed there are static scales")
        if law.row_sum != EXACT_SUM:
            return
        if cache is not None and not cache.causal:
            raise ValueError(
                f"cache={cache.text} with row_sum=exact: {cache.why_not_causal}, so one pass and decoding would "
                "differ; allowed are static scales, those of a token or of a token and head, and blocks along the head"
            )
        if law.accumulator.fraction_bits is not None or law.accumulator.design is not None:
            raise ValueError(
                f"attention has accumulator={law.accumulator.text} with row_sum=exact, whose zeros have exponents, so "
                "masked keys may change a sum; allowed are accumulators without aligned sums"
            )


_PARAMETERS = {
    "attention": lambda reader: reader.registered("attention"),
    "cache": lambda reader: reader.registered("kv_cache"),
}
register("engine", Kind(Engine, _PARAMETERS, 1, 1, 1))


class Published(NamedTuple):
    """An engine that others wrote.

    Attributes:
        engine: the `Engine`.
        source: where the law was read, with the version.
        undefined: what the source does not define, or the library does not compute.

    Example:
        >>> ENGINES["fa3.hopper.bf16"].source
        'vllm-project/flash-attention 617264c1, hopper/'
    """

    engine: Engine
    source: str
    undefined: str


_FA3 = "vllm-project/flash-attention 617264c1, hopper/"
_FA3_OPEN = (
    "read from source, not measured. The kernel's exp2, 1 / l and log are the chip's approximations: correctly rounded "
    "here, so positions and sizes of differences are the chip's, bits need not be. Its number of splits: one"
)
_TRITON = "vLLM, v1/attention/ops/triton_unified_attention.py, 2026"
_TRITON_OPEN = (
    "read from source, not measured. The order inside tl.sum and tl.dot: neighbours in pairs, and Hopper's "
    "instruction. Decoding in segments: one pass"
)
_UNIFIED = Engine(Attention("hopper.wgmma.bf16", "bfloat16", "bfloat16", "bfloat16", tiles=(256, 32, 32)))

# Engines by name.
ENGINES: Mapping[str, Published] = MappingProxyType(
    {
        "fa3.hopper.fp8": Published(
            Engine(
                Attention(
                    "hopper.wgmma.e4m3",
                    "e4m3fn:saturate",
                    "e4m3fn:saturate",
                    "bfloat16",
                    tiles=(64, 128, 128, 96, 128, 128, 128, 96, 192, 192, 96, 96, 256, 128, 128),
                    descending=True,
                    scale="exponent",
                    offset=8,
                    levels=2,
                    row_sum="threads",
                    end="reciprocal",
                ),
                KVCache("e4m3fn:saturate"),
            ),
            _FA3,
            _FA3_OPEN,
        ),
        "fa3.hopper.bf16": Published(
            Engine(
                Attention(
                    "hopper.wgmma.bf16",
                    "bfloat16",
                    "bfloat16",
                    "bfloat16",
                    tiles=(64, 192, 128, 96, 144, 144, 128, 128, 128, 192, 128, 128, 256, 80, 80),
                    descending=True,
                    scale="exponent",
                    row_sum="threads",
                    end="reciprocal",
                ),
                KVCache("bfloat16"),
            ),
            _FA3,
            _FA3_OPEN,
        ),
        "vllm.triton": Published(replace(_UNIFIED, cache=KVCache("bfloat16")), _TRITON, _TRITON_OPEN),
        "vllm.batch_invariant": Published(
            replace(_UNIFIED, cache=KVCache("bfloat16")), f"{_TRITON}, VLLM_BATCH_INVARIANT=1", _TRITON_OPEN
        ),
        "hf.eager": Published(
            Engine(Attention(None, "bfloat16", "bfloat16", "bfloat16", scale="rounded", end="weights")),
            "transformers 5.24, eager_attention_forward",
            "the order of the products' sums, by BLAS, and of torch's softmax: exact products, neighbours in pairs",
        ),
        "exact": Published(Engine(Attention(row_sum="exact", end="weights")), "this library", "nothing"),
    }
)


def _named(argument: str, name: str) -> Engine:
    """The engine of a name; messages call the name by the user's argument."""
    if name not in ENGINES:
        nearest = get_close_matches(name, ENGINES, 3, 0.3)
        hint = f" (nearest: {', '.join(nearest)})" if nearest else ""
        raise ValueError(f"{argument}={quoted(name)}{hint}; allowed are {', '.join(ENGINES)}, and texts")
    return ENGINES[name].engine


EngineLike = Engine | str  # as users give engines


def check_engine(engine: Any) -> Engine:
    """An `Engine`, given as such, as text or by name."""
    found = engine
    if isinstance(engine, str):
        found = parse_argument(engine, "engine") if "(" in engine else _named("engine", engine)
    check_type("engine", found, Engine, "an Engine, its text, or a name such as 'fa3.hopper.fp8'")
    return found
