/* For libggml-cuda.so of a runtime (`cargo xtask runtime --cuda`). This machine's libstdc++.a needs functions of a
 * glibc that is newer than 2.28. They are defined here by functions of glibc 2.28. The CUDA backend's own code needs
 * none of them. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* New in glibc 2.32. 0 means that the process has several threads, as every process with CUDA has. */
char __libc_single_threaded = 0;

/* New in glibc 2.36. std::random_device uses it. */
uint32_t arc4random(void) {
    uint32_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
        abort();
    }
    return number;
}

/* New in glibc 2.33; a macro in earlier versions. */
int fstat64(int file, struct stat64 *status) { return syscall(SYS_fstat, file, status); }

/* glibc 2.34 moved these functions to libc. The linker gets a `--wrap` for each of them. */
#define OLD(name) __asm__(".symver old_" #name ", pthread_" #name "@GLIBC_2.2.5")

int old_once(pthread_once_t *, void (*)(void));
OLD(once);
int __wrap_pthread_once(pthread_once_t *control, void (*first)(void)) { return old_once(control, first); }

int old_key_create(pthread_key_t *, void (*)(void *));
OLD(key_create);
int __wrap_pthread_key_create(pthread_key_t *key, void (*end)(void *)) { return old_key_create(key, end); }

int old_key_delete(pthread_key_t);
OLD(key_delete);
int __wrap_pthread_key_delete(pthread_key_t key) { return old_key_delete(key); }

void *old_getspecific(pthread_key_t);
OLD(getspecific);
void *__wrap_pthread_getspecific(pthread_key_t key) { return old_getspecific(key); }

int old_setspecific(pthread_key_t, const void *);
OLD(setspecific);
int __wrap_pthread_setspecific(pthread_key_t key, const void *value) { return old_setspecific(key, value); }
