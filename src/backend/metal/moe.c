/* backend/metal/moe.c - the mixture of experts: choice, then visit by visit for few rows, expert by expert for many. */
#include "backend/metal/host.h"

struct moe {
    struct metal *m;
    const struct be_moe_weights *w;
    const struct metal_memory *x, *y;
    int rows, visits, shared_width;
};

static struct metal_moe_args args_of(const struct moe *o, int top_k, int width) {
    const struct be_dims *d = &o->m->dims;
    return (struct metal_moe_args){o->rows, d->experts, top_k, d->hidden, width, o->shared_width, d->experts + o->visits / METAL_TILE};
}

/* Visits read at most every expert once. */
static void bind_experts(const struct moe *o, struct metal_dispatch *d, int first, const struct be_weight *w) {
    metal_bind_weight(d, first, w);
    const size_t experts = (size_t)w->a.experts, read = (size_t)o->visits < experts ? (size_t)o->visits : experts;
    for (int i = 0; i < PARTS; i++) d->bind[first + i].moves = w->part[i].bytes / experts * read;
}

static struct metal_bind rows_of(const struct metal_memory *memory, int rows, int cols, enum metal_access access) {
    return metal_whole(memory, metal_floats((size_t)rows, (size_t)cols), access);
}

static void choose(const struct moe *o) {
    struct metal *m = o->m;
    const struct metal_moe_args args = args_of(o, m->dims.top_k, m->dims.width);
    struct metal_dispatch d = {.kernel = KERNEL_moe_choose,
                               .family = FAMILY_MOE,
                               .groups = {(uint32_t)o->rows, 1, 1},
                               .n = 3,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = rows_of(&m->ws.logits, o->rows, m->dims.experts, READS);
    d.bind[1] = rows_of(&m->ws.choice, o->visits, 1, WRITES);
    d.bind[2] = rows_of(&m->ws.weight, o->visits, 1, WRITES);
    metal_encode(m, &d);
}

/* ---- few rows ---- */
static void gate_up(const struct moe *o, const struct be_weight *gate, const struct be_weight *up, bool shared) {
    struct metal *m = o->m;
    const int visits = shared ? o->rows : o->visits;
    const struct metal_moe_args args = args_of(o, shared ? 1 : m->dims.top_k, gate->a.out);
    struct metal_dispatch d = {.kernel = KERNEL_moe_gate_up,
                               .family = FAMILY_MOE,
                               .groups = {metal_groups(gate->a.out, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), (uint32_t)visits, 1},
                               .n = 9,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = 2.0 * visits * gate->a.in * gate->a.out};
    bind_experts(o, &d, 0, gate);
    bind_experts(o, &d, 3, up);
    d.bind[6] = rows_of(o->x, o->rows, m->dims.hidden, READS);
    d.bind[7] = rows_of(shared ? &m->ws.minus : &m->ws.choice, visits, 1, READS);
    d.bind[8] = rows_of(shared ? &m->ws.shared_gate : &m->ws.gate, visits, gate->a.out, WRITES);
    metal_encode(m, &d);
}

static void down(const struct moe *o) {
    struct metal *m = o->m;
    const struct be_dims *dims = &m->dims;
    const struct metal_moe_args args = args_of(o, dims->top_k, dims->width);
    struct metal_dispatch d = {.kernel = KERNEL_moe_down,
                               .family = FAMILY_MOE,
                               .groups = {metal_groups(dims->hidden, METAL_GEMV_ROWS * METAL_GEMV_SIMDS), (uint32_t)o->rows, 1},
                               .n = 12,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = (double)dims->hidden * ((double)o->visits * dims->width + (double)o->rows * o->shared_width)};
    bind_experts(o, &d, 0, o->w->down);
    bind_experts(o, &d, 3, o->w->shared_down);
    d.bind[6] = rows_of(&m->ws.gate, o->visits, dims->width, READS);
    d.bind[7] = rows_of(&m->ws.shared_gate, o->rows, o->shared_width, READS);
    d.bind[8] = rows_of(&m->ws.choice, o->visits, 1, READS);
    d.bind[9] = rows_of(&m->ws.weight, o->visits, 1, READS);
    d.bind[10] = rows_of(&m->ws.open, o->rows, 1, READS);
    d.bind[11] = rows_of(o->y, o->rows, dims->hidden, WRITES);
    metal_encode(m, &d);
}

/* ---- many rows ---- */
static void sort(const struct moe *o) {
    struct metal *m = o->m;
    const struct metal_moe_args args = args_of(o, m->dims.top_k, m->dims.width);
    struct metal_dispatch d = {.kernel = KERNEL_moe_sort,
                               .family = FAMILY_MOE,
                               .groups = {1, 1, 1},
                               .threads = 32 * metal_groups(m->dims.experts, 32),
                               .n = 4,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = rows_of(&m->ws.choice, o->visits, 1, READS);
    d.bind[1] = rows_of(&m->ws.sorted, o->visits, 1, WRITES);
    d.bind[2] = rows_of(&m->ws.slot, o->visits, 1, WRITES);
    d.bind[3] = metal_whole(&m->ws.map, (size_t)args.blocks * sizeof(struct metal_block), WRITES);
    metal_encode(m, &d);
}

/* y [visits][out] = w x: x has a row for each row of the pass, or with by_slot one for each slot of the sorted visits. */
static void grouped(const struct moe *o, const struct be_weight *w, const struct metal_memory *x, bool by_slot,
                    const struct metal_memory *y) {
    struct metal *m = o->m;
    const int blocks = m->dims.experts + o->visits / METAL_TILE;
    const struct metal_grouped_args args = {w->a.in, w->a.out, by_slot ? 0 : m->dims.top_k};
    const bool tensor = m->route == ROUTE_TENSOR;
    struct metal_dispatch d = {.kernel = tensor ? metal_tensor_kernel(m->compute, KERNEL_moe_gemm4_tensor_f32) : KERNEL_moe_gemm4,
                               .family = FAMILY_MOE,
                               .groups = {metal_groups(w->a.out, tensor ? METAL_TENSOR_OUT : METAL_TILE), (uint32_t)blocks, 1},
                               .n = 7,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = (double)o->visits * w->a.in * w->a.out};
    bind_experts(o, &d, 0, w);
    d.bind[3] = rows_of(x, by_slot ? o->visits : o->rows, w->a.in, READS);
    d.bind[4] = rows_of(&m->ws.sorted, o->visits, 1, READS);
    d.bind[5] = metal_whole(&m->ws.map, (size_t)blocks * sizeof(struct metal_block), READS);
    d.bind[6] = rows_of(y, o->visits, w->a.out, WRITES);
    metal_encode(m, &d);
}

static void swiglu(const struct moe *o, const struct metal_memory *gate, const struct metal_memory *up, int rows, int width) {
    const uint32_t n = (uint32_t)rows * (uint32_t)width;
    struct metal_dispatch d = {.kernel = KERNEL_moe_swiglu,
                               .family = FAMILY_MOE,
                               .groups = {metal_groups((int)n, metal_kernels[KERNEL_moe_swiglu].threads), 1, 1},
                               .n = 2,
                               .args = &n,
                               .args_bytes = sizeof n};
    d.bind[0] = rows_of(gate, rows, width, UPDATES);
    d.bind[1] = rows_of(up, rows, width, READS);
    metal_encode(o->m, &d);
}

static void combine(const struct moe *o) {
    struct metal *m = o->m;
    const struct metal_moe_args args = args_of(o, m->dims.top_k, m->dims.width);
    struct metal_dispatch d = {.kernel = KERNEL_moe_combine,
                               .family = FAMILY_MOE,
                               .groups = {metal_groups(m->dims.hidden, metal_kernels[KERNEL_moe_combine].threads), (uint32_t)o->rows, 1},
                               .n = 6,
                               .args = &args,
                               .args_bytes = sizeof args};
    d.bind[0] = rows_of(&m->ws.result, o->visits, m->dims.hidden, READS);
    d.bind[1] = rows_of(&m->ws.slot, o->visits, 1, READS);
    d.bind[2] = rows_of(&m->ws.weight, o->visits, 1, READS);
    d.bind[3] = rows_of(&m->ws.shared, o->rows, m->dims.hidden, READS);
    d.bind[4] = rows_of(&m->ws.open, o->rows, 1, READS);
    d.bind[5] = rows_of(o->y, o->rows, m->dims.hidden, WRITES);
    metal_encode(m, &d);
}

void metal_moe(struct backend *be, const struct be_moe_weights *w, const struct be_buffer *x, int rows, struct be_buffer *y) {
    struct metal *m = metal_of(be);
    const struct be_dims *d = &m->dims;
    const struct moe o = {m, w, metal_buffer(x), metal_buffer(y), rows, rows * d->top_k, w->shared_up->a.out};
    if (rows < 0 || rows > d->max_rows) {
        metal_fail(m, FAMILY_MOE, CALLA_E_INTERNAL, "more rows than prepare was told");
        return;
    }
    /* what does not wait for the choice comes first, so that it may run beside the router */
    metal_product(m, FAMILY_MOE, w->router, o.x, rows, &m->ws.logits);
    metal_product(m, FAMILY_MOE, w->shared_gate, o.x, rows, &m->ws.open);
    if (m->deterministic || o.visits <= d->experts) {
        gate_up(&o, w->shared_gate_proj, w->shared_up, true);
        choose(&o);
        gate_up(&o, w->gate, w->up, false);
        down(&o);
        return;
    }
    metal_product(m, FAMILY_MOE, w->shared_gate_proj, o.x, rows, &m->ws.shared_gate);
    metal_product(m, FAMILY_MOE, w->shared_up, o.x, rows, &m->ws.shared_up);
    choose(&o);
    swiglu(&o, &m->ws.shared_gate, &m->ws.shared_up, rows, o.shared_width);
    sort(&o);
    metal_product(m, FAMILY_MOE, w->shared_down, &m->ws.shared_gate, rows, &m->ws.shared);
    grouped(&o, w->gate, o.x, false, &m->ws.gate);
    grouped(&o, w->up, o.x, false, &m->ws.up);
    swiglu(&o, &m->ws.gate, &m->ws.up, o.visits, d->width);
    grouped(&o, w->down, &m->ws.gate, true, &m->ws.result);
    combine(&o);
}
