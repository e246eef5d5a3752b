// backend/metal/linear_tensor_f32.metal - the kernels of tensor.h with operands in float32.
#include "backend/metal/tensor.h"
#ifdef METAL_TENSORS
TENSOR(f32, float, METAL_TILE)
#endif
