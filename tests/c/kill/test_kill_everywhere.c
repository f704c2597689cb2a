/* test_kill_everywhere.c: kill -9 before every instruction that libvgpu.so executes in a hooked allocation and free,
 * while peers contend for the same ledger. usage: test_kill_everywhere KIND [MOST]. KIND `refused` asks for more than the
 * limit instead, while the slot of an earlier victim waits to be reclaimed: killed at every step of a refusal.
 *
 * An undisturbed victim is single-stepped to record every step inside libvgpu.so. Then, for each step (or MOST of them,
 * evenly), a victim runs at full speed beside the peers up to that instruction and that repetition of it, and is killed
 * before executing it. After each kill every peer must finish what it is doing (a watchdog of 2 s stands for "hangs"),
 * and once a refusal has made somebody look, the ledger must equal what the simulator counts. Prints how many points
 * there were; fails if a recorded one was not hit. */
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "share.h"
#include "work.h"

#define PEERS    8
#define LIMIT    (UINT64_C(2) << 30) /* room for what all hold at once: the victim's path is then the same each time */
#define STEPS    65536
#define ATTEMPTS 5
#define WATCHDOG_MS 60000 /* stands for "for ever": a loaded machine may take seconds */

struct control {
	uint32_t pause; /* peers free everything, acknowledge and wait while it is odd */
	uint32_t refuse; /* peer 0 asks for more than the limit before it acknowledges */
	int32_t result; /* of the last victim that came to the end of its section */
};

static struct control *control;
static char scratch[512], self_path[1024];

/* ---- children ------------------------------------------------------------------------------------------------------- */

static void peer(enum work_kind kind, int index, int acknowledge)
{
	struct work held[4], too_much;
	uint32_t seen = 0;
	unsigned random = (unsigned)index * 2654435761u + 1;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	work_init();
	for (;;) {
		int n = 0;
		for (; n < 4; n++) {
			random = random * 1664525 + 1013904223;
			CUresult result = work_alloc(kind, &held[n], work_size(kind, random >> 16));
			if (result == CUDA_ERROR_OUT_OF_MEMORY)
				break;
			CHECK(result == CUDA_SUCCESS, "peer %d: allocation gave %d", index, result);
		}
		while (n-- > 0)
			CHECK(work_free(kind, &held[n]) == CUDA_SUCCESS, "peer %d: free failed", index);
		uint32_t pause = __atomic_load_n(&control->pause, __ATOMIC_ACQUIRE);
		if (pause == seen)
			continue;
		seen = pause;
		if (pause % 2 == 0)
			continue;
		if (index == 0 && __atomic_load_n(&control->refuse, __ATOMIC_ACQUIRE)) {
			CUresult result = work_alloc(kind, &too_much, LIMIT + (UINT64_C(2) << 20));
			CHECK(result == CUDA_ERROR_OUT_OF_MEMORY, "more than the limit gave %d", result);
		}
		CHECK(write(acknowledge, "a", 1) == 1, "acknowledge");
		while (__atomic_load_n(&control->pause, __ATOMIC_ACQUIRE) == pause)
			syscall(SYS_futex, &control->pause, FUTEX_WAIT, pause, NULL, NULL, 0);
	}
}

static void victim(enum work_kind kind, bool refused)
{
	struct work w;
	size_t bytes = refused ? LIMIT + ((size_t)2 << 20) : work_size(kind, 1);
	work_init();
	for (int i = 0; i < 3; i++) { /* lazily resolved symbols and first pages are not the point */
		CUresult warm = work_alloc(kind, &w, work_size(kind, 1));
		CHECK(warm == CUDA_ERROR_OUT_OF_MEMORY || warm == CUDA_SUCCESS, "victim: %d", warm);
		if (warm == CUDA_SUCCESS)
			CHECK(work_free(kind, &w) == CUDA_SUCCESS, "victim: free");
	}
	raise(SIGSTOP);
	CUresult result = work_alloc(kind, &w, bytes);
	if (!refused && result == CUDA_SUCCESS)
		result = work_free(kind, &w);
	control->result = (int32_t)result;
	raise(SIGSTOP);
	_exit(result == (refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS) ? 0 : 1);
}

