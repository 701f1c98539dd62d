// A kernel: a template that `source.py` fills in. What is filled in are statements of single values, marked by a dollar
// sign; here are the loops around them, how threads share a tensor, and a function for Python.
//
// A tensor is a matrix in memory, row by row, and its blocks are tiles of it; those at its right and lower edge may be
// smaller. Without blocks any tensor is one row.

// Several conditions on one value would become branches of their own, and each of these a vector of results.
#pragma GCC optimize("no-thread-jumps")

$values

$definitions

#define SLOT 8        // bytes that a value takes where it is handed on, whatever its type
#define CHUNK 4096    // elements of a row at a time
// Elements of blocks at a time, so that they are in the cache when they are read again. Of blocks that are one column
// wide there are more, so that runs of a row's elements are long.
#define UNIT (COLUMNS ? 32768 : 8192)
#define MOST 65536     // elements of blocks at a time, at most
#define TOGETHER 1024  // blocks at a time, at most
#define STRIDE(count) ((((count) + 7) / 8 | 1) * 8)  // slots for so many: values must not fall into one set of a cache
#define NEIGHBOURS 256 // blocks at a time, at least, that are one column wide: rows are far from each other in memory
#define LARGE 32768   // elements, from which threads pay

typedef struct {
    int64_t rows, columns, block_rows, block_columns;
    int64_t rows_of_example, next_row, next_example;  // how indices grow from row to row, see PLACES
    char* pointers[POINTERS];
} Call;

typedef struct { int64_t top, bottom, left, right; } Part;

static int64_t blocks_across(const Call* call) { return (call->columns + call->block_columns - 1) / call->block_columns; }
static int64_t blocks_down(const Call* call) { return (call->rows + call->block_rows - 1) / call->block_rows; }

// One of several shares of a tensor: of its rows, or if these are few, of its columns.
static Part share(const Call* call, int64_t which, int64_t count) {
    if (call->rows >= count) return (Part){call->rows * which / count, call->rows * (which + 1) / count, 0, call->columns};
    return (Part){0, call->rows, call->columns * which / count, call->columns * (which + 1) / count};
}

// Parts of rows that are handled at a time, and within each the runs of elements that belong to one block. Elements of
// blocks that are one column wide, or of none, are one run; `block` is then the block of its first element.
#define FOR_CHUNKS(part, size) \
    for (int64_t row = part.top; row < part.bottom; ++row) \
        for (int64_t from = part.left, to; from < part.right && (to = MIN(from + (size), part.right), 1); from = to)
// Runs of blocks of a known width become straight code: tests and remainders would take as long as such short loops.
#if BLOCKS && !COLUMNS
#define BLOCK_OF(column) (row / call->block_rows * blocks_across(call) + (column) / call->block_columns - first)
#define FOR_WHOLE_RUNS \
    if (from % WIDTH == 0) \
        for (int64_t begin = from, block = BLOCK_OF(from); \
             rest = begin, to - begin >= WIDTH; begin += WIDTH, ++block)
#define FOR_RUNS \
    for (int64_t begin = rest, end, next = (rest / call->block_columns + 1) * call->block_columns, block = BLOCK_OF(rest); \
         begin < to && (end = MIN(next, to), 1); \
         block += end == next, next += end == next ? call->block_columns : 0, begin = end)
#else
#define FOR_RUNS \
    for (int64_t begin = rest, end = to, block = COLUMNS ? row / call->block_rows * call->columns + from - first : 0; \
         begin < to; begin = to)
#endif

#if TENSOR_MAXIMA || BLOCKS
static void clear(char* maxima, int64_t count) {
    for (int64_t i = 0; i < count; ++i) ((LANE*)maxima)[i] = LEAST;
}

static void merge(char* maxima, const char* others, int64_t count) {
    for (int64_t i = 0; i < count; ++i) ((LANE*)maxima)[i] = MAX(((LANE*)maxima)[i], ((const LANE*)others)[i]);
}
#endif

#if TENSOR_MAXIMA
static void reduce_tensor(const Call* call, char* maxima, Part part) {
    $reduce_tensor_once
    FOR_CHUNKS(part, CHUNK) {
        const int64_t at = row * call->columns + from, begin = from, length = to - from;
        $reduce_tensor_chunk
        $reduce_tensor_run
        for (int64_t j = 0; j < length; ++j) {
            $reduce_tensor_each
        }
        $reduce_tensor_end
    }
}

static void tensor_values(const Call* call, const char* maxima, char* tensor) {
    $tensor_values
}
#endif

