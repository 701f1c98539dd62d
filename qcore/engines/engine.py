"""Engines: programs that train or serve, as data; and their names."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qcore.arguments import check_choice, check_size, check_type, quoted
from qcore.engines.cache import PLAIN, STATIC, KVCache, named
from qcore.engines.fold import EXACT_SUM, EXPONENT, Attention
from qcore.formats.number import Number, call_text
from qcore.formats.text import Kind, Reader, choice, parse_argument, register, write
from qcore.linalg.accumulator import check_scalar, optional_number
from qcore.recipes.published import RECIPES
from qcore.recipes.recipe import Recipe

TWICE, ONCE = "twice", "once"
RSQRT, RECIPROCAL_ROOT = "rsqrt", "reciprocal"
ROUNDED, WIDE = "rounded", "wide"
HALVES, PAIRS = "halves", "pairs"
# Fields that have one of some words, and these words.
WORDS = {
    "norm": (TWICE, ONCE),
    "root": (RSQRT, RECIPROCAL_ROOT),
    "residual": (ROUNDED, WIDE),
    "rope": (HALVES, PAIRS),
}
NUMBERS = "activations", "tables", "router", "head"  # fields that have a format, or None


@dataclass(frozen=True, repr=False)
class Engine:
    """A program that trains or serves: what decides the bits of its attention, its cache, and the layers around them.

    Only `attention` must be given; what is None stays as the model computes it. Numbers are float32 numbers in the
    formats that are named: a format of None does not round.

    Args:
        attention: an `Attention`, or its text.
        cache: a `KVCache`, its text, or its name, through which all keys and values pass, also in one pass over a whole
            text; None stores them as they are.
        products: of linear layers: a `Recipe`, its text, or a name of `qcore.RECIPES`.
        on: the chip whose instructions these products run on, such as "hopper"; see `Recipe.on`.
        activations: the format of what layers return, and of each sum and product of two numbers between them.
        norm: the roundings of an RMS norm with weight w and inv = 1 / root. "twice": x * inv is rounded to
            `activations`, then its product with w. "once": (x * inv) * w in float32, rounded once.
        root: "rsqrt" has inv rounded once; "reciprocal" rounds the square root, then its reciprocal.
        residual: "rounded" has a norm read the sum of a layer and its input as it is stored, in `activations`; "wide"
            has it read the sum in float32.
        rope: which numbers of a head are turned together. "halves": i and i + size / 2; "pairs": neighbours. A model
            of the other kind has the numbers of its heads in another order, and so the sums over them.
        tables: the format of cosines and sines. With None they are float32 numbers, and the turned number is rounded
            once; else each product is rounded to `activations`, as torch's types have it.
        router: the format of the logits that choose experts.
        head: the format of the logits of tokens; None leaves them float32 numbers.
        log_softmax: the number of terms of a tile: log-probabilities are x - max - log(sum) in float32, with the
            tiles' sums added upward. None is float64, in `mismatch`.

    Attributes:
        text: the text form, which `qcore.parse` reads.

    Raises:
        ValueError: if the attention cannot read the cache, or `products` has no instruction on the chip.

    Example:
        >>> engine = Engine.of("fa3.hopper.fp8")
        >>> engine.cache.text, engine.attention.tile(128, queries=1), engine.attention.tile(128, queries=97)
        ('kv_cache(e4m3fn:saturate)', 96, 192)
        >>> Engine("attention(row_sum=exact,end=weights)", activations="bfloat16", norm="once").text
        'engine(attention(row_sum=exact,end=weights),activations=bfloat16,norm=once)'
    """

    attention: Attention
    cache: KVCache | None = None
    products: Recipe | None = None
    on: str | None = None
    activations: Number | None = None
    norm: str | None = None
    root: str = RSQRT
    residual: str = ROUNDED
    rope: str | None = None
    tables: Number | None = None
    router: Number | None = None
    head: Number | None = None
    log_softmax: int | None = None
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            attention: Attention | str,
            cache: KVCache | str | None = None,
            products: Recipe | str | None = None,
            on: str | None = None,
            activations: Number | str | None = None,
            norm: Literal["twice", "once"] | None = None,
            root: Literal["rsqrt", "reciprocal"] = RSQRT,
            residual: Literal["rounded", "wide"] = ROUNDED,
            rope: Literal["halves", "pairs"] | None = None,
            tables: Number | str | None = None,
            router: Number | str | None = None,
            head: Number | str | None = None,
            log_softmax: int | None = None,
        ) -> None: ...

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
        for name, kind in (("attention", Attention), ("cache", KVCache), ("products", Recipe)):
            given = getattr(self, name)
            if isinstance(given, str):
                object.__setattr__(self, name, _read(name, given))
            if getattr(self, name) is not None or kind is Attention:
                check_type(name, getattr(self, name), kind, f"a {kind.__name__}, or its text")
        for name, words in WORDS.items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), words)
        for name in NUMBERS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_scalar(name, getattr(self, name)))
        if self.log_softmax is not None:
            object.__setattr__(self, "log_softmax", check_size("log_softmax", self.log_softmax))
        self._check_pair()
        if self.products is not None:
            self.products.on(self.on)  # raises for a chip without an instruction
        elif self.on is not None:
            raise ValueError(f"on={quoted(self.on)} with products=None; allowed there is None")
        object.__setattr__(self, "text", write(self))

    def _check_pair(self) -> None:
        """Raises if the attention cannot read the cache, or would no longer be free of what follows a token."""
        law, cache = self.attention, self.cache
        if cache is not None and law.scale == EXPONENT and (cache.scale, cache.law) != (STATIC, PLAIN):
            raise ValueError(f"cache={cache.text} with scale=exponent; allowed there are static scales, law=plain")
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


def _read(name: str, text: str) -> Any:
    """The value of a text; caches and recipes have names as well."""
    if name == "attention" or "(" in text:
        return parse_argument(text, name)
    if name == "cache":
        return named(name, text)
    if text not in RECIPES:
        raise ValueError(f"products={quoted(text)}; allowed are {', '.join(RECIPES)}, a Recipe, and its text")
    return RECIPES[text]


_READERS: dict[str, Any] = {
    "attention": lambda reader: reader.registered("attention"),
    "cache": lambda reader: reader.registered("kv_cache"),
    "products": lambda reader: reader.registered("recipe"),
    "on": lambda reader: reader.next(),
    **dict.fromkeys(NUMBERS, optional_number),
    **{name: choice(words) for name, words in WORDS.items()},
    "log_softmax": Reader.integer,
}
_PARAMETERS = {one.name: _READERS[one.name] for one in fields(Engine) if one.init}  # in the order of the fields
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
    "here, so positions and sizes of differences are the chip's, bits need not be; as is tanh. Number of splits: one"
)
_FA3_PAGES = (
    ". Keys are in pages of 16 tokens, as vLLM has them: without pages, and with pages of whole tiles, heads of 96 and "
    "192 have other tiles. Of heads below 64 a chunk of 2 to 64 rows has the tile of many queries there"
)
_TRITON = "vLLM, v1/attention/ops/triton_unified_attention.py 00139433"
_TRITON_OPEN = (
    "read from source, not measured. The order inside tl.sum and tl.dot: neighbours in pairs, and Hopper's "
    "instruction. exp and / are the chip's approximations. Decoding in segments: one pass. Pages change nothing. "
    "Linear layers and activation functions: the model's; so is the order of a norm's sum. Later versions round turned "
    "numbers once; their norms after a sum are the CUDA kernel's also with VLLM_BATCH_INVARIANT=1"
)
_TRITON_LAYERS = "; csrc/layernorm_kernels.cu 0112cf23, pos_encoding_kernels.cu 320a622e"
_INVARIANT = (
    f"{_TRITON}; model_executor/layers/batch_invariant.py 3afe32ad, layernorm.py 00cba797; VLLM_BATCH_INVARIANT=1"
)
_UNIFIED = Engine(
    Attention(
        "hopper.wgmma.bf16",
        "bfloat16",
        "bfloat16",
        "bfloat16",
        tiles=(256, 32, 32),
        sink="first",
        softcap="exponentials",
        window_tiles=(256, 32, 16),
        window_start="tile",
    ),
    KVCache("bfloat16"),
    activations="bfloat16",
    norm="twice",
    tables="bfloat16",
    head="bfloat16",
)

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
                    tiles=(96, 128, 128, 127, 192, 192, 128, 96, 192, 192, 96, 96, 256, 128, 128),
                    descending=True,
                    scale="exponent",
                    offset=8,
                    levels=2,
                    row_sum="threads",
                    end="reciprocal",
                    sink="last",
                    softcap="tanh",
                    window_tiles=(64, 128, 192, 96, 128, 128, 128, 192, 128, 192, 96, 128, 256, 64, 128),
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
                    tiles=(63, 160, 128, 64, 192, 128, 96, 128, 128, 128, 128, 128, 192, 96, 96, 256, 80, 80),
                    descending=True,
                    scale="exponent",
                    row_sum="threads",
                    end="reciprocal",
                    sink="last",
                    softcap="tanh",
                    window_tiles=(64, 160, 192, 96, 128, 192, 128, 128, 128, 192, 96, 128, 256, 64, 128),
                ),
                KVCache("bfloat16"),
            ),
            _FA3,
            _FA3_OPEN + _FA3_PAGES,
        ),
        "vllm.triton": Published(_UNIFIED, _TRITON + _TRITON_LAYERS, _TRITON_OPEN),
        "vllm.batch_invariant": Published(
            replace(_UNIFIED, norm="once", root="reciprocal", log_softmax=1024), _INVARIANT, _TRITON_OPEN
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
