// A product of matrices by instructions that round each sum to float32: a template that `products.py` fills in. The laws are
// FUSED, PAIRS and EXACT of `qcore.linalg.steps`, of STEP terms.

$values

#include <math.h>

enum { ROWS = 4, COLUMNS = 32, STEP = $step };  // of C at a time; terms of a step
#define LAW $law // 0 for a fused multiply-add, 1 for sums of neighbours, 2 for exact sums
#define FLUSHES $flushes // 1 if subnormal operands and addends count as zeros, and sums as zeros of their sign
#define SIGNED $signed   // 1 if the zeros of operands have their signs; else they are +0

typedef struct {
    int64_t m, n, k, batch, adds;
    float least_a, least_b;  // the least numbers that are not subnormal
    const float *a, *b;
    double* total;
    int64_t runs;
    struct Range* ranges;  // of the runs of a's rows, for exact sums
} Call;

static inline float normal(float x, float least) {
    return FLUSHES && fabsf(x) < least ? (SIGNED ? copysignf(0, x) : 0) : x;
}
static inline float flushed(float x) { return FLUSHES && fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline float leaf(float a, float b) { return flushed(__builtin_fmaf(a, b, 0.0f)); }  // a product that is 0 is +0

static inline double plus(double x, double y, double* rest) {
    const double found = x + y, part = found - x;
    *rest = (x - (found - part)) + (y - part);
    return found;
}

// The exact sum of an accumulator and the products of a step, rounded once: see `_exact` of `qcore.linalg.steps`.
static float exact_sum(float total, const float* x, const float* y) {
    double parts[STEP + 1], plain = 0;
    for (int count = 0; count <= STEP; ++count) {
        double found = count < STEP ? (double)x[count] * y[count * COLUMNS] : (double)total;
        plain += found;
        for (int i = 0; i < count; ++i) found = plus(found, parts[i], &parts[i]);
        parts[count] = found;
    }
    if (!(fabs(plain) < INFINITY)) return (float)plain;
    double top = parts[STEP], rest = 0;
    for (int i = STEP - 1; i >= 0; --i) top = plus(top, parts[i], &parts[i]);
    for (int i = 0; i < STEP; ++i) rest += parts[i];
    const int64_t bits = bits64(top);
    if (rest != 0 && !(bits & 1)) top = float64((rest < 0) == (top < 0) ? bits + 1 : bits - 1);
    return (float)(top + 0.0);
}

#if LAW == 2
#if defined __AVX__
#include <immintrin.h>
#endif
enum { LANES = 8 };
typedef double Doubles __attribute__((vector_size(LANES * sizeof(double))));
typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int64_t Lanes __attribute__((vector_size(LANES * sizeof(int64_t))));

static inline Floats floats_at(const float* x) { Floats y; memcpy(&y, x, sizeof(y)); return y; }
#if defined __AVX512F__  // GCC converts halves of a vector, and puts them together
static inline Doubles doubles_at(const float* x) { return (Doubles)_mm512_cvtps_pd((__m256)floats_at(x)); }
#else
static inline Doubles doubles_at(const float* x) { return __builtin_convertvector(floats_at(x), Doubles); }
#endif

static inline Doubles magnitudes(Doubles x) { return (Doubles)((Lanes)x & INT64_MAX); }

typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));

// A bit for each lane in which two numbers have other bits, or are NaN.
static inline unsigned differing(Floats a, Floats b) {
#if defined __AVX512VL__
    return _mm256_cmpneq_epi32_mask((__m256i)a, (__m256i)b) | _mm256_cmp_ps_mask((__m256)a, (__m256)a, _CMP_UNORD_Q);
#else
    const Ints differ = ((Ints)a != (Ints)b) | (Ints)(a != a);
    unsigned found = 0;
    for (int j = 0; j < LANES; ++j) found |= (unsigned)(differ[j] & 1) << j;
    return found;
#endif
}

// 1 if a lane is not 0.
static inline int any_of(Ints x) {
#if defined __AVX__
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    int found = 0;
    for (int j = 0; j < LANES; ++j) found |= x[j];
    return found != 0;
#endif
}

enum { RUN = 32 };  // terms that are looked at together

// A power of two that divides numbers, and their largest magnitude; infinities and NaN have an infinite one.
typedef struct Range { float unit, top; } Range;

static inline Range with(Range range, float x) {
    int32_t bits;
    float rest;
    memcpy(&bits, &x, sizeof(bits));
    bits = bits & 0x7fffff ? bits & (bits - 1) : 0;  // without the last bit of the significand
    memcpy(&rest, &bits, sizeof(rest));
    const float unit = fabsf(x - rest), top = fabsf(x) < INFINITY ? fabsf(x) : INFINITY;
    return (Range){unit > 0 && unit < range.unit ? unit : range.unit, MAX(range.top, top)};
}