#if BLOCKS
static void reduce_blocks(const Call* call, const char* tensor, char* maxima, int64_t stride, int64_t first, Part part) {
    $reduce_blocks_once
    FOR_CHUNKS(part, CHUNK) {
        const int64_t at = row * call->columns + from;
        $reduce_blocks_chunk
        int64_t rest = from;
#if WIDTH
        FOR_WHOLE_RUNS {
            $reduce_blocks_run
            #pragma GCC ivdep
            #pragma GCC unroll 1
            for (int64_t j = 0; j < WIDTH; ++j) {
                $reduce_blocks_each
            }
            $reduce_blocks_end
        }
#endif
        FOR_RUNS {
            const int64_t length = end - begin;
            $reduce_blocks_run
            #pragma GCC ivdep
            for (int64_t j = 0; j < length; ++j) {
                $reduce_blocks_each
            }
            $reduce_blocks_end
        }
    }
}
#endif

#if WORDS && !PLACES  // the indices of a chunk have the same high word
#define SIZE MIN(CHUNK, (1LL << 32) - (uint32_t)(start + row * call->columns + from))
#define INDEX_OF_RUN \
    const uint64_t index = start + at + (begin - from); \
    const uint32_t low = (uint32_t)index; \
    const int32_t high = (int32_t)(index >> 32);
#else
#define SIZE CHUNK
#define INDEX_OF_RUN
#endif

$results

#if BLOCKS
// Returns whether all blocks are usual.
static int find_values(
    const Call* call, const char* tensor, const char* maxima, char* blocks, int64_t stride, int64_t first, int64_t count
) {
#if USUAL
    if (block_values_usual(call, tensor, maxima, blocks, stride, first, count)) return 1;
#endif
    return block_values(call, tensor, maxima, blocks, stride, first, count);
}

static void find_results(
    int usual, const Call* call, const char* tensor, const char* blocks, int64_t stride, int64_t first, Part part
) {
#if USUAL
    if (usual) elements_usual(call, tensor, blocks, stride, first, part); else
#endif
    elements(call, tensor, blocks, stride, first, part);
}

// Blocks too large for a cache, or too few for all threads: they are shared in parts. Returns whether there is memory.
static int run_shared(const Call* call, const char* tensor, int threads) {
    const int64_t count = blocks_across(call) * blocks_down(call), stride = STRIDE(count), room = stride * SLOT;
    char* const maxima = aligned_alloc(64, room * (BLOCK_MAXIMA * threads + BLOCK_HANDED));
    if (!maxima) return 0;
    char* const blocks = maxima + room * BLOCK_MAXIMA * threads;
    clear(maxima, room / (int64_t)sizeof(LANE) * BLOCK_MAXIMA * threads);
    int usual = 0;
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int which = omp_get_thread_num(), all = omp_get_num_threads();
        if (BLOCK_MAXIMA) reduce_blocks(call, tensor, maxima + which * BLOCK_MAXIMA * room, stride, 0, share(call, which, all));
        #pragma omp barrier
        #pragma omp single
        {
            const int64_t each = room / (int64_t)sizeof(LANE) * BLOCK_MAXIMA;
            for (int other = 1; other < all; ++other) merge(maxima, maxima + other * BLOCK_MAXIMA * room, each);
            usual = find_values(call, tensor, maxima, blocks, stride, 0, count);
        }
        find_results(usual, call, tensor, blocks, stride, 0, share(call, which, all));
    }
    free(maxima);
    return 1;
}

static int run_blocks(const Call* call, const char* tensor, int threads) {
    const int64_t across = blocks_across(call), down = blocks_down(call);
    const int64_t fitting = UNIT / (call->block_rows * call->block_columns);
    const int64_t width = MIN(MAX(MIN(fitting, TOGETHER), call->block_columns == 1 ? NEIGHBOURS : 1), across);
    const int64_t height = MAX(MIN(fitting, TOGETHER) / across, 1);  // several rows of blocks only if they are whole
    const int64_t units_across = (across + width - 1) / width, units = units_across * ((down + height - 1) / height);
    if (units < threads || width * call->block_rows * call->block_columns > MOST) {
        return run_shared(call, tensor, threads);
    }
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < units; ++unit) {
        char maxima[(BLOCK_MAXIMA + 1) * STRIDE(TOGETHER) * SLOT] __attribute__((aligned(64)));
        char blocks[(BLOCK_HANDED + 1) * STRIDE(TOGETHER) * SLOT] __attribute__((aligned(64)));
        const int64_t top = unit / units_across * height, bottom = MIN(top + height, down);
        const int64_t left = unit % units_across * width, right = MIN(left + width, across);
        const int64_t first = top * across + left, count = (bottom - top - 1) * across + right - left;
        const Part part = {
            top * call->block_rows, MIN(bottom * call->block_rows, call->rows),
            left * call->block_columns, MIN(right * call->block_columns, call->columns),
        };
        for (int i = 0; i < BLOCK_MAXIMA; ++i) clear(maxima + i * STRIDE(TOGETHER) * SLOT, count);
        if (BLOCK_MAXIMA) reduce_blocks(call, tensor, maxima, STRIDE(TOGETHER), first, part);
        const int usual = find_values(call, tensor, maxima, blocks, STRIDE(TOGETHER), first, count);
        find_results(usual, call, tensor, blocks, STRIDE(TOGETHER), first, part);
    }
    return 1;
}
#endif

