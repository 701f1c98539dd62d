// A law of blocks of neighbours, in one pass over memory: a template that `blocks.py` fills in. Values that follow from a
// block's maxima come in a second loop over the block, which is in the cache then. Arrays are written where they are read.

// Several conditions on one value would become branches of their own, and no vectors.
#pragma GCC optimize("no-thread-jumps")

$values

#define POINTERS $pointers
#define MOST $most     // elements of a block, at most
#define LARGE 32768    // elements, from which threads pay

// `qcore.reproducible.operations.Names.settled`, in integers: vectors do more of these at a time.
static inline float settled(float x) {
    const uint32_t bits = bits32(x);
    return float32(bits << 1 > 0x01000000 ? bits : bits & 0x80000000);
}

typedef int64_t Lanes __attribute__((may_alias));  // two of int32, the first one in the low bits
typedef struct { int64_t size, block; char* pointers[POINTERS]; } Call;

static void blocks(const Call* call, int64_t first, int64_t end) {
    $once
    for (int64_t block = first; block < end; ++block) {
        const int64_t at = block * call->block;
        const int32_t length = MIN(call->block, call->size - at);
        $rooms
        $before
        #pragma GCC ivdep
        for (int32_t j = 0; j < length; ++j) {
            $each
        }
        $maxima
        #pragma GCC ivdep
        for (int32_t j = 0; j < length; ++j) {
            $rest
        }
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
