// What a rounding did to a tensor: a template that `insight.py` fills in with what it did to each element; here are the
// sums. Each is exact, so that neither their order nor the number of threads matters.
//
// A unit of elements has tables of its own, whose entries hold two sums each: neighbours often have the same exponent,
// and additions to one place in memory wait for each other, so there are several of each table.

$values

#define UNIT 65536  // elements: the count and the sum of squares of so many fit an entry, and so do two sums of sizes
#define RUN 256     // elements whose effects are in memory at a time
#define COPIES 4
#define BLOCKS $blocks
#define COUNTS $counts
#define FIELDS $fields
#define ERRORS $errors
#define SUMS (COUNTS + 2 * FIELDS + 3 * ERRORS)

typedef struct {
    uint64_t numbers[COPIES][FIELDS];   // count * 2^40 + sum of squares
    uint64_t errors[COPIES][ERRORS][2];  // sum of sizes, of negative errors * 2^32; sum of squares
} Tables;
typedef struct { int64_t sums[SUMS]; int32_t magnitudes[4]; } Total;
typedef struct { int64_t size; const void *x, *y; const int32_t* ends[3]; int32_t* lanes; } Call;

static void add_unit(const Call* call, int64_t from, int64_t to, Total* total, Tables* tables) {
    memset(tables, 0, sizeof(*tables));
    int32_t number_field[RUN], square[RUN], error_field[RUN], sign[RUN], size[RUN];
    int32_t $zeros;
    int32_t $least;
    $constants
    for (int64_t begin = from; begin < to; begin += RUN) {
        const int64_t length = MIN(RUN, to - begin);
        const $stored* const x = (const $stored*)call->x + begin;
        const $stored* const y = (const $stored*)call->y + begin;
#if BLOCKS
        const int32_t *const largest = call->ends[0] + begin, *const lowest = call->ends[1] + begin;
        const int32_t* const normal = call->ends[2] + begin;
#endif
        #pragma GCC ivdep
        for (int64_t j = 0; j < length; ++j) {
            $each
        }
        for (int64_t j = 0; j < length; ++j) {
            tables->numbers[j % COPIES][number_field[j]] += (1ull << 40) + (uint32_t)square[j];
            uint64_t* const error = tables->errors[j % COPIES][error_field[j]];
            error[0] += (uint64_t)(uint32_t)size[j] << (sign[j] & 32);
            error[1] += (uint32_t)(size[j] * size[j]);
        }
    }
    total->sums[0] += to - from;
    $counted
    for (int i = 0; i < COPIES; ++i) {
        int64_t* at = total->sums + COUNTS;
        for (int field = 0; field < FIELDS; ++field, at += 2) {
            at[0] += tables->numbers[i][field] >> 40;
            at[1] += tables->numbers[i][field] & ((1ull << 40) - 1);
        }
        for (int field = 0; field < ERRORS; ++field, at += 3) {
            const uint64_t sizes = tables->errors[i][field][0];
            const int64_t positive = sizes & 0xffffffff, negative = sizes >> 32;
            at[0] += positive + negative;
            at[1] += positive - negative;
            at[2] += tables->errors[i][field][1];
        }
    }
}

static int run(const Call* call) {
    const int64_t units = (call->size + UNIT - 1) / UNIT;
    const int threads = (int)MIN((int64_t)omp_get_max_threads(), units);
    Total* const totals = calloc(threads, sizeof(Total));
    Tables* const tables = malloc(sizeof(Tables) * threads);
    if (totals && tables) {
        #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (int64_t unit = 0; unit < units; ++unit) {
            const int thread = omp_get_thread_num();
            add_unit(call, unit * UNIT, MIN(call->size, (unit + 1) * UNIT), totals + thread, tables + thread);
        }
        for (int thread = 1; thread < threads; ++thread) {
            for (int i = 0; i < SUMS; ++i) totals->sums[i] += totals[thread].sums[i];
            for (int i = 0; i < 4; ++i) {
                totals->magnitudes[i] = MAX(totals->magnitudes[i], totals[thread].magnitudes[i]);
            }
        }
        for (int i = 0; i < SUMS; ++i) {
            call->lanes[i] = (int32_t)(totals->sums[i] >> $digit);
            call->lanes[SUMS + i] = (int32_t)(totals->sums[i] & ((1 << $digit) - 1));
        }
        memcpy(call->lanes + 2 * SUMS, totals->magnitudes, sizeof(totals->magnitudes));
    }
    const int done = totals && tables;
    free(totals);
    free(tables);
    return done;
}

// Takes the number of elements, and the addresses of x, y, the largest, lowest and smallest normal numbers (three of
// each element's block, or three of all) and of the lanes.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    void* pointers[6];
    for (int i = 0; i < 6; ++i) pointers[i] = PyLong_AsVoidPtr(given[1 + i]);
    const Call call = {PyLong_AsLongLong(given[0]), pointers[0], pointers[1],
                       {pointers[2], pointers[3], pointers[4]}, pointers[5]};
    void* const state = PyEval_SaveThread();
    const int done = run(&call);
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
