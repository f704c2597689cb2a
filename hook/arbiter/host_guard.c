/* host_guard.c: accesses to mapped files that somebody may have truncated.
 *
 * Called by host_claims.c (the bell of a ledger) and host_turns.c (the words). What can go wrong: the page is not there;
 * the accesses from there on are left out and guard_run() says so. */
#include "host_local.h"

#include "partage/guard.h"

int guard_install(void)
{
	return ptg_guard_install();
}

bool guard_run(void (*accesses)(void *), void *argument)
{
	volatile bool whole = false;
	if (!sigsetjmp(ptg_guard_back, 0)) {
		ptg_guard_armed = 1;
		accesses(argument);
		whole = true;
	}
	ptg_guard_armed = 0;
	return whole;
}
