/* Stacks that take turns: one fiber for each emulated thread.
 *
 * On x86-64 a switch is twenty instructions (ucontext makes a system call for each); elsewhere it is
 * ucontext's. The address and the thread sanitizer are told of every switch; for the latter, fibers
 * are not ordered by taking turns, so that it sees the races that a GPU would have. */
#pragma once

#include <cstddef>

namespace simt
{
struct fiber {
    void *state = nullptr; /* the stack pointer, or a ucontext */
    char *stack = nullptr; /* none: the stack that the program began with */
    size_t bytes = 0;
    void *fake_stack = nullptr; /* the address sanitizer's */
    void *tsan = nullptr;
};

/* fiber_adopt - f is the running stack itself, to come back to. */
void fiber_adopt(fiber &f);

/* fiber_start - f will begin in entry, which never returns. Its stack is made once and used again. */
void fiber_start(fiber &f, void (*entry)());

/* fiber_switch - leave `from`, go on in `to`. */
void fiber_switch(fiber &from, fiber &to);

/* fiber_entered - the first thing that an entry calls. */
void fiber_entered();

/* What the thread sanitizer needs to hear: what was released at an address happened before what is
 * acquired there; and the emulator's own accesses are nobody's. */
void fiber_release(const void *token);
void fiber_acquire(const void *token);

struct unwatched {
    unwatched();
    ~unwatched();
    unwatched(const unwatched &) = delete;
    unwatched &operator=(const unwatched &) = delete;
};

/* Memory that must not be touched, and memory that may be again (address sanitizer). */
void fiber_poison(const void *memory, size_t bytes);
void fiber_unpoison(const void *memory, size_t bytes);
} // namespace simt
