/* backend/metal/linear.c - products with affine matrices: which kernel takes which rows. */
#include "backend/metal/host.h"

enum { FEW = 4 }; /* rows that read the weights once each; untuned */

bool metal_few(const struct metal *m, int rows) { return m->deterministic || rows <= FEW; }

void metal_product(struct metal *m, enum metal_family family, const struct be_weight *w, const struct metal_memory *x, int rows,
                   const struct metal_memory *y) {
    const struct metal_linear_args args = {w->a.in, w->a.out, rows};
    const bool few = w->a.bits == 8 || metal_few(m, rows);
    struct metal_dispatch d = {.kernel = w->a.bits == 8 ? KERNEL_gemv8
                                         : few          ? KERNEL_gemv4
                                                        : KERNEL_gemm4,
                               .family = family,
                               .groups = {metal_groups(w->a.out, few ? METAL_GEMV_ROWS * METAL_GEMV_SIMDS : METAL_TILE),
                                          few ? (uint32_t)rows : metal_groups(rows, METAL_TILE), 1},
                               .n = 5,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .work = (double)rows * w->a.in * w->a.out};
    metal_bind_weight(&d, 0, w);
    d.bind[3] = metal_whole(x, metal_floats((size_t)rows, (size_t)w->a.in), READS);
    d.bind[4] = metal_whole(y, metal_floats((size_t)rows, (size_t)w->a.out), WRITES);
    metal_encode(m, &d);
}

void metal_linear(struct backend *be, int n, struct be_weight *const *w, const struct be_buffer *x, int rows, struct be_buffer *const *y) {
    struct metal *m = metal_of(be);
    if (rows < 0 || rows > m->dims.max_rows) {
        metal_fail(m, FAMILY_LINEAR, CALLA_E_INTERNAL, "more rows than prepare was told");
        return;
    }
    for (int i = 0; i < n; i++) metal_product(m, FAMILY_LINEAR, w[i], metal_buffer(x), rows, metal_buffer(y[i]));
}
