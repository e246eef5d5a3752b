/* backend/cpu/kernels_neon.c - the inner kernels for 64-bit ARM with the dot product instructions; with int8 matrix products where
 * kernels_i8mm.c compiles it.
 *
 * Codes are at most 15, so they may be multiplied as signed bytes. Two routes as in kernels_avx2.c: along the weight rows, eight groups at
 * a time, and by tiles of 16 weight rows whose vectors hold four codes of each of four rows, or, for matrix products, eight codes of each
 * of two.
 */
#include "backend/cpu/cpu.h"
#include <arm_neon.h>
#include <math.h>

enum {
    GROUP = 64,
    LANES = 8,    /* groups taken together; the float lanes of cpu.h's order */
    ABREAST = 2,  /* weight rows taken together along their length */
    AHEAD = 1024, /* bytes of codes that are fetched early */
    TILE = 16,    /* weight rows of a tile */
    QUADS = TILE / 4,
    ROWS = 64,       /* activation rows that pass over a tile before it is turned again */
    STEP = 4,        /* activation rows in registers */
    TILE_ROWS = 3,   /* from this many rows on a tile pays */
    FLOAT_ROWS = 16, /* activation rows that share float weights made once */
};
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16") /* small arrays of vectors become registers */
#endif
_Static_assert(TILE == CPU_BLOCK, "families hand out whole tiles");

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline float32x4_t bf16_floats(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
static inline float bf16_at(const uint8_t *p, int i) { return num_from_bf16(num_load16(p + 2 * (size_t)i)); }

/* ((l0+l4) + (l2+l6)) + ((l1+l5) + (l3+l7)) of lanes a: 0..3, b: 4..7 */
static inline float add_lanes(float32x4_t a, float32x4_t b) {
    float32x4_t s = vaddq_f32(a, b);
    float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

/* n (at most 8) bf16 numbers, zeros behind them; nothing past them is read. */
static inline uint16x8_t bf16_load(const uint8_t *p, int n) {
    if (n >= LANES) return vreinterpretq_u16_u8(vld1q_u8(p));
    uint16_t v[LANES] = {0};
    memcpy(v, p, 2 * (size_t)n);
    return vld1q_u16(v);
}

/* ---- 4-bit codes, int8 rows: along a row ---- */

static inline int32x4_t group_products(const uint8_t *codes, const int8_t *q) {
    const uint8x16_t mask = vdupq_n_u8(15);
    uint8x16_t a = vld1q_u8(codes), b = vld1q_u8(codes + 16);
    int32x4_t s = vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(vandq_u8(a, mask)), vld1q_s8(q));
    int32x4_t t = vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(vandq_u8(b, mask)), vld1q_s8(q + 16));
    s = vdotq_s32(s, vreinterpretq_s8_u8(vshrq_n_u8(a, 4)), vld1q_s8(q + 32));
    t = vdotq_s32(t, vreinterpretq_s8_u8(vshrq_n_u8(b, 4)), vld1q_s8(q + 48));
    return vaddq_s32(s, t);
}

/* The dot products of up to four groups, one in each lane. */
static inline float32x4_t four_dots(const uint8_t *codes, const int8_t *q, int n) {
    int32x4_t p[4];
    UNROLL
    for (int g = 0; g < 4; g++) p[g] = g < n ? group_products(codes + g * GROUP / 2, q + g * GROUP) : vdupq_n_s32(0);
    return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3])));
}

static inline __attribute__((always_inline)) void mul_rows(const struct weight_rows *w, int o, int count, const struct act_row *x,
                                                           float *y) {
    int groups = w->in / GROUP;
    size_t row = (size_t)w->in / 2, small = (size_t)groups * 2;
    const uint8_t *codes = w->codes + (size_t)o * row, *scales = w->scales + (size_t)o * small, *biases = w->biases + (size_t)o * small;
    float32x4_t lane[ABREAST][2];
    for (int i = 0; i < count; i++) lane[i][0] = lane[i][1] = vdupq_n_f32(0);
    for (int g = 0; g < groups; g += LANES) {
        int n = groups - g;
        float pad[2][LANES] = {{0}};
        const float *scale = x->scale + g, *sum = x->sum + g;
        if (n < LANES) {
            scale = memcpy(pad[0], scale, sizeof *scale * (size_t)n);
            sum = memcpy(pad[1], sum, sizeof *sum * (size_t)n);
        }
        UNROLL
        for (int i = 0; i < count; i++) {
            const uint8_t *c = codes + i * row + (size_t)g * GROUP / 2;
            const int8_t *q = x->q + (size_t)g * GROUP;
            for (int k = 0; k < LANES * GROUP / 2; k += 64) __builtin_prefetch(c + k + AHEAD);
            float32x4_t low = four_dots(c, q, n), high = four_dots(c + 2 * GROUP, q + 4 * GROUP, n - 4);
            uint16x8_t s = bf16_load(scales + i * small + 2 * (size_t)g, n), b = bf16_load(biases + i * small + 2 * (size_t)g, n);
            lane[i][0] = vfmaq_f32(lane[i][0], low, vmulq_f32(bf16_floats(vget_low_u16(s)), vld1q_f32(scale)));
            lane[i][1] = vfmaq_f32(lane[i][1], high, vmulq_f32(bf16_floats(vget_high_u16(s)), vld1q_f32(scale + 4)));
            lane[i][0] = vfmaq_f32(lane[i][0], bf16_floats(vget_low_u16(b)), vld1q_f32(sum));
            lane[i][1] = vfmaq_f32(lane[i][1], bf16_floats(vget_high_u16(b)), vld1q_f32(sum + 4));
        }
    }
    for (int i = 0; i < count; i++) y[o + i] = add_lanes(lane[i][0], lane[i][1]);
}

