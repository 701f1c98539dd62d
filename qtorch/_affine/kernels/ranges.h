// Floats to integers without a sign, by the range of all of them, a part of kernels of layers in floats.

// Writes the integers, their scale and their zero point. Floats are compared as integers in the same order, in which NaN
// are beyond the infinities on either side.
static void quantize(const float* from, int64_t size, uint8_t* to, float* scale, int32_t* zero_point, int threads) {
    int32_t least = INT32_MAX, most = INT32_MIN;
    #pragma omp parallel for reduction(min : least) reduction(max : most) num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < size; ++j) {
        const int32_t bits = bits32(from[j]), rank = bits ^ ((bits >> 31) & 0x7fffffff);
        least = MIN(least, rank);
        most = MAX(most, rank);
    }
    $range
    *scale = $scale;
    *zero_point = $zero_point;
    #pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t j = 0; j < size; ++j) {
        $quantized
        to[j] = (uint8_t)$integer;
    }
}
