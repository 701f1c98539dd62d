// What a rounding did to a tensor: a template that `insight.py` fills in with what it did to each element; here are the
// counts, of which sums are made. Each is exact, so that neither their order nor the number of threads matters.

$values

#define UNIT 65536  // elements that a thread takes
#define RUN 256     // elements whose keys are in memory at a time
#define FULL 0x7fffffff  // elements that are counted at most before sums are made
#define BLOCKS $blocks
#define COUNTS $counts
#define FIELDS $fields
#define ERRORS $errors
#define NUMBER_KEYS $number_keys
#define ERROR_KEYS $error_keys
#define SUMS (COUNTS + 2 * FIELDS + 3 * ERRORS)

static const int32_t number_weights[NUMBER_KEYS][2] = {$number_weights};
static const int32_t error_weights[ERROR_KEYS][3] = {$error_weights};

typedef struct {
    int64_t sums[SUMS];
    int32_t magnitudes[4];
    int64_t counted;
    uint32_t numbers[FIELDS * NUMBER_KEYS], errors[ERRORS * ERROR_KEYS];
} Total;
typedef struct { int64_t size; const void *x, *y; const int32_t* ends[3]; int32_t* lanes; } Call;

static int any(const uint32_t* counts, int size) {
    uint32_t found = 0;
    for (int i = 0; i < size; ++i) found |= counts[i];
    return found != 0;
}

static void add_counts(Total* total) {
    int64_t* at = total->sums + COUNTS;
    uint32_t* count = total->numbers;
    for (int field = 0; field < FIELDS; ++field, at += 2, count += NUMBER_KEYS) {
        if (!any(count, NUMBER_KEYS)) continue;
        for (int key = 0; key < NUMBER_KEYS; ++key) {
            for (int i = 0; i < 2; ++i) at[i] += (int64_t)count[key] * number_weights[key][i];
            count[key] = 0;
        }
    }
    count = total->errors;
    count[0] = 0;
    for (int field = 0; field < ERRORS; ++field, at += 3, count += ERROR_KEYS) {
        if (!any(count, ERROR_KEYS)) continue;
        for (int key = 0; key < ERROR_KEYS; ++key) {
            for (int i = 0; i < 3; ++i) at[i] += (int64_t)count[key] * error_weights[key][i];
            count[key] = 0;
        }
    }
    total->counted = 0;
}

static void add_unit(const Call* call, int64_t from, int64_t to, Total* total) {
    uint16_t number_key[RUN], error_key[RUN];
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
        int32_t special = 0;
        #pragma GCC ivdep
        for (int64_t j = 0; j < length; ++j) {
            $special
        }
        if (special >= 0) {
            #pragma GCC ivdep
            for (int64_t j = 0; j < length; ++j) {
                $plain
            }
        } else {
            #pragma GCC ivdep
            for (int64_t j = 0; j < length; ++j) {
                $each
            }
        }
        for (int64_t j = 0; j < length; ++j) {
            ++total->numbers[number_key[j]];
            ++total->errors[error_key[j]];
        }
    }
    total->sums[0] += to - from;
    $counted
    total->counted += to - from;
    if (total->counted > FULL - UNIT) add_counts(total);
}

static int run(const Call* call) {
    const int64_t units = (call->size + UNIT - 1) / UNIT;
    const int threads = (int)MIN((int64_t)omp_get_max_threads(), units);
    Total* const totals = calloc(threads, sizeof(Total));
    if (totals) {
        #pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (int64_t unit = 0; unit < units; ++unit) {
            add_unit(call, unit * UNIT, MIN(call->size, (unit + 1) * UNIT), totals + omp_get_thread_num());
        }
        add_counts(totals);
        for (int thread = 1; thread < threads; ++thread) {
            add_counts(totals + thread);
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
    const int done = totals != NULL;
    free(totals);
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
