// A product of matrices whose terms are cut off below the largest of their exponents, a chunk of terms at a time: a template
// that `products.py` fills in. What is filled in, marked by a dollar sign, rounds one sum. The laws are those of
// `qcore.linalg.steps`.
//
// The level of a number is 2^e, for its exponent e: levels are multiplied where exponents would be added, and compared as
// floats. Two passes over a chunk: the largest level must be known before the first term is cut off. Powers of two are
// exact factors, and sums are integers far below 2^53. So are products and sums of a group: they may be fused.

$values

#include <math.h>

#if defined __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined __AVX512F__
#include <immintrin.h>
enum { LANES = 8 };
typedef double Vector __attribute__((vector_size(64)));
#define BROADCAST(x) ((Vector)_mm512_set1_pd(x))
#define LARGER(a, b) ((Vector)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define TRUNCATED(a) ((Vector)_mm512_roundscale_pd((__m512d)(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
#define FLOOR(a) ((Vector)_mm512_roundscale_pd((__m512d)(a), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC))
#define ANY_ABOVE(a, x) (_mm512_cmp_pd_mask((__m512d)(a), _mm512_set1_pd(x), _CMP_GT_OQ) != 0)
#elif defined __AVX__
#include <immintrin.h>
enum { LANES = 4 };
typedef double Vector __attribute__((vector_size(32)));
#define BROADCAST(x) ((Vector)_mm256_set1_pd(x))
#define LARGER(a, b) ((Vector)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define TRUNCATED(a) ((Vector)_mm256_round_pd((__m256d)(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
#define FLOOR(a) ((Vector)_mm256_round_pd((__m256d)(a), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC))
#define ANY_ABOVE(a, x) (_mm256_movemask_pd(_mm256_cmp_pd((__m256d)(a), _mm256_set1_pd(x), _CMP_GT_OQ)) != 0)
#else
enum { LANES = 2 };
typedef double Vector __attribute__((vector_size(16)));
#define BROADCAST(x) ((Vector){x, x})
#define ANY_ABOVE(a, x) ((a)[0] > (x) || (a)[1] > (x))
#if defined __aarch64__
#include <arm_neon.h>
#define LARGER(a, b) ((Vector)vmaxq_f64((float64x2_t)(a), (float64x2_t)(b)))
#define TRUNCATED(a) ((Vector)vrndq_f64((float64x2_t)(a)))
#define FLOOR(a) ((Vector)vrndmq_f64((float64x2_t)(a)))
#else
static inline Vector LARGER(Vector a, Vector b) { return (Vector){a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1]}; }
static inline Vector TRUNCATED(Vector a) { return (Vector){trunc(a[0]), trunc(a[1])}; }
static inline Vector FLOOR(Vector a) { return (Vector){floor(a[0]), floor(a[1])}; }
#endif
#endif
typedef int64_t Lanes __attribute__((vector_size(sizeof(Vector))));
static inline Vector vector_at(const double* x) { Vector y; memcpy(&y, x, sizeof(y)); return y; }

enum { ROWS = 4, VECTORS = 2, COLUMNS = LANES * VECTORS, TILE = ROWS * COLUMNS };  // of C in registers
typedef union { Vector vectors[ROWS][VECTORS]; double numbers[TILE]; } Tile;
#define EACH_VECTOR for (int i = 0; i < ROWS; ++i) for (int v = 0; v < VECTORS; ++v)

