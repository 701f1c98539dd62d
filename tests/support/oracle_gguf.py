"""ggml's laws from numbers to bytes and back for one block, in plain loops over NumPy's float32 scalars.

Written from the description of the layouts by bytes; it shares nothing with the library.
"""

import struct

import numpy as np

F = np.float32
CODES = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]  # twice e2m1


def half(x):
    with np.errstate(over="ignore"):
        return struct.pack("<H", int(np.float16(x).view(np.uint16)))


def reciprocal(d):
    return F(1) / d if d else F(0)


def away(x):
    """roundf: the exact value decides, as float64 has it."""
    return int(np.sign(x)) * int(np.floor(abs(float(x)) + 0.5))


def nibbles(q, width=16):
    return bytes(q[j] | q[j + width] << 4 for j in range(width))


def fifth(q):
    return sum((one >> 4) << j for j, one in enumerate(q)).to_bytes(4, "little")


def symmetric(x, bits):
    n, most = 1 << (bits - 1), F(0)
    for one in x:
        if abs(one) > abs(most):
            most = one
    d = most / F(-n)
    q = [min(2 * n - 1, int(one * reciprocal(d) + F(n + 0.5))) for one in x]
    return half(d) + (fifth(q) if bits == 5 else b"") + nibbles([one & 15 for one in q])


def with_minimum(x, bits):
    n = (1 << bits) - 1
    low = min(x)
    d = (max(x) - low) / F(n)
    q = [min(n, int((one - low) * reciprocal(d) + F(0.5))) for one in x]
    return half(d) + half(low) + (fifth(q) if bits == 5 else b"") + nibbles([one & 15 for one in q])


def q8_0(x):
    d = max(abs(x)) / F(127)
    return half(d) + bytes(away(one * reciprocal(d)) & 255 for one in x)


def trits(x):
    d = max(abs(x))
    return d, [away(one * reciprocal(d)) + 1 for one in x]


def tq1_0(x):
    d, q = trits(x)
    found = bytearray()
    for start, width, count in ((0, 32, 5), (160, 16, 5), (240, 4, 4)):
        for m in range(width):
            total = sum(q[start + n * width + m] * 3 ** (4 - n) for n in range(count))
            found.append(-(-256 * total // 243))
    return bytes(found) + half(d)


def tq2_0(x):
    d, q = trits(x)
    found = bytearray(64)
    for place, one in enumerate(q):
        j, rest = divmod(place, 128)
        found[32 * j + rest % 32] |= one << 2 * (rest // 32)
    return bytes(found) + half(d)


def q2_0(x):
    d, q = trits(x)
    return half(d) + bytes(sum(q[4 * j + k] << 2 * k for k in range(4)) for j in range(16))


def q1_0(x):
    total = F(0)
    for one in x:
        total = total + abs(one)
    return half(total / F(128)) + bytes(sum(int(x[8 * j + k] >= 0) << k for k in range(8)) for j in range(16))


def nearest_code(x, d):
    distances = [abs(d * F(code) - x) for code in CODES]
    return distances.index(min(distances))


def mxfp4(x):
    most = max(abs(x))
    e = int(np.floor(F(np.log2(float(most))))) - 2 + 127 if most else 0
    d = F(2.0 ** (e - 128))
    return bytes([e]) + nibbles([nearest_code(one, d) for one in x])


def ue4m3(x):
    """The code by rounding half up, from the bits; from 256 on the largest one."""
    if x >= 256:
        return 0x7E
    exponent = int(np.floor(np.log2(float(x)))) if x > 0 else -99
    if exponent < -6:
        return min(7, int(x * F(512) + F(0.5)))
    mantissa = int(float(x) / 2.0**exponent * 16) + 1 >> 1  # in eighths: one more bit, rounded half up
    code = (exponent + 7) * 8 + mantissa - 8
    return code if code < 120 else 0x7E


def of_ue4m3(code):
    if code == 0x7F:
        return F(0)
    e, m = code >> 3 & 15, code & 7
    return F(m * 2.0**-10 if e == 0 else (1 + m / 8) * 2.0 ** (e - 8))


def nvfp4(x):
    parts = x.reshape(4, 16)
    scales = [ue4m3(max(abs(part)) / F(6)) for part in parts]
    rows = [nibbles([nearest_code(one, of_ue4m3(s)) for one in p], 8) for p, s in zip(parts, scales, strict=True)]
    return bytes(scales) + b"".join(rows)


ENCODERS = {
    "q4_0": lambda x: symmetric(x, 4),
    "q4_1": lambda x: with_minimum(x, 4),
    "q5_0": lambda x: symmetric(x, 5),
    "q5_1": lambda x: with_minimum(x, 5),
    "q8_0": q8_0,
    "tq1_0": tq1_0,
    "tq2_0": tq2_0,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "q1_0": q1_0,
    "q2_0": q2_0,
}


def _unhalf(block, place):
    return F(np.frombuffer(block[place : place + 2], "<f2")[0])


def _fields(block, n, bits, group, place):
    """Element `place` of bytes whose fields are ordered by groups."""
    row, rest = divmod(place, group * (8 // bits))
    plane, byte = divmod(rest, group)
    return block[n + row * group + byte] >> plane * bits & (1 << bits) - 1


def decode_q1_0(block):
    d = _unhalf(block, 0)
    return [d if _fields(block, 2, 1, 1, i) else -d for i in range(128)]


def decode_q2_0(block):
    d = _unhalf(block, 0)
    return [d * F(_fields(block, 2, 2, 1, i) - 1) for i in range(64)]


DECODERS = {"q1_0": (128, 18, decode_q1_0), "q2_0": (64, 18, decode_q2_0)}
