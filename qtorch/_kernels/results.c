// What follows from the maxima of blocks, and the results: a part of `kernel.c`. Where fewer operations do for usual
// blocks (see `qcore.law.program.Program.run`), it is there a second time, with these; `block_values` then says whether
// all blocks are usual.

#if BLOCKS
static int block_values$suffix(
    const Call* call, const char* tensor, const char* maxima, char* blocks, int64_t stride, int64_t first, int64_t count
) {
    $block_values_once
    #pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
        $block_values_each
    }
    return $block_values_return;
}
#endif

static void elements$suffix(const Call* call, const char* tensor, const char* blocks, int64_t stride, int64_t first, Part part) {
    $elements_once
#if WORDS
    const uint64_t start = (uint64_t)(uint32_t)window[0] << 32 | (uint32_t)window[1];
#endif
    FOR_CHUNKS(part, SIZE) {
        const int64_t at = row * call->columns + from;
#if WORDS && PLACES  // the index of an element, less that of its row's first, comes from a table
        const uint64_t example = row / call->rows_of_example * call->next_example;
        const uint64_t index = start + example + row % call->rows_of_example * call->next_row;
        const int32_t* const places = (const int32_t*)call->pointers[P_places] + from;
        const uint32_t low = (uint32_t)index;
        const int32_t high = (int32_t)(index >> 32);
#endif
        $elements_chunk
        int64_t rest = from;
#if WIDTH
        FOR_WHOLE_RUNS {
            const int32_t length = WIDTH;
            INDEX_OF_RUN
            $elements_run
            #pragma GCC ivdep
            #pragma GCC unroll 1
            for (int32_t j = 0; j < length; ++j) {
                $elements_each
            }
        }
#endif
        FOR_RUNS {
            const int32_t length = end - begin;
            INDEX_OF_RUN
            $elements_run
            #pragma GCC ivdep
            for (int32_t j = 0; j < length; ++j) {
                $elements_each
            }
        }
        $elements_chunk_end
    }
}
