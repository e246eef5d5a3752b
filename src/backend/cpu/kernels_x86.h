/* backend/cpu/kernels_x86.h - what the AVX2 (with and without VNNI) and the AVX-512 kernels share, compiled once for each: products along a
 * weight row, float32 products, quantisation, float vectors, and the turning of small blocks for the tiles.
 *
 * Along a row: eight groups at a time, each reduced to one integer, the eight integers being the eight float lanes of cpu.h's order.
 */
#ifndef BACKEND_CPU_KERNELS_X86_H
#define BACKEND_CPU_KERNELS_X86_H
#include "backend/cpu/cpu.h"
#include <immintrin.h>
#include <math.h>

enum {
    GROUP = 64,
    LANES = 8,        /* groups taken together */
    AHEAD = 2048,     /* bytes of codes that are fetched early */
    FLOAT_OUTS = 4,   /* weight rows made float together */
    FLOAT_GROUPS = 8, /* so many groups of each at a time: a part of the first cache */
    FLOAT_ROWS = 32,  /* activation rows that share them */
};
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16") /* small arrays of vectors become registers */
#endif
/* Keeps gcc from turning a chain of integer additions into a tree, whose leaves would not fit the registers, and from loading twice. */
#define IN_ORDER(v) __asm__("" : "+x"(v))

static inline float add_lanes(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 bf16_floats(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }

static inline int min_int(int a, int b) { return a < b ? a : b; }

/* n (at most 8) bf16 numbers, zeros behind them; nothing past them is read. */
static inline __m128i bf16_load(const uint8_t *p, int n) {
    if (n == LANES) return _mm_loadu_si128((const __m128i *)p);
    uint16_t v[LANES] = {0};
    memcpy(v, p, 2 * (size_t)n);
    return _mm_loadu_si128((const __m128i *)v);
}

static inline __m256 float_load(const float *p, int n) {
    if (n == LANES) return _mm256_loadu_ps(p);
    float v[LANES] = {0};
    memcpy(v, p, sizeof *v * (size_t)n);
    return _mm256_loadu_ps(v);
}

/* ---- 4-bit codes, int8 rows: along a row ---- */

/* DPBUSD: four unsigned bytes times four signed ones, added to 32 bits. Two instructions do it, alike but for their encoding. */
#if defined(__AVX512VNNI__)
#define DPBUSD _mm256_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define DPBUSD _mm256_dpbusd_avx_epi32
#endif

#ifdef DPBUSD
/* Sums of eight products each: eight 32-bit numbers. */
static inline __m256i group_products(const uint8_t *codes, const int8_t *q) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i c = _mm256_loadu_si256((const __m256i *)codes);
    __m256i sum = DPBUSD(_mm256_setzero_si256(), _mm256_and_si256(c, mask), _mm256_loadu_si256((const __m256i *)q));
    return DPBUSD(sum, _mm256_and_si256(_mm256_srli_epi16(c, 4), mask), _mm256_loadu_si256((const __m256i *)(q + 32)));
}
#define ADD_PARTS _mm256_add_epi32
#define WIDEN(v)  (v)
#else
/* Sums of four products each: sixteen 16-bit numbers of at most 4*15*127. */
static inline __m256i group_products(const uint8_t *codes, const int8_t *q) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i c = _mm256_loadu_si256((const __m256i *)codes);
    IN_ORDER(c); /* else gcc loads it twice, and codes may lie across cache lines */
    __m256i low = _mm256_and_si256(c, mask), high = _mm256_and_si256(_mm256_srli_epi16(c, 4), mask);
    return _mm256_add_epi16(_mm256_maddubs_epi16(low, _mm256_loadu_si256((const __m256i *)q)),
                            _mm256_maddubs_epi16(high, _mm256_loadu_si256((const __m256i *)(q + 32))));
}

#define ADD_PARTS _mm256_add_epi16
#define WIDEN(v)  _mm256_madd_epi16(v, _mm256_set1_epi16(1))
#endif

/* Parts of a beside parts of b, half as many of each: what vphaddd does, in fewer steps of the processor. */
static inline __m256i pair32(__m256i a, __m256i b) { return ADD_PARTS(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); }
static inline __m256i pair64(__m256i a, __m256i b) { return ADD_PARTS(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); }

/* Four groups: 32 bits of each half of the vector for each; 16-bit parts stay below 2^15 at every stage. */
static inline __attribute__((always_inline)) __m256i four_dots(const uint8_t *codes, const int8_t *q, int n) {
    __m256i p[4];
    UNROLL
    for (int g = 0; g < 4; g++) p[g] = g < n ? group_products(codes + g * GROUP / 2, q + g * GROUP) : _mm256_setzero_si256();
    return WIDEN(pair64(pair32(p[0], p[1]), pair32(p[2], p[3])));
}

