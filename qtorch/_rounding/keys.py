"""Keys of stochastic rounding as tensors, and keys drawn from torch's generator."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from qcore.arguments import check_int, check_seed, check_start
from qcore.random.threefry import Noise, as_lane, fold_words, leading_bits_mask, threefry
from qtorch._rounding.cache import cached, literal
from qtorch._rounding.dense import check_dense
from qtorch._torch_internals import constant_result, draw_in_vmap, is_memory

Key = int | tuple[int, int] | torch.Tensor | None


def draw(device: torch.device | str | None = None) -> torch.Tensor:
    """A key from torch's default generator: two words of 31 bits on the CPU (without values on "meta")."""
    return torch.empty(2, dtype=torch.int32, device=device or "cpu").random_()


def draw_opaquely() -> torch.Tensor:
    """`draw` as an operator. Compilers call it as it is, so they draw the same key as eager programs.

    Under `torch.func.vmap` its argument `randomness` decides, as for torch's own random numbers: "different" draws a
    key for each example, "same" one for all, "error" raises.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # it records no operators with devices; and merges nothing
        return draw()
    return torch.ops.qtorch.draw_key(_serial(), (), device="cpu")


def given_or_drawn(key: Key, stochastic: bool, plain: bool) -> torch.Tensor | None:
    """The words of the user's key, or of a drawn one; None for modes without random bits."""
    if not stochastic:
        if key is not None:
            check_noise(key, 24, 0)
        return None
    if key is not None:
        return key_tensor(key)
    return draw() if plain else draw_opaquely()


@constant_result
def _serial() -> int:
    """A number for each call: torch's partitioner merges equal calls, and two draws must stay two."""
    return next(_serials)


def _draw_keys(serial: int, shape: Sequence[int], device: torch.device | None = None) -> torch.Tensor:
    """Keys for the examples of vmaps: a tensor of shape (*shape, 2)."""
    return torch.empty(*shape, 2, dtype=torch.int32, device=device or "cpu").random_()


def _draw_in_vmap(serial: int, shape: Sequence[int], device: torch.device | None = None) -> torch.Tensor:
    """`_draw_keys` inside of vmap, whose argument `randomness` decides how many keys are drawn."""
    return draw_in_vmap(lambda sizes: torch.ops.qtorch.draw_key(serial, sizes, device=device), shape)


_serials = itertools.count()
_library = torch.library.Library("qtorch", "DEF")
_library.define(
    "draw_key(int serial, SymInt[] shape, *, Device? device=None) -> Tensor",
    tags=[torch.Tag.nondeterministic_seeded],
)
_library.impl("draw_key", _draw_keys, "CompositeExplicitAutograd")
_library.impl("draw_key", _draw_in_vmap, "FuncTorchVmapMode")  # torch's own random functions read `randomness` there


def key_tensor(key: Any, name: str = "key") -> torch.Tensor:
    """Two int32 words on the CPU from an int, two 32-bit words, or an integer tensor of two words."""
    if not isinstance(key, torch.Tensor):
        return seed_tensor(key, name)
    check_dense(name, key)
    if key.device.type == "meta":
        raise ValueError(f"{name} is on meta, where it has no values; allowed are other devices")
    if key.shape != (2,) or key.dtype not in (torch.int32, torch.uint32, torch.int64):
        raise ValueError(
            f"{name} is a {key.dtype} tensor of shape {tuple(key.shape)}; allowed is an int from 0 to 2^64 - 1, two "
            "32-bit words, or an int32, uint32 or int64 tensor of two words"
        )
    words = (key.view(torch.int32) if key.dtype is torch.uint32 else key.to(torch.int32)).contiguous()
    return words if torch.compiler.is_dynamo_compiling() or is_memory(words) else words.clone()  # at an aligned address


def fold_in(words: torch.Tensor, data: int, plain: bool) -> torch.Tensor:
    """`qcore.fold_in` of a key tensor. A key that is not plain may be traced or transformed, so tensors compute it."""
    if not (plain and words.is_cpu):
        return torch.stack(threefry(words[0], words[1], 0, data))
    word0, word1 = words.tolist()
    folded = [as_lane(word) for word in fold_words(word0, word1, data)]
    return torch.tensor(folded, dtype=torch.int32, device="cpu")


