/* threads.h: a thread of our own, and what is called when one of the program's ends. */
#ifndef PARTAGE_SHIM_THREADS_H
#define PARTAGE_SHIM_THREADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* A detached thread with all signals blocked; false: it cannot be made. */
bool vgpu_thread_make(void *(*entry)(void *), void *argument, size_t stack_bytes);
/* `ends` is called with its value by each thread that has one; false: no key is left. */
bool vgpu_thread_key(pthread_key_t *key, void (*ends)(void *));
bool vgpu_thread_value(pthread_key_t key, const void *value);

#endif
