/* base/num.h - number formats and counter-based random numbers, inline. */
#ifndef BASE_NUM_H
#define BASE_NUM_H
#include <stdint.h>
#include <string.h>

static inline float num_from_bf16(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t num_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
/* Unaligned little-endian loads: checkpoint data may start at any byte. */
static inline uint16_t num_load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t num_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline uint64_t num_load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static inline float num_loadf(const void *p) {
    float v;
    memcpy(&v, p, 4);
    return v;
}

/* SplitMix64's finaliser (Steele, Lea, Flood 2014) over (seed, counter): the same pair gives the same 64 bits on every machine. */
static inline uint64_t num_random(uint64_t seed, uint64_t counter) {
    uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
/* In [0, 1), 53 bits. */
static inline double num_uniform(uint64_t seed, uint64_t counter) { return (double)(num_random(seed, counter) >> 11) * 0x1.0p-53; }
#endif
