// tests/metal-emulator/refused.metal - what the syntax test must refuse; CASE says which (0: nothing wrong).
#include <metal_stdlib>
using namespace metal;

static float first(device const float *x) { return x[0]; }

kernel void refused(device float *y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    TG_ARRAY(float, tile, 32);
    tile[i] = 1.0f;
#if CASE == 1
    threadgroup float own[32]; // would be each thread's own
    own[i] = 1.0f;
#elif CASE == 2
    y[0] = first(tile); // threadgroup memory as device memory
#elif CASE == 3
    float *p = y; // no address space
    p[0] = 1.0f;
#endif
    y[i] = first(y);
}