static pid_t start(const char *role, const char *kind, int index, int acknowledge, bool traced)
{
	char index_text[16], acknowledge_text[16], preload[1024];
	snprintf(index_text, sizeof index_text, "%d", index);
	snprintf(acknowledge_text, sizeof acknowledge_text, "%d", acknowledge);
	snprintf(preload, sizeof preload, "%s/lib/libvgpu.so", getenv("TEST_BUILD"));
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		setenv("LD_PRELOAD", preload, 1);
		setenv("LD_BIND_NOW", "1", 1);
		if (traced)
			CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0, "PTRACE_TRACEME: %s", strerror(errno));
		execl(self_path, self_path, role, kind, index_text, acknowledge_text, (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* ---- tracing ---------------------------------------------------------------------------------------------------------- */

struct range {
	uint64_t begin, end;
};

static struct range library_text(pid_t pid)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "re");
	CHECK(maps != NULL, "%s: %s", path, strerror(errno));
	struct range text = {0};
	while (fgets(line, sizeof line, maps)) {
		unsigned long long begin, end;
		char mode[8];
		if (strstr(line, "libvgpu.so") && sscanf(line, "%llx-%llx %7s", &begin, &end, mode) == 3 &&
		    strchr(mode, 'x'))
			text = (struct range){begin, end};
	}
	fclose(maps);
	CHECK(text.begin != 0, "libvgpu.so is not mapped in the victim");
	return text;
}

/* Waits for the next stop; false when the process is gone. */
static bool stopped(pid_t pid, int *signal)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	*signal = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
	CHECK(WIFSTOPPED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "victim ended with status %x",
	      status);
	return WIFSTOPPED(status);
}

/* From exec to the stop before the section. */
static struct range begin_section(pid_t pid)
{
	int signal;
	CHECK(stopped(pid, &signal) && signal == SIGTRAP, "no stop at exec");
	ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL);
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	CHECK(stopped(pid, &signal) && signal == SIGSTOP, "no stop before the section: signal %d", signal);
	return library_text(pid);
}

static void kill_and_reap(pid_t pid)
{
	int status;
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
}

static uint64_t position(pid_t pid)
{
	struct user_regs_struct registers;
	CHECK(ptrace(PTRACE_GETREGS, pid, NULL, &registers) == 0, "GETREGS: %s", strerror(errno));
	return registers.rip;
}

/* Runs at full speed to `address`; false at the end of the section. Leaves the instruction unexecuted. */
static bool run_to(pid_t pid, uint64_t address)
{
	int signal;
	errno = 0;
	long word = ptrace(PTRACE_PEEKTEXT, pid, address, NULL);
	CHECK(errno == 0, "PEEKTEXT %llx: %s", (unsigned long long)address, strerror(errno));
	ptrace(PTRACE_POKETEXT, pid, address, (word & ~0xffL) | 0xcc);
	ptrace(PTRACE_CONT, pid, NULL, NULL);
	CHECK(stopped(pid, &signal), "victim exited inside the section");
	ptrace(PTRACE_POKETEXT, pid, address, word);
	if (signal == SIGSTOP)
		return false;
	CHECK(signal == SIGTRAP, "victim got signal %d", signal);
	struct user_regs_struct registers;
	ptrace(PTRACE_GETREGS, pid, NULL, &registers);
	registers.rip--;
	ptrace(PTRACE_SETREGS, pid, NULL, &registers);
	return true;
}

/* Single-steps an undisturbed victim through the section and notes where inside the library each step was, in order.
 * Calls that leave the library run at full speed to their return address. */
