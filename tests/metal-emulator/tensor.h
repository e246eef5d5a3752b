/* tests/metal-emulator/tensor.h - the layout of emulated cooperative tensors, between tests and the shaders' headers. */
#ifndef EMU_TENSOR_H
#define EMU_TENSOR_H
#ifdef __cplusplus
extern "C" {
#endif
/* 0: threads take elements in turn, row by row. 1: a thread has neighbours of a column, the last thread the first ones, and its element 0
 * is not valid. Nothing may depend on it. */
extern int emu_tensor_layout;
int emu_tensor_layout_now(void); /* for shaders, whose every load is looked at */
#ifdef __cplusplus
}
#endif
#endif
