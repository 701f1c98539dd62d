// Sums in float64 of the rows of a matrix that have the same index: in pairs of neighbours, level by level, and an odd one
// out goes on to the next level. See `qcore.reproducible.operations.sums_by_index`, the law.

$values

#define WIDTH 512      // columns at a time, at most
#define ROOM (1 << 20) // numbers at a time, but for the sums of many rows
#define PARALLEL 32768 // numbers from which on threads share the work

// The sums of `length` rows of so many columns become the first row.
static void add_rows(double* x, int64_t length, int64_t columns) {
    for (; length > 1; length = length / 2 + length % 2) {
        for (int64_t i = 0; i < length / 2; ++i) {
            const double *const left = x + 2 * i * columns, *const right = left + columns;
            for (int64_t j = 0; j < columns; ++j) x[i * columns + j] = left[j] + right[j];
        }
        if (length % 2) memmove(x + length / 2 * columns, x + (length - 1) * columns, sizeof(double) * columns);
    }
}

// The sums of the rows that `order` lists, of so many columns at a time.
static void add(const float* rows, int64_t width, const int64_t* order, int64_t length, int64_t most_columns, double* room,
                double* total) {
    for (int64_t left = 0; left < width; left += most_columns) {
        const int64_t columns = MIN(most_columns, width - left);
        for (int64_t i = 0; i < length; ++i) {
            for (int64_t j = 0; j < columns; ++j) room[i * columns + j] = rows[order[i] * width + left + j];
        }
        add_rows(room, length, columns);
        if (length) memcpy(total + left, room, sizeof(double) * columns);
        else memset(total + left, 0, sizeof(double) * columns);
    }
}

static int run(int64_t size, int64_t width, int64_t count, const float* rows, const int32_t* indices, double* total) {
    const int threads = size * width < PARALLEL ? 1 : omp_get_max_threads();
    int64_t *const ends = calloc(count + 1, sizeof(int64_t)), *const order = malloc(sizeof(int64_t) * (size + 1)), most = 0;
    for (int64_t i = 0; ends && i < size; ++i) if (0 <= indices[i] && indices[i] < count) ++ends[indices[i] + 1];
    for (int64_t i = 0; ends && i < count; ++i) most = MAX(most, ends[i + 1]);
    const int64_t columns = MIN(MIN(width, WIDTH), MAX(ROOM / MAX(most, 1), 8)), room = most * columns + 1;
    double* const rooms = malloc(sizeof(double) * room * threads);
    const int done = ends && order && rooms;
    for (int64_t i = 0; done && i < count; ++i) ends[i + 1] += ends[i];
    for (int64_t i = 0; done && i < size; ++i) {
        if (0 <= indices[i] && indices[i] < count) order[ends[indices[i]]++] = i;  // an end is where the next index begins
    }
    #pragma omp parallel for schedule(dynamic, 16) num_threads(threads) if (threads > 1)
    for (int64_t index = 0; index < (done ? count : 0); ++index) {
        const int64_t begin = index ? ends[index - 1] : 0;
        double* const own = rooms + omp_get_thread_num() * room;
        add(rows, width, order + begin, ends[index] - begin, columns, own, total + index * width);
    }
    free(rooms);
    free(order);
    free(ends);
    return done;
}

// Takes the numbers of rows, of columns and of indices, and the addresses of the float32 rows, of their indices in int32, and
// of the float64 sums. A row whose index is none is in no sum.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[6];
    if (!read_integers(given, count, 6, x)) return NULL;
    void* const state = PyEval_SaveThread();
    const int done = run(x[0], x[1], x[2], pointer(x[3]), pointer(x[4]), pointer(x[5]));
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
