// Exact sums of products of 8-bit integers less their zero points: linear layers, and convolutions of images whose
// channels come last, without a copy of all windows. A row of A is a window: `kernel` runs of `channels` integers.
//
// Differences have 9 bits. Two neighbours of a row and of a column are multiplied and added in one instruction, into
// int32: B is packed as panels of COLUMNS columns, pairs of neighbours side by side.

$values

#ifdef __AVX2__
#include <immintrin.h>

// What is done for each row of a tile; registers suffice if the compiler does not do all products first.
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define START(i) __m256i low##i = _mm256_setzero_si256(), high##i = low##i;
#define STEP(i) { \
    int32_t two; \
    memcpy(&two, of_rows[i] + 2 * pair, sizeof two); \
    const __m256i factor = _mm256_set1_epi32(two); \
    low##i = _mm256_add_epi32(low##i, _mm256_madd_epi16(factor, first)); \
    high##i = _mm256_add_epi32(high##i, _mm256_madd_epi16(factor, second)); \
    __asm__("" : "+x"(low##i), "+x"(high##i)); \
}
#define STORE(i) \
    _mm256_store_si256((__m256i*)sums[i], low##i); \
    _mm256_store_si256((__m256i*)(sums[i] + 8), high##i);
#endif

#define ROWS 6     // of C at a time, in registers
#define COLUMNS 16 // the same
#define BLOCK 48   // rows of A that a thread has as differences at a time

typedef struct {
    int64_t places[4], moves[4];  // how many windows there are in each dimension, and how far apart
    int64_t kernel[3], steps[3];  // the same for a window's runs
    int64_t channels, outputs, signed_a, signed_b, one_zero;
    const uint8_t *a, *b;
    const int32_t *zero_a, *zero_b;
    int32_t* sums;
    int64_t terms, pairs;
} Call;

static inline void differences(const uint8_t* from, int64_t size, int64_t is_signed, int32_t zero, int16_t* to) {
    if (is_signed) for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(((const int8_t*)from)[i] - zero);
    else for (int64_t i = 0; i < size; ++i) to[i] = (int16_t)(from[i] - zero);
}

// Rows of A from `first` on as differences, each with a 0 behind it if it has an odd number of terms.
static void gather(const Call* call, int64_t first, int64_t rows, int16_t* to) {
    const int64_t* const places = call->places;
    for (int64_t row = first; row < first + rows; ++row, to += 2 * call->pairs) {
        int64_t rest = row, offset = 0;
        for (int i = 3; i >= 0; rest /= places[i--]) offset += rest % places[i] * call->moves[i];
        int16_t* at = to;
        for (int64_t i = 0; i < call->kernel[0]; ++i)
            for (int64_t j = 0; j < call->kernel[1]; ++j)
                for (int64_t k = 0; k < call->kernel[2]; ++k, at += call->channels) {
                    const int64_t run = i * call->steps[0] + j * call->steps[1] + k * call->steps[2];
                    differences(call->a + offset + run, call->channels, call->signed_a, *call->zero_a, at);
                }
        if (call->terms % 2) *at = 0;
    }
}

static void pack(const Call* call, int64_t panel, int16_t* to) {
    int16_t row[512];
    for (int64_t j = 0; j < COLUMNS; ++j) {
        const int64_t output = panel * COLUMNS + j;
        for (int64_t start = 0; start < 2 * call->pairs; start += 512) {
            const int64_t size = MIN(512, 2 * call->pairs - start), inside = MIN(size, call->terms - start);
            for (int64_t i = 0; i < size; ++i) row[i] = 0;
            if (output < call->outputs)
                differences(call->b + output * call->terms + start, inside, call->signed_b,
                            call->zero_b[call->one_zero ? 0 : output], row);
            for (int64_t i = 0; i < size; ++i) to[((start + i) / 2 * COLUMNS + j) * 2 + i % 2] = row[i];
        }
    }
}

// C's rows from `top` and columns of a panel, at most ROWS and COLUMNS.
static void tile(const Call* call, const int16_t* a, int64_t rows, const int16_t* b, int64_t top, int64_t left) {
    int32_t sums[ROWS][COLUMNS] __attribute__((aligned(64)));
    const int16_t* of_rows[ROWS];
    for (int i = 0; i < ROWS; ++i) of_rows[i] = a + MIN(i, rows - 1) * 2 * call->pairs;
#ifdef __AVX2__
    EACH_ROW(START)
    for (int64_t pair = 0; pair < call->pairs; ++pair) {
        __m256i first = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS));
        __m256i second = _mm256_loadu_si256((const __m256i*)(b + pair * 2 * COLUMNS + COLUMNS));
        __asm__("" : "+x"(first), "+x"(second));  // else they are loaded again for each row
        EACH_ROW(STEP)
    }
    EACH_ROW(STORE)
#else
    for (int i = 0; i < ROWS; ++i) for (int j = 0; j < COLUMNS; ++j) sums[i][j] = 0;
    for (int64_t pair = 0; pair < call->pairs; ++pair)
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < COLUMNS; ++j)
                for (int two = 0; two < 2; ++two)
                    sums[i][j] += of_rows[i][2 * pair + two] * b[(pair * COLUMNS + j) * 2 + two];
#endif
    const int64_t columns = MIN(COLUMNS, call->outputs - left);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) call->sums[(top + i) * call->outputs + left + j] = sums[i][j];
}

