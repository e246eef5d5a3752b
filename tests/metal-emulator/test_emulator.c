/* The emulator itself: results that Metal's specification gives, in every order of threads, and faults that must be caught. The unchecked
 * build (EMU_UNCHECKED) is asked for the same results, and for those faults that are not about loads and stores. */
#include "../unit/unit.h"
#include "emulator.h"
#include "tensor.h"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct self_args {
    uint32_t n, fault;
};
static const char *const order_names[] = {"forward", "reversed", "shuffled"};
enum { ORDERS = 3 };

/* Whether this build reports it; a fault that it does not must not be made, for it would really happen. */
static bool reported(enum emu_fault fault) {
#ifdef EMU_UNCHECKED
    return fault == EMU_NONE || fault == EMU_DIVERGENCE || fault == EMU_LANE || fault == EMU_BINDING;
#else
    (void)fault;
    return true;
#endif
}

static void must(enum emu_fault got, enum emu_fault want, int order) {
    if (got != want) fail_msg("%s: fault %d, not %d: %s", order_names[order], got, want, emu_report());
    if (want) assert_true(strlen(emu_report()) > 20);
}

static void lane_operations(void **state) {
    enum { N = 64, ALL = 128 };
    float x[ALL], y[12 * ALL];
    (void)state;
    for (int i = 0; i < ALL; i++) x[i] = (float)((i * 37) % 101 - 50);
    for (int order = 0; order < ORDERS; order++) {
        emu_begin((enum emu_order)order, 7);
        emu_bind(0, x, sizeof x);
        emu_bind_undefined(1, y, sizeof y);
        must(emu_dispatch("lane_operations", 2, 1, 1, N), EMU_NONE, order);
        for (int i = 0; i < ALL; i++) {
            const float *v = x + i / 32 * 32;
            const int lane = i % 32;
            float sum = 0, most = v[0], least = v[0], before = 0;
            uint32_t positive = 0;
            for (int l = 0; l < 32; l++) {
                sum += v[l];
                most = fmaxf(most, v[l]);
                least = fminf(least, v[l]);
                before += l < lane ? v[l] : 0;
                positive |= (uint32_t)(v[l] > 0) << l;
            }
            const float want[12] = {sum,
                                    most,
                                    least,
                                    v[lane ^ 5],
                                    v[3],
                                    before,
                                    before + v[lane],
                                    v[lane + 3 < 32 ? lane + 3 : lane],
                                    v[lane >= 3 ? lane - 3 : lane],
                                    v[31 - lane],
                                    (float)positive,
                                    2};
            for (int k = 0; k < 12; k++) assert_true(y[k * ALL + i] == want[k]);
        }
    }
}

static void inactive_lanes(void **state) {
    (void)state;
    for (int order = 0; order < ORDERS; order++) {
        for (uint32_t n = 1; n <= 32; n += 10) {
            uint32_t y[32] = {0};
            struct self_args args = {n, 0};
            emu_begin((enum emu_order)order, 3);
            emu_bind(0, y, sizeof y);
            emu_bind(1, &args, sizeof args);
            must(emu_dispatch("inactive_lanes", 1, 1, 1, 32), EMU_NONE, order);
            for (uint32_t i = 0; i < 32; i++) assert_int_equal(y[i], i < n ? n * 1001 : 0);
        }
        uint32_t y[32] = {0};
        emu_bind(0, y, sizeof y);
        emu_bind(1, &(struct self_args){20, 1}, sizeof(struct self_args));
        must(emu_dispatch("inactive_lanes", 1, 1, 1, 32), EMU_LANE, order);
    }
}

