/* tests/metal-emulator/tensor.c - which elements of a cooperative tensor a thread holds is the implementation's business: tests choose. */
#include "tensor.h"

int emu_tensor_layout;
int emu_tensor_layout_now(void) { return emu_tensor_layout; }
