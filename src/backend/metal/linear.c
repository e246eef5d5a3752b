/* backend/metal/linear.c - products with affine matrices: which kernel takes which rows. */
#include "backend/metal/host.h"

enum { FEW = METAL_GEMV_BATCH }; /* rows that share one reading of the weights by dot products; untuned */

/* A kernel for many rows, and how many outputs and rows a group of it takes. */
struct choice {
    enum metal_kernel kernel;
    int outs, rows;
};

/* Dot products are the same sums for one row and for several; tiles add in another order. */
static struct choice choose(const struct metal *m, int bits, int rows) {
    enum { OUTS = METAL_GEMV_ROWS * METAL_GEMV_SIMDS };
    if (rows == 1) return (struct choice){bits == 8 ? KERNEL_gemv8 : KERNEL_gemv4, OUTS, 1};
    if (m->deterministic || rows <= FEW) return (struct choice){bits == 8 ? KERNEL_gemv8_rows : KERNEL_gemv4_rows, OUTS, METAL_GEMV_BATCH};
    if (m->route == ROUTE_TENSOR && bits == 4)
        return (struct choice){metal_tensor_kernel(m->compute, KERNEL_gemm4_tensor_f32), METAL_TENSOR_OUT,
                               m->compute == BE_FLOAT32 ? METAL_TILE : METAL_TENSOR_ROWS};
    return (struct choice){bits == 8 ? KERNEL_gemm8 : KERNEL_gemm4, METAL_TILE, METAL_TILE};
}

void metal_product(struct metal *m, enum metal_family family, const struct be_weight *w, const struct metal_memory *x, int rows,
                   const struct metal_memory *y) {
    const struct metal_linear_args args = {w->a.in, w->a.out, rows};
    const struct choice c = choose(m, w->a.bits, rows);
    struct metal_dispatch d = {.kernel = c.kernel,
                               .family = family,
                               .groups = {metal_groups(w->a.out, c.outs), metal_groups(rows, c.rows), 1},
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
