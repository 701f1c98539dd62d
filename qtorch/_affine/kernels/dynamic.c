// A linear layer of floats with a packed weight: its input is quantized by its own range, sums are exact (`panels.h`), and
// what is filled in makes floats of them.

$values

$panels

$ranges

// `each` is 1 if each row has a scale and a zero point, which its sums still contain; 0 if the first scale is that of all.
typedef struct {
    const float *weight_scale, *bias;
    const int32_t* totals;
    float* result;
    int64_t each;
    const float* input_scales;
    const int32_t* zeros;
} Output;

// Writes a panel's results of some rows.
static void finish(const void* how, const Weight* weight, int32_t sums[][COLUMNS], int64_t panel, int64_t top, int64_t rows) {
    const Output* const output = how;
    const int64_t columns = MIN(COLUMNS, weight->outputs), left = left_of(weight, panel);
    const float *const weight_scale = output->weight_scale + left, *const bias = output->bias + left;
    const int32_t* const totals = output->totals + left;
    (void)bias;
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = output->each * (top + i);
        const float input_scale = output->input_scales[row];
        const int32_t zero = output->each ? output->zeros[row] : 0;
        float* const to = output->result + (top + i) * weight->outputs + left;
        for (int64_t j = 0; j < columns; ++j) {
            const int32_t sum = sums[i][j] - zero * totals[j];
            $output
            to[j] = $result;
        }
    }
}

// Takes the numbers of rows, of features and of outputs, whether each row has its own range, and the addresses of the
// packed weight, of the scales and the biases of all outputs (only a kernel with biases reads these), of the sums of each
// output's differences, of the rows and of the results.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[10];
    if (!read_integers(given, count, 10, x)) return NULL;
    const int64_t rows = x[0], terms = x[1], each = x[3];
    const Weight weight = weight_of(x[2], terms, 0, pointer(x[4]));
    const int threads = rows * weight.outputs * terms < LARGE ? 1 : omp_get_max_threads();
    Windows of_a = {{1, 1, 1, rows}, {0, 0, 0, terms}, {1, 1, 1}, {0}, terms, 0, 0, 0};
    const Shares shares = shares_of(&weight, &of_a, rows, threads);
    const int64_t ranges = each ? rows : 1, size = shares.bytes + ranges * 8 + rows * terms;
    char* const memory = take(size);
    if (!memory) return PyErr_NoMemory();
    void* const state = PyEval_SaveThread();
    float* const scales = (float*)(memory + shares.bytes);
    int32_t* const zeros = (int32_t*)(scales + ranges);
    uint8_t* const a = (uint8_t*)(zeros + ranges);
    const Output output = {pointer(x[5]), pointer(x[6]), pointer(x[7]), pointer(x[9]), each, scales, zeros};
    const float* const from = pointer(x[8]);
    const int several = rows * terms < LARGE ? 1 : threads;
    if (each) {
        #pragma omp parallel for num_threads(several) if (several > 1)
        for (int64_t row = 0; row < rows; ++row)
            quantize(from + row * terms, terms, a + row * terms, scales + row, zeros + row, 1);
    } else {
        quantize(from, rows * terms, a, scales, zeros, several);
        of_a.zero = zeros[0];
    }
    of_a.first = a;
    multiply(&weight, &of_a, rows, &shares, memory, finish, &output);
    PyEval_RestoreThread(state);
    give_back(memory, size);
    return PyLong_FromLong(0);
}
