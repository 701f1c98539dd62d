// Convolutions of each channel alone, a part of `panels.h`.

// Sums of TOGETHER windows at these addresses, of x * (w - its zero point), where each output sees one channel; `start`
// is what they begin with.
static inline void windows(
    const uint8_t* const* x, const int64_t* runs, int64_t pairs, const int is_signed, const int16_t* b,
    const int32_t* start, int32_t sums[][COLUMNS]
) {
#ifdef __AVX2__
    __m256i total[TOGETHER][2];
    for (int i = 0; i < TOGETHER; ++i)
        for (int half = 0; half < 2; ++half) total[i][half] = _mm256_loadu_si256((const __m256i*)(start + 8 * half));
    for (int64_t pair = 0; pair < pairs; ++pair, b += 2 * COLUMNS) {
        const int64_t one = runs[2 * pair], two = runs[2 * pair + 1];
        const __m256i* const at = (const __m256i*)b;
        const __m256i factors[2] = {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
        for (int i = 0; i < TOGETHER; ++i) {
            const __m128i first = _mm_loadu_si128((const __m128i*)(x[i] + one));
            const __m128i second = _mm_loadu_si128((const __m128i*)(x[i] + two));
            const __m128i halves[2] = {_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)};
            for (int half = 0; half < 2; ++half) {
                const __m256i wide = is_signed ? _mm256_cvtepi8_epi16(halves[half]) : _mm256_cvtepu8_epi16(halves[half]);
                total[i][half] = _mm256_add_epi32(total[i][half], _mm256_madd_epi16(wide, factors[half]));
            }
        }
    }
    for (int i = 0; i < TOGETHER; ++i)
        for (int half = 0; half < 2; ++half) _mm256_store_si256((__m256i*)(sums[i] + 8 * half), total[i][half]);
#else
    for (int i = 0; i < TOGETHER; ++i) {
        memcpy(sums[i], start, sizeof sums[i]);
        for (int64_t run = 0; run < 2 * pairs; ++run)
            for (int j = 0; j < COLUMNS; ++j) {
                const uint8_t one = x[i][runs[run] + j];
                sums[i][j] += (is_signed ? (int8_t)one : one) * b[(run / 2 * COLUMNS + j) * 2 + run % 2];
            }
    }
#endif
}

// Sums of the windows from `first` on where each output sees one channel.
static inline void channel_by_channel(
    const Weight* weight, const Windows* images, const int64_t* runs, int64_t first, int64_t rows, int64_t panel,
    int64_t behind, Finish finish, const void* how
) {
    int32_t sums[BLOCK][COLUMNS] __attribute__((aligned(64)));
    int64_t offsets[BLOCK];
    Place place = place_of(images, first);
    for (int64_t i = 0; i < rows; ++i, step(images, &place)) offsets[i] = place.offset;
    for (; panel < behind; ++panel) {
        const int16_t* const b = (const int16_t*)(weight->data + panel * weight->panel);
        int32_t start[COLUMNS] = {0};  // what x's zero point adds
        for (int64_t i = 0; i < 2 * weight->pairs; ++i)
            for (int64_t j = 0; j < COLUMNS; ++j) start[j] -= images->zero * b[(i / 2 * COLUMNS + j) * 2 + i % 2];
        for (int64_t i = 0; i < rows; i += TOGETHER) {
            const uint8_t* x[TOGETHER];
            for (int k = 0; k < TOGETHER; ++k) x[k] = images->first + offsets[MIN(i + k, rows - 1)] + left_of(weight, panel);
            if (images->is_signed) windows(x, runs, weight->pairs, 1, b, start, sums + i);
            else windows(x, runs, weight->pairs, 0, b, start, sums + i);
        }
        finish(how, weight, sums, panel, first, rows);
    }
}
