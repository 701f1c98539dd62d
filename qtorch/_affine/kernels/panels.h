// Exact sums of products of 8-bit integers less their zero points: rows of A, which are windows of images whose channels
// come last, with a weight B that was packed before.
//
// Differences have 9 bits. Two neighbours of a row and of a column are multiplied and added in one instruction, into
// int32: B lies in panels of COLUMNS columns, pairs of neighbours side by side. Processors with VNNI multiply four
// neighbours at once, bytes without a sign with bytes that have one (`bytes.h`). Where each output sees one channel only
// (`channels.h`), neighbours are runs of a window.

#ifdef __AVX2__
#include <immintrin.h>

// A sum stays in its register: compilers would rather add into another one, and move that back.
#define ADD(sum, term) __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term))

// What is done for each of so many rows of a tile.
#define EACH_1(DO) DO(0)
#define EACH_2(DO) EACH_1(DO) DO(1)
#define EACH_3(DO) EACH_2(DO) DO(2)
#define EACH_4(DO) EACH_3(DO) DO(3)
#define EACH_5(DO) EACH_4(DO) DO(4)
#define EACH_6(DO) EACH_5(DO) DO(5)
#define EACH_7(DO) EACH_6(DO) DO(6)
#define EACH_8(DO) EACH_7(DO) DO(7)
#define EACH_9(DO) EACH_8(DO) DO(8)
#define EACH_10(DO) EACH_9(DO) DO(9)
#define EACH_11(DO) EACH_10(DO) DO(10)
#define EACH_12(DO) EACH_11(DO) DO(11)
#define START(i) \
    __m256i low##i = _mm256_load_si256((const __m256i*)sums[i]); \
    __m256i high##i = _mm256_load_si256((const __m256i*)(sums[i] + 8));
