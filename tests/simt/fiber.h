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

/* fiber_start - prepare f to begin in entry, which never returns. The stack is reused. */
void fiber_start(fiber &f, void (*entry)());

/* fiber_switch - save `from` and continue in `to`. */
#if defined(__x86_64__)
extern "C" void simt_swap(void **save, void *load);
#endif
#if defined(__x86_64__) && !defined(SIMT_ASAN) && !defined(SIMT_TSAN)
inline void fiber_switch(fiber &from, fiber &to)
{
    simt_swap(&from.state, to.state);
}
#else
void fiber_switch(fiber &from, fiber &to);
#endif

/* fiber_entered - must be the first call of an entry function. */
void fiber_entered();

/* Annotations for the thread sanitizer: accesses before a release happen before accesses after an
 * acquire of the same token. While an object of type unwatched exists, accesses (of the emulator
 * itself) are ignored. */
#ifdef SIMT_TSAN
void fiber_release(const void *token);
void fiber_acquire(const void *token);

struct unwatched {
    unwatched();
    ~unwatched();
    unwatched(const unwatched &) = delete;
    unwatched &operator=(const unwatched &) = delete;
};
#else
inline void fiber_release(const void *)
{
}
inline void fiber_acquire(const void *)
{
}

struct unwatched {
    unwatched()
    {
    }
    ~unwatched()
    {
    }
    unwatched(const unwatched &) = delete;
    unwatched &operator=(const unwatched &) = delete;
};
#endif

/* fiber_poison, fiber_unpoison - forbid and allow accesses to memory (address sanitizer). */
#ifdef SIMT_ASAN
void fiber_poison(const void *memory, size_t bytes);
void fiber_unpoison(const void *memory, size_t bytes);
#else
inline void fiber_poison(const void *, size_t)
{
}
inline void fiber_unpoison(const void *, size_t)
{
}
#endif
} // namespace simt
