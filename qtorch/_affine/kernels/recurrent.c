// All steps of a recurrent layer in one direction: the hidden states of a step are quantized by their range, multiplied with
// a packed weight (`panels.h`), and what is filled in makes the next states of the sums and of the input's products.

$values

$panels

$ranges

$elementary

#define GATES $gates
#define MANY (1 << 20) // products of a step, from which on threads share the work
#define MANY_CELLS 4096 // the same of cells

typedef struct {
    int64_t steps, size, batch, reverse;  // `size` of a state; `batch`: how many sequences there are
    const char* weight;
    const float *weight_scale, *bias;
    const int64_t* sizes;  // how many sequences, the first ones, have each step
    const float* of_input;
    float *hidden, *cell, *result;  // only an LSTM has cells; the states are those before, and then those after all steps
} Call;

// Writes a panel's sums of some rows.
static void finish(const void* how, const Weight* weight, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows) {
    int32_t* const to = (int32_t*)how + top * weight->outputs + left_of(weight, panel);
    const int64_t columns = MIN(COLUMNS, weight->outputs);
    for (int64_t i = 0; i < rows; ++i) memcpy(to + i * weight->outputs, sums[i], sizeof(int32_t) * columns);
}

// A step of one sequence: the row of the input's products, the sums, and the states, which are written over.
static void advance(
    const Call* call, float input_scale, const float* restrict of_input, const int32_t* restrict sums,
    float* restrict hidden, float* restrict cell, float* restrict result
) {
    const int64_t size = call->size;
    const float *const restrict weight_scale = call->weight_scale, *const restrict bias = call->bias;
    (void)bias;
    $before
    #pragma GCC ivdep
    for (int64_t j = 0; j < size; ++j) {
        $each
        $states
    }
}

static int run(const Call* call, int threads) {
    const int64_t size = call->size, rows = call->batch;
    const Weight weight = weight_of(GATES * size, size, 0, call->weight);
    Windows a = {{1, 1, 1, rows}, {0, 0, 0, size}, {1, 1, 1}, {0}, size, 0, 0, 0};
    const Shares most = shares_of(&weight, &a, rows, threads);
    const int64_t of_sums = rows * GATES * size * (int64_t)sizeof(int32_t), all = most.bytes + of_sums + rows * size;
    char* const memory = take(all);
    if (!memory) return 0;
    int32_t* const sums = (int32_t*)(memory + most.bytes);
    uint8_t* const integers = (uint8_t*)memory + most.bytes + of_sums;
    a.first = integers;
    int64_t at = 0;  // the first row of a step
    if (call->reverse) for (int64_t step = 0; step < call->steps; ++step) at += call->sizes[step];
    for (int64_t step = 0; step < call->steps; ++step) {
        const int64_t count = call->sizes[call->reverse ? call->steps - 1 - step : step];
        const int of_step = count * GATES * size * size < MANY ? 1 : threads;
        if (call->reverse) at -= count;
        float input_scale;
        quantize(call->hidden, count * size, integers, &input_scale, &a.zero, 1);
        a.places[3] = count;
        const Shares shares = shares_of(&weight, &a, count, of_step);
        multiply(&weight, &a, count, &shares, memory, finish, sums);
        #pragma omp parallel for num_threads(threads) if (threads > 1 && count * size >= MANY_CELLS)
        for (int64_t i = 0; i < count; ++i)
            advance(call, input_scale, call->of_input + (at + i) * GATES * size, sums + i * GATES * size,
                    call->hidden + i * size, call->cell + i * size, call->result + (at + i) * size);
        if (!call->reverse) at += count;
    }
    give_back(memory, all);
    return 1;
}

// Takes the members of `Call` in its order.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[12];
    if (!read_integers(given, count, 12, x)) return NULL;
    const Call call = {
        x[0], x[1], x[2], x[3], pointer(x[4]), pointer(x[5]), pointer(x[6]), pointer(x[7]),
        pointer(x[8]), pointer(x[9]), pointer(x[10]), pointer(x[11]),
    };
    void* const state = PyEval_SaveThread();
    const int done = run(&call, omp_get_max_threads());
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
