// A product of matrices whose accumulator is rounded after each chunk of terms, or once: a template that `products.py`
// fills in. What is filled in, marked by a dollar sign, adds a chunk's sum to an accumulator and rounds; here are the
// loops around it.
//
// Sums are float64's, in ascending order. A product of two float32 numbers is exact there, so a fused multiply-add has
// the bits of a product and a sum. The elements of both matrices lie where tables of places, or strides, say. A thread
// has a block of C at a time, whose sums and accumulators stay in its caches; of both matrices it copies what a part of
// the terms needs there, in the order in which it is read.

$values

#define CHUNKS $chunks // 1 if accumulators are rounded, 0 if the sum of all terms is the result
#define WORDS $words   // random words for each rounding: 0 (none), 1, or 4 roundings that share two

#if defined __AVX512F__
#include <immintrin.h>
enum { LANES = 8, ROWS = 8, VECTORS = 3 };
typedef double Vector __attribute__((vector_size(64)));
#define REGISTER "v"
#define BROADCAST(x) ((Vector)_mm512_set1_pd(x))
#define MULTIPLY_ADD(a, b, c) ((Vector)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#elif defined __FMA__
#include <immintrin.h>
enum { LANES = 4, ROWS = 4, VECTORS = 3 };
typedef double Vector __attribute__((vector_size(32)));
#define REGISTER "x"
#define BROADCAST(x) ((Vector)_mm256_set1_pd(x))
#define MULTIPLY_ADD(a, b, c) ((Vector)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#elif defined __aarch64__
#include <arm_neon.h>
enum { LANES = 2, ROWS = 4, VECTORS = 4 };
typedef double Vector __attribute__((vector_size(16)));
#define BROADCAST(x) ((Vector){x, x})
#define REGISTER "w"
#define MULTIPLY_ADD(a, b, c) ((Vector)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#else
enum { LANES = 2, ROWS = 4, VECTORS = 2 };
typedef double Vector __attribute__((vector_size(16)));
#if defined __SSE2__
#define REGISTER "x"
#else
#define REGISTER "m"
#endif
#define BROADCAST(x) ((Vector){x, x})
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
enum { COLUMNS = LANES * VECTORS, TILE = ROWS * COLUMNS };                      // of C in registers
enum { GAP = 24, TERMS = 256, BLOCK_ROWS = 96 / ROWS * ROWS, BLOCK_COLUMNS = 144 / COLUMNS * COLUMNS }; // of C in caches

// An axis of a matrix: where its elements lie, as a table, or as multiples of a stride.
typedef struct { const int64_t* table; int64_t stride; } Axis;

typedef struct {
    int64_t batch, m, n, k, chunk;
    const float *a, *b;
    const int32_t* key;
    float* c;
    int64_t adds;  // 1 if the accumulators start at the numbers in c
    Axis batch_a, batch_b, rows, terms_a, terms_b, columns;
} Call;

static inline int64_t place(Axis axis, int64_t index) { return axis.table ? axis.table[index] : index * axis.stride; }

#if WORDS
$threefry
#endif

// Copies `count` lanes of `length` terms each, as groups of `width` lanes side by side for each term. What the last group
// has in the place of missing lanes ends nowhere. Lanes that are neighbours in memory share lines of a cache: so a few
// terms of all groups are copied before the next few.
#define COPY(lanes) for (int64_t k = from_term; k < end; ++k) { \
    Floats x; \
    lanes \
    *(Vector*)(here + k * width) = __builtin_convertvector(x, Vector); \
}
static inline __attribute__((always_inline)) void pack(double* to, const float* from, Axis lanes, int64_t first,
                                                       int64_t count, Axis terms, int64_t begin, int64_t length, int width) {
    const float* of[MAX(BLOCK_ROWS, BLOCK_COLUMNS)];
    int neighbours[MAX(BLOCK_ROWS, BLOCK_COLUMNS) / LANES], runs = 1;
    int64_t at[TERMS];
    const int64_t whole = (count + width - 1) / width * width;
    for (int64_t lane = 0; lane < whole; ++lane) of[lane] = from + place(lanes, first + MIN(lane, count - 1));
    for (int64_t part = 0; part < whole; part += LANES) {
        neighbours[part / LANES] = 1;
        for (int lane = 1; lane < LANES; ++lane) neighbours[part / LANES] &= of[part + lane] == of[part] + lane;
    }
    for (int64_t k = 0; k < length; ++k) runs &= (at[k] = place(terms, begin + k)) == at[0] + k;
    const int64_t strip = runs ? length : 8;
    for (int64_t from_term = 0; from_term < length; from_term += strip) {
        const int64_t end = MIN(from_term + strip, length);
        for (int64_t part = 0; part < whole; part += LANES) {
            double* const here = to + part / width * (width * length + GAP) + part % width;
            const float* const* const source = of + part;
            if (neighbours[part / LANES]) {
                COPY(memcpy(&x, source[0] + at[k], sizeof(x));)
            } else if (runs) {
                COPY(for (int lane = 0; lane < LANES; ++lane) x[lane] = (source[lane] + at[0])[k];)
            } else {
                COPY(for (int lane = 0; lane < LANES; ++lane) x[lane] = source[lane][at[k]];)
            }
        }
    }
}
#undef COPY

