// What follows the kernels in every library: a method for Python. It needs Python's stable ABI, whose headers may not be
// installed. What precedes it:
//
//   constexpr int SIZES, INPUTS, TENSORS       how many sizes a call has, then inputs, and inputs and results together
//   constexpr int64_t ROW                      how many elements make a row, if the size is a number of elements; else 1
//   constexpr int64_t ROW_BYTES[TENSORS]       of each tensor that consists of such rows; 0 for others
//   constexpr int WINDOW                       which input has the index of the first element (`qcore.random.Noise`), or -1
//   bool is_large(const int64_t* sizes)        whether threads pay
//   void run(const int64_t* sizes, char* const* tensors, bool threads)      the kernels; of rows, whose number is the
//                                              size, on one thread in any case

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include <omp.h>

namespace {

struct Call {
    int64_t sizes[SIZES];
    char* tensors[TENSORS];
    int32_t window[3];
};

int64_t rows(const Call& call) { return (call.sizes[0] + ROW - 1) / ROW; }

// Moves a call's begin to a later row.
void skip(Call& call, int64_t count) {
    for (int i = 0; i < TENSORS; ++i) call.tensors[i] += count * ROW_BYTES[i];
    call.sizes[0] -= count * ROW;
    if constexpr (WINDOW >= 0) {
        const auto given = reinterpret_cast<const uint32_t*>(call.tensors[WINDOW]);
        const uint64_t start = (uint64_t(given[0]) << 32 | given[1]) + uint64_t(count) * ROW;
        const uint32_t later[] = {uint32_t(start >> 32), uint32_t(start), given[2]};
        std::memcpy(call.window, later, sizeof(later));
        call.tensors[WINDOW] = reinterpret_cast<char*>(call.window);
    }
}

// A row that is not full: as one that is, elsewhere.
void run_rest(const Call& call) {
    constexpr int64_t widest = std::max(int64_t(64), *std::max_element(ROW_BYTES, ROW_BYTES + TENSORS));
    alignas(64) char rooms[TENSORS][widest] = {};
    char* tensors[TENSORS];
    for (int i = 0; i < TENSORS; ++i) {
        tensors[i] = ROW_BYTES[i] ? rooms[i] : call.tensors[i];
        if (i < INPUTS) std::memcpy(rooms[i], call.tensors[i], call.sizes[0] * ROW_BYTES[i] / ROW);
    }
    const int64_t one = 1;
    run(&one, tensors, false);
    for (int i = INPUTS; i < TENSORS; ++i) std::memcpy(call.tensors[i], rooms[i], call.sizes[0] * ROW_BYTES[i] / ROW);
}

void run_call(Call call, bool threads) {
    const int64_t full = call.sizes[0] / ROW, rest = call.sizes[0] % ROW;
    call.sizes[0] = full;
    if (full) run(call.sizes, call.tensors, threads);
    if (!rest) return;
    skip(call, full);
    call.sizes[0] = rest;
    run_rest(call);
}

// The rows of several calls from one number to another, counted through all of them.
void run_rows(const Call* calls, int64_t count, int64_t begin, int64_t end) {
    for (int64_t i = 0, before = 0; i < count && before < end; before += rows(calls[i++])) {
        const int64_t first = std::max(begin - before, int64_t(0)), last = std::min(end - before, rows(calls[i]));
        if (first >= last) continue;
        Call part = calls[i];
        skip(part, first);
        part.sizes[0] = std::min(part.sizes[0], (last - first) * ROW);
        run_call(part, false);
    }
}

void run_calls(const Call* calls, int64_t count, int64_t all, bool threads) {
    if (!threads) return run_rows(calls, count, 0, all);
#pragma omp parallel
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        run_rows(calls, count, all * thread / threads, all * (thread + 1) / threads);
    }
}

}  // namespace

extern "C" {
struct Object;
extern Object* PyExc_RuntimeError;
long long PyLong_AsLongLong(Object*);
Object* PyLong_FromLong(long);
Object* PyErr_NoMemory();
void PyErr_SetString(Object*, const char*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);

static char* (*address)(Object* tensor);

void connect(char* (*function)(Object*)) { address = function; }

// Takes sizes and tensors; the same for further calls may follow, if sizes are numbers of elements.
Object* call(Object*, Object* const* given, intptr_t count) {
    void* thread = nullptr;
    std::string failure;
    bool full = false;
    try {
        Call only;
        const int64_t calls = count / (SIZES + TENSORS);
        const std::unique_ptr<Call[]> several(calls > 1 ? new Call[calls] : nullptr);
        Call* const first = calls > 1 ? several.get() : &only;
        int64_t all = 0, elements = 0;
        for (Call* each = first; each < first + calls; ++each) {
            for (int64_t& size : each->sizes) size = PyLong_AsLongLong(*given++);
            for (char*& tensor : each->tensors) tensor = address(*given++);
            all += rows(*each);
            elements += each->sizes[0];
        }
        Call together = *first;
        together.sizes[0] = elements / ROW;
        const bool threads = is_large(together.sizes);
        if (threads) thread = PyEval_SaveThread();
        if (ROW == 1 || (calls == 1 && !threads)) run_call(*first, threads);
        else run_calls(first, calls, all, threads);
    } catch (const std::bad_alloc&) {
        full = true;
    } catch (const std::exception& error) {
        failure = error.what();
    }
    if (thread) PyEval_RestoreThread(thread);
    if (full) return PyErr_NoMemory();
    if (failure.empty()) return PyLong_FromLong(0);
    PyErr_SetString(PyExc_RuntimeError, failure.c_str());
    return nullptr;
}
}
