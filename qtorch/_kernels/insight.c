// What a rounding did to a tensor: a template that `insight.py` fills in with what it did to each element; here are the
// counts, of which sums are made. Each is exact, so that neither their order nor the number of threads matters.

$values

#define UNIT 65536  // elements that a thread takes
#define RUN 512     // elements whose keys are in memory at a time
#define FULL 0x7fffffff  // elements that are counted at most before sums are made
#define BLOCKS $blocks
#define COUNTS $counts
#define FIELDS $fields
#define ERRORS $errors
#define NUMBER_KEYS $number_keys
#define ERROR_KEYS $error_keys
#define PLAIN_KEYS $plain_keys
#define SUMS (COUNTS + 2 * FIELDS + 3 * ERRORS)
#define LANES (2 * SUMS + 4)

static const int32_t number_weights[] = {$number_weights}, error_weights[] = {$error_weights};
static const int32_t plain_number_weights[] = {$plain_number_weights};
static const int32_t plain_error_weights[2][3 * PLAIN_KEYS] = {$plain_error_weights};

typedef struct {
    int64_t sums[SUMS];
    int32_t magnitudes[4];
    int64_t counted;
    int special;  // whether one was counted
    uint32_t numbers[FIELDS * NUMBER_KEYS], errors[ERRORS * ERROR_KEYS];
    uint32_t plain_numbers[2][FIELDS * PLAIN_KEYS];
    uint32_t plain_errors[2 * FIELDS * PLAIN_KEYS];  // a key of a negative error is in the second half
} Total;
typedef struct { int64_t size; const void *x, *y; const int32_t* ends[3]; int32_t* lanes; int16_t* places; } Call;

static _Thread_local Total kept;  // its counts are zero between calls

// What counts of the keys from, ..., to - 1 stand for.
static inline int64_t weighted(const uint32_t* count, int from, int to, const int32_t* weights) {
    int64_t found = 0;
    for (int key = from; key < to; ++key) found += (int64_t)count[key] * weights[key];
    return found;
}

// Adds what counts of the fields from, ..., to stand for to sums, of `columns` for each field, and clears them; keys from
// carry on count for the next field. Weights are those of all keys for a column, then for the next.
static inline __attribute__((always_inline)) void add_table(
    uint32_t* count, int from, int to, int keys, int carry, int columns, const int32_t* weights, int64_t* sums
) {
    for (int field = from; field <= to; ++field) {
        uint32_t* const at = count + field * keys;
        uint32_t found = 0;
        for (int key = 0; key < keys; ++key) found |= at[key];
        if (!found) continue;
        int64_t* const sum = sums + field * columns;
        for (int i = 0; i < columns; ++i) {
            sum[i] += weighted(at, 0, carry, weights + i * keys);
            if (carry < keys) sum[columns + i] += weighted(at, carry, keys, weights + i * keys);
        }
        memset(at, 0, sizeof(*at) * keys);
    }
}

// Counts of a table's field 0, which are cleared.
static int64_t take_zeros(uint32_t* count) {
    int64_t found = 0;
    for (int key = 0; key < PLAIN_KEYS; ++key) found += count[key];
    memset(count, 0, sizeof(*count) * PLAIN_KEYS);
    return found;
}

static void add_counts(Total* total) {
    int64_t *const numbers = total->sums + COUNTS, *const errors = numbers + 2 * FIELDS;
    const int largest = total->magnitudes[1] >> 23, smallest = ($infinity - total->magnitudes[0]) >> 23;
    // An error is at least a unit of the smaller one's last place, and at most the sum of both.
    const int least = MIN(smallest, ($infinity - total->magnitudes[2]) >> 23) - 23;
    const int most = MIN(MAX(largest, total->magnitudes[3] >> 23) + 1, FIELDS - 1);
    for (int i = 0; i < 2; ++i) {
        const int64_t zeros = take_zeros(total->plain_numbers[i]);
        numbers[0] += zeros;
        total->sums[$place_of_zeros] += zeros;
        add_table(total->plain_numbers[i], smallest, largest, PLAIN_KEYS, PLAIN_KEYS, 2, plain_number_weights, numbers);
    }
    for (int sign = 0; sign < 2; ++sign) {
        uint32_t* const errors_of_sign = total->plain_errors + sign * FIELDS * PLAIN_KEYS;
        take_zeros(errors_of_sign);
        add_table(errors_of_sign, MAX(least, 1), most, PLAIN_KEYS, $plain_carry, 3,
                  plain_error_weights[sign], errors + 3 * $plain_error);
    }
    if (total->special) {
        total->errors[0] = 0;
        add_table(total->numbers, 0, FIELDS - 1, NUMBER_KEYS, NUMBER_KEYS, 2, number_weights, numbers);
        add_table(total->errors, 0, ERRORS - 1, ERROR_KEYS, ERROR_KEYS, 3, error_weights, errors);
    }
    total->counted = total->special = 0;
}