// Adds the products of so many terms to the sums of a tile.
static __attribute__((noinline)) void multiply(int64_t terms, const double* a, const double* b, double* sums) {
    Vector s[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i) for (int v = 0; v < VECTORS; ++v) s[i][v] = *(Vector*)(sums + (i * VECTORS + v) * LANES);
    for (int64_t k = 0; k < terms; ++k, a += ROWS, b += COLUMNS) {
        Vector x[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            x[v] = *(const Vector*)(b + v * LANES);
            __asm__("" : "+" REGISTER(x[v]));  // once from memory, not for each row
        }
        for (int i = 0; i < ROWS; ++i) {
            const Vector factor = BROADCAST(a[i]);
            for (int v = 0; v < VECTORS; ++v) s[i][v] = MULTIPLY_ADD(factor, x[v], s[i][v]);
        }
    }
    for (int i = 0; i < ROWS; ++i) for (int v = 0; v < VECTORS; ++v) *(Vector*)(sums + (i * VECTORS + v) * LANES) = s[i][v];
}

#if CHUNKS
// Adds the sums of the step-th chunk to the accumulators of a tile, and rounds; sums begin anew.
static void end_chunk(const Call* call, double* sums, double* totals, uint64_t step, uint64_t top, uint64_t left) {
#if WORDS
    uint32_t words[TILE] __attribute__((aligned(64))), high[TILE] __attribute__((aligned(64)));
    uint32_t low[TILE] __attribute__((aligned(64)));
    const Words key0 = (Words){0} + (uint32_t)call->key[0], key1 = (Words){0} + (uint32_t)call->key[1];
    const uint64_t first = (WORDS == 4 ? step / 4 : step) * (uint64_t)(call->batch * call->m * call->n);
    for (int i = 0; i < ROWS; ++i) {
        const uint64_t start = first + (top + i) * call->n + left;
        for (uint32_t j = 0; j < COLUMNS; ++j) {
            low[i * COLUMNS + j] = (uint32_t)start + j;
            high[i * COLUMNS + j] = (uint32_t)(start >> 32) + ((uint32_t)start + j < j);
        }
    }
    for (int i = 0; i < TILE; i += 2 * WIDTH) {
        Words y0[2], y1[2];
        threefry(key0, key1, (const Words*)(high + i), (const Words*)(low + i), y0, y1);
        for (int part = 0; part < 2; ++part) {
            *(Words*)(words + i + part * WIDTH) =
                WORDS == 4 ? (step & 2 ? y1[part] : y0[part]) << (step & 1) * 16 : y0[part] ^ y1[part];
        }
    }
#endif
    $constants
    #pragma GCC ivdep
    for (int i = 0; i < TILE; ++i) {
        const double total = totals[i], term = sums[i];
#if WORDS
        const int32_t drawn = (int32_t)words[i];
#endif
        $rounded
        totals[i] = rounded;
        sums[i] = 0;
    }
}
#endif