static int run(const Call* call, int64_t rows, int threads) {
    const int64_t panels = (call->outputs + COLUMNS - 1) / COLUMNS, blocks = (rows + BLOCK - 1) / BLOCK;
    const int64_t width = 2 * call->pairs;
    int16_t* const packed = malloc(sizeof(int16_t) * width * (panels * COLUMNS + threads * BLOCK));
    if (!packed) return 0;
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int16_t* const a = packed + width * (panels * COLUMNS + omp_get_thread_num() * BLOCK);
        #pragma omp for schedule(dynamic)
        for (int64_t panel = 0; panel < panels; ++panel) pack(call, panel, packed + panel * COLUMNS * width);
        #pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t first = block * BLOCK, size = MIN(BLOCK, rows - first);
            gather(call, first, size, a);
            for (int64_t panel = 0; panel < panels; ++panel)
                for (int64_t i = 0; i < size; i += ROWS)
                    tile(call, a + i * width, MIN(ROWS, size - i), packed + panel * COLUMNS * width, first + i,
                         panel * COLUMNS);
        }
    }
    free(packed);
    return 1;
}

// Takes the numbers of `Call` up to `one_zero` in its order, and its addresses.
Object* call_from_python(Object* self, Object* const* given, intptr_t size) {
    Call call;
    int64_t* const numbers[] = {call.places, call.moves, call.kernel, call.steps};
    const int counts[] = {4, 4, 3, 3};
    for (int i = 0; i < 4; ++i) for (int j = 0; j < counts[i]; ++j) numbers[i][j] = PyLong_AsLongLong(*given++);
    int64_t* const others[] = {&call.channels, &call.outputs, &call.signed_a, &call.signed_b, &call.one_zero};
    for (int i = 0; i < 5; ++i) *others[i] = PyLong_AsLongLong(*given++);
    call.a = PyLong_AsVoidPtr(*given++), call.zero_a = PyLong_AsVoidPtr(*given++);
    call.b = PyLong_AsVoidPtr(*given++), call.zero_b = PyLong_AsVoidPtr(*given++);
    call.sums = PyLong_AsVoidPtr(*given++);
    call.terms = call.kernel[0] * call.kernel[1] * call.kernel[2] * call.channels;
    call.pairs = (call.terms + 1) / 2;
    const int64_t rows = call.places[0] * call.places[1] * call.places[2] * call.places[3];
    void* const state = PyEval_SaveThread();
    const int done = run(&call, rows, rows * call.outputs * call.terms < 65536 ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