static int run(const Call* call, int threads) {
    char tensor[(TENSOR_HANDED + 1) * SLOT];
#if TENSOR_MAXIMA
    char maxima[TENSOR_MAXIMA * SLOT];
    clear(maxima, TENSOR_MAXIMA);
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        char own[TENSOR_MAXIMA * SLOT];
        clear(own, TENSOR_MAXIMA);
        reduce_tensor(call, own, share(call, omp_get_thread_num(), omp_get_num_threads()));
        #pragma omp critical
        merge(maxima, own, TENSOR_MAXIMA);
    }
    tensor_values(call, maxima, tensor);
#endif
#if BLOCKS
    return run_blocks(call, tensor, threads);
#elif ELEMENTS
    #pragma omp parallel num_threads(threads) if (threads > 1)
    elements(call, tensor, 0, 0, 0, share(call, omp_get_thread_num(), omp_get_num_threads()));
#endif
    return 1;
}

// Many tensors at once: their elements are counted through all of them.
static void run_all(const Call* calls, int64_t count, int64_t size, int threads) {
    #pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t which = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t begin = size * which / all, end = size * (which + 1) / all;
        for (int64_t i = 0, before = 0; i < count && before < end; before += calls[i++].columns) {
            const Part part = {0, 1, MAX(begin - before, 0), MIN(end - before, calls[i].columns)};
            if (part.left < part.right) elements(&calls[i], 0, 0, 0, 0, part);
        }
    }
}

// A step of a program, see `steps.c`: the arrays are those of a call but for the second one, constants, whose address comes
// after the sizes.
int step(const int64_t* given, const double* unused, char* const* arrays) {
    int64_t sizes[7] = {1, 1, 1, 1, 1, 0, 0};
    memcpy(SIZES == 1 ? sizes + 1 : sizes, given, sizeof(int64_t) * SIZES);
    Call call = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], {arrays[0], (char*)given[SIZES]}};
    for (int i = 2; i < POINTERS; ++i) call.pointers[i] = arrays[i - 1];
    return run(&call, call.rows * call.columns < LARGE ? 1 : omp_get_max_threads());
}

// Takes the sizes and addresses of a call; of kernels whose elements have nothing in common, of any number of calls one after
// the other.
Object* call_from_python(Object* self, Object* const* given, intptr_t size) {
    enum { EACH = SIZES + POINTERS, MANY = SIZES == 1 && !BLOCKS && !TENSOR_MAXIMA };
    const int64_t count = MANY ? MAX(size / EACH, 1) : 1;
    Call one, *const calls = count > 1 ? malloc(count * sizeof(Call)) : &one;
    if (!calls) return PyErr_NoMemory();
    int64_t elements_of_all = 0;
    int read = is_count(size, count * EACH), done = 1;
    for (int64_t i = 0; i < count && read; ++i, given += EACH) {
        int64_t x[EACH], sizes[7] = {1, 1, 1, 1, 1, 0, 0};
        read = read_integers(given, EACH, EACH, x);
        memcpy(SIZES == 1 ? sizes + 1 : sizes, x, sizeof(int64_t) * SIZES);
        calls[i] = (Call){sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], {0}};
        for (int j = 0; j < POINTERS; ++j) calls[i].pointers[j] = pointer(x[SIZES + j]);
        elements_of_all += calls[i].rows * calls[i].columns;
    }
    if (read && elements_of_all < LARGE) {
        for (int64_t i = 0; i < count; ++i) done = done && run(&calls[i], 1);
    } else if (read) {
        void* const state = PyEval_SaveThread();
        if (count == 1) done = run(calls, omp_get_max_threads());
        else run_all(calls, count, elements_of_all, omp_get_max_threads());
        PyEval_RestoreThread(state);
    }
    if (calls != &one) free(calls);
    if (!read) return NULL;
    return done ? PyLong_FromLong(0) : PyErr_NoMemory();
}