// C's rows from `top` and columns from `left` on. `memory` has room for parts of both matrices, sums and accumulators.
static void block(const Call* call, int64_t example, int64_t top, int64_t rows, int64_t left, int64_t columns, double* memory) {
    const int64_t down = (rows + ROWS - 1) / ROWS, across = (columns + COLUMNS - 1) / COLUMNS;
    double *const a = memory, *const b = a + BLOCK_ROWS * (TERMS + GAP), *const sums = b + BLOCK_COLUMNS * (TERMS + GAP);
    double *const totals = sums + BLOCK_ROWS * BLOCK_COLUMNS;
    memset(sums, 0, sizeof(double) * down * across * TILE);
    if (CHUNKS) memset(totals, 0, sizeof(double) * down * across * TILE);
    for (int64_t i = 0; CHUNKS && call->adds && i < rows; ++i) {
        const float* const from = call->c + (example * call->m + top + i) * call->n + left;
        double* const to = totals + i / ROWS * TILE + i % ROWS * COLUMNS;
        for (int64_t j = 0; j < columns; ++j) to[j / COLUMNS * down * TILE + j % COLUMNS] = from[j] + 0.0;  // never -0
    }
    const float* const from_a = call->a + place(call->batch_a, example), *const from_b = call->b + place(call->batch_b, example);
    for (int64_t begin = 0; begin < call->k; begin += TERMS) {
        const int64_t length = MIN(TERMS, call->k - begin);
        pack(a, from_a, call->rows, top, rows, call->terms_a, begin, length, ROWS);
        pack(b, from_b, call->columns, left, columns, call->terms_b, begin, length, COLUMNS);
        for (int64_t j = 0; j < across; ++j) {
            for (int64_t i = 0; i < down; ++i) {
                const double *const of_a = a + i * (ROWS * length + GAP), *const of_b = b + j * (COLUMNS * length + GAP);
                double* const here = sums + (j * down + i) * TILE;
#if CHUNKS
                for (int64_t k = begin, end; k < begin + length; k = end) {
                    end = MIN((k / call->chunk + 1) * call->chunk, begin + length);
                    multiply(end - k, of_a + (k - begin) * ROWS, of_b + (k - begin) * COLUMNS, here);
                    if (end % call->chunk == 0 || end == call->k) {
                        const int64_t row = example * call->m + top + i * ROWS;
                        end_chunk(call, here, totals + (j * down + i) * TILE, k / call->chunk, row, left + j * COLUMNS);
                    }
                }
#else
                multiply(length, of_a, of_b, here);
#endif
            }
        }
    }
    for (int64_t j = 0; j < columns; j += COLUMNS) {
        for (int64_t i = 0; i < rows; ++i) {
            float* const to = call->c + (example * call->m + top + i) * call->n + left + j;
            const double* const from = (CHUNKS ? totals : sums) + (j / COLUMNS * down + i / ROWS) * TILE + i % ROWS * COLUMNS;
            for (int64_t at = 0; at < MIN(COLUMNS, columns - j); ++at) {
                // The sum of all terms comes first, the addend after it; a sum of zeros is +0.
                const float x = (float)(CHUNKS ? from[at] : from[at] + (call->adds ? to[at] : 0.0) + 0.0);
                to[at] = x == x ? x : float32(0x7fc00000);
            }
        }
    }
}

static int64_t parts(int64_t length, int64_t most) { return (length + most - 1) / most; }

static int run(const Call* call, int threads) {
    int64_t down = parts(call->m, BLOCK_ROWS), across = parts(call->n, BLOCK_COLUMNS);
    while (call->batch * down * across < 4 * threads && call->batch * down * across % threads) {
        if (call->m / down < 2 * ROWS && call->n / across < 2 * COLUMNS) break;
        if (call->n / across >= call->m / down) ++across; else ++down;
    }
    const int64_t rows = parts(parts(call->m, down), ROWS) * ROWS, columns = parts(parts(call->n, across), COLUMNS) * COLUMNS;
    down = parts(call->m, rows), across = parts(call->n, columns);
    const int64_t each = (BLOCK_ROWS + BLOCK_COLUMNS) * (TERMS + GAP) + (1 + CHUNKS) * BLOCK_ROWS * BLOCK_COLUMNS;
    double* const memory = take(sizeof(double) * each * threads);
    if (!memory) return 0;
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < call->batch * down * across; ++unit) {
        const int64_t top = unit / across % down * rows, left = unit % across * columns;
        block(call, unit / across / down, top, MIN(rows, call->m - top), left, MIN(columns, call->n - left),
              memory + each * omp_get_thread_num());
    }
    give_back(memory, sizeof(double) * each * threads);
    return 1;
}

static Axis axis(const int64_t* given) { return (Axis){(const int64_t*)given[0], given[1]}; }

// A call of sizes as Python gives them, of axes likewise, and of the addresses of a, b, the key (or 0) and the result,
// which has the addend if there is one.
static int run_given(const int64_t* sizes, const int64_t* axes, void* const* pointers, int64_t adds) {
    const Call call = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], pointers[0], pointers[1], pointers[2], pointers[3],
                       adds, axis(axes), axis(axes + 2), axis(axes + 4), axis(axes + 6), axis(axes + 8), axis(axes + 10)};
    const double work = (double)call.batch * call.m * call.n * call.k;
    return run(&call, work < 65536 ? 1 : omp_get_max_threads());
}

// A step of a program, see `steps.c`, without random words: `sizes` are those and the axes; the arrays are a, b, the result.
int step(const int64_t* sizes, const double* unused, char* const* arrays) {
    return run_given(sizes, sizes + 5, (void*[]){arrays[0], arrays[1], NULL, arrays[2]}, 0);
}

// Takes the lengths of the batch, of m, n, k and a chunk, 1 if the accumulators start at the numbers in the result or 0,
// and the addresses of a, b, the key (or 0) and the result; then for each axis (of the batch in a and in b, m, k in a and
// in b, n) the address of its table, or 0, and its stride.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[5 + 1 + 4 + 12];
    if (!read_integers(given, count, 5 + 1 + 4 + 12, x)) return NULL;
    void* const state = PyEval_SaveThread();
    void* const pointers[] = {pointer(x[6]), pointer(x[7]), pointer(x[8]), pointer(x[9])};
    const int done = run_given(x, x + 10, pointers, x[5]);
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
