// Linear layers and convolutions of 8-bit integers: exact sums (`panels.h`), which are written, or rounded to integers of
// 8 bits at once: what is filled in, marked by a dollar sign, rounds one of them. The windows of an image lie among one
// another in memory; images are copied only if they have margins, or if their channels do not come last.

$values

$panels

enum { DIMENSIONS = 3 };

// A layer's call. A linear layer is a convolution of images of one pixel.
typedef struct {
    int64_t batch, sizes[DIMENSIONS], channels;  // of images, and how far apart in memory these are
    int64_t moves[DIMENSIONS + 2];
    int64_t padding[DIMENSIONS], kernel[DIMENSIONS], stride[DIMENSIONS], dilation[DIMENSIONS];
    int64_t outputs, apart, is_signed, rounds;
    const char* weight;
    const float *weight_scale, *bias, *scale;  // of the law, see `affine.requantize`; here and below
    const int32_t* zero_point;
    const float* ends;
    const uint8_t* images;
    const int32_t* zero;
    const float* input_scale;
    void* result;
    float* of_outputs;  // HANDED for each output of all panels
} Call;

// What is handed to the rounding of a panel's sums.
static void prepare(const Call* call, const Weight* weight, int64_t panel) {
    const float *input_scale = call->input_scale, *scale = call->scale;
    float* const to = call->of_outputs + panel * COLUMNS * HANDED;
    for (int64_t column = 0; column < COLUMNS; ++column) {
        const int64_t j = MIN(left_of(weight, panel) + column, call->outputs - 1);
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
static void finish(const void* how, const Weight* weight, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows) {
    const Call* const call = how;
    const int64_t columns = MIN(COLUMNS, call->outputs), at = top * call->outputs + left_of(weight, panel);
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

// A row of pixels, whose channels then lie side by side.
static void copy_row(const Call* call, const uint8_t* from, uint8_t* to) {
    const int64_t channels = call->channels, move = call->moves[DIMENSIONS], of_channels = call->moves[DIMENSIONS + 1];
    const int64_t width = call->sizes[DIMENSIONS - 1];
    if (of_channels == 1 && move == channels) memcpy(to, from, width * channels);
    else if (of_channels == 1) for (int64_t i = 0; i < width; ++i) memcpy(to + i * channels, from + i * move, channels);
    else
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t i = 0; i < width; ++i) to[i * channels + c] = from[c * of_channels + i * move];
}

// Images within margins of their zero point.
static void copy_images(const Call* call, const int64_t* larger, uint8_t* to, int threads) {
    const int64_t row = larger[2] * call->channels, inside = call->sizes[2] * call->channels;
    const int64_t margin = call->padding[2] * call->channels;
    const int zero = (uint8_t)*call->zero;
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t at = 0; at < call->batch * larger[0] * larger[1]; ++at) {
        const int64_t n = at / (larger[0] * larger[1]);
        const int64_t i = at / larger[1] % larger[0] - call->padding[0], j = at % larger[1] - call->padding[1];
        uint8_t* const own = to + at * row;
        if (i < 0 || i >= call->sizes[0] || j < 0 || j >= call->sizes[1]) {
            memset(own, zero, row);
            continue;
        }
        memset(own, zero, margin);
        copy_row(call, call->images + n * call->moves[0] + i * call->moves[1] + j * call->moves[2], own + margin);
        memset(own + margin + inside, zero, margin);
    }
}

// The windows of images in memory with these moves; runs that are neighbours are one.
static Windows windows_of(const Call* call, const int64_t* sizes, const int64_t* moves) {
    Windows x = {{call->batch}, {moves[0]}, {0}, {0}, call->apart ? 1 : call->channels, call->is_signed, *call->zero, 0};
    for (int i = 0; i < DIMENSIONS; ++i) {
        x.places[i + 1] = (sizes[i] - call->dilation[i] * (call->kernel[i] - 1) - 1) / call->stride[i] + 1;
        x.moves[i + 1] = moves[i + 1] * call->stride[i];
        x.kernel[i] = call->kernel[i];
        x.steps[i] = moves[i + 1] * call->dilation[i];
    }
    for (int i = DIMENSIONS - 1; i >= 0 && !call->apart && (x.kernel[i] == 1 || x.steps[i] == x.length); --i) {
        x.length *= x.kernel[i];
        x.kernel[i] = 1;
    }
    return x;
}

// Returns 0 if there was no memory.
static int run(Call* call, const Weight* weight, int64_t rows, int threads) {
    int64_t larger[DIMENSIONS], moves[DIMENSIONS + 1], bytes = call->channels;
    int margins = 0;
    for (int i = DIMENSIONS - 1; i >= 0; --i) {
        larger[i] = call->sizes[i] + 2 * call->padding[i];
        margins |= call->padding[i] != 0;
        moves[i + 1] = bytes;
        bytes *= larger[i];
    }
    moves[0] = bytes;
    const int copies = margins || call->moves[DIMENSIONS + 1] != 1;
    const Windows layout = windows_of(call, larger, copies ? moves : call->moves);
    const Shares shares = shares_of(weight, &layout, rows, threads);
    const int64_t handed = call->rounds ? HANDED * COLUMNS * weight->panels * (int64_t)sizeof(float) : 0;
    const int64_t of_copy = copies ? bytes * call->batch : 0;
    char* const memory = take(handed + shares.bytes + of_copy);
    if (!memory) return 0;
    call->of_outputs = (float*)memory;
    if (call->rounds) for (int64_t panel = 0; panel < weight->panels; ++panel) prepare(call, weight, panel);
    Windows x = layout;
    x.first = copies ? (uint8_t*)memory + handed + shares.bytes : call->images;
    if (copies) copy_images(call, larger, (uint8_t*)memory + handed + shares.bytes, threads);
    multiply(weight, &x, rows, &shares, memory + handed, finish, call);
    give_back(memory, handed + shares.bytes + of_copy);
    return 1;
}

// Takes the members of `Call` in its order, up to `result`; if it does not round, only the first five of the addresses
// are read: of the weight, the images, their zero point and the result.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    enum { ALL = 5 + 5 + 4 * DIMENSIONS + 4 + 10 };
    int64_t x[ALL];
    if (!read_integers(given, count, ALL, x)) return NULL;
    const int64_t* const y = x + 10 + 4 * DIMENSIONS;
    Call call = {
        x[0], {x[1], x[2], x[3]}, x[4], {x[5], x[6], x[7], x[8], x[9]},
        {x[10], x[11], x[12]}, {x[13], x[14], x[15]}, {x[16], x[17], x[18]}, {x[19], x[20], x[21]},
        y[0], y[1], y[2], y[3],
        pointer(y[4]), pointer(y[5]), pointer(y[6]), pointer(y[7]), pointer(y[8]), pointer(y[9]),
        pointer(y[10]), pointer(y[11]), pointer(y[12]), pointer(y[13]), 0,
    };
    int64_t rows = call.batch, runs = 1;
    for (int i = 0; i < DIMENSIONS; ++i) {
        const int64_t size = call.sizes[i] + 2 * call.padding[i];
        rows *= (size - call.dilation[i] * (call.kernel[i] - 1) - 1) / call.stride[i] + 1;
        runs *= call.kernel[i];
    }
    const Weight weight = weight_of(call.outputs, runs * (call.apart ? 1 : call.channels), call.apart, call.weight);
    void* const state = PyEval_SaveThread();
    const int done = run(&call, &weight, rows, rows * call.outputs * weight.terms < LARGE ? 1 : omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
