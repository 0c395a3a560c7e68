/* Fibers: one stack for each emulated thread, switched cooperatively.
 *
 * On x86-64 a switch takes twenty instructions; other systems use ucontext, which makes a system
 * call. Each switch is reported to the address and thread sanitizers. For the thread sanitizer a
 * switch is no synchronization, so that it detects the races that a GPU would have. */
#pragma once

#include <cstddef>

namespace simt
{
struct fiber {
    void *state = nullptr; /* the stack pointer, or a ucontext */
    char *stack = nullptr; /* nullptr: the initial stack of the program */
    size_t bytes = 0;
    void *fake_stack = nullptr; /* of the address sanitizer */
    void *tsan = nullptr;
};

/* fiber_adopt - let f represent the running stack, to switch back to. */
void fiber_adopt(fiber &f);

/* fiber_start - prepare f to begin in entry, which never returns. The stack is allocated once and
 * reused. */
void fiber_start(fiber &f, void (*entry)());

/* fiber_switch - save `from` and continue in `to`. */
void fiber_switch(fiber &from, fiber &to);

/* fiber_entered - must be the first call of an entry function. */
void fiber_entered();

/* Annotations for the thread sanitizer: accesses before a release happen before accesses after an
 * acquire of the same token. While an object of type unwatched exists, accesses (of the emulator
 * itself) are ignored. */
void fiber_release(const void *token);
void fiber_acquire(const void *token);

struct unwatched {
    unwatched();
    ~unwatched();
    unwatched(const unwatched &) = delete;
    unwatched &operator=(const unwatched &) = delete;
};

/* fiber_poison, fiber_unpoison - forbid and allow accesses to memory (address sanitizer). */
void fiber_poison(const void *memory, size_t bytes);
void fiber_unpoison(const void *memory, size_t bytes);
} // namespace simt
