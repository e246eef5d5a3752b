/* backend/metal/route.c - which way this device multiplies matrices by many rows, and why.
 *
 * Tensor operations are taken by themselves only where they are made for (family 10, M5): before it they bring no speed and round more.
 * Even there they are taken only after two products of known answers: other projects have seen them compile and answer wrongly. Every
 * number of these products is a small integer, exact in either type of operands and in every sum, so an answer is right or it is not.
 */
#include "backend/metal/host.h"
#include "base/log.h"
#include "base/num.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { TENSOR_FAMILY = 10 };
const char *const metal_routes[ROUTES] = {"plain", "simdgroup", "tensor"};

/* ---- two products of known answers ---- */
enum { IN = 256, OUT = 130, ROWS = 70, EXPERTS = 2, EACH = OUT / EXPERTS, BLOCKS = 4 };
/* The memory of both products: the matrix [OUT][IN] is also two experts' [EACH][IN]. */
struct trial {
    uint32_t codes[OUT][IN / 8];
    uint16_t scales[OUT][IN / 64], biases[OUT][IN / 64];
    float x[ROWS][IN];
    float dense[ROWS][OUT], grouped[ROWS][EACH];
    int32_t sorted[ROWS];
    struct metal_block map[BLOCKS];
};
/* Slots of the sorted rows: full blocks, one of a single row, one of some. */
static const struct metal_block blocks[BLOCKS] = {{1, 0, 32, 0}, {1, 32, 1, 0}, {0, 33, 32, 0}, {0, 65, 5, 0}};
static int expert_of(int slot) { return slot < 33; }
static int row_of(int slot) { return slot * 3 % ROWS; }

static int code_of(int o, int i) { return (o * 7 + i * 5 + o * i % 11) % 16; }
static int scale_of(int o, int group) { return 1 << (o + group) % 2; }
static int8_t weight_of(int o, int i) { return (int8_t)(scale_of(o, i / 64) * (code_of(o, i) - 8)); }
static int8_t value_of(int r, int i) { return (int8_t)((r * 3 + i * i + r * i % 13) % 8 - 4); }

static void fill(struct trial *t) {
    memset(t, 0, sizeof *t);
    memset(t->dense, 0xff, sizeof t->dense); /* NaN: what is not answered is not right */
    memset(t->grouped, 0xff, sizeof t->grouped);
    for (int o = 0; o < OUT; o++) {
        for (int i = 0; i < IN; i++) t->codes[o][i / 8] |= (uint32_t)code_of(o, i) << 4 * (i % 8);
        for (int g = 0; g < IN / 64; g++) {
            t->scales[o][g] = num_to_bf16((float)scale_of(o, g));
            t->biases[o][g] = num_to_bf16((float)(-8 * scale_of(o, g)));
        }
    }
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < IN; i++) t->x[r][i] = value_of(r, i);
        t->sorted[r] = row_of(r);
    }
    memcpy(t->map, blocks, sizeof blocks);
}

static int check(const struct trial *t, struct calla_error *err) {
    int8_t value[ROWS][IN], weight[IN];
    int wrong = 0;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < IN; i++) value[r][i] = value_of(r, i);
    for (int o = 0; o < OUT; o++) {
        for (int i = 0; i < IN; i++) weight[i] = weight_of(o, i);
        for (int slot = 0; slot < ROWS; slot++) {
            const int r = row_of(slot);
            int sum = 0;
            for (int i = 0; i < IN; i++) sum += weight[i] * value[r][i];
            wrong += t->dense[r][o] != (float)sum;
            if (expert_of(slot) == o / EACH) wrong += t->grouped[slot][o % EACH] != (float)sum;
        }
    }
    return wrong ? err_set(err, CALLA_E_BACKEND, "metal: tensor operations gave %d wrong answers of %d", wrong, ROWS * (OUT + EACH)) : 0;
}

#define PART(member, access) metal_slice(memory, offsetof(struct trial, member), sizeof(((struct trial *)0)->member), access)

