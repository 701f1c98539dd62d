// Weights of 8-bit integers as the kernels of products read them (`panels.h`).

$values

$panels

// Takes the outputs and terms of a weight, whether each output sees one channel, whether its integers have a sign, whether
// each output has a zero point, and the addresses of integers, of zero points and of the memory that is written; where that
// is 0 nothing is. Returns how many bytes are written.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t x[8];
    if (!read_integers(given, count, 8, x)) return NULL;
    const Weight weight = weight_of(x[0], x[1], x[2], pointer(x[7]));
    if (x[7]) {
        void* const state = PyEval_SaveThread();
        pack(&weight, pointer(x[5]), x[3], pointer(x[6]), x[4], pointer(x[7]),
             weight.outputs * weight.terms < LARGE ? 1 : omp_get_max_threads());
        PyEval_RestoreThread(state);
    }
    return PyLong_FromLong((long)size_of(&weight));
}
