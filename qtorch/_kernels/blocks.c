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
