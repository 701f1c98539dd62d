// What all kernels begin with: integers and floats by their bits, and what Python calls.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

typedef float FLOAT32;
typedef double FLOAT64;
static inline int32_t bits32(FLOAT32 x) { int32_t y; memcpy(&y, &x, sizeof(y)); return y; }
static inline int64_t bits64(FLOAT64 x) { int64_t y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT32 float32(int32_t x) { FLOAT32 y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT64 float64(int64_t x) { FLOAT64 y; memcpy(&y, &x, sizeof(y)); return y; }
static inline FLOAT32 to_float32(int32_t x) { return (FLOAT32)x; }
#if defined __AVX2__ && !defined __AVX512DQ__  // converts no vectors of int64: two halves, each the end of a large float
static inline FLOAT64 to_float64(int64_t x) {
    const FLOAT64 high = float64((int64_t)((uint64_t)x >> 32 ^ 0x4530000080000000)) - 0x1.00000801p84;
    return high + float64((x & 0xffffffff) | 0x4330000000000000);
}
#else
static inline FLOAT64 to_float64(int64_t x) { return (FLOAT64)x; }
#endif
static inline int32_t float32_bits(int32_t x) { return bits32(to_float32(x)); }
static inline int64_t float64_bits(int64_t x) { return bits64(to_float64(x)); }
// Of x >= 0, and toward zero: the law reads these only where x has no more bits than the float.
static inline int16_t bfloat16_bits(int16_t x) { return (int16_t)(float32_bits(x) >> 16); }
static inline int16_t float16_bits(int16_t x) {  // with fields of another bias, below which is zero only
    const int32_t bits = (float32_bits(x) >> 13) - ((127 - 15) << 10);
    return (int16_t)(bits > 0 ? bits : 0);
}
typedef int16_t bfloat16;
static inline bfloat16 to_bfloat16(FLOAT32 x) {  // to nearest, ties to even; of no NaN
    const int32_t bits = bits32(x);
    return (bfloat16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline int64_t hidden(int64_t x) { __asm__("" : "+r"(x)); return x; }  // x, of which a compiler knows nothing
static inline int32_t rotate(int32_t x, int n) { return (int32_t)((uint32_t)x << n | (uint32_t)x >> (32 - n)); }

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

// Python's stable interface, whose headers may not be installed.
typedef struct Object Object;
extern long long PyLong_AsLongLong(Object*);
extern void* PyLong_AsVoidPtr(Object*);
extern Object* PyLong_FromLong(long);
extern Object* PyErr_NoMemory(void);
extern void* PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void*);