static void along_rows(const struct weight_rows *w, int o, int outs, const struct act_row *x, float *y) {
    for (; o + ABREAST <= outs; o += ABREAST) mul_rows(w, o, ABREAST, x, y);
    for (; o < outs; o++) mul_rows(w, o, 1, x, y);
}

/* ---- by tiles ---- */

#ifdef __ARM_FEATURE_MATMUL_INT8
enum { WORDS = 4, SETS = TILE / 2 }; /* of 8 bytes, of two rows */
#else
enum { WORDS = 8, SETS = QUADS }; /* of 4 bytes, of four rows */
#endif

/* Eight groups of sixteen weight rows. code[g][nibble][j][h]: word j of the low or high nibbles of the rows of set h. */
struct tile {
    int8x16_t code[LANES][2][WORDS][SETS];
    float32x4_t scale[LANES][QUADS], bias[LANES][QUADS];
};
struct lanes {
    float32x4_t v[LANES][QUADS];
};

/* Turn four rows of four 32-bit words. */
static inline void turn_words(const uint32x4_t in[4], uint32x4_t out[4]) {
    uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(in[0], in[1])), b = vreinterpretq_u64_u32(vtrn2q_u32(in[0], in[1]));
    uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(in[2], in[3])), d = vreinterpretq_u64_u32(vtrn2q_u32(in[2], in[3]));
    out[0] = vreinterpretq_u32_u64(vtrn1q_u64(a, c));
    out[1] = vreinterpretq_u32_u64(vtrn1q_u64(b, d));
    out[2] = vreinterpretq_u32_u64(vtrn2q_u64(a, c));
    out[3] = vreinterpretq_u32_u64(vtrn2q_u64(b, d));
}

/* n bf16 numbers of four rows, turned into floats: out[g][..]. */
static inline void turn_floats(const uint8_t *p, size_t stride, int n, float32x4_t out[LANES][QUADS], int h) {
    uint32x4_t in[2][4], turned[4];
    for (int i = 0; i < 4; i++) {
        uint16x8_t v = bf16_load(p + i * stride, n);
        in[0][i] = vshll_n_u16(vget_low_u16(v), 16);
        in[1][i] = vshll_n_u16(vget_high_u16(v), 16);
    }
    for (int part = 0; part < 2; part++) {
        turn_words(in[part], turned);
        for (int g = 0; g < 4; g++) out[4 * part + g][h] = vreinterpretq_f32_u32(turned[g]);
    }
}

/* Codes of word j of set h of group g. */
static inline void put_codes(struct tile *t, int g, int j, int h, uint8x16_t c) {
    t->code[g][0][j][h] = vreinterpretq_s8_u8(vandq_u8(c, vdupq_n_u8(15)));
    t->code[g][1][j][h] = vreinterpretq_s8_u8(vshrq_n_u8(c, 4));
}