/* The dot products of n groups, one in each lane. */
static inline __attribute__((always_inline)) __m256i eight_dots(const uint8_t *codes, const int8_t *q, int n) {
    __m256i a = four_dots(codes, q, n), b = four_dots(codes + 2 * GROUP, q + 4 * GROUP, n - 4);
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* One weight row. One at a time: memory serves one stream of codes better than two, and the fetches reach into the next row. */
static inline float mul_row(const uint8_t *codes, const uint8_t *scales, const uint8_t *biases, int groups, const struct act_row *x) {
    __m256 lane = _mm256_setzero_ps();
    int g = 0;
    for (; g + LANES <= groups; g += LANES) {
        const uint8_t *c = codes + (size_t)g * GROUP / 2;
        for (int k = 0; k < LANES * GROUP / 2; k += 64) _mm_prefetch((const char *)c + k + AHEAD, _MM_HINT_T0);
        __m256 dots = _mm256_cvtepi32_ps(eight_dots(c, x->q + (size_t)g * GROUP, LANES));
        __m256 scale = bf16_floats(_mm_loadu_si128((const __m128i *)(scales + 2 * (size_t)g))),
               bias = bf16_floats(_mm_loadu_si128((const __m128i *)(biases + 2 * (size_t)g)));
        lane = _mm256_fmadd_ps(dots, _mm256_mul_ps(scale, _mm256_loadu_ps(x->scale + g)), lane);
        lane = _mm256_fmadd_ps(bias, _mm256_loadu_ps(x->sum + g), lane);
    }
    if (g < groups) {
        int n = groups - g;
        __m256 dots = _mm256_cvtepi32_ps(eight_dots(codes + (size_t)g * GROUP / 2, x->q + (size_t)g * GROUP, n));
        __m256 scale = bf16_floats(bf16_load(scales + 2 * (size_t)g, n)), bias = bf16_floats(bf16_load(biases + 2 * (size_t)g, n));
        lane = _mm256_fmadd_ps(dots, _mm256_mul_ps(scale, float_load(x->scale + g, n)), lane);
        lane = _mm256_fmadd_ps(bias, float_load(x->sum + g, n), lane);
    }
    return add_lanes(lane);
}

static void along_rows(const struct weight_rows *w, int o, int outs, const struct act_row *x, float *y) {
    int groups = w->in / GROUP;
    size_t row = (size_t)w->in / 2, small = (size_t)groups * 2;
    for (; o < outs; o++)
        y[o] = mul_row(w->codes + (size_t)o * row, w->scales + (size_t)o * small, w->biases + (size_t)o * small, groups, x);
}

/* ---- turning small blocks for the tiles ---- */

/* Turn eight rows of eight 32-bit words. */
static inline void turn_words(const __m256i in[8], __m256i out[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(in[2 * i], in[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* Turn eight rows of eight bf16 numbers into floats. */
static inline void turn_halves(const uint8_t *p, size_t stride, int n, __m256 *out, int out_stride) {
    __m128i a[8], b[8], c[8];
    for (int i = 0; i < 8; i++) a[i] = bf16_load(p + i * stride, n);
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        c[4 * i] = _mm_unpacklo_epi32(b[4 * i], b[4 * i + 2]);
        c[4 * i + 1] = _mm_unpackhi_epi32(b[4 * i], b[4 * i + 2]);
        c[4 * i + 2] = _mm_unpacklo_epi32(b[4 * i + 1], b[4 * i + 3]);
        c[4 * i + 3] = _mm_unpackhi_epi32(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[2 * i * out_stride] = bf16_floats(_mm_unpacklo_epi64(c[i], c[i + 4]));
        out[(2 * i + 1) * out_stride] = bf16_floats(_mm_unpackhi_epi64(c[i], c[i + 4]));
    }
}

/* What the next tile will read, asked for little by little while the present one is multiplied: memory is far, and a burst would fill the
 * processor's queue of misses and wait. It goes to the second cache; the first is full. */
struct ahead {
    const uint8_t *at, *end; /* codes not yet asked for */
    int lines;               /* to ask for at a time */
};

static inline void ask(struct ahead *a) {
    for (int i = 0; i < a->lines && a->at < a->end; i++, a->at += 64) _mm_prefetch((const char *)a->at, _MM_HINT_T1);
}

/* For `rows` weight rows from o on, to be asked for in `times` shares; their scales at once. What lies past the matrix is not read, only
 * asked for. */
static inline struct ahead ahead_of(const struct weight_rows *w, int bits, int o, int rows, int times) {
    size_t row = (size_t)w->in * (size_t)bits / 8, codes = (size_t)rows * row, small = (size_t)rows * (size_t)(w->in / GROUP) * 2;
    const uint8_t *first = w->codes + (size_t)o * row;
    size_t at = (size_t)o * (size_t)(w->in / GROUP) * 2;
    for (size_t k = at; k < at + small; k += 64) {
        _mm_prefetch((const char *)w->scales + k, _MM_HINT_T1);
        _mm_prefetch((const char *)w->biases + k, _MM_HINT_T1);
    }
    return (struct ahead){.at = first, .end = first + codes, .lines = (int)(codes / 64 / (size_t)times) + 1};
}

/* ---- float32 rows: weights are made float once for many rows ---- */

struct float_tile {
    float v[FLOAT_OUTS][FLOAT_GROUPS * GROUP] __attribute__((aligned(32)));
};

/* Eight codes of `bits` (a constant) bits from p on. */
static inline __attribute__((always_inline)) __m256i eight_codes(const uint8_t *p, int bits) {
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), mask = _mm256_set1_epi32(15);
    if (bits == 8) return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)num_load32(p)), shift), mask);
}

