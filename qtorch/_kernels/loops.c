// What a law computes of each element, in one pass over its arrays; see `qtorch.reproducible.fused.loops`.

$values

#define ARRAYS $arrays
#define OUTER 3        // dimensions outside the innermost one
#define RUN 4096       // elements of the innermost dimension that are done at a time
#define PARALLEL 32768 // elements from which on threads share the work

// A part of a row of elements; `x` has where each array's begins.
static void elements(char* const* x, const double* numbers, int64_t count) {
    $before
    #pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
        $statements
    }
}

// A step of a program, see `steps.c`: `sizes` has those of the loop, and the strides of each array in elements.
int step(const int64_t* sizes, const double* numbers, char* const* arrays) {
    static const int64_t bytes[ARRAYS] = {$bytes}, inner[ARRAYS] = {$inner};
    const int64_t length = sizes[OUTER], parts = (length + RUN - 1) / RUN, rows = sizes[0] * sizes[1] * sizes[2];
    const int64_t(*const strides)[OUTER] = (const int64_t(*)[OUTER])(sizes + OUTER + 1);
    #pragma omp parallel for if (rows * length >= PARALLEL)
    for (int64_t unit = 0; unit < rows * parts; ++unit) {
        const int64_t row = unit / parts, begin = unit % parts * RUN;
        const int64_t place[OUTER] = {row / (sizes[1] * sizes[2]), row / sizes[2] % sizes[1], row % sizes[2]};
        char* x[ARRAYS];
        for (int i = 0; i < ARRAYS; ++i) {
            int64_t at = begin * inner[i];
            for (int k = 0; k < OUTER; ++k) at += place[k] * strides[i][k];
            x[i] = arrays[i] + at * bytes[i];
        }
        elements(x, numbers, MIN(RUN, length - begin));
    }
    return 1;
}
