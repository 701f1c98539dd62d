// What all kernels begin with: integers and floats by their bits, and what Python calls.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else  // a compiler without OpenMP, such as Apple's: one thread
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
#endif

typedef float FLOAT32;
typedef double FLOAT64;
static inline int32_t bits32(FLOAT32 x) { int32_t y; memcpy(&y, &x, sizeof(y)); return y; }
static inline int64_t bits64(FLOAT64 x) { int64_t y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT32 float32(int32_t x) { FLOAT32 y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT64 float64(int64_t x) { FLOAT64 y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT32 to_float32(int32_t x) { return (FLOAT32)x; }
#if defined __AVX2__ && !defined __AVX512DQ__  // converts no vectors of int64: two halves, each the end of a large float
static inline FLOAT64 to_float64(int64_t x) {
    const FLOAT64 high = float64((int64_t)(((uint64_t)x >> 32) ^ 0x4530000080000000)) - 0x1.00000801p84;
    return high + float64((x & 0xffffffff) | 0x4330000000000000);
}
#else
static inline FLOAT64 to_float64(int64_t x) { return (FLOAT64)x; }
#endif
static inline int32_t float32_bits(int32_t x) { return bits32(to_float32(x)); }
static inline int64_t float64_bits(int64_t x) { return bits64(to_float64(x)); }
// Of x >= 0, and toward zero: the law reads these only where x has no more bits than the float.
static inline int16_t bfloat16_bits(int16_t x) { return (int16_t)(float32_bits(x) >> 16); }
static inline int16_t float16_bits(int16_t x) {  // the factor is that of the biases
    return (int16_t)(bits32(to_float32(x) * 0x1p-112f) >> 13);
}
typedef int16_t bfloat16;
static inline bfloat16 to_bfloat16(FLOAT32 x) {  // to nearest, ties to even; one NaN, as the carry makes zeros of some
    const uint32_t bits = (uint32_t)bits32(x);
    return (bfloat16)(x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline int64_t hidden(int64_t x) { __asm__("" : "+r"(x)); return x; }  // x, of which a compiler knows nothing
static inline int32_t rotate(int32_t x, int n) { return (int32_t)(((uint32_t)x << n) | ((uint32_t)x >> (32 - n))); }

// Two lanes of 16 bits as one of 32: AVX2 shifts and converts these only. What counts, and floats, are not negative.
#if defined __AVX2__ && !defined __AVX512BW__
#define PAIRS 1
#define OF_PAIRS(pairs, direct) (pairs)
#else
#define OF_PAIRS(pairs, direct) (direct)
#endif
typedef uint32_t Pair __attribute__((may_alias));
#define LOW(x) ((x) & 0xffff)
#define HIGH(x) ((x) >> 16)
#define TOP(x) ((x) & 0xffff0000)
static inline Pair left_pair(Pair x, Pair n) { return LOW(LOW(x) << LOW(n)) | (TOP(x) << HIGH(n)); }
static inline Pair right_pair(Pair x, Pair n) {
    return LOW((int32_t)(x << 16) >> LOW(n) >> 16) | TOP((int32_t)x >> HIGH(n));
}
static inline Pair bfloat16_pair(Pair x) {
    return ((Pair)float32_bits(LOW(x)) >> 16) | TOP(float32_bits(HIGH(x)));
}
static inline Pair float16_pair(Pair x) {
    const Pair low = bits32(to_float32(LOW(x)) * 0x1p-112f), high = bits32(to_float32(HIGH(x)) * 0x1p-112f);
    return low >> 13 | TOP(high << 3);
}

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

// Memory for a call, aligned to 64 bytes, or NULL. A block of KEPT bytes is kept for the next call that needs no more: once
// blocks of many sizes came and went, an allocator takes longer to find one, and others after it, than small kernels run.
#define KEPT (1 << 21)
static char* spare;
static void* take(int64_t bytes) {
    if (bytes > KEPT) return aligned_alloc(64, (bytes + 63) / 64 * 64);
    char* const found = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQ_REL);
    return found ? found : aligned_alloc(64, KEPT);
}
static void give_back(void* memory, int64_t bytes) {
    free(bytes > KEPT ? memory : __atomic_exchange_n(&spare, memory, __ATOMIC_ACQ_REL));
}

// Python's stable interface, whose headers may not be installed.
typedef struct Object Object;
extern intptr_t PyLong_AsSsize_t(Object*);
extern Object* PyLong_FromLong(long);
extern Object* PyExc_TypeError;
extern Object* PyErr_Format(Object*, const char*, ...);
extern Object* PyErr_NoMemory(void);
extern Object* PyErr_Occurred(void);
extern void* PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void*);

// True if a kernel was given as many arguments as it reads; else there is an exception.
static inline int is_count(intptr_t given, intptr_t wanted) {
    if (given != wanted) PyErr_Format(PyExc_TypeError, "a kernel reads %zd arguments, and was given %zd", wanted, given);
    return given == wanted;
}
// Reads a kernel's arguments, all of them integers: sizes, and addresses. Returns 0, with an exception, if others came.
static inline int read_integers(Object* const* given, intptr_t count, intptr_t wanted, int64_t* to) {
    if (!is_count(count, wanted)) return 0;
    for (intptr_t i = 0; i < count; ++i) to[i] = PyLong_AsSsize_t(given[i]);
    return !PyErr_Occurred();
}
static inline void* pointer(int64_t address) { return (void*)(intptr_t)address; }
