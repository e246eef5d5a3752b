/* tests/avx512/immintrin.h - the intrinsics of AVX-512 that kernels_avx512.c uses, and that of AVX-VNNI, made of AVX2 ones.
 *
 * It stands in for the compiler's header (this folder comes first in the include path) so that the logic of those kernels is tested on
 * processors without them. It says nothing about their speed, nor about the instructions themselves.
 */
#ifndef TESTS_AVX512_IMMINTRIN_H
#define TESTS_AVX512_IMMINTRIN_H
#include_next <immintrin.h>
#ifdef EMULATED_AVXVNNI /* after the real header, which would take it at its word */
#define __AVXVNNI__ 1
#else
#define __AVX512VNNI__ 1
#endif

typedef struct {
    __m256i h[2];
} emulated_i;
typedef struct {
    __m256 h[2];
} emulated_f;
#define __m512i emulated_i
#define __m512  emulated_f

/* Four unsigned bytes times four signed ones, added to 32 bits. */
static inline __m256i emulated_dpbusd(__m256i sum, __m256i u, __m256i s) {
    __m256i low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(u)), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(s)));
    __m256i high =
        _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(u, 1)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(s, 1)));
    return _mm256_add_epi32(sum, _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xD8));
}
#undef _mm256_dpbusd_epi32
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_epi32     emulated_dpbusd
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd

#define EMULATED(type, name, parameters, of_half)                                                                                          \
    static inline type emulated_##name parameters {                                                                                        \
        type out;                                                                                                                          \
        for (int i = 0; i < 2; i++) out.h[i] = of_half;                                                                                    \
        return out;                                                                                                                        \
    }
EMULATED(emulated_i, zero, (void), _mm256_setzero_si256())
EMULATED(emulated_i, set8, (char v), _mm256_set1_epi8(v))
EMULATED(emulated_i, set32, (int v), _mm256_set1_epi32(v))
EMULATED(emulated_f, zerof, (void), _mm256_setzero_ps())
EMULATED(emulated_f, setf, (float v), _mm256_set1_ps(v))
EMULATED(emulated_i, widen, (__m256i v), v)
EMULATED(emulated_i, insert, (emulated_i v, __m256i high), i ? high : v.h[0])
EMULATED(emulated_i, and, (emulated_i a, emulated_i b), _mm256_and_si256(a.h[i], b.h[i]))
EMULATED(emulated_i, shift16, (emulated_i a, int n), _mm256_srli_epi16(a.h[i], n))
EMULATED(emulated_i, dot, (emulated_i s, emulated_i a, emulated_i b), emulated_dpbusd(s.h[i], a.h[i], b.h[i]))
EMULATED(emulated_f, float, (emulated_i a), _mm256_cvtepi32_ps(a.h[i]))
EMULATED(emulated_f, add, (emulated_f a, emulated_f b), _mm256_add_ps(a.h[i], b.h[i]))
EMULATED(emulated_f, mul, (emulated_f a, emulated_f b), _mm256_mul_ps(a.h[i], b.h[i]))
EMULATED(emulated_f, fma, (emulated_f a, emulated_f b, emulated_f c), _mm256_fmadd_ps(a.h[i], b.h[i], c.h[i]))
static inline void emulated_store(float *p, emulated_f v) {
    for (int i = 0; i < 2; i++) _mm256_storeu_ps(p + 8 * i, v.h[i]);
}
#define _mm512_setzero_si512          emulated_zero
#define _mm512_setzero_ps             emulated_zerof
#define _mm512_set1_epi8              emulated_set8
#define _mm512_set1_epi32             emulated_set32
#define _mm512_set1_ps                emulated_setf
#define _mm512_castsi256_si512        emulated_widen
#define _mm512_inserti64x4(a, b, one) emulated_insert(a, b)
#define _mm512_and_si512              emulated_and
#define _mm512_srli_epi16             emulated_shift16
#define _mm512_dpbusd_epi32           emulated_dot
#define _mm512_cvtepi32_ps            emulated_float
#define _mm512_add_ps                 emulated_add
#define _mm512_mul_ps                 emulated_mul
#define _mm512_fmadd_ps               emulated_fma
#define _mm512_storeu_ps              emulated_store
#endif
