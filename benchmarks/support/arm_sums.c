// Sums by Arm's BFDOT and BFMMLA, which qemu can compute. The argument names one; each 36 bytes on standard input are two
// rows of four bfloat16 numbers of a, two columns of b, one behind the other, and a float32 c of each first row and column.
// Standard output gets 4 bytes each.
//
//     aarch64-linux-gnu-gcc -O1 -static -march=armv8.6-a+bf16 arm_sums.c -o arm_sums && qemu-aarch64 -cpu max ./arm_sums bfdot

#include <arm_neon.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct { uint16_t a[8], b[8]; float c; } Given;

int main(int count, char** arguments) {
    if (count != 2 || (strcmp(arguments[1], "bfdot") && strcmp(arguments[1], "bfmmla"))) {
        fprintf(stderr, "allowed are bfdot and bfmmla\n");
        return 2;
    }
    const int matrix = !strcmp(arguments[1], "bfmmla");
    Given given;
    while (fread(&given, sizeof(given), 1, stdin) == 1) {
        bfloat16x8_t a, b;
        memcpy(&a, given.a, sizeof(a));
        memcpy(&b, given.b, sizeof(b));
        const float32x4_t c = vdupq_n_f32(given.c);
        // BFMMLA adds the four products of a row and a column; a BFDOT two, the numbers of the first 32-bit lane.
        const float32x4_t found = matrix ? vbfmmlaq_f32(c, a, b) : vbfdotq_f32(c, a, b);
        const float first = vgetq_lane_f32(found, 0);
        if (fwrite(&first, sizeof(first), 1, stdout) != 1) return 1;
    }
    return 0;
}