#define STORE(i) \
    _mm256_store_si256((__m256i*)sums[i], low##i); \
    _mm256_store_si256((__m256i*)(sums[i] + 8), high##i);
#endif

#if defined __AVX512VNNI__ && defined __AVX512VL__
#define DOT _mm256_dpbusd_epi32
#elif defined __AVXVNNI__
#define DOT _mm256_dpbusd_avx_epi32
#endif
#ifdef DOT
#define BYTES 1
#else
#define BYTES 0
#endif

#define ROWS 6     // of C at a time, in registers
#define COLUMNS 16 // the same
#define TOGETHER 4 // windows of single channels, in registers
#define BLOCK 48   // rows of A that a thread has at a time
#define DEPTH 256  // pairs of a panel that stay in the nearest cache for all rows of a block
#define LARGE 65536 // products, from which on threads share the work

// What is taken from bytes without a sign, so that they have one.
static inline int32_t half(int64_t is_signed) { return is_signed ? 0 : 128; }

// A weight of `outputs` rows of `terms` integers, in memory that `pack` filled: whether all zero points are 0, then in
// `bytes` for each column the sum of its differences and its zero point, then the panels.
typedef struct {
    int64_t outputs, terms, apart;  // `apart`: each output sees one channel; there are at least COLUMNS then
    int64_t bytes, pairs, panels, panel;  // the bytes of a panel
    const char* memory;
    const int32_t *totals, *zeros;
    const char* data;
} Weight;

enum { HEADER_OF_WEIGHT = 64 };

static Weight weight_of(int64_t outputs, int64_t terms, int64_t apart, const char* memory) {
    Weight weight = {outputs, terms, apart, BYTES && !apart, 0, (outputs + COLUMNS - 1) / COLUMNS, 0, memory, 0, 0, 0};
    weight.pairs = weight.bytes ? (terms + 3) / 4 * 2 : (terms + 1) / 2;
    weight.panel = weight.pairs * COLUMNS * (weight.bytes ? 2 : 4);
    weight.totals = (const int32_t*)(memory + HEADER_OF_WEIGHT);
    weight.zeros = weight.totals + weight.panels * COLUMNS;
    weight.data = (const char*)(weight.zeros + weight.panels * COLUMNS);
    return weight;
}

static inline int64_t size_of(const Weight* weight) {
    return HEADER_OF_WEIGHT + weight->panels * (weight->panel + 2 * COLUMNS * (int64_t)sizeof(int32_t));
}

// True if no sums of A are needed.
static inline int is_centred(const Weight* weight) { return weight->memory[0]; }

// The first output of a panel; the last panel has outputs of the one before it too, rather than less than COLUMNS.
static inline int64_t left_of(const Weight* weight, int64_t panel) {
    return MAX(MIN(panel * COLUMNS, weight->outputs - COLUMNS), 0);
}

// Rows of A: windows that lie in memory, each of runs of `length` integers.
typedef struct {
    int64_t places[4], moves[4];  // how many windows there are in each dimension, and how far apart
    int64_t kernel[3], steps[3];  // the same for a window's runs
    int64_t length, is_signed;
    int32_t zero;
    const uint8_t* first;
} Windows;

static inline int64_t runs_in(const Windows* x) { return x->kernel[0] * x->kernel[1] * x->kernel[2]; }

// The place of a window in each dimension, and how far it is from the first one.
typedef struct { int64_t at[4], offset; } Place;

static Place place_of(const Windows* x, int64_t row) {
    Place place = {{0}, 0};
    for (int i = 3; i >= 0; row /= x->places[i--]) {
        place.at[i] = row % x->places[i];
        place.offset += place.at[i] * x->moves[i];
    }
    return place;
}

static inline void step(const Windows* x, Place* place) {
    for (int i = 3; i >= 0; --i) {
        place->offset += x->moves[i];
        if (++place->at[i] < x->places[i]) return;
        place->offset -= x->places[i] * x->moves[i];
        place->at[i] = 0;
    }
}

// How far the runs of a window are from its first one; the last one twice, to make pairs of them.
static void runs_of(const Windows* x, int64_t* to) {
    for (int64_t i = 0; i < x->kernel[0]; ++i)
        for (int64_t j = 0; j < x->kernel[1]; ++j)
            for (int64_t k = 0; k < x->kernel[2]; ++k)
                *to++ = i * x->steps[0] + j * x->steps[1] + k * x->steps[2];
    *to = to[-1];
}

static inline void differences(const uint8_t* from, int64_t size, int64_t is_signed, int32_t zero, int16_t* to) {
    if (is_signed) for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(((const int8_t*)from)[i] - zero);
    else for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(from[i] - zero);
}

// How many of so many rows are a tile, which has `most` at most: two of four take less time than one of six and one of two.
static inline int64_t in_tile(int64_t rows, int64_t most) {
    return rows <= most ? rows : rows < 2 * most ? (rows + 1) / 2 : most;
}

// What is done with a panel's sums of some rows, from `top` on.
typedef void (*Finish)(const void* how, const Weight* weight, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows);

#define PART 128 // terms of a panel that are packed at a time

// Pairs of differences.
static void pack_pairs(
    const Weight* weight, int64_t panel, const uint8_t* from, int64_t is_signed, const int32_t* zeros, int64_t each,
    int16_t* to
) {
    int16_t rows[COLUMNS][PART];
    for (int64_t start = 0; start < 2 * weight->pairs; start += PART) {
        const int64_t size = MIN(PART, 2 * weight->pairs - start), inside = MIN(size, weight->terms - start);
        for (int64_t j = 0; j < COLUMNS; ++j) {
            const int64_t output = left_of(weight, panel) + j;
            memset(rows[j], 0, sizeof rows[j]);
            if (output < weight->outputs)
                differences(from + output * weight->terms + start, inside, is_signed, zeros[output * each], rows[j]);
        }
        for (int64_t pair = 0; pair < size / 2; ++pair)
            for (int64_t j = 0; j < COLUMNS; ++j)
                memcpy(to + start * COLUMNS + (pair * COLUMNS + j) * 2, rows[j] + 2 * pair, 4);
    }
}

$bytes

$channels

// Writes a weight to memory; `each` is 0 if all outputs have the first zero point, else 1.
static inline void pack(
    const Weight* weight, const uint8_t* from, int64_t is_signed, const int32_t* zeros, int64_t each, char* memory, int threads
) {
    memset(memory, 0, HEADER_OF_WEIGHT);
    memory[0] = 1;
    for (int64_t j = 0; j < weight->outputs; ++j) if (zeros[j * each] != half(is_signed)) memory[0] = 0;
    #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t panel = 0; panel < weight->panels; ++panel) {
        char* const to = memory + (weight->data - weight->memory) + panel * weight->panel;
        if (weight->bytes) {
            int32_t* const totals = (int32_t*)(memory + HEADER_OF_WEIGHT) + panel * COLUMNS;
            pack_bytes(weight, panel, from, is_signed, zeros, each, totals, totals + weight->panels * COLUMNS, (uint8_t*)to);
        } else pack_pairs(weight, panel, from, is_signed, zeros, each, (int16_t*)to);
    }
}

// Rows of A from `first` on as differences; what stands behind an odd number of terms is multiplied with a 0 of B.
static void gather(const Windows* x, const Weight* weight, const int64_t* runs, int64_t first, int64_t rows, int16_t* to) {
    const int64_t count = runs_in(x);
    Place place = place_of(x, first);
    for (int64_t row = 0; row < rows; ++row, to += 2 * weight->pairs, step(x, &place))
        for (int64_t run = 0; run < count; ++run)
            differences(x->first + place.offset + runs[run], x->length, x->is_signed, x->zero, to + run * x->length);
}

#ifdef __AVX2__
#define STEP(i) { \
    int32_t two; \
    memcpy(&two, a + i * width + 2 * pair, sizeof two); \
    const __m256i factor = _mm256_set1_epi32(two); \
    ADD(low##i, _mm256_madd_epi16(factor, first)); \
    ADD(high##i, _mm256_madd_epi16(factor, second)); \
}
// Adds products of some pairs to the sums of so many rows of A, which are `width` apart.
#define TILE(rows) \
    static void tile_##rows( \
        const int16_t* a, int64_t width, const int16_t* b, int64_t pairs, int32_t sums[][COLUMNS] \
    ) { \
        EACH_##rows(START) \
        for (int64_t pair = 0; pair < pairs; ++pair) { \
            __m256i first = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS)); \
            __m256i second = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS + COLUMNS)); \
            __asm__("" : "+x"(first), "+x"(second)); /* else they are loaded again for each row */ \
            EACH_##rows(STEP) \
        } \
        EACH_##rows(STORE) \
    }
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
static void (*const tiles[])(const int16_t*, int64_t, const int16_t*, int64_t, int32_t[][COLUMNS]) = {
    tile_1, tile_2, tile_3, tile_4, tile_5, tile_6,
};
#endif

