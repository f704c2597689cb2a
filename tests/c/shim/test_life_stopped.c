/* A process that is stopped (SIGSTOP, a tracer, the cgroup freezer) lives: its charge stays and its slot is its own. And
 * nobody waits for it, wherever it was stopped: before every instruction that the library executes in its first
 * allocation, in later ones, in a free and in a refusal, peers that run already and newcomers get their memory or a
 * refusal in bounded time; a newcomer that finds the set-up lock held by somebody stopped gives up after five seconds.
 * Continued, the stopped process goes on as if nothing had been.
 */
#include <sys/ptrace.h>

#include "life.h"
#include "steps.h"

#define POINTS     STEPS_POINTS(25)
#define WATCHDOG_S 60 /* stands for "waits for ever" */

static void stop_here(void)
{
	raise(SIGSTOP);
}

/* ---- stopped before an instruction ------------------------------------------------------------------------------------ */

static void first_allocation(void)
{
	OK(cuMemFree_v2(life_take(3 * MIB)));
}

static void later_ones(void)
{
	OK(cuMemFree_v2(life_take(3 * MIB)));
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
}

struct part {
	const char *name;
	void (*before)(void);
	void (*body)(void);
};

static void nothing(void)
{
}

static const struct part parts[] = {{"the first allocation", nothing, first_allocation},
                                    {"later ones", later_ones, later_ones}};
static const struct part *part;
static unsigned *counted; /* shared */

static void count_steps(void)
{
	start(0);
	part->before();
	*counted = steps_run(part->body, 0, nothing);
}

static void peer(int in, int out)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemFree_v2(life_take(MIB)));
	while (player_next(in)) {
		alarm(WATCHDOG_S);
		CUresult given = cuMemAlloc_v2(&p, MIB);
		if (given == CUDA_SUCCESS)
			OK(cuMemFree_v2(p));
		CUresult refused = cuMemAlloc_v2(&(CUdeviceptr){0}, 5 * GIB);
		player_answer(out, given == CUDA_SUCCESS && refused == CUDA_ERROR_OUT_OF_MEMORY);
	}
}

static void newcomer(void)
{
	CUdeviceptr p;
	alarm(WATCHDOG_S);
	start(0);
	CUresult given = cuMemAlloc_v2(&p, MIB);
	CHECK(given == CUDA_SUCCESS || given == CUDA_ERROR_OUT_OF_MEMORY, "a newcomer gets %d", given);
}

static void stopped_at(unsigned last, const struct player *running)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		start(0);
		part->before();
		steps_run(part->body, last, stop_here);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, WUNTRACED) == pid, "wait");
	/* The start is not the same to the instruction each time: it may end before it is stopped. */
	if (!WIFSTOPPED(status)) {
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "before step %u: status 0x%x", last, status);
		return;
	}
	CHECK(player_ask(running, 1) == 1, "a peer was not served while somebody is stopped before step %u of %s", last,
	      part->name);
	scene("a newcomer", newcomer);
	kill(pid, SIGCONT);
	life_wait(part->name, pid, 0);
}

static void stopped_anywhere(void)
{
	counted = mmap(NULL, sizeof(*counted), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(counted != MAP_FAILED, "mmap");
	struct player running = player_start(peer);
	CHECK(player_ask(&running, 1) == 1, "a peer");
	for (part = parts; part < parts + sizeof(parts) / sizeof(*parts); part++) {
		scene("count steps", count_steps);
		CHECK(*counted > 100, "the library executes only %u instructions", *counted);
		unsigned stride = *counted / POINTS + 1;
		for (unsigned last = 1; last <= *counted; last += stride)
			stopped_at(last, &running);
		NOTE("%s: stopped before every %u. of %u instructions", part->name, stride, *counted);
	}
	player_end(&running, false);
}

/* ---- stopped with memory in hand --------------------------------------------------------------------------------------- */

static void holder(int in, int out)
{
	start(0);
	while (player_next(in)) {
		life_take(GIB);
		player_answer(out, life_charged_by(getpid()));
	}
}

static void asks_for_all(void)
{
	alarm(WATCHDOG_S);
	start(0);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 3 * GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	life_take(3 * GIB);
	CHECK(used() == LIFE_LIMIT, "%lu used", (unsigned long)used());
}

static bool by_signal(pid_t pid, bool stop)
{
	int status;
	kill(pid, stop ? SIGSTOP : SIGCONT);
	return !stop || (waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
}

static bool by_tracer(pid_t pid, bool stop)
{
	int status;
	if (!stop)
		return ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0;
	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0)
		return false;
	return ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status);
}

static bool write_text(const char *directory, const char *file, const char *text)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", directory, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return written;
}

/* Both kinds of hierarchy; false where there is none that we may change. */
static bool by_freezer(pid_t pid, bool stop)
{
	static const char *const roots[] = {"/sys/fs/cgroup/freezer", "/sys/fs/cgroup"};
	static char directory[300];
	char number[32];
	snprintf(number, sizeof(number), "%d", pid);
	for (int i = 0; i < 2; i++) {
		snprintf(directory, sizeof(directory), "%s/partage-test-%d", roots[i], getpid());
		if (stop && (mkdir(directory, 0755) != 0 || !write_text(directory, "cgroup.procs", number)))
			continue;
		bool done = i ? write_text(directory, "cgroup.freeze", stop ? "1" : "0")
		              : write_text(directory, "freezer.state", stop ? "FROZEN" : "THAWED");
		if (!stop || !done) {
			write_text(roots[i], "cgroup.procs", number);
			rmdir(directory);
		}
		if (done)
			return true;
	}
	return false;
}

static void stopped_holder(const char *how, bool (*way)(pid_t, bool))
{
	struct player stopped = player_start(holder);
	CHECK(player_ask(&stopped, 1) == GIB, "charge");
	if (way(stopped.pid, true)) {
		scene(how, asks_for_all);
		CHECK(life_charged_by(stopped.pid) == GIB, "%s: charged %lu", how,
		      (unsigned long)life_charged_by(stopped.pid));
		CHECK(way(stopped.pid, false), "%s: cannot be continued", how);
	} else {
		NOTE("%s: not allowed here", how);
	}
	CHECK(player_ask(&stopped, 1) == 2 * GIB, "%s: it does not go on", how);
	player_end(&stopped, false);
}

/* ---- the set-up lock ------------------------------------------------------------------------------------------------------ */

static void is_refused(void)
{
	alarm(WATCHDOG_S);
	start(0);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void is_served(void)
{
	start(0);
	life_take(LIFE_LIMIT);
}

/* As of somebody who was stopped while making the ledger. */
static void set_up_held(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PTG_LOCK_SETUP, .l_len = 1};
	grant("locked", &(struct granted){0, LIFE_LIMIT}, 1);
	int fd = open(grant_path("locked", "ledger"), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "the set-up lock");
	scene("somebody stopped has the set-up lock", is_refused);
	close(fd);
	scene("it is free again", is_served);
}

int main(void)
{
	life_begin();
	if (steps_possible)
		stopped_anywhere();
	stopped_holder("SIGSTOP", by_signal);
	stopped_holder("a tracer", by_tracer);
	stopped_holder("the freezer", by_freezer);
	scene("afterwards", life_all_free);
	set_up_held();
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
