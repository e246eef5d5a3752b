/* backend/cpu/kernels_portable.c - the inner kernels in plain C: what every other instruction set is compared with.
 *
 * Invariants: those of cpu_kernels in cpu.h. Loops over eight lanes are written out so that a compiler may turn them into vectors without
 * changing an order.
 */
#include "backend/cpu/cpu.h"
#include <math.h>

enum { LANES = 8, GROUP = 64, TILE = 8 };

static float add_lanes(const float l[LANES]) { return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])); }
static inline float bf16_at(const uint8_t *p, int i) { return num_from_bf16(num_load16(p + 2 * (size_t)i)); }

static inline int min_int(int a, int b) { return a < b ? a : b; }

static int dot_group(const uint8_t *codes, const int8_t *q) {
    int low = 0, high = 0;
    for (int i = 0; i < GROUP / 2; i++) {
        low += (codes[i] & 15) * q[i];
        high += (codes[i] >> 4) * q[GROUP / 2 + i];
    }
    return low + high;
}

static void mul4_q8(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    int groups = w->in / GROUP;
    for (int o = 0; o < outs; o++) {
        const uint8_t *codes = w->codes + (size_t)o * w->in / 2;
        const uint8_t *scales = w->scales + (size_t)o * groups * 2, *biases = w->biases + (size_t)o * groups * 2;
        for (int r = 0; r < rows; r++) {
            float lane[LANES] = {0};
            for (int g = 0; g < groups; g++) {
                float *l = &lane[g % LANES];
                *l = fmaf((float)dot_group(codes + (size_t)g * GROUP / 2, x[r].q + (size_t)g * GROUP), bf16_at(scales, g) * x[r].scale[g],
                          *l);
                *l = fmaf(bf16_at(biases, g), x[r].sum[g], *l);
            }
            y[(size_t)r * ld + o] = add_lanes(lane);
        }
    }
}

/* One group's weights as float32, in order. */
static void unpack(const uint8_t *codes, int bits, float scale, float bias, float *out) {
    if (bits == 8) {
        for (int i = 0; i < GROUP; i++) out[i] = scale * codes[i] + bias;
    } else {
        for (int i = 0; i < GROUP / 2; i++) {
            out[2 * i] = scale * (codes[i] & 15) + bias;
            out[2 * i + 1] = scale * (codes[i] >> 4) + bias;
        }
    }
}

static void unpack4(const struct weight_rows *w, float *out) {
    for (int g = 0; g < w->in / GROUP; g++)
        unpack(w->codes + (size_t)g * GROUP / 2, 4, bf16_at(w->scales, g), bf16_at(w->biases, g), out + (size_t)g * GROUP);
}

static void mul_f32(const struct weight_rows *w, int bits, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    int groups = w->in / GROUP;
    size_t group_bytes = (size_t)GROUP * bits / 8;
    for (int o = 0; o < outs; o++) {
        const uint8_t *codes = w->codes + (size_t)o * groups * group_bytes;
        const uint8_t *scales = w->scales + (size_t)o * groups * 2, *biases = w->biases + (size_t)o * groups * 2;
        for (int r0 = 0; r0 < rows; r0 += TILE) {
            int n = min_int(TILE, rows - r0);
            float lanes[TILE][LANES] = {{0}}, values[GROUP];
            for (int g = 0; g < groups; g++) {
                unpack(codes + g * group_bytes, bits, bf16_at(scales, g), bf16_at(biases, g), values);
                for (int r = 0; r < n; r++) {
                    const float *v = x[r0 + r].x + (size_t)g * GROUP;
                    for (int i = 0; i < GROUP; i += LANES)
                        for (int l = 0; l < LANES; l++) lanes[r][l] += values[i + l] * v[i + l];
                }
            }
            for (int r = 0; r < n; r++) y[(size_t)(r0 + r) * ld + o] = add_lanes(lanes[r]);
        }
    }
}

static void mul4_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 4, outs, x, rows, y, ld);
}

static void mul8_f32(const struct weight_rows *w, int outs, const struct act_row *x, int rows, float *y, size_t ld) {
    mul_f32(w, 8, outs, x, rows, y, ld);
}

static void quantise(const float *x, int in, struct act_row *out) {
    for (int g = 0; g < in / GROUP; g++) {
        const float *v = x + (size_t)g * GROUP;
        int8_t *q = out->q + (size_t)g * GROUP;
        float most = 0, damage = 0;
        for (int i = 0; i < GROUP; i++) {
            float a = fabsf(v[i]);
            most = a > most ? a : most;
            damage += v[i] * 0.0f; /* NaN from a NaN or an infinity */
        }
        bool tiny = !(most > 1e-30f); /* 127 / most would overflow; such a group is zero for every purpose */
        float inverse = tiny ? 0 : 127 / most, scale = tiny ? 0 : most / 127;
        int sum = 0;
        for (int i = 0; i < GROUP; i++) {
            int value = damage == 0 ? (int)lrintf(v[i] * inverse) : 0;
            q[(i & 1) * (GROUP / 2) + i / 2] = (int8_t)value;
            sum += value;
        }
        if (damage != 0) scale = NAN;
        out->scale[g] = scale;
        out->sum[g] = scale * (float)sum;
    }
}

static float dot(const float *a, const float *b, int n) {
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l];
    float sum = add_lanes(lane);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

const struct cpu_kernels *cpu_kernels_portable(void) {
    static const struct cpu_kernels table = {
        .name = "portable",
        .mul4_q8 = mul4_q8,
        .mul4_f32 = mul4_f32,
        .mul8_f32 = mul8_f32,
        .unpack4 = unpack4,
        .quantise = quantise,
        .dot = dot,
    };
    return &table;
}