/* One group of four weight rows, `row` bytes apart: quad h. */
static inline void load_codes(struct tile *t, int g, int h, const uint8_t *codes, size_t row) {
    for (int part = 0; part < 2; part++) {
        uint32x4_t in[4], out[4];
        for (int i = 0; i < 4; i++) in[i] = vreinterpretq_u32_u8(vld1q_u8(codes + i * row + part * 16));
#ifdef __ARM_FEATURE_MATMUL_INT8
        for (int i = 0; i < 2; i++) {
            uint64x2_t a = vreinterpretq_u64_u32(in[2 * i]), b = vreinterpretq_u64_u32(in[2 * i + 1]);
            out[i] = vreinterpretq_u32_u64(vtrn1q_u64(a, b));
            out[2 + i] = vreinterpretq_u32_u64(vtrn2q_u64(a, b));
        }
        for (int j = 0; j < 4; j++) put_codes(t, g, 2 * part + j / 2, 2 * h + j % 2, vreinterpretq_u8_u32(out[j]));
#else
        turn_words(in, out);
        for (int j = 0; j < 4; j++) put_codes(t, g, 4 * part + j, h, vreinterpretq_u8_u32(out[j]));
#endif
    }
}

/* Groups [g0, g0+n) of weight rows o.. of w. */
static void load_tile(struct tile *t, const struct weight_rows *w, int o, int g0, int n) {
    size_t row = (size_t)w->in / 2, groups = (size_t)w->in / GROUP;
    for (int h = 0; h < QUADS; h++) {
        size_t first = (size_t)o + 4 * h;
        const uint8_t *codes = w->codes + first * row + (size_t)g0 * GROUP / 2;
        for (int g = 0; g < n; g++) load_codes(t, g, h, codes + g * GROUP / 2, row);
        turn_floats(w->scales + (first * groups + g0) * 2, groups * 2, n, t->scale, h);
        turn_floats(w->biases + (first * groups + g0) * 2, groups * 2, n, t->bias, h);
    }
}

#ifdef __ARM_FEATURE_MATMUL_INT8
/* The integer products of one group of the tile with `rows` (a constant, at most STEP) activation rows, two by two; the last of an odd
 * number meets itself. */
static inline __attribute__((always_inline)) void tile_dots(const struct tile *t, int k, const struct act_row *x, int g, int rows,
                                                            int32x4_t dot[STEP][QUADS]) {
    int32x4_t sum[STEP / 2][SETS];
    UNROLL
    for (int p = 0; p < (rows + 1) / 2; p++)
        for (int h = 0; h < SETS; h++) sum[p][h] = vdupq_n_s32(0);
    UNROLL
    for (int part = 0; part < 4; part++) { /* 16 activation bytes at a time: the even ones, then the odd ones */
        const int8x16_t(*code)[SETS] = &t->code[k][part / 2][part % 2 * 2];
        UNROLL
        for (int p = 0; p < (rows + 1) / 2; p++) {
            const int8_t *a = x[2 * p].q, *b = x[2 * p + (2 * p + 1 < rows)].q;
            size_t at = (size_t)g * GROUP + part * 16;
            int64x2_t first = vreinterpretq_s64_s8(vld1q_s8(a + at)), second = vreinterpretq_s64_s8(vld1q_s8(b + at));
            int8x16_t q[2] = {vreinterpretq_s8_s64(vtrn1q_s64(first, second)), vreinterpretq_s8_s64(vtrn2q_s64(first, second))};
            UNROLL
            for (int h = 0; h < SETS; h++) {
                sum[p][h] = vmmlaq_s32(sum[p][h], code[0][h], q[0]);
                sum[p][h] = vmmlaq_s32(sum[p][h], code[1][h], q[1]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) { /* a sum is {weight row 0 by a, by b, weight row 1 by a, by b} */
        UNROLL
        for (int h = 0; h < QUADS; h++) {
            const int32x4_t *s = &sum[r / 2][2 * h];
            dot[r][h] = r % 2 ? vuzp2q_s32(s[0], s[1]) : vuzp1q_s32(s[0], s[1]);
        }
    }
}
#else
/* The integer products of one group of the tile with `rows` (a constant, at most STEP) activation rows. */
static inline __attribute__((always_inline)) void tile_dots(const struct tile *t, int k, const struct act_row *x, int g, int rows,
                                                            int32x4_t dot[STEP][QUADS]) {
    UNROLL
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < QUADS; h++) dot[r][h] = vdupq_n_s32(0);
    UNROLL
    for (int part = 0; part < 4; part++) { /* 16 activation bytes at a time: the even ones, then the odd ones */
        const int8x16_t(*code)[SETS] = &t->code[k][part / 2][part % 2 * 4];
        int8x16_t q[STEP];
        UNROLL
        for (int r = 0; r < rows; r++) q[r] = vld1q_s8(x[r].q + (size_t)g * GROUP + part * 16);
        UNROLL
        for (int h = 0; h < QUADS; h++) {
            UNROLL
            for (int r = 0; r < rows; r++) {
                dot[r][h] = vdotq_laneq_s32(dot[r][h], code[0][h], q[r], 0);
                dot[r][h] = vdotq_laneq_s32(dot[r][h], code[1][h], q[r], 1);
                dot[r][h] = vdotq_laneq_s32(dot[r][h], code[2][h], q[r], 2);
                dot[r][h] = vdotq_laneq_s32(dot[r][h], code[3][h], q[r], 3);
            }
        }
    }
}
#endif

/* One group of the tile times `rows` (a constant, at most STEP) activation rows. */
static inline __attribute__((always_inline)) void tile_group(const struct tile *t, int k, const struct act_row *x, int g, int rows,
                                                             struct lanes *lanes) {
    int32x4_t dot[STEP][QUADS];
    tile_dots(t, k, x, g, rows, dot);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int h = 0; h < QUADS; h++) {
            float32x4_t l = g < LANES ? vdupq_n_f32(0) : lanes[r].v[k][h];
            l = vfmaq_f32(l, vcvtq_f32_s32(dot[r][h]), vmulq_n_f32(t->scale[k][h], x[r].scale[g]));
            lanes[r].v[k][h] = vfmaq_n_f32(l, t->bias[k][h], x[r].sum[g]);
        }
    }
}