static Range range_of(const float* x, int64_t rows, int64_t count, int64_t stride) {
    Range found = {0x1p100f, 0};
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < count; ++j) found = with(found, x[i * stride + j]);
    }
    return found;
}

// The largest magnitude of numbers, which bits without signs have in their order; NaN is above infinity.
static inline float largest_of(const float* x, int count) {
    Ints found = {0};
    float largest = 0;
    for (int i = 0; i < count; i += LANES) {
        const Ints bits = (Ints)floats_at(x + i) & INT32_MAX;
        found = (bits & (bits > found)) | (found & (bits <= found));
    }
    for (int j = 0; j < LANES; ++j) largest = MAX(largest, ((Floats)found)[j]);
    return largest;
}

// LANES sums of an accumulator and terms x[s] * y[s], of which float64 holds all partial sums.
static inline __attribute__((always_inline)) void add_within(float* sums, const float* x, const Doubles* y) {
    Doubles found = doubles_at(sums);
    for (int s = 0; s < STEP; ++s) found += (double)x[s] * y[s];
    const Floats next = __builtin_convertvector(found + 0.0, Floats);
    memcpy(sums, &next, sizeof(next));
}

// The same of any terms: a sum of doubles with the magnitudes of what each addition lost. It gives the result if no boundary
// of float32's rounding is within twice these, and two places of the sum, so that a tie with a tiny rest is seen.
static __attribute__((noinline)) void add_with_rests(float* sums, const float* x, const Doubles* y, const float* row) {
    Doubles found = doubles_at(sums), rests = {0};
    for (int s = 0; s < STEP; ++s) {
        const Doubles term = (double)x[s] * y[s], sum = found + term, part = sum - found;
        rests += magnitudes((found - (sum - part)) + (term - part));
        found = sum;
    }
    const Doubles bound = (Doubles)((Lanes)(rests != 0) & (Lanes)(2 * rests + magnitudes(found) * 0x1p-51));
    const Floats before = floats_at(sums), low = __builtin_convertvector(found - bound + 0.0, Floats);
    const unsigned near = differing(low, __builtin_convertvector(found + bound + 0.0, Floats));
    memcpy(sums, &low, sizeof(low));
    for (int j = 0; __builtin_expect(near != 0, 0) && j < LANES; ++j) {
        if (near >> j & 1) sums[j] = exact_sum(before[j], x, row + j);
    }
}

// The same, first with one bound for all that the additions of a run may lose: seldom is a boundary of float32's rounding so
// near, but for sums that are ties, or cancel. With an infinite bound the two ends differ, and a NaN is the result.
static inline __attribute__((always_inline)) void add_exactly(
    float* sums, const float* x, const Doubles* y, const float* row, double bound
) {
    Doubles found = doubles_at(sums);
    for (int s = 0; s < STEP; ++s) found += (double)x[s] * y[s];
    found += 0.0;
    const Floats low = __builtin_convertvector(found - bound, Floats), high = __builtin_convertvector(found + bound, Floats);
    if (__builtin_expect(any_of((Ints)low ^ (Ints)high), 0)) add_with_rests(sums, x, y, row);
    else memcpy(sums, &low, sizeof(low));
}
#endif

// C's rows from `top` and columns from `left` on; b has COLUMNS columns side by side.
static __attribute__((noinline)) void tile(const Call* call, const float* b, int64_t example, int64_t top, int64_t left) {
    const int64_t rows = MIN(ROWS, call->m - top), columns = MIN(COLUMNS, call->n - left);
    float sums[ROWS][COLUMNS] __attribute__((aligned(64))) = {{0}};
    double* const to = call->total + (example * call->m + top) * call->n + left;
    const float* of_rows[ROWS];
    for (int64_t i = 0; i < ROWS; ++i) of_rows[i] = call->a + (example * call->m + top + MIN(i, rows - 1)) * call->k;
    for (int64_t i = 0; call->adds && i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) sums[i][j] = (float)to[i * call->n + j];
    }
#if LAW == 2
    const Range* const of_b = (const Range*)(b + call->k * COLUMNS);
    float unit = range_of(sums[0], ROWS, COLUMNS, COLUMNS).unit;  // divides all sums so far, and so what they are rounded to
    int within = 0;  // 1 if float64 holds all partial sums of a run: multiples of the unit, of few enough units
    double bound = 0;  // of what the additions of a step may lose: more than 2^-53 of each partial sum
