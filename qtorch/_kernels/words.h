// Random words, as many side by side as fit in a register. The law is filled in, for several of these at a time: each is
// one chain of operations.

#if defined __AVX2__
#include <immintrin.h>
#endif
#if defined __AVX512F__
enum { WIDTH = 16 };
#elif defined __AVX2__
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));

static inline __attribute__((always_inline)) Words turned(Words x, int n) {
#if defined __AVX2__ && !defined __AVX512F__  // which has rotations; here those by whole bytes are one instruction
    if (n == 16 || n == 24) {
        const int64_t low = n == 16 ? 0x0504070601000302 : 0x0407060500030201, high = low + 0x0808080808080808;
        return (Words)_mm256_shuffle_epi8((__m256i)x, _mm256_set_epi64x(high, low, high, low));
    }
#endif
    return x << n | x >> (32 - n);
}

$threefry