static inline __attribute__((always_inline)) void unpack(const uint8_t *codes, int bits, __m256 scale, __m256 bias, float *out) {
    for (int i = 0; i < GROUP / 8; i++)
        _mm256_store_ps(out + 8 * i, _mm256_fmadd_ps(_mm256_cvtepi32_ps(eight_codes(codes + i * bits, bits)), scale, bias));
}

/* The i-th bf16 number in every lane. */
static inline __m256 bf16_all(const uint8_t *p, size_t i) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi16((short)num_load16(p + 2 * i)), 16));
}

static void unpack4(const struct weight_rows *w, float *out) {
    for (int g = 0; g < w->in / GROUP; g++)
        unpack(w->codes + (size_t)g * GROUP / 2, 4, bf16_all(w->scales, (size_t)g), bf16_all(w->biases, (size_t)g),
               out + (size_t)g * GROUP);
}

/* `outs` (a constant) weight rows from o on times one activation row: every weight is used once, so none is kept. */
static inline __attribute__((always_inline)) void mul_floats_once(const struct weight_rows *w, int bits, int o, int outs,
                                                                  const struct act_row *x, float *y) {
    int groups = w->in / GROUP;
    struct ahead ahead = ahead_of(w, bits, o + outs, outs, groups);
    __m256 sum[FLOAT_OUTS];
    for (int i = 0; i < outs; i++) sum[i] = _mm256_setzero_ps();
    for (int g = 0; g < groups; g++) {
        __m256 scale[FLOAT_OUTS], bias[FLOAT_OUTS];
        const uint8_t *codes[FLOAT_OUTS];
        ask(&ahead);
        UNROLL
        for (int i = 0; i < outs; i++) {
            size_t at = (size_t)(o + i) * groups + g;
            scale[i] = bf16_all(w->scales, at);
            bias[i] = bf16_all(w->biases, at);
            codes[i] = w->codes + at * GROUP * bits / 8;
        }
        for (int k = 0; k < GROUP; k += 8) {
            __m256 v = _mm256_loadu_ps(x->x + g * GROUP + k);
            UNROLL
            for (int i = 0; i < outs; i++) {
                __m256 weight = _mm256_fmadd_ps(_mm256_cvtepi32_ps(eight_codes(codes[i] + k * bits / 8, bits)), scale[i], bias[i]);
                sum[i] = _mm256_fmadd_ps(weight, v, sum[i]);
            }
        }
    }
    for (int i = 0; i < outs; i++) y[o + i] = add_lanes(sum[i]);
}

/* Weights of `outs` rows, n each, times `rows` activation rows from element k on (outs and rows constants), added to lane i % 8 of each
 * product. */
static inline __attribute__((always_inline)) void add_floats(const struct float_tile *t, int outs, int n, const struct act_row *x, int k,
                                                             int rows, __m256 sum[][FLOAT_OUTS]) {
    __m256 s[3][FLOAT_OUTS];
    UNROLL
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outs; o++) s[r][o] = sum[r][o];
    for (int i = 0; i < n; i += 8) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 v = _mm256_loadu_ps(x[r].x + k + i);
            UNROLL
            for (int o = 0; o < outs; o++) s[r][o] = _mm256_fmadd_ps(_mm256_load_ps(t->v[o] + i), v, s[r][o]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outs; o++) sum[r][o] = s[r][o];
}

