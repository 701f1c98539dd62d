// A linear layer of floats with a packed weight: its input is quantized by its own range, sums are exact (`panels.h`), and
// what is filled in makes floats of them.

$values

$panels

$ranges

typedef struct { const float *weight_scale, *bias; float input_scale; float* result; } Output;

// Writes a panel's results of some rows.
static void finish(const void* how, const Weight* weight, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows) {
    const Output* const output = how;
    const int64_t columns = MIN(COLUMNS, weight->outputs), left = left_of(weight, panel);
    const float input_scale = output->input_scale;
    const float *const weight_scale = output->weight_scale + left, *const bias = output->bias + left;
    (void)bias;
    for (int64_t i = 0; i < rows; ++i) {
        float* const to = output->result + (top + i) * weight->outputs + left;
        for (int64_t j = 0; j < columns; ++j) {
            $output
            to[j] = $result;
        }
    }
}

// Takes the numbers of rows, of features and of outputs, and the addresses of the packed weight, of the scales and the
// biases of all outputs (only a kernel with biases reads these), of the rows and of the results.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[8];
    if (!read_integers(given, count, 8, x)) return NULL;
    const int64_t rows = x[0], terms = x[1];
    const Weight weight = weight_of(x[2], terms, 0, pointer(x[3]));
    const int threads = rows * weight.outputs * terms < LARGE ? 1 : omp_get_max_threads();
    Windows of_a = {{1, 1, 1, rows}, {0, 0, 0, terms}, {1, 1, 1}, {0}, terms, 0, 0, 0};
    const Shares shares = shares_of(&weight, &of_a, rows, threads);
    char* const memory = take(shares.bytes + rows * terms);
    if (!memory) return PyErr_NoMemory();
    void* const state = PyEval_SaveThread();
    Output output = {pointer(x[4]), pointer(x[5]), 0, pointer(x[7])};
    uint8_t* const a = (uint8_t*)memory + shares.bytes;
    quantize(pointer(x[6]), rows * terms, a, &output.input_scale, &of_a.zero, rows * terms < LARGE ? 1 : threads);
    of_a.first = a;
    multiply(&weight, &of_a, rows, &shares, memory, finish, &output);
    PyEval_RestoreThread(state);
    give_back(memory, shares.bytes + rows * terms);
    return PyLong_FromLong(0);
}
