// How a thread of ggml's waits for the others of its graph: included into ggml-cpu.c by wait.cmake.
//
// ggml's own barrier spins until the last thread arrives. On a busy machine the last thread has often lost its core to
// another program, and it gets the core back later because the others spin. A thread here spins for a moment, which
// covers nearly all waits of a quiet machine, and then sleeps until the last thread wakes it.
#pragma once

#if defined(__linux__)
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <unistd.h>
#elif !defined(_WIN32)
    #include <sched.h>
#endif

// Microseconds that a thread spins before it sleeps, for each step of a threadpool's `poll` (0 to 100), and at most.
// With `poll` 0 it sleeps after AUTOPLACE_LOOKS looks.
// benches/results/2026-11-28-epyc-zen5-2-cores/company.md compares others.
#define AUTOPLACE_SPIN_US 1
#define AUTOPLACE_MOST_SPIN_US 20

// Microseconds that a thread waits for the next graph, for each step of `poll`, before it sleeps.
#define AUTOPLACE_POLL_US 10

// Looks at a word between two looks at the clock: about a microsecond.
#define AUTOPLACE_LOOKS 64

// Threads of this process that sleep in a barrier. The last thread to arrive asks the system to wake them only where
// there is one.
static atomic_int autoplace_sleepers = 0;

// Returns once `*word` differs from `seen`. `poll` is that of the threadpool.
static void autoplace_wait(atomic_int * word, int seen, uint32_t poll) {
    const int64_t spin  = MIN(AUTOPLACE_SPIN_US * (int64_t) poll, AUTOPLACE_MOST_SPIN_US);
    const int64_t begin = ggml_time_us();
    do {
        for (int i = 0; i < AUTOPLACE_LOOKS; ++i) {
            if (atomic_load_explicit(word, memory_order_relaxed) != seen) {
                return;
            }
            ggml_thread_cpu_relax();
        }
    } while (ggml_time_us() - begin < spin);

#if defined(__linux__)
    // Sequentially consistent, as is the change of `*word`: either the last thread sees this sleeper, or the system
    // call sees the changed word and returns at once.
    atomic_fetch_add_explicit(&autoplace_sleepers, 1, memory_order_seq_cst);
    while (atomic_load_explicit(word, memory_order_relaxed) == seen) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
    atomic_fetch_add_explicit(&autoplace_sleepers, -1, memory_order_seq_cst);
#else
    while (atomic_load_explicit(word, memory_order_relaxed) == seen) {
    #if defined(_WIN32)
        SwitchToThread();
    #else
        sched_yield();
    #endif
    }
#endif
}

// After `*word` has changed.
static void autoplace_wake(atomic_int * word) {
#if defined(__linux__)
    if (atomic_load_explicit(&autoplace_sleepers, memory_order_seq_cst) != 0) {
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
#else
    (void) word;
#endif
}
