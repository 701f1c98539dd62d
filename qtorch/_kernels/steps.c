// Steps of a law, one after the other: functions in C of other libraries, and arrays that only they see. See
// `qtorch.linalg.direct.program`.

$values

// A step reads sizes, numbers and arrays of its own, and is 0 if there was no memory.
typedef int (*Step)(const int64_t* sizes, const double* numbers, char* const* arrays);

// A program: how many arrays it has itself, the bytes of these, how many steps there are, and where each of the arrays
// begins; then for each step the addresses of its function, of sizes and of numbers, how many arrays it takes, and their
// places, -1 for none: first those that are given, then the program's.
static int run(const int64_t* program, char** arrays, int64_t given) {
    const int64_t own = program[0], bytes = program[1], steps = program[2], *at = program + 3;
    char* const memory = take(bytes);
    int done = memory != NULL;
    for (int64_t i = 0; i < own; ++i) arrays[given + i] = memory + *at++;
    for (int64_t i = 0; i < steps && done; ++i) {
        const int64_t count = at[3];
        char* x[count];
        for (int64_t j = 0; j < count; ++j) x[j] = at[4 + j] < 0 ? NULL : arrays[at[4 + j]];
        done = ((Step)at[0])((const int64_t*)at[1], (const double*)at[2], x);
        at += 4 + count;
    }
    give_back(memory, bytes);
    return done;
}

// Takes the addresses of the program and of the arrays that are given.
Object* call_from_python(Object* self, Object* const* given, intptr_t size) {
    const int64_t* const program = PyLong_AsVoidPtr(given[0]);
    char* arrays[size + program[0]];
    for (int64_t i = 1; i < size; ++i) arrays[i - 1] = PyLong_AsVoidPtr(given[i]);
    void* const state = PyEval_SaveThread();
    const int done = run(program, arrays, size - 1);
    PyEval_RestoreThread(state);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
