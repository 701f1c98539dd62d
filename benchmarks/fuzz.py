"""Random calls of all kernels on the CPU, whose bits are compared with NumPy's; with `--sanitize` under sanitizers.

A case is a call of a random function: rounding, codes, products, also by the instructions of chips, convolutions and
their gradients, integers, observers, sums, functions with defined bits, and statistics, of tensors of any shape, dtype,
strides and bits. A seed and a number make a case, which can be repeated. Both packages may refuse a case with the same
error; the run counts these, and fails if all cases of a kind were refused.
With `--sanitize` kernels are compiled with `-fsanitize=address,undefined`, and what these find ends the run.

    python -m benchmarks.fuzz --seconds 60
    python -m benchmarks.fuzz --cases 40 --sanitize
    python -m benchmarks.fuzz --seed 1 --case 17 --sanitize
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

CFLAGS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
SIZES = [0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 130]


def main(words: list[str] | None = None) -> int:
    """Runs cases for some seconds, or one.

    The status is 1 if a result differs or a kind computed nothing, or that of a process that ended.
    """
    parser = argparse.ArgumentParser(
        "python -m benchmarks.fuzz", description="Random calls of all kernels, compared with NumPy."
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--cases", type=int, help="how many, instead of how long: the same ones on any machine")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--case", type=int, help="the number of the one case to run")
    parser.add_argument("--kinds", nargs="*", choices=[kind.__name__ for kind in KINDS], help="of cases")
    parser.add_argument("--sanitize", action="store_true", help="compile kernels with gcc's sanitizers")
    options = parser.parse_args(words)
    if options.sanitize and "QTORCH_CFLAGS" not in os.environ:
        return _sanitized(sys.argv[1:] if words is None else words)
    return _run(options)


def _sanitized(words: list[str]) -> int:
    """The exit status of a process of its own with the sanitizers; it says which case was the last one."""
    compiler = os.environ.get("CC", "gcc")
    names = ("libasan.so", "libubsan.so")
    found = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    missing = [name for name, path in zip(names, found, strict=True) if not os.path.isabs(path)]
    if missing:
        print(f"{compiler} has no {' and no '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        cache = os.environ.get("QTORCH_CACHE_DIR") or str(Path(folder) / "cache")
        last = Path(folder) / "case"
        variables = {
            "QTORCH_CFLAGS": CFLAGS,
            "QTORCH_CACHE_DIR": cache,
            "QTORCH_FUZZ_CASE": str(last),
            "LD_PRELOAD": " ".join(found),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:exitcode=99",
            "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
        }
        program = [sys.executable, "-m", "benchmarks.fuzz", *words]
        status = subprocess.run(program, env=os.environ | variables, check=False).returncode
        if status not in (0, 1):
            print(
                f"The process ended with {status} in {last.read_text(encoding='utf-8') if last.exists() else 'no case'}"
            )
        return status


def _run(options: argparse.Namespace) -> int:
    import torch

    warnings.simplefilter("ignore", UserWarning)
    warnings.simplefilter("error", RuntimeWarning)  # that there is no kernel
    os.environ.pop("LD_PRELOAD", None)  # compilers need no sanitizers, which make them slow
    different = 0
    last = Path(os.environ["QTORCH_FUZZ_CASE"]) if "QTORCH_FUZZ_CASE" in os.environ else None
    kinds = [kind for kind in KINDS if not options.kinds or kind.__name__ in options.kinds]
    computed, refused = ({kind.__name__: 0 for kind in kinds} for _ in range(2))
    for number in _numbers(options):
        pick = Pick(f"{options.seed} {number}")
        kind = pick.choice(kinds)
        torch.set_num_threads(pick.choice([1, 2, 3]))
        what, reference, call = kind(pick)
        said = f"--seed {options.seed} --case {number}: {kind.__name__} {what}"
        if last:
            last.write_text(said, encoding="utf-8")
        if options.case is not None:
            print(said)
        found, expected = _result(call), _result(reference)
        counts = refused if isinstance(expected, str) else computed
        counts[kind.__name__] += 1
        if found != expected:
            different += 1
            print(f"DIFFERS {said}: {found if isinstance(found, str) else ''}", flush=True)
    print(f"{sum(computed.values()) + sum(refused.values())} cases, {different} different; computed and refused:")
    for name, count in computed.items():
        print(f"  {name:12} {count:7} {refused[name]:7}")
    idle = [name for name, count in computed.items() if count == 0 and options.case is None]
    if idle:
        print(f"Nothing was computed, and so nothing compared, by cases of: {', '.join(idle)}")
    return int(different > 0 or bool(idle))


def _numbers(options: argparse.Namespace) -> Iterable[int]:
    """The numbers of the cases to run: of one, of the first ones, or of those that begin in time."""
    if options.case is not None:
        return [options.case]
    if options.cases is not None:
        return range(options.cases)
    end = time.monotonic() + options.seconds
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())


def _result(call: Callable[[], Any]) -> Any:
    """The bytes of all results, or the name of the error: both packages refuse the same calls with the same error."""
    import numpy as np

    try:
        with np.errstate(all="ignore"):
            return [_bytes(one) for one in _flat(call())]
    except Exception as error:
        return type(error).__name__


def _flat(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple):
        for one in x:
            yield from _flat(one)
    elif x is not None:
        yield x


def _bytes(x: Any) -> tuple[Any, ...]:
    import numpy as np
    import torch

    if isinstance(x, torch.Tensor):
        flat = torch.empty(x.numel(), dtype=x.dtype).copy_(x.detach().reshape(-1))
        return tuple(x.shape), flat.view(torch.uint8).numpy().tobytes()
    return np.shape(x), np.ascontiguousarray(x).tobytes()


class Pick(random.Random):
    """Random choices, of a text, and the arrays of a case."""

    def shape(self, dimensions: list[int], least: int = 0) -> tuple[int, ...]:
        """A random shape with so many elements at least, and 40,000 at most."""
        while True:
            shape = tuple(self.choice(SIZES) for _ in range(self.choice(dimensions)))
            count = 1
            for size in shape:
                count *= size
            if least <= count <= 40_000:
                return shape

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of any bits, or of numbers around 1, with some zeros and a NaN's payload."""
        import ml_dtypes  # noqa: F401, registers bfloat16
        import numpy as np

        from benchmarks.support.inputs import random_bits

        rng, count = np.random.default_rng(self.getrandbits(64)), int(np.prod(shape))
        kind = np.dtype(dtype).type
        if self.random() < 0.4:
            return random_bits(count, kind, rng).reshape(shape)
        with np.errstate(all="ignore"):
            x = (rng.standard_normal(count) * 2.0 ** rng.integers(-12, 12)).astype(kind)
            x[rng.random(count) < 0.1] = self.choice([0.0, -0.0, 1.0, np.inf, np.nan])
        return x.reshape(shape)

    def laid(self, x: Any) -> Any:
        """The array as a tensor, whose elements lie in memory in a random way."""
        import numpy as np
        import torch

        dtype = getattr(torch, str(x.dtype))
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
        plain = np.ascontiguousarray(x).reshape(x.shape).view(str(bits).removeprefix("torch."))
        t = torch.from_numpy(plain.copy())
        way = self.choice(["as it is", "as it is", "permuted", "strided", "offset", "misaligned", "channels_last"])
        if way == "permuted":
            order = self.sample(range(t.dim()), t.dim())
            t = t.permute(order).contiguous().permute([order.index(axis) for axis in range(t.dim())])
        elif way == "strided" and t.dim():
            wide = torch.zeros((*t.shape[:-1], 2 * t.shape[-1] + 1), dtype=bits)
            wide[..., 1::2] = t
            t = wide[..., 1::2]
        elif way == "offset":
            flat = torch.zeros(t.numel() + 3, dtype=bits)
            flat[3:] = t.reshape(-1)
            t = flat[3:].view(t.shape)
        elif way == "misaligned" and t.numel():
            content = bytearray(1) + t.numpy().tobytes()
            t = torch.frombuffer(content, dtype=bits, offset=1).view(t.shape)
        elif way == "channels_last" and t.dim() == 4:
            t = t.contiguous(memory_format=torch.channels_last)
        return t.view(dtype)

    def of(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """The same numbers as an array and as a tensor; one of them may be expanded along its first axis."""
        if len(shape) > 1 and shape[0] > 1 and self.random() < 0.1:
            import numpy as np

            x = self.array((1, *shape[1:]), dtype)
            return np.ascontiguousarray(np.broadcast_to(x, shape)), self.laid(x).expand(shape)
        x = self.array(shape, dtype)
        return x, self.laid(x)


Case = tuple[Any, Callable[[], Any], Callable[[], Any]]
BYTES = "scaled(e4m3fn,{-1:8},scale=e5m2,tensor_scale=float32)"
FORMATS = ["e5m2", "fixed(8,4)", "posit8", "block(8)", "block(8,dim=1)", "mxfp4", "nvfp4", "nf4", BYTES]
FORMATS += [LONG := f"table({[k * abs(k) / 64 for k in range(-50, 50)]})", "table([-9,1,13],thresholds=[0,13])"]
CODED = ["e5m2", "posit8", "mxfp4", "nvfp4", "nf4", LONG, BYTES]
DTYPES = ["float32", "float32", "bfloat16", "float16", "float64"]


def rounding(pick: Pick) -> Case:
    """`quantize` and `encode`."""
    import qcore
    import qtorch

    shape, dtype = pick.shape([0, 1, 2, 2, 3, 4]), pick.choice(DTYPES)
    mode = pick.choice(["nearest", "nearest", "stochastic", "stochastic_b", "stochastic_c"])
    name, number = ("quantize", pick.choice(FORMATS)) if pick.random() < 0.7 else ("encode", pick.choice(CODED))
    random_words = {"key": pick.choice([0, 2**64 - 1]), "start": pick.choice([0, 2**32 - 9, 2**63])}
    settings = random_words if mode.startswith("stochastic") else {}
    x, t = pick.of(shape, dtype)
    return (
        (name, number, mode, settings, shape, t.stride(), dtype),
        lambda: getattr(qcore, name)(x, number, mode, **settings),
        lambda: getattr(qtorch, name)(t, number, mode, **settings),
    )


def decoding(pick: Pick) -> Case:
    """`decode` of any bits."""
    import numpy as np

    import qcore
    import qtorch
    from qcore.law.tiles import block_counts

    shape, number = pick.shape([0, 1, 2, 3]), pick.choice(CODED)
    codes = np.frombuffer(pick.randbytes(int(np.prod(shape))), np.uint8).reshape(shape)
    scales: Any = None
    of_tensor: Any = None
    parsed: Any = qcore.parse(number)
    if number in ("mxfp4", "nvfp4", BYTES):
        try:
            counts = block_counts(shape, parsed.block_sizes(len(shape)))
        except ValueError:
            counts = shape
        block = np.frombuffer(pick.randbytes(int(np.prod(counts))), np.uint8).reshape(counts)
        whole = np.float32(pick.choice([1.0, 0.1, np.nan]))
        scales = (block, whole) if parsed.tensor_scale else block
        of_tensor = (pick.laid(block), pick.laid(np.asarray(whole))) if parsed.tensor_scale else pick.laid(block)
    t = pick.laid(codes)
    return (
        (number, shape, t.stride()),
        lambda: qcore.decode(codes, number, scales=scales),
        lambda: qtorch.decode(t, number, scales=of_tensor),
    )


def product(pick: Pick) -> Case:
    """Products with accumulators."""
    import qtorch
    from qcore import Accumulator, FloatingPoint
    from qcore.linalg import matmul

    m, k, n = pick.choice(SIZES), pick.choice([0, 1, 3, 16, 33, 130, 300]), pick.choice(SIZES)
    accumulator = pick.choice(
        [
            None,
            Accumulator(FloatingPoint(5, 10), chunk=16),
            Accumulator(FloatingPoint(8, 7), chunk=1),
            Accumulator(FloatingPoint(5, 10), rounding="stochastic", chunk=pick.choice([1, 4])),
        ]
    )
    batch = pick.choice([(), (), (2,), (2, 3)])
    key: dict[str, Any] = (
        {"key": pick.choice([0, 2**64 - 1])} if accumulator is not None and accumulator.stochastic else {}
    )
    a, s = pick.of((*batch, m, k), "float32")
    b, t = pick.of((*pick.choice([(), batch]), k, n), "float32")
    operands = pick.choice([None, None, ("e5m2", "e5m2")])
    return (
        (s.shape, s.stride(), t.shape, t.stride(), accumulator, operands),
        lambda: matmul(a, b, operands=operands, accumulator=accumulator, **key),
        lambda: qtorch.linalg.matmul(s, t, operands=operands, accumulator=accumulator, **key),
    )


def steps(pick: Pick) -> Case:
    """Products by aligned sums and by the instructions of chips, of each law, from an addend on."""
    import qtorch
    from qcore import Accumulator
    from qcore.linalg import matmul

    sizes = [one for one in SIZES if one <= 65]
    m, k, n = pick.choice(sizes), pick.choice([0, 1, 3, 16, 33, 64, 130]), pick.choice(sizes)
    accumulator = pick.choice(
        [
            Accumulator("float16", chunk=4, fraction_bits=11),
            Accumulator(chunk=16, fraction_bits=25, output="toward_zero"),
            *map(Accumulator.of, ("volta.mma.f16", "volta.mma.f16.f16", "ampere.mma.tf32", "hopper.wgmma.e4m3")),
            *(Accumulator.of(f"blackwell.tcgen05.{name}") for name in ("mxe4m3_mxe2m1", "mxf4", "nvf4")),
            *(Accumulator.of(f"cdna2.mfma.{name}") for name in ("f32", "f16", "bf16")),
            *map(Accumulator.of, ("cdna1.mfma.f16", "cdna1.mfma.bf16", "x86.avx512_bf16")),
            *map(Accumulator.of, ("hopper.mma.e4m3", "blackwell.mma.e5m2.f16")),
            Accumulator(chunk=4, fraction_bits=9, cut="down", align="products", zeros=-30, order=(1, 0)),
            *(Accumulator.of(f"cdna3.mfma.{name}") for name in ("xf32", "bf16", "fp8_bf8")),
        ]
    )
    batch = pick.choice([(), (), (2,), (2, 3)])
    a, s = pick.of((*batch, m, k), "float32")
    b, t = pick.of((*pick.choice([(), batch]), k, n), "float32")
    c, u = pick.of((*batch, m, n), "float32") if pick.choice([True, False]) else (None, None)
    return (
        (s.shape, s.stride(), t.shape, t.stride(), u is not None, accumulator.text),
        lambda: matmul(a, b, c, accumulator=accumulator),
        lambda: qtorch.linalg.matmul(s, t, u, accumulator=accumulator),
    )


def convolution(pick: Pick) -> Case:
    """Convolutions with accumulators, and the gradients of their operands."""
    import torch

    import qtorch
    from qcore import Accumulator, FloatingPoint, Product
    from qcore.linalg.arrays import multiply_arrays
    from qcore.linalg.convolution import ConvolutionGeometry
    from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B

    dims, groups = pick.choice([1, 2, 2, 3]), pick.choice([1, 1, 2, 3])
    stride, dilation, padding = (tuple(pick.choice(some) for _ in range(dims)) for some in ([1, 2], [1, 2], [0, 1, 2]))
    geometry = ConvolutionGeometry(stride, padding, dilation, groups)
    taps = tuple(pick.choice([1, 2, 3]) for _ in range(dims))
    sizes = tuple(pick.choice([1, 4, 5] if dims == 3 else [1, 3, 7, 9]) for _ in range(dims))
    inside, outputs = pick.choice([1, 2, 5]), pick.choice([1, 2, 9]) * groups
    accumulator = pick.choice(
        [
            None,
            Accumulator(FloatingPoint(5, 10), chunk=4),
            Accumulator(FloatingPoint(5, 10), rounding="stochastic", chunk=16),
        ]
    )
    key = None if accumulator is None or not accumulator.stochastic else pick.choice([0, 2**64 - 1])
    operands = pick.choice([(None, None), ("e5m2", "e5m2")])
    a, s = pick.of((pick.choice([0, 1, 2]), inside * groups, *sizes), "float32")
    b, t = pick.of((outputs, inside, *taps), "float32")
    product = Product(*operands, accumulator=accumulator)

    def reference() -> Any:
        geometry.check(a.shape, b.shape)
        shape = geometry.result(a.shape, b.shape)
        y = multiply_arrays(geometry, FORWARD, product, a, b, b.shape, key).reshape(shape)
        of_a = multiply_arrays(geometry, GRAD_A, product, y, b, a.shape, key).reshape(a.shape)
        return y, of_a, multiply_arrays(geometry, GRAD_B, product, y, a, b.shape, key).reshape(b.shape)

    def call() -> Any:
        function = getattr(qtorch.linalg, f"conv{dims}d")
        places: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        products: dict[str, Any] = {"operands": operands, "accumulator": accumulator, "key": key}
        products |= {"grad_input": product, "grad_weight": product}
        left, right = s.detach().requires_grad_(), t.detach().requires_grad_()
        y = function(left, right, **places, **products)
        return y, *torch.autograd.grad(y, (left, right), y.detach())

    return (s.shape, s.stride(), t.shape, t.stride(), geometry, accumulator, operands), reference, call


def affine(pick: Pick) -> Case:
    """Fake quantization, integers of numbers, and numbers of integers."""
    import numpy as np
    import torch

    import qcore.affine as law
    import qtorch.quantization as tensors
    from qcore.affine import AffineInteger, QParams

    shape, dtype = pick.shape([0, 1, 2, 3, 4]), pick.choice(["float32", "bfloat16", "float16", "float64"])
    low, high = pick.choice([(-128, 127), (0, 255), (-8, 7)])
    form, axis = AffineInteger(low, high), pick.choice([None, *range(len(shape))])
    channels = () if axis is None else (shape[axis],)
    rng = np.random.default_rng(pick.getrandbits(64))
    scale = np.exp2(rng.uniform(-10, 10, channels)).astype(np.float32)
    zero = np.asarray(rng.integers(low, high, channels, endpoint=True), np.int32)
    x, t = pick.of(shape, dtype)
    scale_tensor, zero_tensor = pick.laid(np.asarray(scale)), pick.laid(zero)
    parameters = QParams(np.asarray(scale), zero, axis)
    what = (shape, t.stride(), dtype, axis, low, high)
    if pick.random() < 0.5:
        name = "fake_quantize_per_tensor_affine" if axis is None else "fake_quantize_per_channel_affine"
        place = () if axis is None else (axis,)
        return (
            ("fake_quantize", *what),
            lambda: law.fake_quantize(x, parameters, form)[0],
            lambda: getattr(tensors, name)(t, scale_tensor, zero_tensor, *place, low, high),
        )
    form = pick.choice([law.UINT8, law.INT8])
    zero = np.asarray(np.clip(zero, form.qmin, form.qmax))
    parameters, of_tensors = QParams(np.asarray(scale), zero, axis), QParams(scale_tensor, torch.from_numpy(zero), axis)

    def integers(room: Any, array: Any, qparams: Any, made: Callable[..., Any]) -> Any:
        found = room(array, qparams, form)
        return found, made(found, qparams, form)

    from qtorch._affine import conversion

    return (
        ("quantize_affine", *what, form),
        lambda: integers(law.quantize_affine, x, parameters, law.dequantize),
        lambda: integers(conversion.quantize, t, of_tensors, conversion.dequantize),
    )


def observing(pick: Pick) -> Case:
    """Two tensors that an observer sees, which are fake-quantized by the parameters that follow."""
    import qcore.affine as law
    import qtorch.quantization as tensors
    from qcore.affine import AffineInteger
    from qcore.affine import law as affine_law
    from qcore.namespace import Names

    shape, dtype = pick.shape([0, 1, 2, 3, 4], 1), pick.choice(["float32", "float32", "float32", "bfloat16", "float64"])
    low, high = pick.choice([(-128, 127), (0, 255), (-8, 7)])
    scheme, axis = pick.choice(["affine", "symmetric"]), pick.choice([None, *range(len(shape))])
    averages = pick.random() < 0.5
    settings = {"averaging_constant": pick.choice([0.01, 0.5])} if averages else {}
    name = ("MovingAverage" if averages else "") + ("MinMax" if axis is None else "PerChannelMinMax")
    pairs = [pick.of(shape, dtype) for _ in range(2)]
    form = AffineInteger(low, high)
    if averages and axis is not None:
        name = "MovingAveragePerChannelMinMax"

    def reference() -> Any:
        rule = getattr(law, name)(form, scheme, **settings, **({} if axis is None else {"axis": axis}))
        state, results = rule.init(shape), []
        for x, _ in pairs:
            state = rule.update(state, x)
            found = rule.qparams(state)
            # The law itself: its function refuses the scales of infinities and NaN, which a module takes.
            results.append(affine_law.fake_quantize(Names, x, found.scale, found.zero_point, axis, form)[0])
        floats = *results, *(part.reshape(-1) for part in (*state, found.scale))
        return *map(_with_one_nan, floats), found.zero_point.reshape(-1)

    def call() -> Any:
        place = {} if axis is None else {"ch_axis": axis}
        observer = getattr(tensors, f"{name}Observer").with_args(dtype=form, qscheme=scheme, **settings, **place)
        module = tensors.FakeQuantize(observer)
        results = [module(t) for _, t in pairs]
        seen = module.activation_post_process
        floats = *results, *(part.reshape(-1) for part in (seen.min_val, seen.max_val, module.scale))
        return *map(_with_one_nan, floats), module.zero_point  # which NaN an observer keeps is not defined

    return (name, settings, scheme, form, shape, [t.stride() for _, t in pairs], dtype, axis), reference, call


def _with_one_nan(x: Any) -> Any:
    """Floats with one NaN only."""
    import numpy as np

    x = np.array(x) if isinstance(x, np.ndarray | np.generic) else x.clone()
    x[x != x] = float("nan")
    return x


def integers(pick: Pick) -> Case:
    """Linear layers and convolutions of integers of 8 bits, at their ends."""
    import numpy as np
    import torch

    import qcore.affine as law
    import qtorch.quantization as tensors
    from qcore.affine import QParams

    rng = np.random.default_rng(pick.getrandbits(64))

    def numbers(shape: tuple[int, ...], form: Any) -> Any:
        ends = [form.qmin, form.qmax]
        at_ends = pick.random() < 0.5
        x = rng.choice(ends, shape) if at_ends else rng.integers(form.qmin, form.qmax, shape, endpoint=True)
        return x.astype(form.storage)

    of_x, of_w = pick.choice([law.UINT8, law.INT8]), pick.choice([law.INT8, law.INT8, law.UINT8])
    outputs, is_conv = pick.choice([1, 2, 15, 16, 17, 33, 64]), pick.random() < 0.5
    zero_x, zero_y = (np.int32(pick.choice([form.qmin, form.qmax, 0])) for form in (of_x, of_x))
    channels = pick.choice([(), (outputs,)])
    scale_w = np.exp2(rng.uniform(-8, -4, channels)).astype(np.float32)
    zero_w = np.asarray(rng.integers(of_w.qmin, of_w.qmax, channels, endpoint=True), np.int32)
    bias = None if pick.random() < 0.5 else rng.standard_normal(outputs).astype(np.float32)
    scale_x, scale_y = np.float32(0.05), np.float32(0.37)
    settings: dict[str, Any] = {}
    if is_conv:
        groups = pick.choice([1, 1, outputs])
        inside = pick.choice([1, 3, 16]) if groups == 1 else 1
        width, kernel = pick.choice([3, 5, 8]), pick.choice([1, 2, 3])
        settings = {"stride": pick.choice([1, 2]), "padding": pick.choice([0, 1]), "groups": groups}
        x = numbers((pick.choice([1, 2]), inside * groups, width, width + 1), of_x)
        w = numbers((outputs, inside, kernel, kernel), of_w)
    else:
        features = pick.choice([1, 2, 3, 16, 31, 64, 130, 1025])
        x, w = (
            numbers((*pick.choice([(), (1,), (5,), (3, 7), (0,)]), features), of_x),
            numbers((outputs, features), of_w),
        )

    def sums() -> Any:
        """The exact sums, outputs last."""
        left = x.astype(np.int64) - zero_x
        right = w.astype(np.int64) - zero_w.reshape(-1, *(1,) * (w.ndim - 1))
        if not is_conv:
            return left @ right.T
        around, stride = settings["padding"], settings["stride"]
        left = np.pad(left, ((0, 0), (0, 0), (around, around), (around, around)))
        views = np.lib.stride_tricks.sliding_window_view(left, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
        if settings["groups"] > 1:
            return np.einsum("nchwij,cij->nhwc", views, right[:, 0])
        return np.einsum("nchwij,ocij->nhwo", views, right)

    def reference() -> Any:
        output = QParams(scale_y, zero_y)
        found = law.requantize(sums().astype(np.int32), scale_x, scale_w, bias, output, of_x)
        return found.transpose(0, 3, 1, 2) if is_conv else found

    tokens = {law.UINT8: torch.quint8, law.INT8: torch.qint8}
    q = tensors.QTensor(pick.laid(x), QParams(torch.tensor(scale_x), torch.tensor(zero_x)), of_x)
    places = QParams(torch.from_numpy(np.asarray(scale_w)), torch.from_numpy(zero_w), 0 if channels else None)
    of_weight = tensors.QTensor(pick.laid(w), places, of_w)
    of_bias = None if bias is None else pick.laid(bias)
    result = {"scale": float(scale_y), "zero_point": int(zero_y)}

    def call() -> Any:
        if is_conv:
            return tensors.conv2d(q, of_weight, of_bias, **settings, **result, dtype=tokens[of_x]).values
        return tensors.linear(q, of_weight, of_bias, **result).values

    return (x.shape, w.shape, of_x, of_w, channels, bias is not None, settings), reference, call


def sums(pick: Pick) -> Case:
    """Sums along axes, and of rows by an index."""
    import numpy as np

    import qcore.reproducible
    import qtorch
    from qtorch.reproducible.operations import Names

    if pick.random() < 0.3:
        rows, columns, count = pick.choice(SIZES), pick.choice([1, 3, 8, 513]), pick.choice([1, 5, 40])
        x, t = pick.of((rows, columns), "float32")
        index = np.array([pick.randrange(count) for _ in range(rows)], np.int32)
        of_index = pick.laid(index)
        return (
            ("by index", t.shape, t.stride(), count),
            lambda: qcore.reproducible.Names.sums_by_index(x, index, count),
            lambda: Names.sums_by_index(t, of_index, count),
        )
    shape = pick.shape([1, 2, 3, 4])
    axes = tuple(pick.sample(range(len(shape)), pick.randint(1, len(shape))))
    name = pick.choice(["sum", "mean", "norm"]) if 0 not in shape else "sum"
    x, t = pick.of(shape, "float32")
    return (
        (name, shape, t.stride(), axes),
        lambda: getattr(qcore.reproducible, name)(x, axes),
        lambda: getattr(qtorch.reproducible, name)(t, axes),
    )


def functions(pick: Pick) -> Case:
    """Functions with defined bits, whose steps are one program in C."""
    import qcore.reproducible
    import qtorch

    shape = pick.shape([1, 2, 3])
    x, t = pick.of(shape, "float32")
    name = pick.choice(["exp", "softmax", "layer_norm", "add"])
    others: tuple[Any, Any] = ((), ())
    if name == "softmax":
        others = ((-1,), (-1,))
    elif name == "add":
        y, u = pick.of(tuple(pick.choice([size, 1]) for size in shape), "float32")
        others = (y,), (u,)
    return (
        (name, shape, t.stride()),
        lambda: getattr(qcore.reproducible, name)(x, *others[0]),
        lambda: getattr(qtorch.reproducible, name)(t, *others[1]),
    )


def statistics(pick: Pick) -> Case:
    """What a rounding did."""
    import numpy as np

    import qcore.insight
    import qtorch

    shape, number = pick.shape([0, 1, 2, 3]), pick.choice(["e4m3fn", "mxfp4"])
    x, t = pick.of(shape, pick.choice(["float32", "bfloat16", "float16"]))
    return (
        (number, shape, t.stride(), t.dtype),
        lambda: np.asarray(qcore.insight.statistics_of(x, number).lanes),
        lambda: qtorch.insight.statistics_of(t, number).lanes,
    )


KINDS: list[Callable[[Pick], Case]] = [
    rounding,
    decoding,
    product,
    steps,
    convolution,
    affine,
    observing,
    integers,
    sums,
    functions,
    statistics,
]

if __name__ == "__main__":
    sys.exit(main())
