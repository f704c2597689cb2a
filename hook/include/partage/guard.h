/* guard.h: a read or write of a mapped file that somebody may have truncated is an error and not the process's death.
 *
 * Included by hook/gen/abi_support.h and hook/arbiter: by each translation unit for itself, whose handler passes on what
 * is not its own. Use: install once per process, then, on any thread,
 *
 *	if (!sigsetjmp(ptg_guard_back, 0)) { ptg_guard_armed = 1; ...few plain accesses... }
 *	ptg_guard_armed = 0;
 *
 * with a volatile result that the block sets last. What can go wrong: a handler that somebody installs later and that
 * does not pass SIGBUS on. */
#ifndef PARTAGE_GUARD_H
#define PARTAGE_GUARD_H

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static _Thread_local sigjmp_buf ptg_guard_back;
static _Thread_local volatile sig_atomic_t ptg_guard_armed;
static struct sigaction ptg_guard_before;
static int ptg_guard_installed;

static void ptg_guard_caught(int number, siginfo_t *info, void *context)
{
	if (ptg_guard_armed) {
		sigset_t
		        bus; /* blocked here where a sanitizer stands between; saving the mask each time costs a system call */
		sigemptyset(&bus);
		sigaddset(&bus, SIGBUS);
		pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
		siglongjmp(ptg_guard_back, 1);
	}
	if (ptg_guard_before.sa_flags & SA_SIGINFO) {
		ptg_guard_before.sa_sigaction(number, info, context);
	} else if (ptg_guard_before.sa_handler != SIG_DFL && ptg_guard_before.sa_handler != SIG_IGN) {
		ptg_guard_before.sa_handler(number);
	} else {
		signal(number, SIG_DFL); /* not ours: the access is repeated and kills, as it would have */
	}
}

/* Install the handler; once per process, before the first guarded access. 0, or -errno. */
static int ptg_guard_install(void)
{
	struct sigaction now, wanted = {.sa_sigaction = ptg_guard_caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigemptyset(&wanted.sa_mask);
	if (__atomic_exchange_n(&ptg_guard_installed, 1, __ATOMIC_SEQ_CST))
		return 0; /* who came after us passes on; to go before it again would make two that pass on to each other */
	if (sigaction(SIGBUS, NULL, &now))
		return -errno;
	ptg_guard_before = now;
	return sigaction(SIGBUS, &wanted, NULL) ? -errno : 0;
}

#endif
