/* threads.c: functions of libpthread that moved into libc with 2.34, and got a symbol version that older ones lack.
 *
 * Called by the gate, at its first launch and once a thread. They are looked up instead of imported, so that the library
 * loads into every glibc that programs come with. What can go wrong: a libc without them; then there is no helper thread,
 * and threads are given nothing in advance. */
#include "threads.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

/* A sanitizer has to see threads begin and end. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
#define FIND(function) (&(function))
#else
#define FIND(function) ((__typeof__(&(function)))vgpu_libc(#function))
#endif

/* The kernel's set: one bit a signal. */
static void mask(const uint64_t *set, uint64_t *before)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, set, before, sizeof *set);
}

bool vgpu_thread_make(void *(*entry)(void *), void *argument, size_t stack_bytes)
{
	__typeof__(&pthread_create) create = FIND(pthread_create);
	__typeof__(&pthread_attr_setstacksize) set_stack = FIND(pthread_attr_setstacksize);
	const uint64_t all = UINT64_MAX;
	uint64_t before;
	pthread_attr_t attributes;
	pthread_t thread;
	if (!create || pthread_attr_init(&attributes) != 0)
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (set_stack)
		set_stack(&attributes, stack_bytes);
	mask(&all, &before);
	bool made = create(&thread, &attributes, entry, argument) == 0;
	mask(&before, NULL);
	pthread_attr_destroy(&attributes);
	return made;
}

bool vgpu_thread_key(pthread_key_t *key, void (*ends)(void *))
{
	__typeof__(&pthread_key_create) create = FIND(pthread_key_create);
	return create && create(key, ends) == 0;
}

bool vgpu_thread_value(pthread_key_t key, const void *value)
{
	__typeof__(&pthread_setspecific) set = FIND(pthread_setspecific);
	return set && set(key, value) == 0;
}