#endif
    for (int64_t k = 0; k < call->k; k += STEP) {
#if LAW == 2
        if (k % RUN == 0) {
            Range all = {0x1p100f, 0};
            for (int i = 0; i < ROWS; ++i) {
                const Range one = call->ranges[(of_rows[i] - call->a) / call->k * call->runs + k / RUN];
                all = (Range){MIN(all.unit, one.unit), MAX(all.top, one.top)};
            }
            const double of_terms = (double)all.unit * of_b[k / RUN].unit;
            unit = of_terms < unit ? (float)of_terms : unit;
            const float most = largest_of(sums[0], ROWS * COLUMNS);  // NaN stays one anyway
            const double top = most + (double)RUN * all.top * of_b[k / RUN].top;
            within = unit >= 0x1p-126f && top < unit * 0x1p52;
            bound = top < INFINITY ? top * 0x1p-50 : INFINITY;
        }
#endif
        float x[ROWS][STEP];
        for (int i = 0; i < ROWS; ++i) {
            for (int s = 0; s < STEP; ++s) x[i][s] = normal(of_rows[i][k + s], call->least_a);
        }
        const float* const row = b + k * COLUMNS;
#if LAW == 2
        for (int j = 0; j < COLUMNS; j += LANES) {
            Doubles y[STEP];
            for (int s = 0; s < STEP; ++s) y[s] = doubles_at(row + s * COLUMNS + j);
            for (int i = 0; i < ROWS; ++i) {
                if (within) add_within(sums[i] + j, x[i], y);
                else add_exactly(sums[i] + j, x[i], y, row + j, bound);
            }
        }
#else
        for (int i = 0; i < ROWS; ++i) {
            for (int j = 0; j < COLUMNS; ++j) {
#if LAW == 1
                float found = leaf(x[i][0], row[j]);
                if (STEP > 1) found = flushed(found + leaf(x[i][1 % STEP], row[1 % STEP * COLUMNS + j]));
                if (STEP > 2) {
                    const float left = leaf(x[i][2 % STEP], row[2 % STEP * COLUMNS + j]);
                    const float right = leaf(x[i][3 % STEP], row[3 % STEP * COLUMNS + j]);
                    found = flushed(found + flushed(left + right));
                }
                sums[i][j] = flushed(sums[i][j] + found);
#else
                sums[i][j] = flushed(__builtin_fmaf(x[i][0], row[j], sums[i][j]));
#endif
            }
        }
#endif
    }
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * call->n + j] = sums[i][j];
    }
}

static int run(Call* call, int threads) {
    const int64_t down = (call->m + ROWS - 1) / ROWS, across = (call->n + COLUMNS - 1) / COLUMNS;
    // A range is two floats.
    const int64_t runs = call->runs = LAW == 2 ? (call->k + 31) / 32 : 0, panel = call->k * COLUMNS + 2 * runs;
    float* const packed = malloc(sizeof(float) * (panel * threads + 2 * call->batch * call->m * runs + 1));
    if (!packed) return 0;
    call->ranges = (struct Range*)(packed + panel * threads);
#if LAW == 2
    for (int64_t row = 0; row < call->batch * call->m; ++row) {
        for (int64_t k = 0; k < call->k; k += RUN) {
            call->ranges[row * runs + k / RUN] = range_of(call->a + row * call->k + k, 1, MIN(RUN, call->k - k), 0);
        }
    }
#endif
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < call->batch * across; ++unit) {
        const int64_t example = unit / across, left = unit % across * COLUMNS, columns = MIN(COLUMNS, call->n - left);
        const float* const from = call->b + example * call->k * call->n + left;
        float* const b = packed + omp_get_thread_num() * panel;
        for (int64_t k = 0; k < call->k; ++k) {
            for (int64_t j = 0; j < COLUMNS; ++j) {
                b[k * COLUMNS + j] = j < columns ? normal(from[k * call->n + j], call->least_b) : 0;
            }
        }
#if LAW == 2
        for (int64_t k = 0; k < call->k; k += RUN) {
            ((Range*)(b + call->k * COLUMNS))[k / RUN] = range_of(b + k * COLUMNS, MIN(RUN, call->k - k), COLUMNS, COLUMNS);
        }
#endif
        for (int64_t i = 0; i < down; ++i) tile(call, b, example, i * ROWS, left);
    }
    free(packed);
    return 1;
}

// Takes the lengths of the batch, of m, n and k, which has whole steps, 1 if the sums start at the numbers in the result or
// 0, the least exponents of a and of b, and the addresses of a, b and the float64 result.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[10];
    if (!read_integers(given, count, 10, x)) return NULL;
    Call call = {x[1], x[2], x[3], x[0], x[4], ldexpf(1, (int)x[5]), ldexpf(1, (int)x[6]),
                 pointer(x[7]), pointer(x[8]), pointer(x[9]), 0, NULL};
    void* const state = PyEval_SaveThread();
    const int done = run(&call, (double)x[0] * x[1] * x[2] * x[3] < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