def seed_tensor(key: Any, name: str = "key") -> torch.Tensor:
    """Two int32 words on the CPU from an int, or from two 32-bit words."""
    key = literal(tuple(key) if isinstance(key, list) else key)
    return torch.tensor(_seed_words(key, name), dtype=torch.int32, device="cpu")


def window_tensor(random_bits: Any, start: Any, device: torch.device | None) -> torch.Tensor:
    """See `Noise.window`; without a device on the CPU."""
    words = _window_words(literal(random_bits), literal(start))
    return torch.tensor(words, dtype=torch.int32, device=device or "cpu")


@constant_result
def _seed_words(key: Any, name: str) -> tuple[int, ...]:
    return tuple(as_lane(word) for word in check_seed(key, name))


@constant_result
def _window_words(random_bits: Any, start: Any) -> tuple[int, ...]:
    random_bits = check_int("random_bits", random_bits, 1, 24)
    return *(as_lane(word) for word in check_start(start)), leading_bits_mask(random_bits)


def make_noise(key: Any, random_bits: Any, start: Any, x: torch.Tensor) -> Noise:
    """The noise for a tensor that may be traced or transformed."""
    words = draw_opaquely() if key is None else key_tensor(key)
    return Noise(words.to(x.device), window_tensor(random_bits, start, x.device))


def make_cached_noise(key: Any, random_bits: Any, start: Any, x: torch.Tensor) -> Noise:
    """The noise for a plain tensor that is rounded at once, from cached tensors."""
    device = None if x.is_cpu else x.device
    if key is None and device is None:
        # Equality alone would take True for 1 and tensors for numbers, hence the types.
        default = random_bits == 24 and start == 0 and type(random_bits) is type(start) is int
        noise = _drawn.default if default else _drawn.noise(random_bits, start)
        noise.key.random_()
        return noise
    if key is not None and not isinstance(key, torch.Tensor):
        return _noise_for(key, random_bits, start, device)
    window = _window_for(random_bits, start, device)
    return Noise((draw() if key is None else key_tensor(key)).to(window.device), window)


def _noise(key: Any, random_bits: Any, start: Any, device: torch.device | None) -> Noise:
    window = window_tensor(random_bits, start, device)
    return Noise(seed_tensor(key).to(window.device), window)


class _Drawn(threading.local):
    """A tensor for drawn keys, one in each thread: making a tensor takes as long as rounding a small one."""

    def __init__(self) -> None:
        self.noise = cached(self._noise)
        # The tensor is kept for all later calls; made in inference mode, it could not be written outside of it.
        with torch.inference_mode(False):
            self.words = torch.empty(2, dtype=torch.int32, device="cpu")
            self.default = self._noise(24, 0)

    def _noise(self, random_bits: Any, start: Any) -> Noise:
        return Noise(self.words, window_tensor(random_bits, start, None))


_drawn = _Drawn()
_noise_for = cached(_noise)
_window_for = cached(window_tensor)


def shifted(noise: Noise | None, elements: int) -> Noise | None:
    """The noise of the part of an array that begins `elements` elements later."""
    if noise is None or elements == 0:
        return noise
    high, low, mask = noise.window.tolist()
    start = ((high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF) + elements
    words = (as_lane(start >> 32 & 0xFFFFFFFF), as_lane(start & 0xFFFFFFFF), mask)
    return Noise(noise.key, torch.tensor(words, dtype=torch.int32, device=noise.window.device))


def is_default_window(random_bits: Any, start: Any) -> bool:
    """True for the defaults of both arguments. Only ints are compared: the comparison of a tensor is a tensor."""
    return isinstance(random_bits, int) and isinstance(start, int) and random_bits == 24 and start == 0


def check_noise(key: Any, random_bits: Any, start: Any) -> None:
    """Checks the arguments of stochastic rounding for modes that do not read them."""
    if key is not None:
        key_tensor(key)
    if not is_default_window(random_bits, start):
        window_tensor(random_bits, start, None)
