/* backend/cpu/mix_vec.h - the widest float vector of the instruction set this file is compiled for, as a few inline operations.
 *
 * Written over the compilers' vector types, so that the mixers' loops exist once; only what those types cannot say (fused multiply-add,
 * halves) names an instruction set. Everything is static: each including file has its own copy, compiled with its own flags.
 */
#ifndef BACKEND_CPU_MIX_VEC_H
#define BACKEND_CPU_MIX_VEC_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef float vf_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias)); /* at any float's address */
typedef float v4 __attribute__((vector_size(16)));
/* Lanes 0..3 of a and 4..7 of b; gcc before 12 knows the shuffle by another name. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t v4_lanes __attribute__((vector_size(16)));
#define SHUFFLE4(a, b, i, j, k, l) __builtin_shuffle(a, b, (v4_lanes){i, j, k, l})
#endif
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE void store(float *p, vf v) { *(vf_any *)p = v; }
/* The first n (< LANES) elements; the others read as zero. */
INLINE vf load_first(const float *p, int n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}
INLINE void store_first(float *p, vf v, int n) { memcpy(p, &v, (size_t)n * 4); }

#if LANES == 16
INLINE vf splat(float a) { return (vf)_mm512_set1_ps(a); }
INLINE vf fma_(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE v4 fold(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    return (v4)_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
INLINE vf widen(const uint16_t *p) {
    __m256i h;
    memcpy(&h, p, 32);
    return (vf)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf widen8(const int8_t *p) {
    __m128i b;
    memcpy(&b, p, 16);
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
#elif LANES == 8
INLINE vf splat(float a) { return (vf)_mm256_set1_ps(a); }
INLINE vf fma_(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE v4 fold(vf v) { return (v4)_mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1)); }
INLINE vf widen(const uint16_t *p) {
    __m128i h;
    memcpy(&h, p, 16);
    return (vf)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE vf widen8(const int8_t *p) { return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i_u *)p))); }
#else
INLINE vf splat(float a) { return (vf){a, a, a, a}; }
#if defined(__ARM_NEON)
INLINE vf fma_(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
INLINE vf fma_(vf a, vf b, vf c) { return a * b + c; } /* two roundings: this instruction set cannot fuse */
#endif
INLINE v4 fold(vf v) { return v; }
INLINE vf widen(const uint16_t *p) {
#if defined(__ARM_NEON)
    return (vf)vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
#else
    vu u = {(uint32_t)p[0] << 16, (uint32_t)p[1] << 16, (uint32_t)p[2] << 16, (uint32_t)p[3] << 16};
    return (vf)u;
#endif
}
INLINE vf widen8(const int8_t *p) {
#if defined(__ARM_NEON)
    uint32_t four;
    memcpy(&four, p, 4);
    return (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
#else
    return (vf){p[0], p[1], p[2], p[3]};
#endif
}
#endif

/* The four sums of four folded vectors; element i is sum1 of the i-th, bit for bit. */
INLINE v4 sum4(v4 a, v4 b, v4 c, v4 d) {
    v4 ab = SHUFFLE4(a, b, 0, 4, 1, 5) + SHUFFLE4(a, b, 2, 6, 3, 7);
    v4 cd = SHUFFLE4(c, d, 0, 4, 1, 5) + SHUFFLE4(c, d, 2, 6, 3, 7);
    return SHUFFLE4(ab, cd, 0, 1, 4, 5) + SHUFFLE4(ab, cd, 2, 3, 6, 7);
}
INLINE float sum1(vf v) {
    v4 f = fold(v);
    return (f[0] + f[2]) + (f[1] + f[3]);
}
/* where mask (all ones or all zeros a lane) a, else b */
INLINE vf pick(vu mask, vf a, vf b) { return (vf)((mask & (vu)a) | (~mask & (vu)b)); }

/* e^x to about one unit in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor's series of e^r to r^7, exponent field for 2^n.
 * Below -87.3 it is 0, above 88.3 it stays at e^88.3; NaN stays NaN. */
INLINE vf exp_(vf x) {
    const vf magic = splat(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    vf c = pick((vu)(x > splat(88.3f)), splat(88.3f), x);
    c = pick((vu)(c < splat(-87.3f)), splat(-87.3f), c);
    vf biased = fma_(c, splat(0x1.715476p+0f), magic);
    vf n = biased - magic;
    vf r = fma_(n, splat(-0x1.62e4p-1f), c);
    r = fma_(n, splat(-0x1.7f7d1cp-20f), r);
    vf p = splat(1.0f / 5040);
    p = fma_(p, r, splat(1.0f / 720));
    p = fma_(p, r, splat(1.0f / 120));
    p = fma_(p, r, splat(1.0f / 24));
    p = fma_(p, r, splat(1.0f / 6));
    p = fma_(p, r, splat(0.5f));
    p = fma_(p, r, splat(1.0f));
    p = fma_(p, r, splat(1.0f));
    vf power = (vf)(((vu)biased << 23) + (uint32_t)0x3F800000);
    return pick((vu)(x < splat(-87.3f)), splat(0), p * power);
}
INLINE vf sigmoid(vf x) { return splat(1) / (splat(1) + exp_(-x)); }
INLINE vf silu(vf x) { return x / (splat(1) + exp_(-x)); }
#endif
