/* tests/metal-emulator/fibre.h - a thread of the emulated GPU: its own stack, switched by hand on x86-64 and aarch64, else by ucontext
 * (define EMU_UCONTEXT to force that). */
#ifndef EMU_FIBRE_H
#define EMU_FIBRE_H
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#include <stddef.h>
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

struct fibre {
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *sp; /* of a fibre that is not running */
#endif
};
/* Make `f` ready to run entry() on stack..stack+size; entry must never return. */
void fibre_make(struct fibre *f, char *stack, size_t size, void (*entry)(void));
/* Leave `from`, go on in `to`. */
void fibre_switch(struct fibre *from, struct fibre *to);
#endif