#define INFINITE $infinite // 1 if sums beyond the largest number are infinite in every rounding
#define POSITIVE $positive // 1 if a sum that is rounded to zero is +0
#define CUT $cut // 1 if sums are cut off toward zero to $bits bits of fraction, are infinite beyond, and never -0
#define APART $apart // 1 if the accumulator does not count for the level of the terms
#define SETS $sets // 1 or 2 sets of products that are aligned apart from the accumulator, and cut off downward; else 0
#define LATE $late // 1 if chunks are summed from +0 on, and their sums added to the accumulator of LATE_CHUNK terms
#define CUT_OFF $cut_off // TRUNCATED or FLOOR, of terms
#define GROUP $group // terms whose exact sum counts as one, at the level of its scales
#define BLOCK $block // numbers that share a scale; 0 without scales
#define OF_BLOCK(k) (BLOCK ? (k) / (BLOCK + !BLOCK) : 0)
#define FRACTION 0x1p$fraction  // the unit of a level is 1 / FRACTION
#define LEAST 0x1p$least        // the level of the accumulator's subnormal numbers
#define LEAST_SCALE 0x1p$least_scale // the level of subnormal scales
#define ZERO_TERM 0x1p-500      // the level of operands and scales that are zero: below that of all products
#define ZERO $zero              // the least level of an alignment, that of zeros that count
#define SPECIAL 0x1p1000        // the level of infinities and NaN; with a zero the product is still beyond all others
#define NONE 0x1p-900           // below the levels of all products, so that 1 / NONE is a number
#define FIELD 0x7ff0000000000000 // the bits of a number's exponent

typedef struct {
    int64_t m, n, k, batch, chunk, adds;
    double least_a, least_b;  // levels of subnormal numbers
    const float *a, *b, *scales_a, *scales_b;
    double* total;
    int sparse;  // 1 if groups of products may be all zero
} Call;

static inline double level(double x, double least) {
    const int64_t field = bits64(x) & FIELD;
    const double found = field == FIELD ? SPECIAL : float64(field);
    return x == 0 ? ZERO_TERM : MAX(found, least);
}

// A power of two over levels: floats that are powers of two divide as their bits subtract, at a tenth of a division's time.
static inline Vector over(double power, Vector levels) {
    return (Vector)(bits64(power) - ((Lanes)levels - bits64(1.0)));
}

// The levels of accumulators; infinities and NaN have an infinite one.
static inline Vector levels_of(Vector x) {
    const Vector field = (Vector)((Lanes)x & FIELD);
    if (SETS > 0) return LARGER(field, BROADCAST(LEAST));
    const Lanes counts = (Lanes)(x != 0);
    return LARGER(field, (Vector)((counts & bits64(ZERO > LEAST ? ZERO : LEAST)) | (~counts & bits64(ZERO))));
}

static inline Vector to_nearest(Vector x) {
    typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
    return __builtin_convertvector(__builtin_convertvector(x + 0.0, Floats), Vector);  // zero is +0; -0 is below all others
}

// Where a chunk of a tile's rows of A and columns of B lies: numbers, and levels of each GROUP of them.
typedef struct {
    const double *a, *b, *levels_a, *levels_b;
    const int64_t *some_a, *some_b;  // bits of the numbers of a group that are not zero; NULL if no group can be all zero
    int64_t of_rows[ROWS], begin, end;
} Part;

// Raises levels to those of the terms from `begin` to `end`.
static inline __attribute__((always_inline)) void raise_levels(
    const Part* part, int64_t begin, int64_t end, Vector levels[ROWS][VECTORS]
) {
    for (int64_t k = begin / GROUP; k < end / GROUP; ++k) {
        EACH_VECTOR {
            const Vector x = vector_at(part->levels_b + k * COLUMNS + v * LANES);
            Vector found = BROADCAST(part->levels_a[part->of_rows[i] / GROUP + k]) * x;
#if GROUP > 1
            if (part->some_a) {
                const Lanes some = (Lanes)vector_at((const double*)(part->some_b + k * COLUMNS + v * LANES));
                found = (Vector)((Lanes)found & ((some & part->some_a[part->of_rows[i] / GROUP + k]) != 0));
            }
#endif
            levels[i][v] = LARGER(levels[i][v], found);
        }
    }
}

