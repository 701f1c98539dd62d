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


def fit_line(x, weights, most, first, tries, squares):
    """A weighted fit of x by scale * q + low: a plain one, then tries with ranges of other lengths."""
    low, top = min(x.min(), F(0)), x.max()
    if low == top:
        return F(0), -low, [0] * len(x)

    def integers(inverse):
        return [max(0, min(most, int(np.rint(inverse * (one - low))))) for one in x]

    def error(scale, minimum, q):
        total = F(0)
        for one, w, k in zip(x, weights, q, strict=True):
            distance = scale * F(k) + minimum - one
            total += w * (distance * distance if squares else abs(distance))
        return total

    def total(terms):
        found = F(0)
        for one in terms:
            found += one
        return found

    inverse = F(most) / (top - low)
    scale, q = F(1) / inverse, integers(inverse)
    best = error(scale, low, q)
    sum_w, sum_x = total(weights), total(weights * x)
    for step in range(tries):
        now = integers((F(first) + F(0.1) * F(step) + F(most)) / (top - low))
        sum_l = total(w * F(k) for w, k in zip(weights, now, strict=True))
        sum_ll = total(w * F(k) * F(k) for w, k in zip(weights, now, strict=True))
        sum_xl = total(w * F(k) * one for w, k, one in zip(weights, now, x, strict=True))
        determinant = sum_w * sum_ll - sum_l * sum_l
        if determinant > 0:
            tried = (sum_w * sum_xl - sum_x * sum_l) / determinant
            minimum = (sum_ll * sum_x - sum_l * sum_xl) / determinant
            if minimum > 0:
                tried, minimum = sum_xl / sum_ll, F(0)
            if (new := error(tried, minimum, now)) < best:
                best, scale, low, q = new, tried, minimum, now
    return scale, -low, q


def with_minima(x, size, most, steps, first, tries, squares):
    """Levels of scales and minima, the bytes of d and dmin, and the integers of Q2_K, Q4_K and Q5_K."""
    fits = []
    for part in x.reshape(-1, size):
        total = F(0)
        for one in part:
            total += one * one
        weights = np.sqrt(total / F(size)) + abs(part) if squares else abs(part)
        fits.append(fit_line(part, weights, most, first, tries, squares))
    stored, levels = [], []
    for which in (0, 1):
        top = max([F(0), *(fit[which] for fit in fits)])
        levels.append([int(np.rint(F(steps) / top * fit[which])) if top > 0 else 0 for fit in fits])
        stored.append(half(top / F(steps)))
    d, least = (_unhalf(one, 0) for one in stored)
    q = []
    for part, fit, level, low in zip(x.reshape(-1, size), fits, *levels, strict=True):
        scale = d * F(level)
        q += [max(0, min(most, int(np.rint((one + least * F(low)) / scale)))) for one in part] if scale else fit[2]
    return stored, *levels, q


