// Exponentials of float64 numbers in straight code, of which compilers make vectors; they err by less than two units in the
// last place. e^x is 2^n * e^r with r = x - n * log(2), which is at most log(2) / 2.

#define ROUNDER 0x1.8p52  // a sum with it is an integer, whose low bits are those of the sum

static inline FLOAT64 power_of_two(FLOAT64 n) { return float64((bits64(n + ROUNDER) + 1023) << 52); }

// e^r - 1 by its series; `n` is the integer nearest to x / log(2).
static inline FLOAT64 reduced_exponential(FLOAT64 x, FLOAT64 n) {
    const FLOAT64 r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;  // the first product is exact
    FLOAT64 sum = 1.0 / 6227020800;
    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    return r + r * r * sum;
}

// e^x; NaN stays.
static inline FLOAT64 exponential(FLOAT64 x) {
    x = x < -750 ? -750 : x;
    x = x > 710 ? 710 : x;
    const FLOAT64 n = (x * 0x1.71547652b82fep0 + ROUNDER) - ROUNDER;
    const FLOAT64 half = (n * 0.5 + ROUNDER) - ROUNDER;  // of the exponent, which may be too large for one factor
    return (1.0 + reduced_exponential(x, n)) * power_of_two(half) * power_of_two(n - half);
}

// tanh(x) = -t / (2 + t) with t = e^(-2x) - 1, for x without its sign.
static inline FLOAT64 hyperbolic_tangent(FLOAT64 x) {
    FLOAT64 twice = -2 * __builtin_fabs(x);
    twice = twice < -80 ? -80 : twice;
    const FLOAT64 n = (twice * 0x1.71547652b82fep0 + ROUNDER) - ROUNDER, power = power_of_two(n);
    const FLOAT64 t = power * reduced_exponential(twice, n) + (power - 1.0);
    return __builtin_copysign(-t / (2.0 + t), x);
}
