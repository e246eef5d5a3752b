/* backend/cpu/kernels_avx2.c - the inner kernels for AVX2 and FMA; with VNNI where kernels_avxvnni.c compiles it.
 *
 * Many rows go by tiles: 16 weight rows are turned once into vectors that hold four codes of each of eight rows, and meet four activation
 * bytes broadcast. The eight float lanes of a product (cpu.h) then live in memory, because the elements of a vector are weight rows. A tile
 * costs about as much to turn as two activation rows cost to multiply. Few rows, and outputs that fill no tile, go along the weight rows
 * (kernels_x86.h).
 */
#include "backend/cpu/kernels_x86.h"

enum {
    TILE = 16, /* weight rows of a tile */
    HALVES = TILE / 8,
    ROWS = 64,     /* activation rows that pass over a tile before it is turned again */
    STEP = 4,      /* activation rows in registers */
    TILE_ROWS = 2, /* from this many rows on a tile pays */
};
_Static_assert(TILE == CPU_BLOCK, "families hand out whole tiles");

/* Eight groups of sixteen weight rows. code[g][nibble][j][h]: bytes 4j..4j+3 of the low or high nibbles of rows 8h..8h+7. */
struct tile {
    __m256i code[LANES][2][8][HALVES];
    __m256 scale[LANES][HALVES], bias[LANES][HALVES];
};
struct lanes {
    __m256 v[LANES][HALVES];
};

/* Groups [g0, g0+n) of weight rows o.. of w. */
static void load_tile(struct tile *t, const struct weight_rows *w, int o, int g0, int n) {
    const __m256i mask = _mm256_set1_epi8(15);
    size_t row = (size_t)w->in / 2, groups = (size_t)w->in / GROUP;
    for (int h = 0; h < HALVES; h++) {
        size_t first = (size_t)o + 8 * h;
        const uint8_t *codes = w->codes + first * row + (size_t)g0 * GROUP / 2;
        for (int g = 0; g < n; g++) {
            __m256i in[8], out[8];
            for (int i = 0; i < 8; i++) in[i] = _mm256_loadu_si256((const __m256i *)(codes + i * row + g * GROUP / 2));
            turn_words(in, out);
            for (int j = 0; j < 8; j++) {
                t->code[g][0][j][h] = _mm256_and_si256(out[j], mask);
                t->code[g][1][j][h] = _mm256_and_si256(_mm256_srli_epi16(out[j], 4), mask);
            }
        }
        turn_halves(w->scales + (first * groups + g0) * 2, groups * 2, n, &t->scale[0][h], HALVES);
        turn_halves(w->biases + (first * groups + g0) * 2, groups * 2, n, &t->bias[0][h], HALVES);
    }
}

#ifdef DPBUSD /* 32-bit sums of a whole group */
enum { PARTS = 1 };
#define ADD_PRODUCTS(sum, u, s) DPBUSD(sum, u, s)
#else /* 16-bit sums, which hold half a group: at most 8*2*15*127 */
enum { PARTS = 2 };
#define ADD_PRODUCTS(sum, u, s) _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, s))
#endif

/* One group of the tile times `rows` (a constant, at most STEP) activation rows. */
static inline __attribute__((always_inline)) void tile_group(const struct tile *t, int k, const struct act_row *x, int g, int rows,
                                                             struct lanes *lanes) {
    __m256i dot[STEP][HALVES];
    UNROLL
    for (int part = 0; part < PARTS; part++) {
        __m256i sum[STEP][HALVES];
        UNROLL
        for (int i = 0; i < 16 / PARTS; i++) {
            int at = part * 16 / PARTS + i;
            UNROLL
            for (int r = 0; r < rows; r++) {
                __m256i q = _mm256_set1_epi32((int)num_load32(x[r].q + (size_t)g * GROUP + at * 4));
                UNROLL
                for (int h = 0; h < HALVES; h++) {
                    sum[r][h] = ADD_PRODUCTS(i ? sum[r][h] : _mm256_setzero_si256(), t->code[k][at / 8][at % 8][h], q);
                    IN_ORDER(sum[r][h]);
                }
            }
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int h = 0; h < HALVES; h++) dot[r][h] = part ? _mm256_add_epi32(dot[r][h], WIDEN(sum[r][h])) : WIDEN(sum[r][h]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        __m256 scale = _mm256_set1_ps(x[r].scale[g]), sum = _mm256_set1_ps(x[r].sum[g]);
        UNROLL
        for (int h = 0; h < HALVES; h++) {
            __m256 l = g < LANES ? _mm256_setzero_ps() : lanes[r].v[k][h];
            l = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][h]), _mm256_mul_ps(t->scale[k][h], scale), l);
            lanes[r].v[k][h] = _mm256_fmadd_ps(t->bias[k][h], sum, l);
        }
    }
}

