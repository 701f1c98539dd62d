// Exact sums of products of 8-bit integers less their zero points: linear layers, and convolutions of images whose
// channels come last, without a copy of all windows. A row of A is a window: `kernel` runs of `channels` integers. Sums
// are written, or rounded to integers of 8 bits at once: what is filled in, marked by a dollar sign, rounds one of them.
//
// Differences have 9 bits. Two neighbours of a row and of a column are multiplied and added in one instruction, into
// int32: B is packed as panels of COLUMNS columns, pairs of neighbours side by side. Where each output sees one channel
// only (`channels.h`), neighbours are runs of a window. Processors with VNNI multiply four neighbours at once, bytes
// without a sign with bytes that have one: zero points are then taken from the sums (`bytes.h`).

$values

#ifdef __AVX2__
#include <immintrin.h>

// What is done for each row of a tile. A sum stays in its register: compilers would rather add into another one, and
// move that back.
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define ADD(sum, term) __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(term))
#define START(i) \
    __m256i low##i = _mm256_load_si256((const __m256i*)sums[i]); \
    __m256i high##i = _mm256_load_si256((const __m256i*)(sums[i] + 8));
#define STEP(i) { \
    int32_t two; \
    memcpy(&two, of_rows[i] + 2 * pair, sizeof two); \
    const __m256i factor = _mm256_set1_epi32(two); \
    ADD(low##i, _mm256_madd_epi16(factor, first)); \
    ADD(high##i, _mm256_madd_epi16(factor, second)); \
}
#define STORE(i) \
    _mm256_store_si256((__m256i*)sums[i], low##i); \
    _mm256_store_si256((__m256i*)(sums[i] + 8), high##i);
#endif

#if defined __AVX512VNNI__ && defined __AVX512VL__
#define DOT _mm256_dpbusd_epi32
#elif defined __AVXVNNI__
#define DOT _mm256_dpbusd_avx_epi32
#endif

#define ROWS 6     // of C at a time, in registers
#define COLUMNS 16 // the same
#define TOGETHER 4 // windows of single channels, in registers
#define BLOCK 48   // rows of A that a thread has as differences at a time
#define DEPTH 256  // pairs of a panel that stay in the nearest cache for all rows of a block

typedef struct {
    int64_t places[4], moves[4];  // how many windows there are in each dimension, and how far apart
    int64_t kernel[3], steps[3];  // the same for a window's runs
    int64_t channels, outputs;    // at least COLUMNS channels if each output sees one
    int64_t apart, signed_a, signed_b, one_zero, rounds;
    const uint8_t *a, *b;
    const int32_t *zero_a, *zero_b;
    void* result;
    const float *input_scale, *weight_scale, *bias, *scale;  // of the law, see `affine.requantize`; here and below
    const int32_t* zero_point;
    const float* ends;
    int64_t terms, pairs, panels;
    int64_t bytes, centred;  // whether four bytes are multiplied at once, and with numbers whose zero points are 0
    float* of_outputs;  // HANDED for each output of all panels
    int32_t* of_columns;  // in bytes: what the sums of a panel's columns begin with, and their zero points
} Call;

// What is taken from bytes without a sign, so that they have one.
static inline int32_t half(int64_t is_signed) { return is_signed ? 0 : 128; }

static inline void differences(const uint8_t* from, int64_t size, int64_t is_signed, int32_t zero, int16_t* to) {
    if (is_signed) for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(((const int8_t*)from)[i] - zero);
    else for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(from[i] - zero);
}

// The place of a window in each dimension, and how far it is from the first one.
typedef struct { int64_t at[4], offset; } Place;

static Place place_of(const Call* call, int64_t row) {
    Place place = {{0}, 0};
    for (int i = 3; i >= 0; row /= call->places[i--]) {
        place.at[i] = row % call->places[i];
        place.offset += place.at[i] * call->moves[i];
    }
    return place;
}

static inline void step(const Call* call, Place* place) {
    for (int i = 3; i >= 0; --i) {
        place->offset += call->moves[i];
        if (++place->at[i] < call->places[i]) return;
        place->offset -= call->places[i] * call->moves[i];
        place->at[i] = 0;
    }
}

// How far the runs of a window are from its first one; the last one twice, to make pairs of them.
static void runs_of(const Call* call, int64_t* to) {
    for (int64_t i = 0; i < call->kernel[0]; ++i)
        for (int64_t j = 0; j < call->kernel[1]; ++j)
            for (int64_t k = 0; k < call->kernel[2]; ++k)
                *to++ = i * call->steps[0] + j * call->steps[1] + k * call->steps[2];
    *to = to[-1];
}

// Rows of A from `first` on as differences; what stands behind an odd number of terms is multiplied with a 0 of B.
static void gather(const Call* call, const int64_t* runs, int64_t first, int64_t rows, int16_t* to) {
    const int64_t count = call->terms / call->channels;
    Place place = place_of(call, first);
    for (int64_t row = 0; row < rows; ++row, to += 2 * call->pairs, step(call, &place))
        for (int64_t run = 0; run < count; ++run)
            differences(call->a + place.offset + runs[run], call->channels, call->signed_a, *call->zero_a,
                        to + run * call->channels);
}

// The first output of a panel; the last panel has outputs of the one before it too, rather than less than COLUMNS.
static inline int64_t left_of(const Call* call, int64_t panel) {
    return MAX(MIN(panel * COLUMNS, call->outputs - COLUMNS), 0);
}

#define PART 128 // terms of a panel that are packed at a time

static void pack(const Call* call, int64_t panel, int16_t* to) {
    int16_t rows[COLUMNS][PART];
    for (int64_t start = 0; start < 2 * call->pairs; start += PART) {
        const int64_t size = MIN(PART, 2 * call->pairs - start), inside = MIN(size, call->terms - start);
        for (int64_t j = 0; j < COLUMNS; ++j) {
            const int64_t output = left_of(call, panel) + j;
            memset(rows[j], 0, sizeof rows[j]);
            if (output < call->outputs)
                differences(call->b + output * call->terms + start, inside, call->signed_b,
                            call->bytes ? half(call->signed_b) : call->zero_b[call->one_zero ? 0 : output], rows[j]);
        }
        for (int64_t pair = 0; pair < size / 2; ++pair)
            for (int64_t j = 0; j < COLUMNS; ++j)
                memcpy(to + start * COLUMNS + (pair * COLUMNS + j) * 2, rows[j] + 2 * pair, 4);
    }
}

// What is handed to the rounding of a panel's sums.
static void prepare(const Call* call, int64_t panel) {
    const float *input_scale = call->input_scale, *scale = call->scale;
    float* const to = call->of_outputs + panel * COLUMNS * HANDED;
    for (int64_t column = 0; column < COLUMNS; ++column) {
        const int64_t j = MIN(left_of(call, panel) + column, call->outputs - 1);
        const float* const weight_scale = call->weight_scale;
        const float* const bias = call->bias;
        (void)bias;
        $outputs
    }
}

// Integers that fit 8 bits, with or without a sign.
static inline void narrow(const int32_t* wide, uint8_t* to) {
#if defined __AVX2__ && !defined __AVX512F__  // which has an instruction for it
    const __m256i byte = _mm256_set1_epi32(255);
    const __m256i low = _mm256_and_si256(_mm256_load_si256((const __m256i*)wide), byte);
    const __m256i high = _mm256_and_si256(_mm256_load_si256((const __m256i*)(wide + 8)), byte);
    const __m256i both = _mm256_packus_epi32(low, high);  // four of one and four of the other, twice
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    _mm_storeu_si128((__m128i*)to, _mm_shuffle_epi32(bytes, 0xd8));
#else
    for (int j = 0; j < COLUMNS; ++j) to[j] = (uint8_t)wide[j];
#endif
}

// Writes a panel's sums of some rows.
static void finish(const Call* call, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows) {
    const int64_t columns = MIN(COLUMNS, call->outputs), at = top * call->outputs + left_of(call, panel);
    if (!call->rounds) {
        int32_t* const to = (int32_t*)call->result + at;
        for (int64_t i = 0; i < rows; ++i) memcpy(to + i * call->outputs, sums[i], sizeof(int32_t) * columns);
        return;
    }
    uint8_t* const to = (uint8_t*)call->result + at;
    const float *of_outputs = call->of_outputs + panel * COLUMNS * HANDED, *ends = call->ends;
    const int32_t* const zero_point = call->zero_point;
    $constants
    for (int64_t i = 0; i < rows; ++i) {
        const int32_t* const x = sums[i];
        int32_t wide[COLUMNS] __attribute__((aligned(64)));
        uint8_t q[COLUMNS];
        for (int j = 0; j < COLUMNS; ++j) {
            $rounded
        }
        narrow(wide, columns == COLUMNS ? to + i * call->outputs : q);
        if (columns < COLUMNS) memcpy(to + i * call->outputs, q, columns);
    }
}

// Adds products of some pairs to the sums of at most ROWS rows; rows of A are `width` apart.
static void tile(
    const int16_t* a, int64_t width, int64_t rows, const int16_t* b, int64_t pairs, int32_t sums[][COLUMNS]
) {
    const int16_t* of_rows[ROWS];
    for (int i = 0; i < ROWS; ++i) of_rows[i] = a + MIN(i, rows - 1) * width;
#ifdef __AVX2__
    EACH_ROW(START)
    for (int64_t pair = 0; pair < pairs; ++pair) {
        __m256i first = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS));
        __m256i second = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS + COLUMNS));
        __asm__("" : "+x"(first), "+x"(second));  // else they are loaded again for each row
        EACH_ROW(STEP)
    }
    EACH_ROW(STORE)
