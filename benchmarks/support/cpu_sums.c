// Sums by the processor's own instructions. The first argument names one; each 12 bytes on standard input are a lane: the
// codes of a's and b's terms, 32 bits each, and c. Standard output gets 4 bytes a lane.
//
//     cc -O1 -mavx512f -mavx512bf16 -mavx512vnni cpu_sums.c -o cpu_sums && ./cpu_sums vdpbf16ps < lanes > sums

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 16 };
typedef struct { uint32_t a, b, c; } Lane;

// Two products of bfloat16 and a float32 number; four of unsigned and signed bytes, or two of 16 bits, and an int32.
static __m512i sums_of(const char* name, __m512i a, __m512i b, __m512i c) {
    if (!strcmp(name, "vdpbusd")) return _mm512_dpbusd_epi32(c, a, b);
    if (!strcmp(name, "vdpwssd")) return _mm512_dpwssd_epi32(c, a, b);
    return _mm512_castps_si512(_mm512_dpbf16_ps(_mm512_castsi512_ps(c), (__m512bh)a, (__m512bh)b));
}

int main(int count, char** arguments) {
    if (count != 2 || (strcmp(arguments[1], "vdpbf16ps") && strcmp(arguments[1], "vdpbusd") && strcmp(arguments[1], "vdpwssd"))) {
        fprintf(stderr, "allowed are vdpbf16ps, vdpbusd and vdpwssd\n");
        return 2;
    }
    Lane lanes[LANES] = {{0, 0, 0}};
    size_t read;
    while ((read = fread(lanes, sizeof(Lane), LANES, stdin)) > 0) {
        uint32_t a[LANES], b[LANES], c[LANES];
        for (int i = 0; i < LANES; ++i) a[i] = lanes[i].a, b[i] = lanes[i].b, c[i] = lanes[i].c;
        const __m512i found = sums_of(arguments[1], _mm512_loadu_si512(a), _mm512_loadu_si512(b), _mm512_loadu_si512(c));
        _mm512_storeu_si512(c, found);
        if (fwrite(c, sizeof(uint32_t), read, stdout) != read) return 1;
    }
    return 0;
}