#define STEP_ROWS(rows)                                                                                                                    \
    for (int k = 0; k < n; k++) {                                                                                                          \
        ask(ahead);                                                                                                                        \
        tile_group(t, k, x, g0 + k, rows, lanes);                                                                                          \
    }
/* All n groups of the tile times at most STEP activation rows. */
static void tile_step(const struct tile *t, const struct act_row *x, int rows, int g0, int n, struct lanes *lanes, struct ahead *ahead) {
    switch (rows) {
    case 1: STEP_ROWS(1) break;
    case 2: STEP_ROWS(2) break;
    case 3: STEP_ROWS(3) break;
    default: STEP_ROWS(STEP)
    }
}

static void mul_tile(const struct weight_rows *w, int o, const struct act_row *x, int rows, float *y, size_t ld) {
    struct tile t;
    struct lanes lanes[ROWS];
    int groups = w->in / GROUP, steps = (rows + STEP - 1) / STEP;
    struct ahead ahead = ahead_of(w, 4, o + TILE, TILE, steps * groups);
    if (groups < LANES) memset(lanes, 0, (size_t)rows * sizeof *lanes); /* else each lane's first group sets it */
    for (int g0 = 0; g0 < groups; g0 += LANES) {
        int n = min_int(LANES, groups - g0);
        load_tile(&t, w, o, g0, n);
        for (int s = 0; s < steps; s++) { /* steps of equal size: one row alone would cost almost as much as four */
            int r = s * rows / steps;
            tile_step(&t, x + r, (s + 1) * rows / steps - r, g0, n, lanes + r, &ahead);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int h = 0; h < HALVES; h++) {
            const struct lanes *l = &lanes[r];
#define PAIR(a, b) _mm256_add_ps(l->v[a][h], l->v[b][h])
            __m256 even = _mm256_add_ps(PAIR(0, 4), PAIR(2, 6)), odd = _mm256_add_ps(PAIR(1, 5), PAIR(3, 7));
#undef PAIR
            _mm256_storeu_ps(y + (size_t)r * ld + o + 8 * h, _mm256_add_ps(even, odd));
        }
    }
}

static void mul4_q8(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    int tiled = rows >= TILE_ROWS ? outs / TILE * TILE : 0;
    for (int r = 0; r < rows; r += ROWS)
        for (int o = 0; o < tiled; o += TILE) mul_tile(w, o, x + r, min_int(ROWS, rows - r), y + (size_t)r * ld, ld);
    for (int r = 0; r < rows; r++) along_rows(w, tiled, outs, x + r, y + (size_t)r * ld);
}

#ifndef CPU_TABLE
#define CPU_TABLE cpu_kernels_avx2
#define CPU_NAME  "avx2"
#endif
const struct cpu_kernels *CPU_TABLE(void) {
    static const struct cpu_kernels table = {
        .name = CPU_NAME,
        .mul4_q8 = mul4_q8,
        .mul4_f32 = mul4_f32,
        .mul8_f32 = mul8_f32,
        .unpack4 = unpack4,
        .quantise = quantise,
        .dot = dot,
    };
    return &table;
}