static int record(pid_t pid, uint32_t *step, int most)
{
	struct range text = begin_section(pid);
	int signal, count = 0;
	bool inside = false;
	for (;;) {
		ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		CHECK(stopped(pid, &signal), "victim exited inside the section");
		if (signal == SIGSTOP)
			break; /* end of the section */
		CHECK(signal == SIGTRAP, "victim got signal %d", signal);
		uint64_t at = position(pid);
		if (inside && (at < text.begin || at >= text.end)) {
			struct user_regs_struct registers;
			ptrace(PTRACE_GETREGS, pid, NULL, &registers);
			uint64_t back = (uint64_t)ptrace(PTRACE_PEEKDATA, pid, registers.rsp, NULL);
			if (back >= text.begin && back < text.end && run_to(pid, back))
				at = back;
		}
		inside = at >= text.begin && at < text.end;
		CHECK(count < most, "more than %d steps inside the library", most);
		if (inside)
			step[count++] = (uint32_t)(at - text.begin);
	}
	kill_and_reap(pid);
	return count;
}

/* Kills a victim before it executes the instruction at `offset` for the n-th time, or at its end where it does so less
 * often. How often it did. */
static int kill_at(pid_t pid, uint32_t offset, int n)
{
	struct range text = begin_section(pid);
	int signal, came = run_to(pid, text.begin + offset);
	bool reached = came != 0;
	while (reached && came < n) {
		ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		CHECK(stopped(pid, &signal), "victim exited inside the section");
		reached = signal != SIGSTOP && run_to(pid, text.begin + offset);
		came += reached;
	}
	kill_and_reap(pid);
	return came;
}

/* ---- after a kill -------------------------------------------------------------------------------------------------------- */

static void pause_peers(int acknowledged, bool refuse, int point)
{
	__atomic_store_n(&control->refuse, refuse, __ATOMIC_RELEASE);
	__atomic_add_fetch(&control->pause, 1, __ATOMIC_ACQ_REL);
	for (int n = 0; n < PEERS; n++) {
		struct pollfd p = {.fd = acknowledged, .events = POLLIN};
		char byte;
		CHECK(poll(&p, 1, WATCHDOG_MS) == 1, "point %d: %d of %d peers wait for the dead", point, PEERS - n,
		      PEERS);
		CHECK(read(acknowledged, &byte, 1) == 1, "a peer is gone");
	}
}

static void resume_peers(void)
{
	__atomic_add_fetch(&control->pause, 1, __ATOMIC_ACQ_REL);
	syscall(SYS_futex, &control->pause, FUTEX_WAKE, PEERS, NULL, NULL, 0);
}

/* ---- the test ------------------------------------------------------------------------------------------------------------ */

struct scene {
	const char *name, *kind; /* as asked for; of the work */
	bool refused;
	int acknowledged; /* the peers write a byte each when they rest */
	struct sim_machine *machine;
	struct ptg_ledger *ledger;
};

static pid_t start_victim(const struct scene *s)
{
	return start("victim", s->kind, s->refused, -1, true);
}

static void set_up(struct scene *s)
{
	char path[1024];
	int acknowledge[2];
	snprintf(path, sizeof path, "%s/control", scratch);
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, sizeof *control) == 0, "%s: %s", path, strerror(errno));
	control = share_map(path, sizeof *control);
	if (work_kind(s->kind) == WORK_MULTICAST)
		setenv("PARTAGE_SIM", "zero-nvswitch", 1);
	work_init(); /* makes the machine; this process has no shim and allocates nothing */
	snprintf(path, sizeof path, "%s/machine", getenv("PARTAGE_SIM_DIR"));
	s->machine = share_map(path, sizeof *s->machine);
	if (work_kind(s->kind) == WORK_GREEN) /* contexts of this machine cost nothing, and would not be missed */
		s->machine->model[0].context = UINT64_C(8) << 20;
	snprintf(path, sizeof path, "%s/share", scratch);
	share_create(path, &s->machine->model[0], LIMIT);
	setenv("PARTAGE_DIR", path, 1);
	CHECK(pipe(acknowledge) == 0, "pipe");
	for (int i = 0; i < PEERS; i++)
		start("peer", s->kind, i, acknowledge[1], false);
	close(acknowledge[1]);
	s->acknowledged = acknowledge[0];
}