static void tile_rows(const struct tile *t, const struct act_row *x, int rows, int g0, int n, struct lanes *lanes) {
    int r = 0;
    for (; r + STEP <= rows; r += STEP)
        for (int k = 0; k < n; k++) tile_group(t, k, x + r, g0 + k, STEP, lanes + r);
    if (rows - r >= 2) {
        for (int k = 0; k < n; k++) tile_group(t, k, x + r, g0 + k, 2, lanes + r);
        r += 2;
    }
    if (r < rows)
        for (int k = 0; k < n; k++) tile_group(t, k, x + r, g0 + k, 1, lanes + r);
}

static void mul_tile(const struct weight_rows *w, int o, const struct act_row *x, int rows, float *y, size_t ld) {
    struct tile t;
    struct lanes lanes[ROWS];
    int groups = w->in / GROUP;
    if (groups < LANES) memset(lanes, 0, (size_t)rows * sizeof *lanes); /* else each lane's first group sets it */
    for (int g0 = 0; g0 < groups; g0 += LANES) {
        int n = min_int(LANES, groups - g0);
        load_tile(&t, w, o, g0, n);
        tile_rows(&t, x, rows, g0, n, lanes);
    }
    for (int r = 0; r < rows; r++) {
        for (int h = 0; h < QUADS; h++) {
            const struct lanes *l = &lanes[r];
            float32x4_t even = vaddq_f32(vaddq_f32(l->v[0][h], l->v[4][h]), vaddq_f32(l->v[2][h], l->v[6][h]));
            float32x4_t odd = vaddq_f32(vaddq_f32(l->v[1][h], l->v[5][h]), vaddq_f32(l->v[3][h], l->v[7][h]));
            vst1q_f32(y + (size_t)r * ld + o + 4 * h, vaddq_f32(even, odd));
        }
    }
}

static void mul4_q8(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    int tiled = rows >= TILE_ROWS ? outs / TILE * TILE : 0;
    for (int r = 0; r < rows; r += ROWS)
        for (int o = 0; o < tiled; o += TILE) mul_tile(w, o, x + r, min_int(ROWS, rows - r), y + (size_t)r * ld, ld);
    for (int r = 0; r < rows; r++) along_rows(w, tiled, outs, x + r, y + (size_t)r * ld);
}

/* ---- float32 rows: a group's weights are made float once for all rows; element i adds to accumulator i / 4 % 4, lane i % 4 ---- */

/* Sixteen codes in order. */
static inline void sixteen(uint8x16_t c, float32x4_t scale, float32x4_t bias, float *out) {
    uint16x8_t part[2] = {vmovl_u8(vget_low_u8(c)), vmovl_high_u8(c)};
    for (int i = 0; i < 2; i++) {
        vst1q_f32(out + 8 * i, vfmaq_f32(bias, vcvtq_f32_u32(vmovl_u16(vget_low_u16(part[i]))), scale));
        vst1q_f32(out + 8 * i + 4, vfmaq_f32(bias, vcvtq_f32_u32(vmovl_high_u16(part[i])), scale));
    }
}

static inline void unpack(const uint8_t *codes, int bits, float scale, float bias, float *out) {
    float32x4_t s = vdupq_n_f32(scale), b = vdupq_n_f32(bias);
    for (int i = 0; i < GROUP * bits / 8; i += 16) {
        uint8x16_t c = vld1q_u8(codes + i);
        if (bits == 8) {
            sixteen(c, s, b, out + i);
        } else {
            uint8x16_t low = vandq_u8(c, vdupq_n_u8(15)), high = vshrq_n_u8(c, 4);
            sixteen(vzip1q_u8(low, high), s, b, out + 2 * i);
            sixteen(vzip2q_u8(low, high), s, b, out + 2 * i + 16);
        }
    }
}