static void add_unit(const Call* call, int64_t from, int64_t to, Total* total) {
    uint32_t keys[RUN];  // of numbers, and in the upper half those of errors
    int32_t $flags;
    int32_t $most;
    $constants
    for (int64_t begin = from; begin < to; begin += RUN) {
        const int32_t length = (int32_t)MIN(RUN, to - begin);
        const $stored* const x = (const $stored*)call->x + begin;
        const $stored* const y = (const $stored*)call->y + begin;
#if BLOCKS
        const int32_t *const largest = call->ends[0] + begin, *const lowest = call->ends[1] + begin;
        const int32_t* const normal = call->ends[2] + begin;
#endif
        int32_t special = 0, errors = 0, underflowed = 0, subnormal = 0;
        int32_t end0 = 0, end1 = 0, end2 = 0, end3 = 0;
        #pragma GCC ivdep
        for (int32_t j = 0; j < length; ++j) {
            $plain
        }
        if (special < 0 || MAX(end0, end2) > $plain_least) {
            #pragma GCC ivdep
            for (int32_t j = 0; j < length; ++j) {
                $each
            }
            for (int32_t j = 0; j < length; ++j) {
                ++total->numbers[keys[j] & 0xffff];
                ++total->errors[keys[j] >> 16];
            }
            total->special = 1;
            continue;
        }
        total->sums[$place_of_underflowed] += underflowed;
        total->sums[$place_of_subnormal] += subnormal;
        most0 = MAX(most0, end0 - $hidden), most1 = MAX(most1, end1);
        most2 = MAX(most2, end2 - $hidden), most3 = MAX(most3, end3);
        if (!errors) {
            // Rounded already: few numbers. Counts of neighbours do not wait for each other.
            for (int32_t j = 0; j < length; ++j) ++total->plain_numbers[j & 1][keys[j] & 0xffff];
            continue;
        }
        for (int32_t j = 0; j < length; ++j) {
            ++total->plain_numbers[0][keys[j] & 0xffff];
            ++total->plain_errors[keys[j] >> 16];
        }
    }
    total->sums[0] += to - from;
    $counted
    total->counted += to - from;
    if (total->counted > FULL - UNIT) add_counts(total);
}

// Writes the lanes, or, if their places are wanted, those that are not zero; returns how many.
static int32_t write_lanes(const Call* call, const int64_t* sums, const int32_t* magnitudes) {
    int32_t written = 0;
    for (int32_t i = 0; i < LANES; ++i) {
        const int32_t low = (int32_t)(sums[i % SUMS] & ((1 << $digit) - 1)), high = (int32_t)(sums[i % SUMS] >> $digit);
        const int32_t lane = i < SUMS ? high : i < 2 * SUMS ? low : magnitudes[i - 2 * SUMS];
        if (call->places && !lane) continue;
        if (call->places) call->places[written] = (int16_t)i;
        call->lanes[written++] = lane;
    }
    return written;
}

static int32_t run(const Call* call) {
    const int64_t units = (call->size + UNIT - 1) / UNIT;
    const int threads = (int)MIN((int64_t)omp_get_max_threads(), units);
    int64_t sums[SUMS] = {0};
    int32_t magnitudes[4] = {0};
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Total* total = &kept;
        __asm__("" : "+r"(total));  // or the compiler asks for its address at each count
        memset(total->sums, 0, sizeof(total->sums));
        memset(total->magnitudes, 0, sizeof(total->magnitudes));
        #pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < units; ++unit) {
            add_unit(call, unit * UNIT, MIN(call->size, (unit + 1) * UNIT), total);
        }
        add_counts(total);
        #pragma omp critical
        {
            for (int i = 0; i < SUMS; ++i) sums[i] += total->sums[i];
            for (int i = 0; i < 4; ++i) magnitudes[i] = MAX(magnitudes[i], total->magnitudes[i]);
        }
    }
    return write_lanes(call, sums, magnitudes);
}

// Takes the number of elements, and the addresses of x, y, the largest, lowest and smallest normal numbers (three of
// each element's block, or three of all), of the lanes, and of their places, or 0; see `write_lanes`.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[8];
    if (!read_integers(given, count, 8, x)) return NULL;
    const Call call = {x[0], pointer(x[1]), pointer(x[2]), {pointer(x[3]), pointer(x[4]), pointer(x[5])},
                       pointer(x[6]), pointer(x[7])};
    void* const state = PyEval_SaveThread();
    const int32_t written = run(&call);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(written);
}