static void tile(
    const int16_t* a, int64_t width, int64_t rows, const int16_t* b, int64_t pairs, int32_t sums[][COLUMNS]
) {
#ifdef __AVX2__
    tiles[rows - 1](a, width, b, pairs, sums);
#else
    for (int64_t pair = 0; pair < pairs; ++pair)
        for (int64_t i = 0; i < rows; ++i)
            for (int j = 0; j < COLUMNS; ++j)
                for (int two = 0; two < 2; ++two)
                    sums[i][j] += a[i * width + 2 * pair + two] * b[(pair * COLUMNS + j) * 2 + two];
#endif
}

static void product(
    const Weight* weight, const Windows* x, const int64_t* runs, int64_t first, int64_t rows, int64_t panel,
    int64_t behind, int16_t* a, Finish finish, const void* how
) {
    int32_t sums[BLOCK][COLUMNS] __attribute__((aligned(64)));
    const int64_t width = 2 * weight->pairs;
    gather(x, weight, runs, first, rows, a);
    for (; panel < behind; ++panel) {
        const int16_t* const b = (const int16_t*)(weight->data + panel * weight->panel);
        memset(sums, 0, sizeof sums[0] * rows);
        for (int64_t start = 0; start < weight->pairs; start += DEPTH)
            for (int64_t i = 0, size; i < rows; i += size) {
                size = in_tile(rows - i, ROWS);
                tile(a + i * width + 2 * start, width, size, b + 2 * start * COLUMNS, MIN(DEPTH, weight->pairs - start),
                     sums + i);
            }
        finish(how, weight, sums, panel, first, rows);
    }
}

// How blocks of rows, and where these are fewer than threads also panels, are shared, and the bytes that `multiply` needs.
typedef struct { int64_t parts, of_runs, of_block, bytes; int threads; } Shares;

static Shares shares_of(const Weight* weight, const Windows* x, int64_t rows, int threads) {
    Shares s = {(rows + BLOCK - 1) / BLOCK < threads ? MIN(threads, weight->panels) : 1, 0, 0, 0, threads};
    s.of_runs = (runs_in(x) + 1) * (int64_t)sizeof(int64_t);
    s.of_block = weight->apart ? 0 : 2 * weight->pairs * BLOCK * (weight->bytes ? 1 : 2);
    s.bytes = s.of_runs + s.of_block * threads;
    return s;
}

// All sums of some rows, to be finished.
static void multiply(
    const Weight* weight, const Windows* x, int64_t rows, const Shares* shares, char* memory, Finish finish, const void* how
) {
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK, parts = shares->parts;
    int64_t* const runs = (int64_t*)memory;
    runs_of(x, runs);
    #pragma omp parallel for schedule(dynamic) num_threads(shares->threads) if (shares->threads > 1)
    for (int64_t unit = 0; unit < blocks * parts; ++unit) {
        const int64_t first = unit / parts * BLOCK, size = MIN(BLOCK, rows - first), part = unit % parts;
        const int64_t panel = weight->panels * part / parts, behind = weight->panels * (part + 1) / parts;
        char* const a = memory + shares->of_runs + omp_get_thread_num() * shares->of_block;
        if (weight->apart) channel_by_channel(weight, x, runs, first, size, panel, behind, finish, how);
        else if (weight->bytes) product_of_bytes(weight, x, runs, first, size, panel, behind, (uint8_t*)a, finish, how);
        else product(weight, x, runs, first, size, panel, behind, (int16_t*)a, finish, how);
    }
}
