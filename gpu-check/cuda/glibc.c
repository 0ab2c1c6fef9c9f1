/* For libggml-cuda.so of a runtime (`cargo xtask runtime --cuda`): what this machine's libstdc++.a asks of a glibc that is
 * newer than 2.28, by what that one has. The CUDA backend's own code asks for nothing of the kind. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 2.32. A process with CUDA has threads. */
char __libc_single_threaded = 0;

/* 2.36: of std::random_device. */
uint32_t arc4random(void) {
    uint32_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
        abort();
    }
    return number;
}

/* 2.33: a macro before. */
int fstat64(int file, struct stat64 *status) { return syscall(SYS_fstat, file, status); }

/* 2.34 has it in libc. The linker is told `--wrap=pthread_once`. */
int old_once(pthread_once_t *, void (*)(void));
__asm__(".symver old_once, pthread_once@GLIBC_2.2.5");
int __wrap_pthread_once(pthread_once_t *control, void (*first)(void)) { return old_once(control, first); }