// Adds the same terms, in units of which there are `up` in 1, each cut off.
static inline __attribute__((always_inline)) void add_terms(
    const Part* part, int64_t begin, int64_t end, Vector up[ROWS][VECTORS], Vector found[ROWS][VECTORS]
) {
    for (int64_t k = begin; k < end; k += GROUP) {
#if GROUP == 1
        EACH_VECTOR {
            const Vector x = vector_at(part->b + k * COLUMNS + v * LANES);
            found[i][v] += CUT_OFF(BROADCAST(part->a[part->of_rows[i] + k]) * x * up[i][v]);
        }
#else
        Vector sums[ROWS][VECTORS] = {0};
        for (int64_t one = k; one < k + GROUP; ++one) {
            EACH_VECTOR {
                const Vector x = vector_at(part->b + one * COLUMNS + v * LANES);
                sums[i][v] += BROADCAST(part->a[part->of_rows[i] + one]) * x;
            }
        }
        EACH_VECTOR found[i][v] += CUT_OFF(sums[i][v] * up[i][v]);
#endif
    }
}

// What the law gives for a sum with infinities or NaN: the sum itself.
static double plain(double total, const Part* part, int place) {
    const double *const a = part->a + part->of_rows[place / COLUMNS], *const b = part->b + place % COLUMNS;
    for (int64_t k = part->begin; k < part->end; ++k) total += a[k] * b[k * COLUMNS];
    return total;
}

#if SETS
// x cut off downward to a multiple of levels / power.
static inline Vector floored(Vector x, double power, Vector levels) {
    return FLOOR(x * over(power, levels)) * (levels * (1 / power));
}

// Infinite, or NaN, if there are products from 2^128 on; else 0.
static double beyond(const Part* part, int place) {
    double found = 0;
    const double *const a = part->a + part->of_rows[place / COLUMNS], *const b = part->b + place % COLUMNS;
    for (int64_t k = part->begin; k < part->end; ++k) {
        const double term = a[k] * b[k * COLUMNS];
        if (!(fabs(term) < 0x1p128)) found += term * INFINITY;
    }
    return found;
}

