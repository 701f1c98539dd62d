// Codes of 8 and 4 bits as numbers, and numbers as codes, by permutes of registers: a part of `blocks.c`. They have the bits
// of the tables that loops read elsewhere, which take a gather for each number. `qtorch.optim.permutes` makes what they read.

#if defined __AVX512VBMI__ && defined __AVX512BW__ && defined __AVX512F__
#include <immintrin.h>
#define PERMUTES 1
#define PERMUTED(here, elsewhere) (here)
#define INLINED static inline __attribute__((always_inline))

typedef struct {
    uint8_t number[4][256];           // what codes stand for, byte by byte
    uint16_t shift[32], offset[32];   // by exponent: a number's place in `rank` is (high half >> shift) + offset
    uint8_t rank[512];                // of the least number of a place; a place has one bound at most
    uint8_t last[4][256];             // the last magnitude of a rank, byte by byte; from 128 on, of negative numbers
    uint16_t least;                   // the high half of the least magnitude that has a place
    uint8_t zero, flip;               // codes are rank + zero, of negative numbers (rank ^ flip) + 128
} Bytes;
typedef struct { float number[16], first[16]; } Halves;  // what codes stand for, and the least number of each code

// The bytes of a table of 256 at places, whose highest bits are a mask.
INLINED __m512i of_256(const uint8_t* table, __m512i place, __mmask64 high) {
    const __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), place, _mm512_loadu_si512(table + 64));
    const __m512i top = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), place, _mm512_loadu_si512(table + 192));
    return _mm512_mask_blend_epi8(high, low, top);
}

// Four registers of 16 integers from tables of their bytes. Byte 16 l + 4 r + k of places is for integer 4 l + k of
// register r: instructions unpack and pack within parts of 16 bytes.
INLINED void of_bytes(const uint8_t (*tables)[256], __m512i place, __mmask64 high, __m512i* to) {
    __m512i byte[4];
    for (int i = 0; i < 4; ++i) byte[i] = of_256(tables[i], place, high);
    const __m512i low01 = _mm512_unpacklo_epi8(byte[0], byte[1]), high01 = _mm512_unpackhi_epi8(byte[0], byte[1]);
    const __m512i low23 = _mm512_unpacklo_epi8(byte[2], byte[3]), high23 = _mm512_unpackhi_epi8(byte[2], byte[3]);
    to[0] = _mm512_unpacklo_epi16(low01, low23);
    to[1] = _mm512_unpackhi_epi16(low01, low23);
    to[2] = _mm512_unpacklo_epi16(high01, high23);
    to[3] = _mm512_unpackhi_epi16(high01, high23);
}
// 64 bytes in the order of `of_bytes`, and back.
INLINED __m512i reordered(__m512i x) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}
INLINED __mmask64 at_most(int32_t rest) { return rest < 64 ? ((__mmask64)1 << rest) - 1 : ~(__mmask64)0; }

// Arrays of integers have room for a whole register more.
INLINED void decode_bytes(const uint8_t* codes, const void* table, int32_t* to, int32_t length) {
    for (int32_t j = 0; j < length; j += 64) {
        const __m512i x = reordered(_mm512_maskz_loadu_epi8(at_most(length - j), codes + j));
        __m512i found[4];
        of_bytes(((const Bytes*)table)->number, x, _mm512_movepi8_mask(x), found);
        for (int i = 0; i < 4; ++i) _mm512_storeu_si512(to + j + 16 * i, found[i]);
    }
}