/* While the peers rest, beside the slot of a dead one: as later victims find the ledger. */
static int record_steps(struct scene *s, uint32_t *step)
{
	char path[1024];
	pause_peers(s->acknowledged, false, -1);
	kill_at(start_victim(s), 0, 1);
	int recorded = record(start_victim(s), step, STEPS);
	resume_peers();
	CHECK(recorded > 20, "%d instructions inside the library: the calls are not hooked", recorded);
	snprintf(path, sizeof path, "%s/share/ledger", scratch);
	s->ledger = share_map(path, sizeof *s->ledger);
	return recorded;
}

/* Kills a victim before it takes step[k]; false where it never came there. */
static bool kill_before(const struct scene *s, const uint32_t *step, int k)
{
	int n = 0;
	for (int i = 0; i <= k; i++)
		n += step[i] == step[k];
	/* A victim that lost a race takes another path once in a while: it gets more than one chance. And loops over what
	 * peers have are as long as that: the last time round is as good. */
	bool hit = false;
	for (int attempt = 0; attempt < ATTEMPTS && !hit; attempt++) {
		int came = kill_at(start_victim(s), step[k], n);
		hit = came == n;
		n = came != 0 ? came : n;
	}
	if (!hit)
		NOTE("%s: offset %x of the library, time %d, was not reached, the calls gave %d", s->name, step[k], n,
		     control->result);
	pause_peers(s->acknowledged, true, k);
	uint64_t charged = share_charged(s->ledger), physical = share_physical(s->machine);
	CHECK(charged == physical, "step %d (offset %x): ledger %llu bytes, simulator %llu", k, step[k],
	      (unsigned long long)charged, (unsigned long long)physical);
	resume_peers();
	return hit;
}

static void kill_everywhere(const char *name, int most)
{
	static uint32_t step[STEPS];
	bool refused = strcmp(name, "refused") == 0;
	struct scene s = {.name = name, .kind = refused ? "plain" : name, .refused = refused};
	set_up(&s);
	int recorded = record_steps(&s, step), kills = 0, missed = 0;
	int stride = recorded > most ? (recorded + most - 1) / most : 1;
	for (int k = 0; k < recorded; k += stride) {
		if (kill_before(&s, step, k))
			kills++;
		else
			missed++;
	}
	CHECK(s.machine->device[0].peak <= LIMIT, "the simulator once counted %llu bytes, limit %llu",
	      (unsigned long long)s.machine->device[0].peak, (unsigned long long)LIMIT);
	NOTE("%s: %d instructions in the library from entry to return, every %d. was a kill point: %d kills, %d not "
	     "reached",
	     name, recorded, stride, kills, missed);
	CHECK(missed == 0, "%d recorded instructions were not reached in %d attempts each", missed, ATTEMPTS);
}

int main(int argc, char **argv)
{
#ifndef __x86_64__
	SKIP("single-stepping is written for x86-64");
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	SKIP("it would kill at a sanitizer's own instructions, and the peers miss the 2 s");
#endif
	CHECK(readlink("/proc/self/exe", self_path, sizeof self_path - 1) > 0, "readlink");
	snprintf(scratch, sizeof scratch, "%s", getenv("TEST_SCRATCH"));
	if (argc == 5) { /* a child */
		char path[1024];
		snprintf(path, sizeof path, "%s/control", scratch);
		control = share_map(path, sizeof *control);
		if (strcmp(argv[1], "peer") == 0)
			peer(work_kind(argv[2]), atoi(argv[3]), atoi(argv[4]));
		victim(work_kind(argv[2]), argv[3][0] == '1');
	}
	CHECK(argc >= 2, "usage: test_kill_everywhere KIND|refused [MOST]");
	kill_everywhere(argv[1], argc > 2 ? atoi(argv[2]) : STEPS);
	return 0;
}