/* Product, and, or, xor, the first lane's value and who is first: of the lanes that take part, from `first` on. */
static void lane_reductions(void **state) {
    enum { ALL = 128, RESULTS = 6 };
    (void)state;
    for (int order = 0; order < ORDERS; order++)
        for (uint32_t first = 0; first < 32; first += first == 26 ? 5 : 13) {
            uint32_t x[ALL], y[RESULTS * ALL] = {0};
            struct self_args args = {first, 0};
            for (uint32_t i = 0; i < ALL; i++) x[i] = (i * 2654435761u | 1) ^ (i % 5 ? 0 : 0xff00);
            emu_begin((enum emu_order)order, first);
            emu_bind(0, x, sizeof x);
            emu_bind(1, y, sizeof y);
            emu_bind(2, &args, sizeof args);
            must(emu_dispatch("lane_reductions", 2, 1, 1, 64), EMU_NONE, order);
            for (uint32_t i = 0; i < ALL; i++) {
                const uint32_t *v = x + i / 32 * 32;
                uint32_t product = 1, all = ~0u, any = 0, odd = 0;
                for (uint32_t l = first; l < 32; l++) {
                    product *= v[l];
                    all &= v[l];
                    any |= v[l];
                    odd ^= v[l];
                }
                const uint32_t want[RESULTS] = {product, all, any, odd, v[first], i % 32 == first};
                for (uint32_t k = 0; k < RESULTS; k++) assert_int_equal(y[k * ALL + i], i % 32 < first ? 0 : want[k]);
            }
        }
}

static void barriers(void **state) {
    /* 1 a barrier for no memory, 2 a value nobody wrote, 3 one past the array, 4 a simdgroup's barrier between simdgroups */
    static const enum emu_fault want[5] = {EMU_NONE, EMU_RACE, EMU_UNDEFINED, EMU_BOUNDS, EMU_RACE};
    float x[256], y[256];
    (void)state;
    for (int i = 0; i < 256; i++) x[i] = (float)i;
    for (int order = 0; order < ORDERS; order++) {
        for (uint32_t fault = 0; fault < 5; fault++) {
            if (!reported(want[fault])) continue;
            struct self_args args = {0, fault};
            emu_begin((enum emu_order)order, fault);
            emu_bind(0, x, sizeof x);
            emu_bind_undefined(1, y, sizeof y);
            emu_bind(2, &args, sizeof args);
            must(emu_dispatch("neighbours", 2, 1, 1, 128), want[fault], order);
            for (int i = 0; fault == 0 && i < 256; i++) assert_true(y[i] == (float)(i / 128 * 128 + (i % 128 + 32) % 128));
            if (fault == 0) assert_int_equal(emu_threadgroup_bytes(), 512);
        }
        for (uint32_t fault = 0; fault < 2; fault++) {
            if (fault && !reported(EMU_RACE)) continue;
            struct self_args args = {0, fault};
            emu_bind(0, x, 64 * sizeof *x);
            emu_bind_undefined(1, y, 64 * sizeof *y);
            emu_bind(2, &args, sizeof args);
            /* without the barrier the first thread to run may even read before anybody wrote */
            enum emu_fault got = emu_dispatch("simdgroup_neighbours", 1, 1, 1, 64);
            must(got, fault && got == EMU_UNDEFINED ? got : fault ? EMU_RACE : EMU_NONE, order);
        }
    }
}

static void divergence(void **state) {
    (void)state;
    for (int order = 0; order < ORDERS; order++) {
        for (uint32_t fault = 0; fault < 4; fault++) {
            float y[64];
            struct self_args args = {0, fault};
            emu_begin((enum emu_order)order, fault);
            emu_bind_undefined(0, y, sizeof y);
            emu_bind(1, &args, sizeof args);
            must(emu_dispatch("divergence", 1, 1, 1, 64), fault ? EMU_DIVERGENCE : EMU_NONE, order);
        }
    }
}

