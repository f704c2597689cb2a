/* test_host_rounds.c: what a round of the arbiter asks of the kernel, by count: its sleep, and a call for each word that it
 * changes. Neither grows with the number of tenants, and a ring that changes nothing costs the sleep alone.
 *
 * A host serves eight tenants in a process of its own whose main thread is traced; the tenants are a thread here. Counts do
 * not depend on how fast or loaded the machine is. Skipped where this system does not let us trace. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <elf.h>

#include "world.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e
#endif

#define TENANTS 8
#define RINGS   500
#define TURNS   8 /* of each, in a pass */

/* struct ptrace_syscall_info of linux/ptrace.h, which cannot be included beside sys/ptrace.h: only what an entry has. */
struct entry_info {
	uint8_t op, pad[3];
	uint32_t arch;
	uint64_t instruction_pointer, stack_pointer, number, arguments[6], more[2];
};
#define OP_ENTRY 1

/* Calls of the traced thread so far. */
static uint64_t sleeps, locks, files, others;
static uint32_t gone_to_sleep; /* futex: +1 with each sleep */
static struct world w;
static struct hand tenant[TENANTS];
static pid_t traced;

struct calls {
	uint64_t sleeps, locks, files, others;
};

static uint64_t load(const uint64_t *count)
{
	return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

static struct calls calls(void)
{
	return (struct calls){load(&sleeps), load(&locks), load(&files), load(&others)};
}

static struct calls calls_since(struct calls before)
{
	struct calls now = calls();
	return (struct calls){now.sleeps - before.sleeps, now.locks - before.locks, now.files - before.files,
	                      now.others - before.others};
}

/* Until it has gone to sleep `more` times since `from`. */
static void await_sleeps(uint64_t from, uint64_t more)
{
	struct timespec most = {.tv_sec = 60};
	for (uint32_t word; word = __atomic_load_n(&gone_to_sleep, __ATOMIC_SEQ_CST), calls().sleeps < from + more;)
		CHECK(syscall(SYS_futex, &gone_to_sleep, FUTEX_WAIT_PRIVATE, word, &most, NULL, 0) == 0 ||
		              errno != ETIMEDOUT,
		      "the host does not go to sleep");
}

static uint64_t words(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < TENANTS; i++)
		sum += word_of(&tenant[i], 0);
	return sum;
}

static void check_calls(const struct calls *made, uint64_t changes)
{
	CHECK(made->others <= changes + made->sleeps / 50, "%lu calls beside %lu sleeps and %lu changes of a word",
	      made->others, made->sleeps, changes);
}

/* One works in its turn, and rings for it; nobody else wants anything. */
static void rings(void)
{
	want(&tenant[0], 0, 0);
	await_open(&tenant[0], 0);
	struct calls before = calls();
	uint64_t changes = words();
	for (int i = 0; i < RINGS; i++) {
		uint64_t from = calls().sleeps;
		begin(&tenant[0], 0, 0);
		finish(&tenant[0], 0, 0);
		ring(&tenant[0]);
		await_sleeps(from, 1);
	}
	struct calls made = calls_since(before);
	changes = words() - changes;
	NOTE("%d rings: %lu sleeps, %lu calls beside them, words went on by %lu", RINGS, made.sleeps, made.others,
	     changes);
	CHECK(made.sleeps >= RINGS, "%lu sleeps", made.sleeps);
	check_calls(&made, changes);
}

/* Works until its turn is closed, then says that it is drained, again and again. */
static void *take_turns(void *argument)
{
	struct hand *h = argument;
	for (int i = 0; i < TURNS; i++) {
		want(h, 0, 0);
		await_open(h, 0);
		begin(h, 0, 0);
		await_closed(h, 0);
		finish(h, 0, 0);
	}
	return NULL;
}

/* All of them take turns; returns how often a hand-over's files were looked at. */
static uint64_t turns(bool checked)
{
	pthread_t thread[TENANTS];
	struct calls before = calls();
	uint64_t changes = words();
	for (int i = 0; i < TENANTS; i++)
		pthread_create(&thread[i], NULL, take_turns, &tenant[i]);
	for (int i = 0; i < TENANTS; i++)
		pthread_join(thread[i], NULL);
	struct calls made = calls_since(before);
	changes = words() - changes;
	if (!checked)
		return made.files;
	NOTE("%d turns: %lu sleeps, %lu looks for the dead, %lu calls beside them, words went on by %lu",
	     TENANTS * TURNS, made.sleeps, made.locks, made.others, changes);
	check_calls(&made, changes);
	CHECK(made.locks <= made.sleeps / 2, "%lu looks for the dead, and nobody died", made.locks);
	return made.files;
}

static void *live(void *unused)
{
	(void)unused;
	await_sleeps(0, 1);
	for (int i = 0; i < TENANTS; i++)
		CHECK(take_slot(&tenant[i], 0), "a slot");
	/* What has just come is looked at again and again for a second, at growing distances. */
	for (int quiet = 0; quiet < 2;)
		quiet = turns(false) ? 0 : quiet + 1;
	turns(true);
	rings();
	CHECK(!kill(traced, SIGKILL), "%s", strerror(errno));
	return NULL;
}

static _Noreturn void serve(void)
{
	struct ptg_host *host = world_open(&w, w.root, PTG_HOST_FOREVER, 0);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(77);
	raise(SIGSTOP);
	ptg_host_run(host);
	_exit(1);
}

static void count(void)
{
	struct entry_info info = {0};
	if (ptrace(PTRACE_GET_SYSCALL_INFO, traced, (void *)sizeof info, &info) <= 0 || info.op != OP_ENTRY)
		return;
	uint64_t *kind = info.number == SYS_futex_waitv  ? &sleeps
	                 : info.number == SYS_fcntl      ? &locks
	                 : info.number == SYS_newfstatat ? &files
	                                                 : &others;
	__atomic_fetch_add(kind, 1, __ATOMIC_SEQ_CST);
	if (kind != &sleeps)
		return;
	__atomic_fetch_add(&gone_to_sleep, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &gone_to_sleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int main(void)
{
	int status;
	pthread_t thread;
	if (syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno == ENOSYS)
		SKIP("this kernel has no futex_waitv");
	w = world_make("rounds");
	for (int i = 0; i < TENANTS; i++) {
		char name[16];
		snprintf(name, sizeof name, "t%d", i);
		tenant[i] = hand_make(&w, name, (struct share){125, 125, 125, PTG_CLASS_BURST, true}, NULL);
	}
	traced = fork();
	CHECK(traced >= 0, "%s", strerror(errno));
	if (traced == 0)
		serve();
	CHECK(waitpid(traced, &status, 0) == traced, "%s", strerror(errno));
	if (!WIFSTOPPED(status) || ptrace(PTRACE_SETOPTIONS, traced, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))
		SKIP("this system does not let us trace");
	pthread_create(&thread, NULL, live, NULL);
	for (int number = 0;;) {
		CHECK(!ptrace(PTRACE_SYSCALL, traced, NULL, number) || errno == ESRCH, "%s", strerror(errno));
		CHECK(waitpid(traced, &status, 0) == traced, "%s", strerror(errno));
		if (!WIFSTOPPED(status))
			break;
		number = WSTOPSIG(status) == (SIGTRAP | 0x80) || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			count();
	}
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the host ended, status %#x", status);
	pthread_join(thread, NULL);
	return 0;
}