// Products are cut off toward zero in one set or two; the sets, and the accumulators, are cut off downward.
static inline __attribute__((always_inline)) void add_chunk(const Part* part, Tile* totals, Vector levels[ROWS][VECTORS]) {
    Vector tops[ROWS][VECTORS], sums[ROWS][VECTORS], of_sets[SETS][ROWS][VECTORS], largest = BROADCAST(0);
    for (int set = 0; set < SETS; ++set) {
        Vector top[ROWS][VECTORS], up[ROWS][VECTORS], found[ROWS][VECTORS];
        const int64_t half = (part->end - part->begin) / SETS, begin = part->begin + set * half;
        EACH_VECTOR top[i][v] = BROADCAST(ZERO), found[i][v] = BROADCAST(0);
        raise_levels(part, begin, begin + half, top);
        EACH_VECTOR up[i][v] = over(FRACTION, top[i][v]);
        add_terms(part, begin, begin + half, up, found);
        EACH_VECTOR {
            of_sets[set][i][v] = found[i][v] * (top[i][v] * (1 / FRACTION));
            tops[i][v] = set ? LARGER(tops[i][v], top[i][v]) : top[i][v];
        }
    }
    EACH_VECTOR {
        if (SETS == 1) sums[i][v] = of_sets[0][i][v];
        else sums[i][v] = floored(of_sets[0][i][v], FRACTION, tops[i][v]) + floored(of_sets[SETS - 1][i][v], FRACTION, tops[i][v]);
    }
    Tile next;
    EACH_VECTOR {
        const Vector total = totals->vectors[i][v], all = LARGER(tops[i][v], levels[i][v]);
        Vector kept = floored(total, FRACTION, all);
        if (SETS == 2) {
            const Lanes counts = (Lanes)(levels[i][v] >= all * (0.5 / FRACTION));
            kept = (Vector)((Lanes)kept & counts);
        }
        next.vectors[i][v] = to_nearest(floored(sums[i][v], 0x1p$sum_bits, all) + kept);
        largest = LARGER(largest, all);
    }
    if (ANY_ABOVE(largest, 0x1p125)) {  // a product below 4 times its level, or a sum, may be too large
        for (int i = 0; i < TILE; ++i) {
            const double sum = plain(totals->numbers[i], part, i), product = beyond(part, i);
            if (!(fabs(sum) < INFINITY)) next.numbers[i] = sum;
            else if (product != 0) next.numbers[i] = product;
        }
    }
    *totals = next;
    EACH_VECTOR levels[i][v] = levels_of(totals->vectors[i][v]);
}
#else
// Accumulators and terms are cut off, and their sums are rounded.
static inline __attribute__((always_inline)) void add_chunk(const Part* part, Tile* totals, Vector levels[ROWS][VECTORS]) {
    Vector up[ROWS][VECTORS], found[ROWS][VECTORS], largest = BROADCAST(0);
    Tile sums, tops;
    if (APART) EACH_VECTOR levels[i][v] = BROADCAST(ZERO);
    raise_levels(part, part->begin, part->end, levels);
    EACH_VECTOR {
        up[i][v] = over(FRACTION, levels[i][v]);
        found[i][v] = APART ? BROADCAST(0) : CUT_OFF(totals->vectors[i][v] * up[i][v]);
        largest = LARGER(largest, levels[i][v]);
    }
    add_terms(part, part->begin, part->end, up, found);
    // Where the accumulator is not aligned it may be far larger than the terms: one addition, which rounds.
    if (APART) EACH_VECTOR found[i][v] += CUT_OFF(totals->vectors[i][v] * up[i][v]);
    EACH_VECTOR sums.vectors[i][v] = found[i][v] * (levels[i][v] * (1 / FRACTION));
    if (ANY_ABOVE(largest, 0x1p400)) {
        EACH_VECTOR tops.vectors[i][v] = levels[i][v];
        for (int i = 0; i < TILE; ++i) {
            if (tops.numbers[i] > 0x1p400) sums.numbers[i] = plain(totals->numbers[i], part, i);
        }
    }
#if CUT
    largest = BROADCAST(0);
    EACH_VECTOR {
        const Vector sum = sums.vectors[i][v], of_sum = LARGER((Vector)((Lanes)sum & FIELD), BROADCAST(LEAST));
        const Vector kept = TRUNCATED(sum * over(0x1p$bits, of_sum)) * (of_sum * 0x1p-$bits);
        const Lanes counts = (Lanes)(kept != 0);
        totals->vectors[i][v] = kept;
        levels[i][v] = (Vector)((counts & (Lanes)of_sum) | (~counts & bits64(ZERO)));  // what is left has the sum's level
        largest = LARGER(largest, of_sum);
    }
    if (!ANY_ABOVE(largest, 0x1p127)) return;
    for (int i = 0; i < TILE; ++i) {
        const double sum = sums.numbers[i];
        if (!(fabs(sum) < 0x1p128)) totals->numbers[i] = sum == sum ? copysign(INFINITY, sum) : sum;
    }
#else
    $constants
    for (int i = 0; i < TILE; ++i) {
        const double total = sums.numbers[i], term = 0.0;
        $rounded
#if INFINITE
        const double within = fabs(total) < 0x1p$beyond ? rounded : copysign(INFINITY, total);
        totals->numbers[i] = (total == total ? within : total) + (POSITIVE ? 0.0 : -0.0);
#else
        totals->numbers[i] = rounded + (POSITIVE ? 0.0 : -0.0);  // x + -0.0 is x
#endif
    }
#endif
    EACH_VECTOR levels[i][v] = levels_of(totals->vectors[i][v]);
}
#endif

#if LATE
enum { LATE_CHUNK = $late_chunk };  // 0 is the whole sum