def two_bits(q):
    return bytes(sum(q[128 * (i // 32) + i % 32 + 32 * k] << 2 * k for k in range(4)) for i in range(64))


def four_bits(q):
    return bytes(q[64 * (i // 32) + i % 32] | q[64 * (i // 32) + i % 32 + 32] << 4 for i in range(128))


def six_bit_scales(scales, minima):
    rows = [[one[j] | one[j + 4] >> 4 << 6 for j in range(4)] for one in (scales, minima)]
    return bytes([*rows[0], *rows[1], *(scales[j + 4] & 15 | (minima[j + 4] & 15) << 4 for j in range(4))])


def q2_k(x):
    stored, scales, minima, q = with_minima(x, 16, 3, 15, -0.5, 16, False)
    return bytes(s | m << 4 for s, m in zip(scales, minima, strict=True)) + two_bits(q) + b"".join(stored)


def q4_k(x):
    stored, scales, minima, q = with_minima(x, 32, 15, 63, -1, 21, True)
    return b"".join(stored) + six_bit_scales(scales, minima) + four_bits(q)


def q5_k(x):
    stored, scales, minima, q = with_minima(x, 32, 31, 63, -0.5, 16, True)
    high = bytes(sum((q[32 * k + i] >> 4) << k for k in range(8)) for i in range(32))
    return b"".join(stored) + six_bit_scales(scales, minima) + high + four_bits([one & 15 for one in q])


def clipped(x, half_range):
    return max(-half_range, min(half_range - 1, int(np.rint(x))))


def fit_scale(x, most):
    """Q6_K's scale: that of 19 with the least error; integers from -32 to 31."""
    best, scale, q = None, F(0), []
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(F(32) + F(0.1) * F(step)) / most
        now = [clipped(inverse * one, 32) for one in x]
        xl = ll = F(0)
        for one, k in zip(x, now, strict=True):
            xl, ll = xl + one * one * one * F(k), ll + one * one * F(k) * F(k)
        if best is None or xl * xl > best * ll:
            scale, q = xl / ll, now
            best = scale * xl
    return scale, q


def descend(x, most):
    """Q3_K's scale: integers from -4 to 3, each changed in turn, in five passes."""
    q = [clipped(F(-4) / most * one, 4) for one in x]
    xl = ll = F(0)
    for one, k in zip(x, q, strict=True):
        xl, ll = xl + one * one * one * F(k), ll + one * one * F(k) * F(k)
    for _ in range(5):
        for i, one in enumerate(x):
            w = one * one
            others_xl, others_ll = xl - w * one * F(q[i]), ll - w * F(q[i]) * F(q[i])
            if others_xl > 0:
                new = clipped(one * others_ll / others_xl, 4)
                new_xl, new_ll = others_xl + w * one * F(new), others_ll + w * F(new) * F(new)
                if new != q[i] and new_ll > 0 and new_xl * new_xl * ll > xl * xl * new_ll:
                    q[i], xl, ll = new, new_xl, new_ll
    return (xl / ll if ll > 0 else F(0)), q


def by_search(x, search, half_range, steps):
    """The bytes of d, the levels of scales, and integers from 0 on, of Q3_K and Q6_K."""
    fits = []
    for part in x.reshape(-1, 16):
        most = part[np.argmax(abs(part))]
        scale, q = search(part, most) if abs(most) >= F(1e-15) else (F(0), [-half_range] * 16)
        fits.append((scale, [one + half_range for one in q]))
    top = F(0)
    for scale, _ in fits:
        top = scale if abs(scale) > abs(top) else top
    if not top:
        return half(F(0)), [-steps] * 16, [one for _, q in fits for one in q]
    inverse = F(-steps) / top
    levels = [clipped(inverse * scale, steps) for scale, _ in fits]
    d, q = half(F(1) / inverse), []
    for part, (_, found), level in zip(x.reshape(-1, 16), fits, levels, strict=True):
        scale = _unhalf(d, 0) * F(level)
        q += [clipped(one / scale, half_range) + half_range for one in part] if scale else found
    return d, levels, q


def q3_k(x):
    d, levels, q = by_search(x, descend, 4, 32)
    high = bytes(sum((q[32 * k + i] >> 2) << k for k in range(8)) for i in range(32))
    levels = [one + 32 for one in levels]
    low = [levels[j] & 15 | (levels[j + 8] & 15) << 4 for j in range(8)]
    packed = [sum((levels[4 * k + j] >> 4) << 2 * k for k in range(4)) for j in range(4)]
    return high + two_bits([one & 3 for one in q]) + bytes([*low, *packed]) + d


def q6_k(x):
    d, levels, q = by_search(x, fit_scale, 32, 128)
    if not x.any():
        return bytes(210)
    low = bytes(q[128 * (i // 64) + i % 64] & 15 | (q[128 * (i // 64) + i % 64 + 64] & 15) << 4 for i in range(128))
    high = bytes(sum((q[128 * (i // 32) + i % 32 + 32 * k] >> 4) << 2 * k for k in range(4)) for i in range(64))
    return low + high + bytes(one & 255 for one in levels) + d


ENCODERS = {
    "q2_k": q2_k,
    "q3_k": q3_k,
    "q4_k": q4_k,
    "q5_k": q5_k,
    "q6_k": q6_k,
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
