// A product of matrices with an accumulator that is rounded after every term, in ascending order, or after chunks whose terms
// are added in pairs: a template that `products.py` fills in. What is filled in, marked by a dollar sign, rounds one
// number; here are the loops around it.
//
// Each thread has rows of C, a few at a time, whose accumulators stay in registers while k ascends: one accumulator is a
// dependent chain of operations, so many must be in flight.

$values

#include <fenv.h>

// A product here is that of two numbers that have half the bits, or a power of two: exact, so it may be fused with a sum.
#if defined __clang__
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define ROWS $rows       // of C at a time
#define COLUMNS $columns // of C at a time
#define SUM $sum         // the type of the accumulators
#define WORDS $words     // random words for each rounding: 0 (none), 1, or 4 roundings that share two
#define TREE $tree       // the terms of a chunk that are added in pairs, or 0
#define TRUNCATES $truncates // 1 if sums of floats are to be rounded toward zero

#if WORDS
$threefry

// Random words for ROWS rows of C, whose first elements have the indices `first`, n apart.
static inline void draw(const int32_t* key, uint64_t first, uint64_t n, int32_t words[2][ROWS][COLUMNS]) {
    const Words zero = {0}, key0 = zero + (uint32_t)key[0], key1 = zero + (uint32_t)key[1];
    Words place;
    for (int lane = 0; lane < WIDTH; ++lane) place[lane] = lane;
    const int carries = (first >> 32) != (first + (ROWS - 1) * n + COLUMNS) >> 32;
    for (uint32_t j = 0; j < COLUMNS; j += WIDTH) {
        Words low[ROWS], high[ROWS], y0[ROWS], y1[ROWS];
        for (int i = 0; i < ROWS; ++i) {
            const uint64_t index = first + i * n + j;
            low[i] = place + (uint32_t)index, high[i] = zero + (uint32_t)(index >> 32);
            if (carries) high[i] -= (Words)(low[i] < place);  // true is -1
        }
        threefry(key0, key1, high, low, y0, y1);
        for (int i = 0; i < ROWS; ++i) {
            *(Words*)(words[0][i] + j) = WORDS == 4 ? y0[i] : y0[i] ^ y1[i];
            if (WORDS == 4) *(Words*)(words[1][i] + j) = y1[i];
        }
    }
}
#endif

typedef struct { const float *a, *b; const int32_t* key; int64_t m, n, k, batch, size, adds; double* total; } Call;

// Adds the products with index k to the sums and rounds, with the words shifted to the left.
static inline __attribute__((always_inline)) void add_term(const float* const* of_rows, int64_t k, const SUM* row,
                                                          SUM sums[ROWS][COLUMNS], int32_t words[ROWS][COLUMNS], int shift) {
    $constants
    for (int i = 0; i < ROWS; ++i) {
        const SUM factor = of_rows[i][k];
        #pragma GCC ivdep
        for (int j = 0; j < COLUMNS; ++j) {
            const SUM total = sums[i][j], term = factor * row[j];
#if WORDS
            const int32_t drawn = words[i][j] << shift;
#endif
            $rounded
            sums[i][j] = rounded;
        }
    }
}

#if TREE
// Replaces the right summand by the rounded sum of both.
static inline __attribute__((always_inline)) void add_pair(SUM left[ROWS][COLUMNS], SUM right[ROWS][COLUMNS]) {
    $constants
    for (int i = 0; i < ROWS; ++i) {
        #pragma GCC ivdep
        for (int j = 0; j < COLUMNS; ++j) {
            const SUM total = left[i][j], term = right[i][j];
            $rounded
            right[i][j] = rounded;
        }
    }
}

// Adds the products of a chunk in pairs. Whole subtrees wait until their neighbour is whole, as digits of a binary counter
// of the terms do; what is left at the end joins from the right.
static void add_chunk(const float* const* of_rows, int64_t k, int64_t count, const SUM* b, SUM sums[ROWS][COLUMNS]) {
    SUM waiting[8][ROWS][COLUMNS] __attribute__((aligned(64))), found[ROWS][COLUMNS] __attribute__((aligned(64)));
    for (int64_t term = 0; term < count; ++term) {
        for (int i = 0; i < ROWS; ++i) {
            const SUM factor = of_rows[i][k + term];
            for (int j = 0; j < COLUMNS; ++j) found[i][j] = factor * b[(k + term) * COLUMNS + j];
        }
        int level = 0;
        for (; term >> level & 1; ++level) add_pair(waiting[level], found);
        memcpy(waiting[level], found, sizeof found);
    }
    int level = 0;
    while (!(count >> level & 1)) ++level;
    memcpy(found, waiting[level], sizeof found);
    for (++level; count >> level; ++level) if (count >> level & 1) add_pair(waiting[level], found);
    add_pair(sums, found);
    memcpy(sums, found, sizeof found);
}
#endif

