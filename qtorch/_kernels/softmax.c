// Softmax of rows, of settled numbers; see `qcore.reproducible.operations.softmax`, the law. Maxima and sums of integers
// have no order, so the compiler may take numbers in any.

$values

#define PARALLEL 16384 // numbers from which on threads share the work

static inline FLOAT32 settled(FLOAT32 x) { return __builtin_fabsf(x) > 0x1p-126f ? x : 0.0f; }

// exp of x from -104 to 0, wrong by less than two units in the last place of float64: 2^n times a series of the rest. A test
// compares it, rounded to float32, with other programs' exp for every x that is a float32 number.
static inline FLOAT64 exponential(FLOAT64 x) {
    const FLOAT64 n = (x * 0x1.71547652b82fep0 + 0x1.8p52) - 0x1.8p52; // the nearest integer to x / log(2)
    const FLOAT64 r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; // log(2) in two parts: n times the first is exact
    static const FLOAT64 terms[] = {$terms}; // 1 / k!
    const int last = sizeof(terms) / sizeof(*terms) - 1;
    FLOAT64 series = terms[last];
    #pragma GCC unroll 16
    for (int k = last - 1; k >= 0; --k) series = series * r + terms[k];
    return series * float64((bits64(n + 0x1.8p52) + 1023) << 52);
}

// One row. The result is NaN if a number is; where all are -inf, it is `empty`.
static void row(const FLOAT32* x, FLOAT32* y, int64_t length, FLOAT64 unit, FLOAT32 empty) {
    FLOAT32 top = -__builtin_inff();
    int32_t nan = 0;
    #pragma omp simd reduction(max : top) reduction(| : nan)
    for (int64_t j = 0; j < length; ++j) {
        top = x[j] > top ? x[j] : top;
        nan |= x[j] != x[j];
    }
    if (nan || top == __builtin_inff()) top = __builtin_nanf("");
    if (top == -__builtin_inff() || top != top) {
        for (int64_t j = 0; j < length; ++j) y[j] = top != top ? top : empty;
        return;
    }
    int64_t total = 0;
    #pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < length; ++j) {
        const FLOAT32 less = settled(x[j] - top);
        const FLOAT32 e = settled((FLOAT32)exponential(less > -104 ? less : -104)); // below, exp is less than 2^-126
        y[j] = e;
        total += (int64_t)(e * unit);
    }
    const FLOAT32 sum = (FLOAT32)total * (FLOAT32)(1 / unit);
    #pragma omp simd
    for (int64_t j = 0; j < length; ++j) y[j] = settled(y[j] / sum);
}

// Takes the numbers of rows and of columns, the power of two that is the unit of sums, 1 if rows of -inf are zeros, or 0 if
// they are NaN, and the addresses of the numbers and of the result.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[6];
    if (!read_integers(given, count, 6, x)) return NULL;
    const int64_t rows = x[0], length = x[1];
    const FLOAT64 unit = float64((1023 + x[2]) << 52);
    const FLOAT32 empty = x[3] ? 0.0f : __builtin_nanf("");
    const FLOAT32* const from = pointer(x[4]);
    FLOAT32* const to = pointer(x[5]);
    void* const state = PyEval_SaveThread();
    #pragma omp parallel for if (rows * length >= PARALLEL)
    for (int64_t i = 0; i < rows; ++i) row(from + i * length, to + i * length, length, unit, empty);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
