/* backend/cpu/mix_kernels.h - the body of mix_<isa>.c: all inner kernels of the mixers and their table, for the flags this file is compiled
 * with. The including file defines MIX_TABLE and MIX_NAME. */
#include "backend/cpu/mix_attn.h"
#include "backend/cpu/mix_gdn.h"
#include "backend/cpu/mix_moe.h"

extern const struct mix_kernels MIX_TABLE;
const struct mix_kernels MIX_TABLE = {
    .name = MIX_NAME,
    .gemm = gemm,
    .transpose = transpose,
    .conv = conv,
    .unit = unit,
    .step = step,
    .chunk = chunk,
    .gated_norm = gated_norm,
    .head_norm = head_norm,
    .block = block,
    .to_page_order = to_page_order,
    .from_page_order = from_page_order,
    .store8 = store8,
    .join = join,
    .finish = finish,
    .swiglu = swiglu,
};