#else
    for (int64_t pair = 0; pair < pairs; ++pair)
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < COLUMNS; ++j)
                for (int two = 0; two < 2; ++two)
                    sums[i][j] += of_rows[i][2 * pair + two] * b[(pair * COLUMNS + j) * 2 + two];
#endif
}

static void product(
    const Call* call, const int64_t* runs, int64_t first, int64_t rows, const int16_t* packed, int16_t* a
) {
    int32_t sums[BLOCK][COLUMNS] __attribute__((aligned(64)));
    const int64_t width = 2 * call->pairs;
    gather(call, runs, first, rows, a);
    for (int64_t panel = 0; panel < call->panels; ++panel) {
        memset(sums, 0, sizeof sums);
        for (int64_t start = 0; start < call->pairs; start += DEPTH)
            for (int64_t i = 0; i < rows; i += ROWS)
                tile(a + i * width + 2 * start, width, MIN(ROWS, rows - i),
                     packed + (panel * width + 2 * start) * COLUMNS, MIN(DEPTH, call->pairs - start), sums + i);
        finish(call, sums, panel, first, rows);
    }
}

$bytes

$channels

static int run(Call* call, int64_t rows, int threads) {
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK, width = 2 * call->pairs;
    const int64_t count = call->kernel[0] * call->kernel[1] * call->kernel[2] + 1;
    const int64_t of_packed = width * call->panels * COLUMNS, of_block = call->apart ? 0 : width * BLOCK;
    const int64_t columns = call->panels * COLUMNS;
    int64_t* const runs = malloc(sizeof(int64_t) * count + sizeof(float) * (HANDED + 2) * columns
                                 + sizeof(int16_t) * (of_packed + threads * of_block));
    if (!runs) return 0;
    call->of_outputs = (float*)(runs + count);
    call->of_columns = (int32_t*)(call->of_outputs + HANDED * columns);
    int16_t* const packed = (int16_t*)(call->of_columns + 2 * columns);
    runs_of(call, runs);
    if (call->bytes) call->centred = is_centred(call);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        #pragma omp for schedule(dynamic)
        for (int64_t panel = 0; panel < call->panels; ++panel) {
            pack(call, panel, packed + panel * COLUMNS * width);
            if (call->bytes) to_bytes(call, panel, packed + panel * COLUMNS * width);
            if (call->rounds) prepare(call, panel);
        }
        #pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t first = block * BLOCK, size = MIN(BLOCK, rows - first);
            int16_t* const a = packed + of_packed + omp_get_thread_num() * of_block;
            if (call->apart) channel_by_channel(call, runs, first, size, packed);
            else if (call->bytes) product_of_bytes(call, runs, first, size, packed, (uint8_t*)a);
            else product(call, runs, first, size, packed, a);
        }
    }
    free(runs);
    return 1;
}

