// A law of blocks of neighbours, in one pass over memory: a template that `blocks.py` fills in. Values that follow from a
// block's maxima come in a second loop over the block, which is in the cache then. Arrays are written where they are read.

// Several conditions on one value would become branches of their own, and no vectors.
#pragma GCC optimize("no-thread-jumps")

$values
$permutes

#define POINTERS $pointers
#define MOST $most     // elements of a block, at most
// Of arrays: a register more, and so much that those of blocks of 256 are in different sets of a cache of 4 KiB a way.
#define ROOM (MOST + 272)
#define LARGE 32768    // elements, from which threads pay

// `qcore.reproducible.operations.Names.settled`, in integers: vectors do more of these at a time.
static inline float settled(float x) {
    const uint32_t bits = bits32(x);
    return float32(bits << 1 > 0x01000000 ? bits : bits & 0x80000000);
}

// x with one NaN for all, in integers: compilers would carry a choice into the places of a table, and then find no vectors.
static inline float one_nan(float x) {
    const int32_t is_nan = -(x != x);
    return float32((bits32(x) & ~is_nan) | (is_nan & 0x7fc00000));
}

// a + b * c, rounded to float64 and then to float32. Rounded once it takes half of the time: no vectors are converted. The
// two differ only where float64 rounds to the middle of two float32 numbers, `is_near_middle`: there a is close to the sum,
// so a - sum is exact, and 1 + 2^-22 takes the rest of the sum beyond the middle. Where |b * c| is at least |a| / 8, and at
// most 2^26 |a| or a is 0, which `qtorch.optim.kernel` sees to, float64 rounds nothing.
#ifdef __FP_FAST_FMAF
static inline float add_product(float a, float b, float c) { return __builtin_fmaf(b, c, a); }
static inline int32_t is_near_middle(float a, float b, float c, float sum) {
    const float rest = __builtin_fmaf(b, c, a - sum);
    const int32_t beyond = __builtin_fmaf(rest, 0x1.000004p0f, sum) != sum;
    return beyond & (__builtin_fabsf(a - sum) <= 0.25f * __builtin_fabsf(a));
}
#else
static inline float add_product(float a, float b, float c) { return (float)((double)a + (double)b * (double)c); }
static inline int32_t is_near_middle(float a, float b, float c, float sum) { return 0; }
#endif

typedef uint16_t Both __attribute__((may_alias));  // two codes, the first one in the low byte
typedef struct { int64_t size, block; char* pointers[POINTERS]; } Call;

static void blocks(const Call* call, int64_t first, int64_t end) {
    $once
    for (int64_t block = first; block < end; ++block) {
        const int64_t at = block * call->block;
        const int32_t length = MIN(call->block, call->size - at);
        $rooms
        $before
        int done = 0;
        $versions
        $after
    }
}

static void run(const Call* call) {
    const int64_t count = (call->size + call->block - 1) / call->block;
    const int threads = call->size < LARGE ? 1 : MIN(omp_get_max_threads(), count);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t which = omp_get_thread_num(), all = omp_get_num_threads();
        blocks(call, count * which / all, count * (which + 1) / all);
    }
}

// Takes the number of elements, that of a block, and the addresses of the arrays.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[2 + POINTERS];
    if (!read_integers(given, count, 2 + POINTERS, x)) return NULL;
    Call call = {x[0], x[1]};
    for (int i = 0; i < POINTERS; ++i) call.pointers[i] = pointer(x[2 + i]);
    void* const state = PyEval_SaveThread();
    run(&call);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
