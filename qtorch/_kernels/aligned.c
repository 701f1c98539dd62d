// A product of matrices whose accumulator and products are cut off below the largest of their exponents, a chunk of terms
// at a time: a template that `products.py` fills in. What is filled in, marked by a dollar sign, rounds one sum.
//
// The level of a number is 2^e, for its exponent e: levels are multiplied where exponents would be added, and compared as
// floats. Two passes over a chunk: the largest level must be known before the first term is cut off. Powers of two are
// exact factors, and sums are integers far below 2^53.

$values

#include <math.h>

#if defined __AVX512F__
#include <immintrin.h>
enum { LANES = 8 };
typedef double Vector __attribute__((vector_size(64)));
#define BROADCAST(x) ((Vector)_mm512_set1_pd(x))
#define LARGER(a, b) ((Vector)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define TRUNCATED(a) ((Vector)_mm512_roundscale_pd((__m512d)(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
#define ANY_ABOVE(a, x) (_mm512_cmp_pd_mask((__m512d)(a), _mm512_set1_pd(x), _CMP_GT_OQ) != 0)
#elif defined __AVX__
#include <immintrin.h>
enum { LANES = 4 };
typedef double Vector __attribute__((vector_size(32)));
#define BROADCAST(x) ((Vector)_mm256_set1_pd(x))
#define LARGER(a, b) ((Vector)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define TRUNCATED(a) ((Vector)_mm256_round_pd((__m256d)(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
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
#else
static inline Vector LARGER(Vector a, Vector b) { return (Vector){a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1]}; }
static inline Vector TRUNCATED(Vector a) { return (Vector){trunc(a[0]), trunc(a[1])}; }
#endif
#endif
typedef int64_t Lanes __attribute__((vector_size(sizeof(Vector))));
static inline Vector vector_at(const double* x) { Vector y; memcpy(&y, x, sizeof(y)); return y; }

enum { ROWS = 4, VECTORS = 2, COLUMNS = LANES * VECTORS, TILE = ROWS * COLUMNS };  // of C in registers
typedef union { Vector vectors[ROWS][VECTORS]; double numbers[TILE]; } Tile;
#define EACH_VECTOR for (int i = 0; i < ROWS; ++i) for (int v = 0; v < VECTORS; ++v)

#define DESIGN $design // 1 for the instruction of a chip: zeros have a level, and what is too large is infinite
#define CUT $cut // 1 if sums are cut off toward zero to $bits bits of fraction and zeros have the least level
#define FRACTION 0x1p$fraction  // the unit of a level is 1 / FRACTION
#define LEAST 0x1p$least        // the level of the accumulator's subnormal numbers
#define ZERO $zero              // the level of zeros
#define SPECIAL 0x1p1000        // the level of infinities and NaN; with a zero the product is still beyond all others
#define NONE 0x1p-900           // below the levels of all products, so that 1 / NONE is a number
#define FIELD 0x7ff0000000000000 // the bits of a number's exponent

typedef struct {
    int64_t m, n, k, batch, chunk, adds;
    double least_a, least_b;  // levels of subnormal numbers
    const float *a, *b;
    double* total;
} Call;

static inline double level(double x, double least) {
    const int64_t field = bits64(x) & FIELD;
    const double found = field == FIELD ? SPECIAL : float64(field);
    return x == 0 ? ZERO : MAX(found, least);
}

// A power of two over levels: floats that are powers of two divide as their bits subtract, at a tenth of a division's time.
static inline Vector over(double power, Vector levels) {
    return (Vector)(bits64(power) - ((Lanes)levels - bits64(1.0)));
}

// The levels of accumulators; infinities and NaN have an infinite one.
static inline Vector levels_of(Vector x) {
    const Vector found = LARGER((Vector)((Lanes)x & FIELD), BROADCAST(LEAST));
    if (CUT) return found;
    const Lanes is_zero = (Lanes)(x == 0);
    return LARGER((Vector)((is_zero & bits64(ZERO)) | (~is_zero & (Lanes)found)), BROADCAST(NONE));
}

// What the law gives for a sum with infinities or NaN: the sum itself.
static double plain(double total, const double* a, const double* b, int64_t terms) {
    for (int64_t k = 0; k < terms; ++k) total += a[k] * b[k * COLUMNS];
    return total;
}