static inline __attribute__((always_inline)) void mul_f32(const struct weight_rows *w, int bits, int outs, const struct act_row *x,
                                                          int rows, float *y, size_t ld) {
    int groups = w->in / GROUP;
    size_t group_bytes = (size_t)GROUP * bits / 8;
    for (int o = 0; o < outs; o++) {
        const uint8_t *codes = w->codes + (size_t)o * groups * group_bytes;
        const uint8_t *scales = w->scales + (size_t)o * groups * 2, *biases = w->biases + (size_t)o * groups * 2;
        for (int r0 = 0; r0 < rows; r0 += FLOAT_ROWS) {
            int n = min_int(FLOAT_ROWS, rows - r0);
            float32x4_t sum[FLOAT_ROWS][4];
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int g = 0; g < groups; g++) {
                float v[GROUP];
                unpack(codes + g * group_bytes, bits, bf16_at(scales, g), bf16_at(biases, g), v);
                for (int r = 0; r < n; r++) {
                    const float *p = x[r0 + r].x + (size_t)g * GROUP;
                    for (int i = 0; i < GROUP; i += 4) sum[r][i / 4 % 4] = vfmaq_f32(sum[r][i / 4 % 4], vld1q_f32(v + i), vld1q_f32(p + i));
                }
            }
            for (int r = 0; r < n; r++)
                y[(size_t)(r0 + r) * ld + o] = add_lanes(vaddq_f32(sum[r][0], sum[r][2]), vaddq_f32(sum[r][1], sum[r][3]));
        }
    }
}

static void unpack4(const struct weight_rows *w, float *out) {
    for (int g = 0; g < w->in / GROUP; g++)
        unpack(w->codes + (size_t)g * GROUP / 2, 4, bf16_at(w->scales, g), bf16_at(w->biases, g), out + (size_t)g * GROUP);
}

static void mul4_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 4, outs, x, rows, y, ld);
}

static void mul8_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 8, outs, x, rows, y, ld);
}

/* ---- quantisation ---- */

static void quantise(const float *x, int in, struct act_row *out) {
    for (int g = 0; g < in / GROUP; g++) {
        const float *v = x + (size_t)g * GROUP;
        int8_t *q = out->q + (size_t)g * GROUP;
        float32x4_t most = vdupq_n_f32(0), damage = vdupq_n_f32(0);
        for (int i = 0; i < GROUP; i += 4) {
            float32x4_t a = vld1q_f32(v + i);
            most = vmaxnmq_f32(most, vabsq_f32(a));
            damage = vfmaq_n_f32(damage, a, 0);
        }
        float largest = vmaxnmvq_f32(most);
        bool tiny = !(largest > 1e-30f), damaged = isnan(vaddvq_f32(damage)) != 0;
        float inverse = damaged || tiny ? 0 : 127 / largest, scale = damaged ? NAN : tiny ? 0 : largest / 127;
        int32_t sum = 0;
        for (int i = 0; i < GROUP; i += 32) {
            int8x8_t b[4];
            for (int k = 0; k < 4; k++) {
                int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(v + i + 8 * k), inverse));
                int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(v + i + 8 * k + 4), inverse));
                b[k] = vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high)));
                sum += vaddlv_s8(b[k]);
            }
            int8x16_t first = vcombine_s8(b[0], b[1]), second = vcombine_s8(b[2], b[3]);
            if (damaged) first = second = vdupq_n_s8(0);
            vst1q_s8(q + i / 2, vuzp1q_s8(first, second));
            vst1q_s8(q + 32 + i / 2, vuzp2q_s8(first, second));
        }
        out->scale[g] = scale;
        out->sum[g] = scale * (float)sum;
    }
}

/* ---- float32 vectors ---- */

static float dot(const float *a, const float *b, int n) {
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 4; k++) s[k] = vfmaq_f32(s[k], vld1q_f32(a + i + 4 * k), vld1q_f32(b + i + 4 * k));
    for (; i + 4 <= n; i += 4) s[0] = vfmaq_f32(s[0], vld1q_f32(a + i), vld1q_f32(b + i));
    float sum = add_lanes(vaddq_f32(s[0], s[2]), vaddq_f32(s[1], s[3]));
    for (; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

#ifndef CPU_TABLE
#define CPU_TABLE cpu_kernels_neon
#define CPU_NAME  "neon"
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
