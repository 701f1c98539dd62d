// Sums in float64 along axes of an array, one axis after the other, each by halves: each number of the first half is
// added to the one in the same place of the second, and an odd rest is appended. See `qcore.reproducible.operations`, the law.

$values

#define WIDTH 512      // sums of which a thread has the numbers side by side
#define MOST_AXES 64   // of an array
#define PARALLEL 32768 // numbers from which on threads share the work

// What is summed: float32 numbers, or their products with others; or the float64 sums along earlier axes.
typedef struct { const float *a, *b; const double* sums; } Numbers;

static void load(const Numbers* numbers, double* x, int64_t at, int64_t count) {
    if (numbers->sums) memcpy(x, numbers->sums + at, sizeof(double) * count);
    else if (numbers->b) for (int64_t j = 0; j < count; ++j) x[j] = (double)numbers->a[at + j] * numbers->b[at + j];
    else for (int64_t j = 0; j < count; ++j) x[j] = numbers->a[at + j];
}

// The sums of `length` rows of so many columns become the first row.
static void add_rows(double* x, int64_t length, int64_t columns) {
    for (; length > 1; length = length / 2 + length % 2) {
        const int64_t half = length / 2 * columns;
        #pragma GCC ivdep
        for (int64_t j = 0; j < half; ++j) x[j] += x[half + j];
        if (length % 2) memmove(x + half, x + 2 * half, sizeof(double) * columns);
    }
}

// Sums along the middle one of three axes.
static int add(const Numbers* numbers, int64_t outer, int64_t length, int64_t inner, double* total, int threads) {
    const int64_t blocks = (inner + WIDTH - 1) / WIDTH, room = length * MIN(inner, WIDTH);
    double* const rooms = take(sizeof(double) * room * threads);
    if (!rooms) return 0;
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < outer * blocks; ++unit) {
        const int64_t which = unit / blocks, left = unit % blocks * WIDTH, columns = MIN(WIDTH, inner - left);
        double* const x = rooms + omp_get_thread_num() * room;
        if (columns == inner) load(numbers, x, which * length * inner, length * inner);
        else for (int64_t i = 0; i < length; ++i) load(numbers, x + i * columns, (which * length + i) * inner + left, columns);
        add_rows(x, length, columns);
        memcpy(total + which * inner + left, x, sizeof(double) * columns);
    }
    give_back(rooms, sizeof(double) * room * threads);
    return 1;
}

// Sums along axes whose lengths are not 0; the last one writes `total`, the others memory of their own.
static int run(Numbers numbers, int64_t* sizes, int rank, const int64_t* axes, int count, double* total) {
    double* before = NULL;
    int done = 1;
    for (int n = 0; n < count && done; ++n) {
        int64_t outer = 1, inner = 1, length = sizes[axes[n]];
        for (int i = 0; i < rank; ++i) *(i < axes[n] ? &outer : &inner) *= i == axes[n] ? 1 : sizes[i];
        double* const after = n == count - 1 ? total : malloc(sizeof(double) * outer * inner);
        done = after && add(&numbers, outer, length, inner, after, outer * length * inner < PARALLEL ? 1 : omp_get_max_threads());
        free(before);
        before = after == total ? NULL : after;
        numbers.sums = after;
        sizes[axes[n]] = 1;
    }
    free(before);
    return done;
}

// A step of a program, see `steps.c`: `sizes` has the numbers of dimensions and of axes, the sizes, and the axes; the arrays
// are a, b or NULL, and the result.
int step(const int64_t* sizes, const double* unused, char* const* arrays) {
    const Numbers numbers = {(const float*)arrays[0], (const float*)arrays[1], NULL};
    int64_t left[MOST_AXES];
    memcpy(left, sizes + 2, sizeof(int64_t) * sizes[0]);
    return run(numbers, left, sizes[0], sizes + 2 + sizes[0], sizes[1], (double*)arrays[2]);
}

// Takes the addresses of a, of b or 0, and of the result, how many dimensions and axes there are, the sizes, the axes.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[5], left[2 * MOST_AXES];
    if (!read_integers(given, MIN(count, 5), 5, x)) return NULL;
    const int64_t rank = x[3], axes = x[4];
    if (rank < 0 || rank > MOST_AXES || axes < 0 || axes > MOST_AXES) {
        return PyErr_Format(PyExc_TypeError, "there are %lld dimensions and %lld axes; allowed are at most %d",
                            (long long)rank, (long long)axes, MOST_AXES);
    }
    if (!read_integers(given + 5, count - 5, rank + axes, left)) return NULL;
    for (int64_t i = 0; i < axes; ++i) {
        if (left[rank + i] < 0 || left[rank + i] >= rank) return PyErr_Format(PyExc_TypeError, "an axis is out of range");
    }
    const Numbers numbers = {pointer(x[0]), pointer(x[1]), NULL};
    void* const state = PyEval_SaveThread();
    const int done = run(numbers, left, rank, left + rank, axes, pointer(x[2]));
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
