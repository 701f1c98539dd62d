// The two loops over a block: a part of `blocks.c`. Where fewer operations do for usual blocks, these come first, and
// nothing is written if the block is not usual.
if (!done) {
            $rooms
            $before
            #pragma GCC ivdep
            for (int32_t j = 0; j < length; ++j) {
            $each
            }
            $maxima
            done = $condition;
            if (done) {
            $of_block
            #pragma GCC ivdep
            for (int32_t j = 0; j < length; ++j) {
            $rest
            }
            $end
            }
        }