// C's rows from `top` and columns from `left` on, at most ROWS and COLUMNS; b has COLUMNS columns side by side.
static __attribute__((noinline)) void tile(const Call* call, const float* a, const SUM* b, int64_t example, int64_t top, int64_t left) {
    const int64_t rows = MIN(ROWS, call->m - top), columns = MIN(COLUMNS, call->n - left);
    SUM sums[ROWS][COLUMNS] __attribute__((aligned(64)));
    for (int i = 0; i < ROWS; ++i) for (int j = 0; j < COLUMNS; ++j) sums[i][j] = 0;
    if (call->adds) {
        for (int64_t i = 0; i < rows; ++i) {
            const double* const from = call->total + (example * call->m + top + i) * call->n + left;
            for (int64_t j = 0; j < columns; ++j) sums[i][j] = from[j] + 0.0;  // a sum of zeros is +0
        }
    }
    const float* of_rows[ROWS];
    for (int i = 0; i < ROWS; ++i) of_rows[i] = a + (top + MIN(i, rows - 1)) * call->k;
#if TREE
    for (int64_t k = 0; k < call->k; k += TREE) add_chunk(of_rows, k, MIN(TREE, call->k - k), b, sums);
#else
    int32_t words[2][ROWS][COLUMNS] __attribute__((aligned(64)));
    for (int64_t k = 0; k < call->k; ++k) {
        const SUM* const row = b + k * COLUMNS;
#if WORDS
        if (WORDS == 1 || k % 4 == 0) {
            const uint64_t first = (uint64_t)(WORDS == 4 ? k / 4 : k) * call->size
                + (uint64_t)(example * call->m + top) * call->n + left;
            draw(call->key, first, call->n, words);
        }
#endif
        switch (WORDS == 4 ? k % 4 : 4) {
            case 0: add_term(of_rows, k, row, sums, words[0], 0); break;
            case 1: add_term(of_rows, k, row, sums, words[0], 16); break;
            case 2: add_term(of_rows, k, row, sums, words[1], 0); break;
            case 3: add_term(of_rows, k, row, sums, words[1], 16); break;
            default: add_term(of_rows, k, row, sums, words[0], 0);
        }
    }
#endif
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = (example * call->m + top + i) * call->n + left;
        for (int64_t j = 0; j < columns; ++j) call->total[at + j] = sums[i][j];
    }
}

static int run(const Call* call, int threads) {
    const int64_t down = (call->m + ROWS - 1) / ROWS, across = (call->n + COLUMNS - 1) / COLUMNS;
    SUM* const packed = malloc(sizeof(SUM) * (call->k * COLUMNS + 1) * threads);
    if (!packed) return 0;
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < call->batch * across; ++unit) {
        const int64_t example = unit / across, left = unit % across * COLUMNS;
        const float* const a = call->a + example * call->m * call->k;
        const float* const from = call->b + example * call->k * call->n + left;
        SUM* const b = packed + omp_get_thread_num() * call->k * COLUMNS;
        const int64_t columns = MIN(COLUMNS, call->n - left);
        for (int64_t k = 0; k < call->k; ++k) {
            for (int64_t j = 0; j < COLUMNS; ++j) b[k * COLUMNS + j] = j < columns ? from[k * call->n + j] : 0;
        }
        const int rounding = fegetround();
        if (TRUNCATES) fesetround(FE_TOWARDZERO);
        for (int64_t i = 0; i < down; ++i) tile(call, a, b, example, i * ROWS, left);
        if (TRUNCATES) fesetround(rounding);
    }
    free(packed);
    return 1;
}

// Takes the lengths of the batch, of m, n and k, 1 if the sums start at the numbers in the result or 0, and the addresses
// of a, b, the key (or 0) and the float64 result.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[9];
    if (!read_integers(given, count, 9, x)) return NULL;
    const Call call = {pointer(x[5]), pointer(x[6]), pointer(x[7]), x[1], x[2], x[3], x[0], x[0] * x[1] * x[2], x[4],
                       pointer(x[8])};
    void* const state = PyEval_SaveThread();
    const int done = run(&call, call.size * call.k < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
