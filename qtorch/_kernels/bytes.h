// Products of bytes, four neighbours at once, a part of `integer.c`: rows of A are x, or x + 128 if it has a sign; columns
// of B are w, or w - 128 if it has none. With their zero points the sum of (x - zero_x) * (w - zero_w) is that of x * w,
// less zero_x * (sum of (w - zero_w)), less zero_w * (sum of x). All of it wraps around, but for the result.

#ifdef DOT
static inline int32_t zero_of(const Call* call, int64_t output) {
    return call->zero_b[call->one_zero ? 0 : output] - half(call->signed_b);
}

// True if no sums of x are needed.
static int64_t is_centred(const Call* call) {
    int32_t any = 0;
    for (int64_t j = 0; j < call->outputs; ++j) any |= zero_of(call, j);
    return !any;
}

// Quads of bytes in the place of two pairs of differences, and what the sums of their columns begin with.
static void to_bytes(const Call* call, int64_t panel, int16_t* packed) {
    int32_t *start = call->of_columns + 2 * panel * COLUMNS, *zeros = start + COLUMNS;
    const int32_t zero_a = *call->zero_a + 128 - half(call->signed_a);
    int32_t total[COLUMNS] = {0};
    for (int64_t pair = 0; pair < call->pairs; pair += 2)
        for (int64_t j = 0; j < COLUMNS; ++j) {
            int8_t quad[4];
            for (int i = 0; i < 4; ++i) {
                quad[i] = (int8_t)packed[((pair + i / 2) * COLUMNS + j) * 2 + i % 2];
                total[j] += quad[i];
            }
            memcpy((int8_t*)packed + (pair / 2 * COLUMNS + j) * 4, quad, 4);
        }
    for (int64_t j = 0; j < COLUMNS; ++j) {
        zeros[j] = zero_of(call, MIN(left_of(call, panel) + j, call->outputs - 1));
        start[j] = -zero_a * (total[j] - (int32_t)call->terms * zeros[j]);
    }
}

// Rows of A from `first` on, and their sums; what stands behind the last term is multiplied with a 0 of B.
static void gather_bytes(
    const Call* call, const int64_t* runs, int64_t first, int64_t rows, uint8_t* to, int32_t* of_rows
) {
    const int64_t terms = call->terms, count = terms / call->channels;
    Place place = place_of(call, first);
    for (int64_t row = 0; row < rows; ++row, to += 2 * call->pairs, step(call, &place)) {
        for (int64_t run = 0; run < count; ++run)
            memcpy(to + run * call->channels, call->a + place.offset + runs[run], call->channels);
        if (call->signed_a) for (int64_t i = 0; i < terms; ++i) to[i] ^= 128;
        of_rows[row] = 0;
        if (!call->centred) for (int64_t i = 0; i < terms; ++i) of_rows[row] += to[i];
    }
}

#define STEP_OF_BYTES(i) { \
    int32_t four; \
    memcpy(&four, of_rows[i] + 4 * quad, sizeof four); \
    const __m256i factor = _mm256_set1_epi32(four); \
    low##i = DOT(low##i, factor, first); \
    high##i = DOT(high##i, factor, second); \
}

// Adds products of some quads to the sums of at most ROWS rows; rows of A are `width` apart.
static void tile_of_bytes(
    const uint8_t* a, int64_t width, int64_t rows, const int8_t* b, int64_t quads, int32_t sums[][COLUMNS]
) {
    const uint8_t* of_rows[ROWS];
    for (int i = 0; i < ROWS; ++i) of_rows[i] = a + MIN(i, rows - 1) * width;
    EACH_ROW(START)
    for (int64_t quad = 0; quad < quads; ++quad) {
        const __m256i first = _mm256_loadu_si256((const __m256i*)(b + quad * 4 * COLUMNS));
        const __m256i second = _mm256_loadu_si256((const __m256i*)(b + quad * 4 * COLUMNS + 2 * COLUMNS));
        EACH_ROW(STEP_OF_BYTES)
    }
    EACH_ROW(STORE)
}

static void product_of_bytes(
    const Call* call, const int64_t* runs, int64_t first, int64_t rows, const int16_t* packed, uint8_t* a
) {
    int32_t sums[BLOCK][COLUMNS] __attribute__((aligned(64))), of_rows[BLOCK];
    const int64_t width = 2 * call->pairs, quads = call->pairs / 2;
    gather_bytes(call, runs, first, rows, a, of_rows);
    for (int64_t panel = 0; panel < call->panels; ++panel) {
        const int32_t *start = call->of_columns + 2 * panel * COLUMNS, *zeros = start + COLUMNS;
        const int8_t* const b = (const int8_t*)(packed + panel * width * COLUMNS);
        for (int64_t i = 0; i < BLOCK; ++i)
            for (int64_t j = 0; j < COLUMNS; ++j) sums[i][j] = start[j] - zeros[j] * of_rows[MIN(i, rows - 1)];
        for (int64_t at = 0; at < quads; at += DEPTH / 2)
            for (int64_t i = 0; i < rows; i += ROWS)
                tile_of_bytes(a + i * width + 4 * at, width, MIN(ROWS, rows - i), b + 4 * at * COLUMNS,
                              MIN(DEPTH / 2, quads - at), sums + i);
        finish(call, sums, panel, first, rows);
    }
}
#else
static int64_t is_centred(const Call* call) { return 0; }
static void to_bytes(const Call* call, int64_t panel, int16_t* packed) {}
static void product_of_bytes(
    const Call* call, const int64_t* runs, int64_t first, int64_t rows, const int16_t* packed, uint8_t* a
) {}
#endif