// Adds the sum of a chunk, which steps of the call's length have from +0 on, to the accumulators.
static inline __attribute__((always_inline)) void add_late(Part* part, int64_t end, int64_t step, Tile* totals) {
    Tile sums = {0};
    Vector levels[ROWS][VECTORS];
    EACH_VECTOR levels[i][v] = levels_of(sums.vectors[i][v]);
    for (; part->begin < end; part->begin = part->end) {
        part->end = MIN(part->begin + step, end);
        add_chunk(part, &sums, levels);
    }
#if $late_nearest
    EACH_VECTOR totals->vectors[i][v] = to_nearest(totals->vectors[i][v] + sums.vectors[i][v]);
#else
    $late_constants
    for (int i = 0; i < TILE; ++i) {
        const double total = totals->numbers[i], term = sums.numbers[i];
        $late_rounded
        totals->numbers[i] = rounded;
    }
#endif
}
#endif

// C's rows from `top` and columns from `left` on: a has the numbers of whole rows, then their levels; b has COLUMNS columns
// side by side, then their levels.
static __attribute__((noinline)) void tile(const Call* call, const double* a, const double* b, int64_t example, int64_t top, int64_t left) {
    const int64_t rows = MIN(ROWS, call->m - top), columns = MIN(COLUMNS, call->n - left);
    const double *const of_a = a + call->m * call->k, *const of_b = b + COLUMNS * call->k;
    const int64_t *some_a = NULL, *some_b = NULL;
    if (GROUP > 1 && call->sparse) {  // they stand behind the levels of groups
        some_a = (const int64_t*)(of_a + call->m * call->k / GROUP);
        some_b = (const int64_t*)(of_b + COLUMNS * call->k / GROUP);
    }
    Part part = {a, b, of_a, of_b, some_a, some_b, {0}, 0, 0};
    for (int i = 0; i < ROWS; ++i) part.of_rows[i] = (top + MIN(i, rows - 1)) * call->k;
    Tile totals = {0};
    Vector levels[ROWS][VECTORS];
    double* const to = call->total + (example * call->m + top) * call->n + left;
    for (int64_t i = 0; call->adds && i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) totals.numbers[i * COLUMNS + j] = to[i * call->n + j];
    }
#if LATE
    (void)levels;
    const int64_t chunk = LATE_CHUNK ? LATE_CHUNK : call->k;
    while (part.begin < call->k) add_late(&part, MIN(part.begin + chunk, call->k), call->chunk, &totals);
#else
    EACH_VECTOR levels[i][v] = levels_of(totals.vectors[i][v]);
    for (; part.begin < call->k; part.begin = part.end) {
        part.end = MIN(part.begin + call->chunk, call->k);
        add_chunk(&part, &totals, levels);
    }
#endif
    const double zero = CUT && call->k ? 0.0 : -0.0;  // x + -0.0 is x; of x + 0.0 a zero is +0
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * call->n + j] = totals.numbers[i * COLUMNS + j] + zero;
    }
}

// A number with its scale, and its level; groups have the levels of their scales, at the place of each group's first number.
static inline void pack(double x, double least, const float* scale, double* number, double* of_number) {
    const double factor = BLOCK ? *scale : 1, of_scale = BLOCK ? level(factor, LEAST_SCALE) : 1;
    *number = x * factor;
    if (of_number) *of_number = GROUP == 1 ? level(x, least) * of_scale : of_scale;
}

// The bits of the numbers of a group that are not zero; a number and the next are `stride` apart.
static inline int64_t some_of(const float* x, int64_t stride) {
    int64_t found = 0;
    for (int k = 0; k < GROUP; ++k) found |= (int64_t)(x[k * stride] != 0) << k;
    return found;
}