static int encode(struct metal *m, const struct metal_memory *memory, struct calla_error *err) {
    const struct metal_linear_args dense_args = {IN, OUT, ROWS};
    const struct metal_grouped_args grouped_args = {IN, EACH, 1};
    const int rows = m->compute == BE_FLOAT32 ? METAL_TILE : METAL_TENSOR_ROWS;
    const struct metal_dispatch dense = {
        .kernel = metal_tensor_kernel(m->compute, KERNEL_gemm4_tensor_f32),
        .groups = {metal_groups(OUT, METAL_TENSOR_OUT), metal_groups(ROWS, rows), 1},
        .threads = 128,
        .n = 5,
        .bind = {PART(codes, READS), PART(scales, READS), PART(biases, READS), PART(x, READS), PART(dense, WRITES)},
        .args = &dense_args,
        .args_bytes = sizeof dense_args,
    };
    const struct metal_dispatch grouped = {
        .kernel = metal_tensor_kernel(m->compute, KERNEL_moe_gemm4_tensor_f32),
        .groups = {metal_groups(EACH, METAL_TENSOR_OUT), BLOCKS, 1},
        .threads = 128,
        .n = 7,
        .bind = {PART(codes, READS), PART(scales, READS), PART(biases, READS), PART(x, READS), PART(sorted, READS), PART(map, READS),
                 PART(grouped, WRITES)},
        .args = &grouped_args,
        .args_bytes = sizeof grouped_args,
    };
    int rc = m->gpu->ops->encode(m->gpu, &dense, err);
    if (!rc) rc = m->gpu->ops->encode(m->gpu, &grouped, err);
    const int done = m->gpu->ops->commit(m->gpu, 0, rc ? NULL : err); /* what was opened is closed in any case */
    return rc ? rc : done;
}

static int try_tensors(struct metal *m, struct calla_error *err) {
    struct metal_memory memory = {0};
    int rc = m->gpu->ops->tensors(m->gpu, m->compute, err);
    if (rc || m->gpu->records) return rc;
    rc = metal_memory_new(m, sizeof(struct trial), &memory, err);
    if (rc) return rc;
    fill((struct trial *)(void *)memory.host);
    rc = encode(m, &memory, err);
    const int done = m->gpu->ops->wait(m->gpu, 0, rc ? NULL : err);
    if (!rc) rc = done;
    if (!rc) rc = check((const struct trial *)(const void *)memory.host, err);
    metal_memory_free(m, &memory);
    return rc;
}

/* ---- the choice ---- */
static void choose(struct metal *m, enum metal_route route, const char *why) {
    m->route = route;
    snprintf(m->why, sizeof m->why, "%s", why);
}

int metal_choose_route(struct metal *m, const char *asked, struct calla_error *err) {
    struct calla_error refused = {0};
    int route = 0;
    while (asked && route < ROUTES && strcmp(asked, metal_routes[route])) route++;
    if (route == ROUTES)
        return err_set(err, CALLA_E_UNSUPPORTED, "metal: no matrix route \"%s\"; there are plain, simdgroup and tensor", asked);
    if (asked && route == ROUTE_TENSOR && m->deterministic)
        return err_set(err, CALLA_E_UNSUPPORTED,
                       "metal: the tensor route adds many rows in another order than few, which --deterministic rules out");
    if (asked && route != ROUTE_TENSOR) choose(m, (enum metal_route)route, "as asked");
    else if (m->deterministic) choose(m, ROUTE_SIMDGROUP, "few and many rows alike");
    else if (!asked && m->gpu->family < TENSOR_FAMILY) choose(m, ROUTE_SIMDGROUP, "tensors are fast from family 10 on");
    else if (!try_tensors(m, &refused)) choose(m, ROUTE_TENSOR, "tensors proved on known answers");
    else if (asked) return err_set(err, refused.code, "%s", refused.message);
    else {
        choose(m, ROUTE_SIMDGROUP, "its tensors were refused");
        log_line(LOG_WARN, "%s; products go by simdgroup matrices", refused.message);
    }
    return 0;
}
