// backend/metal/linear_tensor_bf16.metal - the kernels of tensor.h with operands rounded to bf16.
#include "backend/metal/tensor.h"
#ifdef METAL_TENSORS
TENSOR(bf16, bfloat, METAL_TENSOR_ROWS)
#endif
