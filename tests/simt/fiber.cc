/* Fibers of the emulator (fiber.h). */
#include "tests/simt/fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#ifdef SIMT_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);
}
#endif
#ifdef SIMT_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void **fake_stack_save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake_stack, const void **bottom, size_t *size);
void __asan_poison_memory_region(void const volatile *address, size_t size);
void __asan_unpoison_memory_region(void const volatile *address, size_t size);
}
#endif

namespace simt
{
/* Sized for sanitizers, which make stack frames several times larger. */
static const size_t stack_bytes = 256 << 10, guard_bytes = 4096;

/* Stacks begin in different sets of the first cache, so that the threads of a warp do not evict
 * each other's stacks: each stack begins 5 cache lines after the last one, modulo a page. */
static const size_t cache_line_bytes = 64, page_lines = 64, step_lines = 5;

/* Only frames that are left when a thread ends stay poisoned: the emulator's frames at the top. */
static const size_t left_bytes = 4096 + page_lines * cache_line_bytes;

static fiber *adopted;

#if defined(__x86_64__)

/* simt_swap(save, load): pushes the callee-saved registers, stores the stack pointer and loads the
 * other one. */
asm(R"(
    .text
    .globl simt_swap
    .hidden simt_swap
    .type simt_swap, @function
simt_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size simt_swap, .-simt_swap
)");

static void prepare_stack(fiber &f, void (*entry)())
{
    auto *top = reinterpret_cast<uint64_t *>(f.stack + f.bytes);
    *--top = 0; /* in place of a return address; keeps the alignment of the ABI */
    *--top = reinterpret_cast<uint64_t>(entry);
    for (int i = 0; i < 6; i++) {
        *--top = 0;
    }
    f.state = top;
}

[[maybe_unused]] static void swap_stacks(fiber &from, fiber &to)
{
    simt_swap(&from.state, to.state);
}

#else

static void prepare_stack(fiber &f, void (*entry)())
{
    if (f.state == nullptr) {
        f.state = new ucontext_t;
    }
    auto *context = static_cast<ucontext_t *>(f.state);
    getcontext(context);
    context->uc_stack.ss_sp = f.stack;
    context->uc_stack.ss_size = f.bytes;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
}

static void swap_stacks(fiber &from, fiber &to)
{
    if (from.state == nullptr) {
        from.state = new ucontext_t;
    }
    swapcontext(static_cast<ucontext_t *>(from.state), static_cast<ucontext_t *>(to.state));
}

#endif

void fiber_adopt(fiber &f)
{
    adopted = &f;
#ifdef SIMT_TSAN
    f.tsan = __tsan_get_current_fiber();
#endif
}

void fiber_start(fiber &f, void (*entry)())
{
    if (f.stack == nullptr) {
        void *memory = mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) {
            perror("simt: a fiber's stack");
            abort();
        }
        static size_t stacks;
        size_t skipped_bytes = stacks++ * step_lines % page_lines * cache_line_bytes;
        f.stack = static_cast<char *>(memory) + guard_bytes;
        f.bytes = stack_bytes - skipped_bytes;
#ifdef SIMT_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
    }
    fiber_unpoison(f.stack + f.bytes - left_bytes, left_bytes);
    prepare_stack(f, entry);
}

void fiber_entered()
{
#ifdef SIMT_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (adopted->stack == nullptr) { /* the first switch comes from the adopted stack */
        adopted->stack = static_cast<char *>(const_cast<void *>(bottom));
        adopted->bytes = bytes;
    }
#endif
}

#if !defined(__x86_64__) || defined(SIMT_ASAN) || defined(SIMT_TSAN)
void fiber_switch(fiber &from, fiber &to)
{
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(to.tsan, 1); /* 1: a switch is no synchronization */
#endif
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.bytes);
#endif
    swap_stacks(from, to);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}
#endif

#ifdef SIMT_TSAN
void fiber_release(const void *token)
{
    __tsan_release(const_cast<void *>(token));
}
void fiber_acquire(const void *token)
{
    __tsan_acquire(const_cast<void *>(token));
}
unwatched::unwatched()
{
    __tsan_ignore_thread_begin();
}
unwatched::~unwatched()
{
    __tsan_ignore_thread_end();
}
#endif

#ifdef SIMT_ASAN
void fiber_poison(const void *memory, size_t bytes)
{
    __asan_poison_memory_region(memory, bytes);
}
void fiber_unpoison(const void *memory, size_t bytes)
{
    __asan_unpoison_memory_region(memory, bytes);
}
#endif
} // namespace simt
