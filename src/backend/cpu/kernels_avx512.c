/* backend/cpu/kernels_avx512.c - the inner kernels for AVX-512 with VNNI.
 *
 * Many rows go by tiles as in kernels_avx2.c, with 16 weight rows in a vector and the 8-bit products added to 32 bits by one instruction.
 * Few rows go along the weight rows (kernels_x86.h) in vectors of 256 bits, which have one more port.
 */
#include "backend/cpu/kernels_x86.h"

enum {
    TILE = 16,     /* weight rows of a tile */
    ROWS = 64,     /* activation rows that pass over a tile before it is turned again */
    STEP = 8,      /* activation rows in registers */
    TILE_ROWS = 3, /* from this many rows on a tile pays */
};
_Static_assert(TILE == CPU_BLOCK, "families hand out whole tiles");

/* Eight groups of sixteen weight rows. code[g][nibble][j]: bytes 4j..4j+3 of the low or high nibbles of each row. */
struct tile {
    __m512i code[LANES][2][8];
    __m512 scale[LANES], bias[LANES];
};
struct lanes {
    __m512 v[LANES];
};

/* Groups [g0, g0+n) of weight rows o.. of w. */
static void load_tile(struct tile *t, const struct weight_rows *w, int o, int g0, int n) {
    const __m512i mask = _mm512_set1_epi8(15);
    size_t row = (size_t)w->in / 2, groups = (size_t)w->in / GROUP;
    const uint8_t *codes = w->codes + (size_t)o * row + (size_t)g0 * GROUP / 2;
    for (int g = 0; g < n; g++) {
        __m256i in[8], out[2][8];
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 8; i++) in[i] = _mm256_loadu_si256((const __m256i *)(codes + (size_t)(8 * h + i) * row + g * GROUP / 2));
            turn_words(in, out[h]);
        }
        for (int j = 0; j < 8; j++) {
            __m512i c = _mm512_inserti64x4(_mm512_castsi256_si512(out[0][j]), out[1][j], 1);
            t->code[g][0][j] = _mm512_and_si512(c, mask);
            t->code[g][1][j] = _mm512_and_si512(_mm512_srli_epi16(c, 4), mask);
        }
    }
    for (int h = 0; h < 2; h++) {
        size_t first = ((size_t)o + 8 * h) * groups + g0;
        turn_halves(w->scales + first * 2, groups * 2, n, (__m256 *)t->scale + h, 2);
        turn_halves(w->biases + first * 2, groups * 2, n, (__m256 *)t->bias + h, 2);
    }
}

/* One group of the tile times `rows` (a constant, at most STEP) activation rows. */
static inline __attribute__((always_inline)) void tile_group(const struct tile *t, int k, const struct act_row *x, int g, int rows,
                                                             struct lanes *lanes) {
    __m512i dot[STEP];
    UNROLL
    for (int r = 0; r < rows; r++) dot[r] = _mm512_setzero_si512();
    UNROLL
    for (int half = 0; half < 2; half++) {
        UNROLL
        for (int j = 0; j < 8; j++) {
            UNROLL
            for (int r = 0; r < rows; r++) {
                __m512i q = _mm512_set1_epi32((int)num_load32(x[r].q + (size_t)g * GROUP + half * 32 + j * 4));
                dot[r] = _mm512_dpbusd_epi32(dot[r], t->code[k][half][j], q);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        __m512 l = g < LANES ? _mm512_setzero_ps() : lanes[r].v[k];
        l = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), _mm512_mul_ps(t->scale[k], _mm512_set1_ps(x[r].scale[g])), l);
        lanes[r].v[k] = _mm512_fmadd_ps(t->bias[k], _mm512_set1_ps(x[r].sum[g]), l);
    }
}

#define STEP_ROWS(rows)                                                                                                                    \
    for (int k = 0; k < n; k++) {                                                                                                          \
        ask(ahead);                                                                                                                        \
        tile_group(t, k, x + r, g0 + k, rows, lanes + r);                                                                                  \
    }
/* All n groups of the tile times `rows` activation rows: eight, then four, two, one at a time. */
static void tile_rows(const struct tile *t, const struct act_row *x, int rows, int g0, int n, struct lanes *lanes, struct ahead *ahead) {
    int r = 0;
    for (; r + STEP <= rows; r += STEP) STEP_ROWS(STEP)
    if (rows - r >= 4) {
        STEP_ROWS(4)
        r += 4;
    }
    if (rows - r >= 2) {
        STEP_ROWS(2)
        r += 2;
    }
    if (r < rows) STEP_ROWS(1)
}

static void mul_tile(const struct weight_rows *w, int o, const struct act_row *x, int rows, float *y, size_t ld) {
    struct tile t;
    struct lanes lanes[ROWS];
    int groups = w->in / GROUP, steps = rows / STEP + rows % STEP / 4 + rows % 4 / 2 + rows % 2;
    struct ahead ahead = ahead_of(w, 4, o + TILE, TILE, steps * groups);
    if (groups < LANES) memset(lanes, 0, (size_t)rows * sizeof *lanes); /* else each lane's first group sets it */
    for (int g0 = 0; g0 < groups; g0 += LANES) {
        int n = min_int(LANES, groups - g0);
        load_tile(&t, w, o, g0, n);
        tile_rows(&t, x, rows, g0, n, lanes, &ahead);
    }
    for (int r = 0; r < rows; r++) {
        const __m512 *v = lanes[r].v;
        __m512 even = _mm512_add_ps(_mm512_add_ps(v[0], v[4]), _mm512_add_ps(v[2], v[6]));
        __m512 odd = _mm512_add_ps(_mm512_add_ps(v[1], v[5]), _mm512_add_ps(v[3], v[7]));
        _mm512_storeu_ps(y + (size_t)r * ld + o, _mm512_add_ps(even, odd));
    }
}

static void mul4_q8(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    int tiled = rows >= TILE_ROWS ? outs / TILE * TILE : 0;
    for (int r = 0; r < rows; r += ROWS)
        for (int o = 0; o < tiled; o += TILE) mul_tile(w, o, x + r, min_int(ROWS, rows - r), y + (size_t)r * ld, ld);
    for (int r = 0; r < rows; r++) along_rows(w, tiled, outs, x + r, y + (size_t)r * ld);
}

const struct cpu_kernels *cpu_kernels_avx512(void) {
    static const struct cpu_kernels table = {
        .name = "avx512",
        .mul4_q8 = mul4_q8,
        .mul4_f32 = mul4_f32,
        .mul8_f32 = mul8_f32,
        .unpack4 = unpack4,
        .quantise = quantise,
        .dot = dot,
    };
    return &table;
}