/* `outs` (a constant) weight rows from o on times at most FLOAT_ROWS activation rows. */
static inline __attribute__((always_inline)) void mul_floats(const struct weight_rows *w, int bits, int o, int outs,
                                                             const struct act_row *x, int rows, float *y, size_t ld) {
    int groups = w->in / GROUP;
    size_t group_bytes = (size_t)GROUP * bits / 8;
    struct float_tile t;
    __m256 sum[FLOAT_ROWS][FLOAT_OUTS];
    memset(sum, 0, (size_t)rows * sizeof *sum);
    for (int g0 = 0; g0 < groups; g0 += FLOAT_GROUPS) {
        int n = min_int(FLOAT_GROUPS, groups - g0), r = 0;
        for (int i = 0; i < outs; i++) {
            size_t at = (size_t)(o + i) * groups + g0;
            for (int g = 0; g < n; g++) {
                __m256 scale = bf16_all(w->scales, at + g), bias = bf16_all(w->biases, at + g);
                unpack(w->codes + (at + g) * group_bytes, bits, scale, bias, t.v[i] + g * GROUP);
            }
        }
        for (; r + 3 <= rows; r += 3) add_floats(&t, outs, n * GROUP, x + r, g0 * GROUP, 3, sum + r);
        if (r + 2 == rows) add_floats(&t, outs, n * GROUP, x + r, g0 * GROUP, 2, sum + r);
        else if (r < rows) add_floats(&t, outs, n * GROUP, x + r, g0 * GROUP, 1, sum + r);
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < outs; i++) y[(size_t)r * ld + o + i] = add_lanes(sum[r][i]);
}

static inline __attribute__((always_inline)) void mul_f32(const struct weight_rows *w, int bits, int outs, const struct act_row *x,
                                                          int rows, float *y, size_t ld) {
    for (int r = 0; r < rows; r += FLOAT_ROWS) {
        int o = 0, n = min_int(FLOAT_ROWS, rows - r);
        for (; o + FLOAT_OUTS <= outs; o += FLOAT_OUTS) {
            if (n == 1) mul_floats_once(w, bits, o, FLOAT_OUTS, x + r, y + (size_t)r * ld);
            else mul_floats(w, bits, o, FLOAT_OUTS, x + r, n, y + (size_t)r * ld, ld);
        }
        for (; o < outs; o++) mul_floats(w, bits, o, 1, x + r, n, y + (size_t)r * ld, ld);
    }
}

static void mul4_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 4, outs, x, rows, y, ld);
}

static void mul8_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 8, outs, x, rows, y, ld);
}

/* ---- quantisation ---- */

/* 32 consecutive values as bytes: even positions in the low half, odd ones in the high half. */
static inline __m256i even_odd(const __m256i v[4]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i split =
        _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(bytes, order), split), 0xD8);
}

static void quantise(const float *x, int in, struct act_row *out) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int g = 0; g < in / GROUP; g++) {
        __m256 v[8], most = _mm256_setzero_ps(), damage = _mm256_setzero_ps();
        for (int i = 0; i < 8; i++) {
            v[i] = _mm256_loadu_ps(x + (size_t)g * GROUP + 8 * i);
            most = _mm256_max_ps(_mm256_andnot_ps(sign, v[i]), most);
            damage = _mm256_add_ps(damage, _mm256_mul_ps(v[i], _mm256_setzero_ps()));
        }
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
        bool tiny = !(largest > 1e-30f), damaged = _mm256_movemask_ps(_mm256_cmp_ps(damage, damage, _CMP_UNORD_Q)) != 0;
        float scale = damaged ? NAN : tiny ? 0 : largest / 127;
        __m256 inverse = _mm256_set1_ps(damaged || tiny ? 0 : 127 / largest);
        __m256i n[8], sum = _mm256_setzero_si256();
        for (int i = 0; i < 8; i++) {
            n[i] = damaged ? _mm256_setzero_si256() : _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
            sum = _mm256_add_epi32(sum, n[i]);
        }
        __m256i first = even_odd(n), second = even_odd(n + 4);
        _mm256_storeu_si256((__m256i *)(out->q + (size_t)g * GROUP), _mm256_permute2x128_si256(first, second, 0x20));
        _mm256_storeu_si256((__m256i *)(out->q + (size_t)g * GROUP + 32), _mm256_permute2x128_si256(first, second, 0x31));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
        out->scale[g] = scale;
        out->sum[g] = scale * (float)_mm_cvtsi128_si32(s);
    }
}

/* ---- float32 vectors ---- */

static float dot(const float *a, const float *b, int n) {
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++) s[k] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * k), _mm256_loadu_ps(b + i + 8 * k), s[k]);
    for (; i + 8 <= n; i += 8) s[0] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), s[0]);
    float sum = add_lanes(_mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3])));
    for (; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}
#endif
