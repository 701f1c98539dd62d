// A rank's numbers added to a sum over ranks, in one pass over memory; a template that `ranks.py` fills in.

$values

#define PARALLEL 32768 // elements from which on threads share the work

static inline FLOAT32 from_bfloat16(bfloat16 x) { return float32((int32_t)((uint32_t)(uint16_t)x << 16)); }
static inline FLOAT32 from_FLOAT32(FLOAT32 x) { return x; }
static inline FLOAT32 to_FLOAT32(FLOAT32 x) { return x; }

// Takes the number of elements, the addresses of the numbers and of the sum, and the bits of a float32 number by which
// the numbers are multiplied, or divided.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t call[4];
    if (!read_integers(given, count, 4, call)) return NULL;
    const int64_t size = call[0];
    const $dtype* const x = pointer(call[1]);
    $sum* const total = pointer(call[2]);
    const FLOAT32 factor = float32((int32_t)call[3]);
    (void)factor; // which sums without a mean have no use for
    void* const state = PyEval_SaveThread();
    #pragma omp parallel for simd if (parallel: size >= PARALLEL)
    for (int64_t j = 0; j < size; ++j) {
        const FLOAT32 sent = from_$wire(to_$wire(from_$dtype(x[j])));
        total[j] = to_$sum(from_$sum(total[j]) + $term);
    }
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
