// Steps of a law, one after the other: functions in C of other libraries, and arrays that only they see. See
// `qtorch.linalg.native`.

$values

// A step reads sizes, numbers and arrays of its own, and is 0 if there was no memory.
typedef int (*Step)(const int64_t* sizes, const double* numbers, char* const* arrays);

// A program: how many arrays are given, how many it has itself, the bytes of these, how many steps there are and how many
// arrays a step takes at most, and where each of the program's arrays begins; then for each step the addresses of its
// function, of sizes and of numbers, how many arrays it takes, and their places, -1 for none: first those that are given,
// then the program's.
enum { GIVEN, OWN, BYTES, STEPS, MOST, HEADER };

// `memory` has the program's arrays, and behind them the addresses of all arrays, and room for those of a step.
static int run(const int64_t* program, char* memory) {
    const int64_t* at = program + HEADER;
    int64_t* const addresses = (int64_t*)(memory + program[BYTES]);
    char** const x = (char**)(addresses + program[GIVEN] + program[OWN]);
    for (int64_t i = 0; i < program[OWN]; ++i) addresses[program[GIVEN] + i] = (intptr_t)(memory + *at++);
    for (int64_t i = 0; i < program[STEPS]; ++i) {
        const int64_t count = at[3];
        for (int64_t j = 0; j < count; ++j) x[j] = at[4 + j] < 0 ? NULL : pointer(addresses[at[4 + j]]);
        if (!((Step)(intptr_t)at[0])(pointer(at[1]), pointer(at[2]), x)) return 0;
        at += 4 + count;
    }
    return 1;
}

// Takes the addresses of the program and of the arrays that are given.
Object* call_from_python(Object* self, Object* const* given, intptr_t count) {
    int64_t address;
    if (!read_integers(given, MIN(count, 1), 1, &address)) return NULL;
    const int64_t* const program = pointer(address);
    const int64_t bytes = program[BYTES] + (int64_t)sizeof(int64_t) * (program[GIVEN] + program[OWN] + program[MOST]);
    char* const memory = take(bytes);
    if (!memory) return PyErr_NoMemory();
    if (!read_integers(given + 1, count - 1, program[GIVEN], (int64_t*)(memory + program[BYTES]))) {
        give_back(memory, bytes);
        return NULL;
    }
    void* const state = PyEval_SaveThread();
    const int done = run(program, memory);
    PyEval_RestoreThread(state);
    give_back(memory, bytes);
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
