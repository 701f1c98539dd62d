// The entries of a table for the codes of one, two or three operands; a template that `gather.py` fills in.

$values

#define PARALLEL 32768 // elements from which on threads share the work

// Takes the number of elements, the addresses of the table and of the result, and for each operand the address of its
// codes and the number of their bits; higher bits are ignored.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t call[3 + 2 * $operands];
    if (!read_integers(given, count, 3 + 2 * $operands, call)) return NULL;
    const int64_t size = call[0];
    const $entry* const table = pointer(call[1]);
    $entry* const found = pointer(call[2]);
    $arrays
    void* const state = PyEval_SaveThread();
    #pragma omp parallel for if (size >= PARALLEL)
    for (int64_t j = 0; j < size; ++j) {
        uint32_t index = 0;
        $indices
        found[j] = table[index];
    }
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