// Whether a group of products may be all zero: two groups with more than GROUP numbers that are not zero share a place.
static int may_be_zero(const Call* call) {
    int64_t least[2] = {GROUP, GROUP};
    for (int64_t begin = 0; begin < call->batch * call->m * call->k; begin += GROUP) {
        least[0] = MIN(least[0], __builtin_popcountll(some_of(call->a + begin, 1)));
    }
    for (int64_t row = 0; row < call->batch * call->k; row += GROUP) {
        for (int64_t j = 0; j < call->n; ++j) {
            least[1] = MIN(least[1], __builtin_popcountll(some_of(call->b + row * call->n + j, call->n)));
        }
    }
    return least[0] + least[1] <= GROUP;
}

static int run(const Call* call, int threads) {
    const int64_t down = (call->m + ROWS - 1) / ROWS, across = (call->n + COLUMNS - 1) / COLUMNS;
    const int64_t length = call->m * call->k, packed = 2 * COLUMNS * call->k + 8;
    double* const memory = aligned_alloc(64, (sizeof(double) * (2 * length * call->batch + packed * threads) + 127) / 64 * 64);
    if (!memory) return 0;
    double* const panels = memory + (2 * length * call->batch + 7) / 8 * 8;
    const int64_t blocks = OF_BLOCK(call->k);
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < call->batch * call->m; ++row) {
        const float *const from = call->a + row * call->k, *const scales = BLOCK ? call->scales_a + row * blocks : NULL;
        double* const to = memory + row / call->m * 2 * length + row % call->m * call->k;
        double* const levels = memory + row / call->m * 2 * length + length + row % call->m * call->k / GROUP;
        for (int64_t k = 0; k < call->k; ++k) {
            pack(from[k], call->least_a, scales + OF_BLOCK(k), to + k, k % GROUP ? NULL : levels + k / GROUP);
        }
        for (int64_t k = 0; call->sparse && k < call->k; k += GROUP) {
            ((int64_t*)(levels + length / GROUP))[k / GROUP] = some_of(from + k, 1);
        }
    }
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < call->batch * across; ++unit) {
        const int64_t example = unit / across, left = unit % across * COLUMNS, columns = MIN(COLUMNS, call->n - left);
        const float* const from = call->b + example * call->k * call->n + left;
        const float* const scales = BLOCK ? call->scales_b + example * blocks * call->n + left : NULL;
        double *const b = panels + omp_get_thread_num() * packed, *const levels = b + call->k * COLUMNS;
        for (int64_t k = 0; k < call->k; ++k) {
            for (int64_t j = 0; j < COLUMNS; ++j) {
                const int64_t column = MIN(j, columns - 1);  // what is beyond the last one is not written
                pack(from[k * call->n + column], call->least_b, scales + (BLOCK ? OF_BLOCK(k) * call->n + column : 0),
                     b + k * COLUMNS + j, k % GROUP ? NULL : levels + k / GROUP * COLUMNS + j);
                if (call->sparse && k % GROUP == 0) {
                    int64_t* const some = (int64_t*)(levels + call->k / GROUP * COLUMNS);
                    some[k / GROUP * COLUMNS + j] = some_of(from + k * call->n + column, call->n);
                }
            }
        }
        for (int64_t i = 0; i < down; ++i) tile(call, memory + example * 2 * length, b, example, i * ROWS, left);
    }
    free(memory);
    return 1;
}

// Takes the lengths of the batch, of m, n, k and a chunk, 1 if the sums start at the numbers in the result or 0, the least
// exponents of a and of b, and the addresses of a, b, their scales (or 0), and the float64 result. With scales or groups, k
// has whole blocks and groups.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[13];
    if (!read_integers(given, count, 13, x)) return NULL;
    Call call = {x[1], x[2], x[3], x[0], x[4], x[5], ldexp(1, (int)x[6]), ldexp(1, (int)x[7]),
                 pointer(x[8]), pointer(x[9]), pointer(x[10]), pointer(x[11]), pointer(x[12]), 0};
    void* const state = PyEval_SaveThread();
    call.sparse = GROUP > 1 && may_be_zero(&call);
    const int done = run(&call, (double)x[0] * x[1] * x[2] * x[3] < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