static void addresses(void **state) {
    static const enum emu_fault want[9] = {EMU_NONE,      EMU_BOUNDS, EMU_BOUNDS,    EMU_BOUNDS, EMU_CONSTANT,
                                           EMU_UNDEFINED, EMU_RACE,   EMU_ALIGNMENT, EMU_NONE};
    (void)state;
    for (int order = 0; order < ORDERS; order++) {
        for (uint32_t fault = 0; fault < 9; fault++) {
            if (!reported(want[fault])) continue;
            uint32_t x[33], y[33], z[33];
            struct self_args args = {0, fault};
            for (uint32_t i = 0; i < 33; i++) x[i] = i * i;
            emu_begin((enum emu_order)order, fault);
            emu_bind(0, x, sizeof x);
            emu_bind_undefined(1, y, sizeof y);
            emu_bind_undefined(2, z, sizeof z);
            emu_bind(3, &args, sizeof args);
            must(emu_dispatch("addresses", 3, 1, 1, 11), want[fault], order);
            for (uint32_t i = 0; want[fault] == EMU_NONE && i < 33; i++) assert_int_equal(y[i], i * i);
        }
    }
}

/* A wrong index, a missing or left-over buffer, an argument struct of another size, no such kernel, too many threads. */
static void bindings(void **state) {
    uint32_t x[32] = {0}, y[32], z[32] = {0};
    struct self_args args = {0, 0};
    (void)state;
    for (int wrong = 0; wrong < 6; wrong++) {
        emu_begin(EMU_FORWARD, 0);
        emu_bind(0, x, wrong == 1 ? sizeof x - 1 : sizeof x);
        emu_bind_undefined(1, y, sizeof y);
        emu_bind(wrong == 2 ? 4 : 2, z, sizeof z);
        emu_bind(3, &args, wrong == 3 ? sizeof args - 4 : sizeof args);
        if (wrong == 5) emu_bind(6, z, sizeof z);
        must(emu_dispatch(wrong == 4 ? "adresses" : "addresses", 1, 1, 1, 32), wrong ? EMU_BINDING : EMU_NONE, 0);
    }
    emu_bind_undefined(0, y, 4 * 32);
    must(emu_dispatch("large", 1, 1, 1, 32), EMU_BINDING, 0);
    emu_bind_undefined(0, y, 4 * 32);
    must(emu_dispatch("large", 1, 1, 1, 1025), EMU_BINDING, 0);
}

static void atomics(void **state) {
    (void)state;
    for (int order = 0; order < ORDERS; order++) {
        for (uint32_t fault = 0; fault < 2; fault++) {
            if (fault && !reported(EMU_RACE)) continue;
            uint32_t count = 5;
            int32_t least = 3;
            struct self_args args = {0, fault};
            emu_begin((enum emu_order)order, 1);
            emu_bind(0, &count, sizeof count);
            emu_bind(1, &least, sizeof least);
            emu_bind(2, &args, sizeof args);
            must(emu_dispatch("counting", 3, 1, 1, 64), fault ? EMU_RACE : EMU_NONE, order);
            if (fault) continue;
            assert_int_equal(count, 5 + 191 * 192 / 2);
            assert_int_equal(least, -191);
        }
    }
}

static void matrices(void **state) {
    float a[64], b[72], c[64], pairs[64];
    struct self_args args = {3, 0};
    (void)state;
    for (int i = 0; i < 64; i++) a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 72; i++) b[i] = (float)(i % 11 - 5);
    emu_begin(EMU_SHUFFLED, 1);
    emu_bind(0, a, sizeof a);
    emu_bind(1, b, sizeof b);
    emu_bind_undefined(2, c, sizeof c);
    emu_bind_undefined(3, pairs, sizeof pairs);
    emu_bind(4, &args, sizeof args);
    must(emu_dispatch("matrices", 1, 1, 1, 32), EMU_NONE, 0);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) {
            float want = i == j ? 3 : 0;
            for (int k = 0; k < 8; k++) want += a[k * 8 + i] * b[k * 9 + j];
            assert_true(c[i * 8 + j] == want);
        }