// The codes of numbers, which are at most about 1, or of e4m3fn 448, and not NaN.
INLINED void encode_bytes(const int32_t* x, const void* table, uint8_t* codes, int32_t length, int is_signed) {
    const Bytes* const t = (const Bytes*)table;
    const __m512i shifts = _mm512_loadu_si512(t->shift), offsets = _mm512_loadu_si512(t->offset);
    const __m512i least = _mm512_set1_epi16(t->least), zero = _mm512_set1_epi8(t->zero), flip = _mm512_set1_epi8(t->flip);
    for (int32_t j = 0; j < length; j += 64) {
        __m512i magnitude[4], half[2], place[2], last[4];
        for (int i = 0; i < 4; ++i) magnitude[i] = _mm512_loadu_si512(x + j + 16 * i);
        for (int i = 0; i < 2; ++i) {
            const __m512i low = _mm512_srli_epi32(magnitude[2 * i], 16), high = _mm512_srli_epi32(magnitude[2 * i + 1], 16);
            half[i] = _mm512_packus_epi32(low, high);
        }
        const __mmask64 negative = is_signed ? _mm512_movepi8_mask(_mm512_packs_epi16(half[0], half[1])) : 0;
        for (int i = 0; i < 4 && is_signed; ++i) magnitude[i] = _mm512_and_si512(magnitude[i], _mm512_set1_epi32(0x7fffffff));
        for (int i = 0; i < 2; ++i) {
            if (is_signed) half[i] = _mm512_and_si512(half[i], _mm512_set1_epi16(0x7fff));
            half[i] = _mm512_max_epi16(half[i], least);
            const __m512i exponent = _mm512_srli_epi16(half[i], 7);  // permutes read its 5 low bits
            const __m512i shifted = _mm512_srlv_epi16(half[i], _mm512_permutexvar_epi16(exponent, shifts));
            place[i] = _mm512_add_epi16(shifted, _mm512_permutexvar_epi16(exponent, offsets));
        }
        const __m512i byte = _mm512_set1_epi16(0xff);
        const __m512i low = _mm512_packus_epi16(_mm512_and_si512(place[0], byte), _mm512_and_si512(place[1], byte));
        const __mmask64 high = _mm512_movepi8_mask(low);
        __m512i rank = of_256(t->rank, low, high);
        if (!is_signed) {  // more than 256 places
            const __m512i above = _mm512_packs_epi16(_mm512_slli_epi16(place[0], 7), _mm512_slli_epi16(place[1], 7));
            rank = _mm512_mask_blend_epi8(_mm512_movepi8_mask(above), rank, of_256(t->rank + 256, low, high));
        }
        of_bytes(t->last, rank, is_signed ? negative : _mm512_movepi8_mask(rank), last);
        for (int i = 0; i < 4; ++i) last[i] = _mm512_sub_epi32(last[i], magnitude[i]);  // below 0 in the next rank
        const __m512i above = _mm512_packs_epi16(_mm512_packs_epi32(last[0], last[1]), _mm512_packs_epi32(last[2], last[3]));
        rank = _mm512_mask_add_epi8(rank, _mm512_movepi8_mask(above), rank, _mm512_set1_epi8(1));
        if (is_signed) {
            const __m512i flipped = _mm512_xor_si512(rank, flip);
            rank = _mm512_add_epi8(rank, zero);
            rank = _mm512_mask_add_epi8(rank, negative, flipped, _mm512_set1_epi8(-128));
        }
        _mm512_mask_storeu_epi8(codes + j, at_most(length - j), reordered(rank));
    }
}

// Codes of 4 bits, a byte each, in arrays with room for a whole register more.
INLINED void decode_halves(const uint8_t* codes, const void* table, int32_t* to, int32_t length) {
    const __m512i numbers = _mm512_loadu_si512(((const Halves*)table)->number);
    for (int32_t j = 0; j < length; j += 16) {
        const __m512i place = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(codes + j)));
        _mm512_storeu_si512(to + j, _mm512_permutexvar_epi32(place, numbers));
    }
}

INLINED void encode_halves(const int32_t* x, const void* table, uint8_t* codes, int32_t length, int is_signed) {
    const __m512 first = _mm512_loadu_ps(((const Halves*)table)->first);
    for (int32_t j = 0; j < length; j += 16) {
        const __m512 number = _mm512_loadu_ps(x + j);
        __m512i code = _mm512_setzero_si512();
        for (int32_t step = 8; step; step /= 2) {  // from the highest bit of a code to the lowest
            const __m512i higher = _mm512_or_si512(code, _mm512_set1_epi32(step));
            const __m512 bound = _mm512_permutexvar_ps(higher, first);
            code = _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(number, bound, _CMP_GE_OQ), higher);
        }
        _mm_storeu_si128((__m128i*)(codes + j), _mm512_cvtepi32_epi8(code));
    }
}
#else
#define PERMUTES 0
#define PERMUTED(here, elsewhere) (elsewhere)
#endif
