/* tests/metal-emulator/fibre.c - see fibre.h. A hand-made switch saves what the calling convention lets the callee keep. */
#ifdef __APPLE__
#define _XOPEN_SOURCE 700
#endif
#include "fibre.h"
#include <stdint.h>
#include <string.h>

#ifdef EMU_UCONTEXT
void fibre_make(struct fibre *f, char *stack, size_t size, void (*entry)(void)) {
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = size;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}
void fibre_switch(struct fibre *from, struct fibre *to) { swapcontext(&from->context, &to->context); }
#else
#ifdef __APPLE__
#define SYMBOL(name) "_" name
#else
#define SYMBOL(name) name
#endif
void emu_fibre_swap(void **save, void *load);
#ifdef __x86_64__
enum { SAVED = 6 };
__asm__(".text\n.globl " SYMBOL("emu_fibre_swap") "\n" SYMBOL(
    "emu_fibre_swap") ":\n"
                      "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
                      "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
                      "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");
#else
enum { SAVED = 20 };
__asm__(".text\n.p2align 2\n.globl " SYMBOL("emu_fibre_swap") "\n" SYMBOL(
    "emu_fibre_swap") ":\n"
                      "  sub sp, sp, #160\n"
                      "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
                      "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
                      "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
                      "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
                      "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
                      "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
                      "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
                      "  add sp, sp, #160\n  ret\n");
#endif

void fibre_make(struct fibre *f, char *stack, size_t size, void (*entry)(void)) {
    uintptr_t top = ((uintptr_t)stack + size) & ~(uintptr_t)15;
#ifdef __x86_64__
    void **sp = (void **)top - 2; /* at entry the stack is 8 off a multiple of 16, as after a call */
    *sp = (void *)(uintptr_t)entry;
    sp[1] = NULL;
    sp -= SAVED;
    memset(sp, 0, SAVED * sizeof *sp);
#else
    void **sp = (void **)top - SAVED;
    memset(sp, 0, SAVED * sizeof *sp);
    sp[11] = (void *)(uintptr_t)entry; /* x30 */
#endif
    f->sp = sp;
}
void fibre_switch(struct fibre *from, struct fibre *to) { emu_fibre_swap(&from->sp, to->sp); }
#endif