#ifndef EMU_UNCHECKED
    /* lanes 0, 1, 8, 16 hold row 0 from columns 0, 2, 4 and row 4 from column 0 */
    assert_true(pairs[0] == b[0] && pairs[1] == b[1] && pairs[2] == b[2] && pairs[16] == b[4] && pairs[32] == b[36]);
#endif
}

/* 1 an operand filled without a barrier, 2 a tail outside of it, 3 a product for other simdgroups, 4 one that a simdgroup does not reach, 5
 * an operand filled again too early, 6 a layout taken for granted. */
static void tensors(void **state) {
    static const enum emu_fault want[7] = {EMU_NONE, EMU_RACE, EMU_BOUNDS, EMU_BINDING, EMU_DIVERGENCE, EMU_RACE, EMU_NONE};
    float a[20 * 16], b[16 * 11], c[20 * 11];
    (void)state;
    for (int i = 0; i < 20 * 16; i++) a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 16 * 11; i++) b[i] = (float)(i % 5 - 2);
    for (int order = 0; order < ORDERS; order++)
        for (int layout = 0; layout < 2; layout++)
            for (uint32_t fault = 0; fault < 7; fault++) {
                if (!reported(want[fault])) continue;
                int wrong = 0;
                struct self_args args = {0, fault};
                emu_tensor_layout = layout;
                emu_begin((enum emu_order)order, fault);
                emu_bind(0, a, sizeof a);
                emu_bind(1, b, sizeof b);
                emu_bind_undefined(2, c, sizeof c);
                emu_bind(3, &args, sizeof args);
                enum emu_fault got = emu_dispatch("tensors", 1, 1, 1, 64);
                must(got, fault == 1 && got == EMU_UNDEFINED ? got : want[fault], order);
                if (want[fault]) continue;
                for (int i = 0; i < 20; i++)
                    for (int j = 0; j < 11; j++) {
                        float sum = 0;
                        for (int k = 0; k < 16; k++) sum += a[i * 16 + k] * b[k * 11 + j];
                        wrong += !(c[i * 11 + j] == sum);
                    }
                if (fault == 6 && layout == 1) assert_true(wrong > 0);
                else assert_int_equal(wrong, 0);
            }
    emu_tensor_layout = 0;
}

static void conversions(void **state) {
    static const float x[8] = {1, -2.5f, 65519, 65520, 6e-8f, 1.00390625f, 1.01171875f, 3e-8f};
    static const uint16_t bf16[8] = {0x3f80, 0xc020, 0x4780, 0x4780, 0x3381, 0x3f80, 0x3f82, 0x3301};
    static const uint16_t f16[8] = {0x3c00, 0xc100, 0x7bff, 0x7c00, 1, 0x3c04, 0x3c0c, 1};
    uint16_t b[8], h[8];
    float y[8];
    (void)state;
    emu_begin(EMU_FORWARD, 0);
    emu_bind(0, x, sizeof x);
    emu_bind_undefined(1, b, sizeof b);
    emu_bind_undefined(2, h, sizeof h);
    emu_bind_undefined(3, y, sizeof y);
    must(emu_dispatch("conversions", 1, 1, 1, 8), EMU_NONE, 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(b[i], bf16[i]);
        assert_int_equal(h[i], f16[i]);
    }
    assert_true(y[0] == 1 + 2 + 1 && y[1] == 2 + 2 - 2.5f && y[2] == 3 + 2 + 65504 && isinf(y[3]) && y[4] == 5 + 2 + 0x1p-24f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lane_operations), cmocka_unit_test(inactive_lanes),  cmocka_unit_test(barriers), cmocka_unit_test(divergence),
        cmocka_unit_test(addresses),       cmocka_unit_test(bindings),        cmocka_unit_test(atomics),  cmocka_unit_test(matrices),
        cmocka_unit_test(conversions),     cmocka_unit_test(lane_reductions), cmocka_unit_test(tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
