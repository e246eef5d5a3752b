/* backend/metal/kv.h - the KV pages of docs/backend.md as shaders see them: [page][layer][keys, values][KV head] lists of METAL_PAGE rows.
 *
 * A list is float32 (float), bf16 (ushort) or, with METAL_PAGE float32 scales before them, int8 codes (int8_t).
 */
#ifndef BACKEND_METAL_KV_H
#define BACKEND_METAL_KV_H
#include "backend/metal/shader.h"

/* Elements of a list, its scales included. */
static inline ulong list_size(device const float *, uint n) { return (ulong)METAL_PAGE * n; }
static inline ulong list_size(device const ushort *, uint n) { return (ulong)METAL_PAGE * n; }
static inline ulong list_size(device const int8_t *, uint n) { return (ulong)METAL_PAGE * (n + 4); }

/* What KV head `head` has on the page of a position: keys (which 0) or values (1). */
template <typename T>
static inline device T *list_at(device T *pool, device const int *pages, constant metal_attn_args &args, uint position, uint which,
                                uint head) {
    const ulong page = (ulong)(uint)pages[position / METAL_PAGE];
    return pool + (((page * (uint)args.layers + (uint)args.layer) * 2 + which) * (uint)args.kv_heads + head) *
                      list_size(pool, (uint)args.head_dim);
}
/* The elements of a list's row, and what they are to be multiplied with. */
static inline device const float *list_row(device const float *list, uint slot, uint n) { return list + slot * n; }
static inline device const ushort *list_row(device const ushort *list, uint slot, uint n) { return list + slot * n; }
static inline device const int8_t *list_row(device const int8_t *list, uint slot, uint n) { return list + METAL_PAGE * 4 + slot * n; }
static inline float row_scale(device const float *, uint) { return 1.0f; }
static inline float row_scale(device const ushort *, uint) { return 1.0f; }
static inline float row_scale(device const int8_t *list, uint slot) { return ((device const float *)list)[slot]; }

static inline float load(device const float *p) { return *p; }
static inline float load(device const ushort *p) { return from_bf16(*p); }
static inline float load(device const int8_t *p) { return (float)*p; }
static inline float4 load4(device const float *p) { return *(device const float4 *)p; }
static inline float4 load4(device const ushort *p) { return as_type<float4>(uint4(*(device const ushort4 *)p) << 16); }
static inline float4 load4(device const int8_t *p) { return float4(*(device const char4 *)p); }

static inline void store(device float *p, float x) { *p = x; }
static inline void store(device ushort *p, float x) { *p = to_bf16(x); }

/* One simdgroup puts a row of n values into a list. */
template <typename T, typename P> static inline void put_row(device T *list, uint slot, P x, uint n, uint lane) {
    for (uint i = lane; i < n; i += 32) store(list + slot * n + i, x[i]);
}
/* codes = x / scale to the nearest with scale = largest magnitude / 127; 0 for what is below 2^-100 everywhere, NaN for a damaged row. */
template <typename P> static inline void put_row(device int8_t *list, uint slot, P x, uint n, uint lane) {
    float most = 0.0f;
    bool bad = false;
    for (uint i = lane; i < n; i += 32) {
        bad = bad || not_finite(x[i]);
        most = max(most, abs(x[i]));
    }
    bad = simd_any(bad);
    most = simd_max(most);
    const bool none = bad || most < as_type<float>(0x0d800000u);
    const float inverse = 127.0f / most;
    for (uint i = lane; i < n; i += 32) list[METAL_PAGE * 4 + slot * n + i] = none ? (int8_t)0 : (int8_t)(int)rint(x[i] * inverse);
    if (lane == 0) ((device float *)list)[slot] = bad ? as_type<float>(0x7fc00000u) : none ? 0.0f : most / 127.0f;
}
#endif
