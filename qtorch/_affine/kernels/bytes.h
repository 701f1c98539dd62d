// Products of bytes, four neighbours at once, a part of `panels.h`: rows of A are x, or x + 128 if it has a sign; columns
// of B are w, or w - 128 if it has none. With their zero points the sum of (x - zero_x) * (w - zero_w) is that of x * w,
// less zero_x * (sum of (w - zero_w)), less zero_w * (sum of x). All of it wraps around, but for the result.

static inline int32_t zero_of(const Weight* weight, int64_t output, int64_t is_signed, const int32_t* zeros, int64_t each) {
    return zeros[MIN(output, weight->outputs - 1) * each] - half(is_signed);
}

// Quads of bytes, and for each column of a panel the sum of its differences, and its zero point.
static inline void pack_bytes(
    const Weight* weight, int64_t panel, const uint8_t* from, int64_t is_signed, const int32_t* zeros, int64_t each,
    int32_t* totals, int32_t* own_zeros, uint8_t* to
) {
    const int64_t left = left_of(weight, panel), terms = weight->terms;
    const uint8_t sign = is_signed ? 0 : 128;
    memset(to, 0, weight->panel);
    for (int64_t j = 0; j < COLUMNS; ++j) {
        int32_t total = 0;
        own_zeros[j] = zero_of(weight, left + j, is_signed, zeros, each);
        totals[j] = 0;
        if (left + j >= weight->outputs) continue;
        const uint8_t* const row = from + (left + j) * terms;
        for (int64_t i = 0; i < terms; ++i) total += (int8_t)(row[i] ^ sign);
        for (int64_t i = 0; i < terms; i += 4) {
            uint32_t quad = 0;
            memcpy(&quad, row + i, MIN(4, terms - i));
            quad ^= terms - i < 4 ? (0x01010101u * sign) >> 8 * (4 - (terms - i)) : 0x01010101u * sign;
            memcpy(to + (i / 4 * COLUMNS + j) * 4, &quad, 4);
        }
        totals[j] = total - (int32_t)terms * own_zeros[j];
    }
}

#ifdef DOT
// Rows of A from `first` on, and their sums; what stands behind the last term is multiplied with a 0 of B.
static void gather_bytes(
    const Windows* x, const Weight* weight, const int64_t* runs, int64_t first, int64_t rows, uint8_t* to, int32_t* of_rows
) {
    const int64_t terms = weight->terms, count = runs_in(x);
    const int centred = is_centred(weight);
    Place place = place_of(x, first);
    for (int64_t row = 0; row < rows; ++row, to += 2 * weight->pairs, step(x, &place)) {
        for (int64_t run = 0; run < count; ++run)
            memcpy(to + run * x->length, x->first + place.offset + runs[run], x->length);
        if (x->is_signed) for (int64_t i = 0; i < terms; ++i) to[i] ^= 128;
        of_rows[row] = 0;
        if (!centred) for (int64_t i = 0; i < terms; ++i) of_rows[row] += to[i];
    }
}

// The columns of a panel are one vector, or two.
#if defined __AVX512VNNI__ && defined __AVX512F__
#define ROWS_OF_BYTES 12
#define START_OF_BYTES(i) __m512i sum##i = _mm512_load_si512(sums[i]);
#define STORE_OF_BYTES(i) _mm512_store_si512(sums[i], sum##i);
#define COLUMNS_OF_BYTES const __m512i all = _mm512_loadu_si512(b + quad * 4 * COLUMNS);
#define STEP_OF_BYTES(i) { \
    int32_t four; \
    memcpy(&four, a + i * width + 4 * quad, sizeof four); \
    sum##i = _mm512_dpbusd_epi32(sum##i, _mm512_set1_epi32(four), all); \
}
#else
#define ROWS_OF_BYTES ROWS
#define START_OF_BYTES START
#define STORE_OF_BYTES STORE
#define COLUMNS_OF_BYTES \
    const __m256i first = _mm256_loadu_si256((const __m256i*)(b + quad * 4 * COLUMNS)); \
    const __m256i second = _mm256_loadu_si256((const __m256i*)(b + quad * 4 * COLUMNS + 2 * COLUMNS));
#define STEP_OF_BYTES(i) { \
    int32_t four; \
    memcpy(&four, a + i * width + 4 * quad, sizeof four); \
    const __m256i factor = _mm256_set1_epi32(four); \
    low##i = DOT(low##i, factor, first); \
    high##i = DOT(high##i, factor, second); \
}
#endif
// Adds products of some quads to the sums of so many rows of A, which are `width` apart.
#define TILE_OF_BYTES(rows) \
    static void bytes_##rows(const uint8_t* a, int64_t width, const int8_t* b, int64_t quads, int32_t sums[][COLUMNS]) { \
        EACH_##rows(START_OF_BYTES) \
        for (int64_t quad = 0; quad < quads; ++quad) { \
            COLUMNS_OF_BYTES \
            EACH_##rows(STEP_OF_BYTES) \
        } \
        EACH_##rows(STORE_OF_BYTES) \
    }
TILE_OF_BYTES(1) TILE_OF_BYTES(2) TILE_OF_BYTES(3) TILE_OF_BYTES(4) TILE_OF_BYTES(5) TILE_OF_BYTES(6)
#if ROWS_OF_BYTES > ROWS
TILE_OF_BYTES(7) TILE_OF_BYTES(8) TILE_OF_BYTES(9) TILE_OF_BYTES(10) TILE_OF_BYTES(11) TILE_OF_BYTES(12)
#endif
static void (*const tiles_of_bytes[])(const uint8_t*, int64_t, const int8_t*, int64_t, int32_t[][COLUMNS]) = {
    bytes_1, bytes_2, bytes_3, bytes_4, bytes_5, bytes_6,
#if ROWS_OF_BYTES > ROWS
    bytes_7, bytes_8, bytes_9, bytes_10, bytes_11, bytes_12,
#endif
};

static void product_of_bytes(
    const Weight* weight, const Windows* x, const int64_t* runs, int64_t first, int64_t rows, int64_t panel,
    int64_t behind, uint8_t* a, Finish finish, const void* how
) {
    int32_t sums[BLOCK][COLUMNS] __attribute__((aligned(64))), of_rows[BLOCK];
    const int64_t width = 2 * weight->pairs, quads = weight->pairs / 2;
    const int32_t zero = x->zero + 128 - half(x->is_signed);
    gather_bytes(x, weight, runs, first, rows, a, of_rows);
    for (; panel < behind; ++panel) {
        const int32_t *totals = weight->totals + panel * COLUMNS, *zeros = weight->zeros + panel * COLUMNS;
        const int8_t* const b = (const int8_t*)(weight->data + panel * weight->panel);
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < COLUMNS; ++j) sums[i][j] = -zero * totals[j] - zeros[j] * of_rows[i];
        for (int64_t at = 0; at < quads; at += DEPTH / 2)
            for (int64_t i = 0, size; i < rows; i += size) {
                size = in_tile(rows - i, ROWS_OF_BYTES);
                tiles_of_bytes[size - 1](a + i * width + 4 * at, width, b + 4 * at * COLUMNS, MIN(DEPTH / 2, quads - at),
                                         sums + i);
            }
        finish(how, weight, sums, panel, first, rows);
    }
}
#else
static inline void product_of_bytes(
    const Weight* weight, const Windows* x, const int64_t* runs, int64_t first, int64_t rows, int64_t panel,
    int64_t behind, uint8_t* a, Finish finish, const void* how
) {}
#endif