// C's rows from `top` and columns from `left` on: a has the numbers of whole rows, then their levels; b has COLUMNS columns
// side by side, then their levels.
static __attribute__((noinline)) void tile(const Call* call, const double* a, const double* b, int64_t example, int64_t top, int64_t left) {
    const int64_t rows = MIN(ROWS, call->m - top), columns = MIN(COLUMNS, call->n - left);
    const double *const levels_a = a + call->m * call->k, *const levels_b = b + COLUMNS * call->k;
    Tile totals = {0}, sums, tops;
    double* const to = call->total + (example * call->m + top) * call->n + left;
    for (int64_t i = 0; call->adds && i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) totals.numbers[i * COLUMNS + j] = to[i * call->n + j];
    }
    int64_t of_rows[ROWS];
    for (int i = 0; i < ROWS; ++i) of_rows[i] = (top + MIN(i, rows - 1)) * call->k;
    Vector levels[ROWS][VECTORS];
    EACH_VECTOR levels[i][v] = levels_of(totals.vectors[i][v]);
    for (int64_t begin = 0; begin < call->k; begin += call->chunk) {
        const int64_t end = MIN(begin + call->chunk, call->k);
        Vector up[ROWS][VECTORS], found[ROWS][VECTORS], largest = BROADCAST(0);
        for (int64_t k = begin; k < end; ++k) {
            EACH_VECTOR {
                const Vector x = vector_at(levels_b + k * COLUMNS + v * LANES);
                levels[i][v] = LARGER(levels[i][v], BROADCAST(levels_a[of_rows[i] + k]) * x);
            }
        }
        EACH_VECTOR {
            up[i][v] = over(FRACTION, levels[i][v]);
            found[i][v] = TRUNCATED(totals.vectors[i][v] * up[i][v]);
            largest = LARGER(largest, levels[i][v]);
        }
        for (int64_t k = begin; k < end; ++k) {
            EACH_VECTOR {
                const Vector x = vector_at(b + k * COLUMNS + v * LANES);
                found[i][v] += TRUNCATED(BROADCAST(a[of_rows[i] + k]) * x * up[i][v]);
            }
        }
        EACH_VECTOR sums.vectors[i][v] = found[i][v] * (levels[i][v] * (1 / FRACTION));
        const int special = ANY_ABOVE(largest, 0x1p400);
        if (special || !CUT) EACH_VECTOR tops.vectors[i][v] = levels[i][v];
        for (int i = 0; special && i < TILE; ++i) {
            if (tops.numbers[i] <= 0x1p400) continue;
            const int64_t at = begin * COLUMNS + i % COLUMNS;
            sums.numbers[i] = plain(totals.numbers[i], a + of_rows[i / COLUMNS] + begin, b + at, end - begin);
        }
#if CUT
        largest = BROADCAST(0);
        EACH_VECTOR {
            const Vector sum = sums.vectors[i][v], level = levels_of(sum);
            totals.vectors[i][v] = TRUNCATED(sum * over(0x1p$bits, level)) * (level * 0x1p-$bits);
            levels[i][v] = level;  // of what is left of the sum, too
            largest = LARGER(largest, level);
        }
        if (ANY_ABOVE(largest, 0x1p127)) {
            for (int i = 0; i < TILE; ++i) {
                const double sum = sums.numbers[i];
                if (!(fabs(sum) < 0x1p128)) totals.numbers[i] = sum == sum ? copysign(INFINITY, sum) : sum;
            }
            EACH_VECTOR levels[i][v] = levels_of(totals.vectors[i][v]);
        }
#else
        $constants
        for (int i = 0; i < TILE; ++i) {
            const double total = sums.numbers[i], term = 0.0;
            $rounded
#if DESIGN
            const double within = fabs(total) < 0x1p128 ? rounded + 0.0 : copysign(INFINITY, total);
            totals.numbers[i] = tops.numbers[i] > 0x1p400 ? total : within;
#else
            totals.numbers[i] = rounded;
#endif
        }
        EACH_VECTOR levels[i][v] = levels_of(totals.vectors[i][v]);
#endif
    }
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * call->n + j] = totals.numbers[i * COLUMNS + j] + 0.0;  // zero is +0
    }
}

static int run(const Call* call, int threads) {
    const int64_t down = (call->m + ROWS - 1) / ROWS, across = (call->n + COLUMNS - 1) / COLUMNS;
    const int64_t length = call->m * call->k, packed = 2 * COLUMNS * call->k + 8;
    double* const memory = aligned_alloc(64, (sizeof(double) * (2 * length * call->batch + packed * threads) + 127) / 64 * 64);
    if (!memory) return 0;
    double* const panels = memory + (2 * length * call->batch + 7) / 8 * 8;
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < call->batch * call->m; ++row) {
        const float* const from = call->a + row * call->k;
        double* const to = memory + row / call->m * 2 * length + row % call->m * call->k;
        for (int64_t k = 0; k < call->k; ++k) to[k] = from[k], to[length + k] = level(from[k], call->least_a);
    }
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < call->batch * across; ++unit) {
        const int64_t example = unit / across, left = unit % across * COLUMNS, columns = MIN(COLUMNS, call->n - left);
        const float* const from = call->b + example * call->k * call->n + left;
        double* const b = panels + omp_get_thread_num() * packed;
        for (int64_t k = 0; k < call->k; ++k) {
            for (int64_t j = 0; j < COLUMNS; ++j) {
                const double x = j < columns ? from[k * call->n + j] : 0;
                b[k * COLUMNS + j] = x, b[(call->k + k) * COLUMNS + j] = level(x, call->least_b);
            }
        }
        for (int64_t i = 0; i < down; ++i) tile(call, memory + example * 2 * length, b, example, i * ROWS, left);
    }
    free(memory);
    return 1;
}

// Takes the lengths of the batch, of m, n, k and a chunk, 1 if the sums start at the numbers in the result or 0, the least
// exponents of a and of b, and the addresses of a, b and the float64 result.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[11];
    if (!read_integers(given, count, 11, x)) return NULL;
    const Call call = {x[1], x[2], x[3], x[0], x[4], x[5], ldexp(1, (int)x[6]), ldexp(1, (int)x[7]),
                       pointer(x[8]), pointer(x[9]), pointer(x[10])};
    void* const state = PyEval_SaveThread();
    const int done = run(&call, (double)x[0] * x[1] * x[2] * x[3] < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