// Takes the members of `Call` up to `ends` in its order but for `rounds`; it rounds if those behind `result` are there.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    enum { SUMS = 4 + 4 + 3 + 3 + 6 + 5, ALL = SUMS + 6 };
    int64_t x[ALL] = {0}, *const y = x + SUMS;
    const int rounds = count > SUMS;
    if (!read_integers(given, count, rounds ? ALL : SUMS, x)) return NULL;
    Call call = {
        {x[0], x[1], x[2], x[3]}, {x[4], x[5], x[6], x[7]}, {x[8], x[9], x[10]}, {x[11], x[12], x[13]},
        x[14], x[15], x[16], x[17], x[18], x[19], rounds,
        pointer(x[20]), pointer(x[22]), pointer(x[21]), pointer(x[23]), pointer(x[24]),
        pointer(y[2]), pointer(y[0]), pointer(y[1]), pointer(y[3]), pointer(y[4]), pointer(y[5]),
    };
    call.terms = call.kernel[0] * call.kernel[1] * call.kernel[2] * (call.apart ? 1 : call.channels);
#ifdef DOT
    call.bytes = !call.apart;
#endif
    call.pairs = call.bytes ? (call.terms + 3) / 4 * 2 : (call.terms + 1) / 2;
    call.panels = (call.outputs + COLUMNS - 1) / COLUMNS;
    const int64_t rows = call.places[0] * call.places[1] * call.places[2] * call.places[3];
    void* const state = PyEval_SaveThread();
    const int done = run(&call, rows, rows * call.outputs * call.terms < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
