/* Clients killed anywhere in the simulator's own code, beside others that contend with them for everything it has:
 * memory of every kind, launches, events, waits, starting up. A victim dies at a random moment of its work or of its
 * start, every other one a random number of single steps later.
 *
 * After each kill every peer must come on (a watchdog stands for "hangs"); now and then NVML must list the living and
 * nobody else, and, while all stand still, the card's count must be exact. At the end every peer still gets engine time
 * and dead clients' slots have been used again. usage: test_kill_torture [KILLS]; PARTAGE_SOAK=full: 600 of them. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <time.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "memory_test.h"

#define PEERS      4
#define STEPS      1000
#define WATCHDOG_S 60

static struct control {
	uint32_t turned;         /* +1 with every finished cycle of any peer; futex */
	uint32_t cycles[PEERS];
	uint32_t pause;          /* odd: peers free everything and wait */
	uint32_t paused[PEERS];  /* the value of pause they saw */
	uint64_t baseline[PEERS]; /* bytes that a peer holds when it has freed everything */
	uint32_t slot[PEERS];
} *control;

static pid_t peers[PEERS];

/* ---- the work ---------------------------------------------------------------------------------------------------- */

static const char code[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

struct tools {
	CUfunction spin;
	CUstream stream;
	CUevent event;
	CUdeviceptr room; /* reserved addresses */
	uint64_t random;
};

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x >> 20;
}

static void set_up(struct tools *tools, uint64_t seed)
{
	CUmodule module;

	tools->random = 0x9e3779b97f4a7c15u * (seed + 1);
	start();
	OK(cuModuleLoadData(&module, code));
	OK(cuModuleGetFunction(&tools->spin, module, "spin_ns"));
	OK(cuStreamCreate(&tools->stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&tools->event, 0));
	OK(cuMemAddressReserve(&tools->room, 64 * MIB, 0, 0, 0));
}

static bool got(CUresult result, const char *what)
{
	CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "%s: %d", what, (int)result);
	return result == CUDA_SUCCESS;
}

static void virtual_memory(struct tools *tools)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle, again;
	int fd;
	size_t size = (1 + next(&tools->random) % 32) * GRANULE;

	if (!got(cuMemCreate(&handle, size, &prop, 0), "cuMemCreate"))
		return;
	OK(cuMemMap(tools->room, size, 0, handle, 0));
	OK(cuMemSetAccess(tools->room, size, &access, 1));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(again));
	CHECK(close(fd) == 0, "close");
	OK(cuMemsetD8Async(tools->room, 1, 4096, tools->stream));
	OK(cuMemUnmap(tools->room, size));
}

static void compute(struct tools *tools)
{
	uint64_t ns = 5000 + next(&tools->random) % 100000;
	void *params[] = {&ns};

	for (int i = 0; i < 3; i++)
		OK(cuLaunchKernel(tools->spin, 1, 1, 1, 1, 1, 1, 0, i ? tools->stream : NULL, params, NULL));
	OK(cuEventRecord(tools->event, tools->stream));
	OK(cuStreamWaitEvent(NULL, tools->event, 0));
}

/* One of everything, all given back at the end. */
static void cycle(struct tools *tools)
{
	CUdeviceptr big, small[4], pooled;
	uint64_t random = next(&tools->random);
	bool has_big = got(cuMemAlloc(&big, (1 + random % 16) * 2 * GIB), "cuMemAlloc"), has_small[4];
	bool has_pooled = got(cuMemAllocAsync(&pooled, (1 + random % 64) * MIB, tools->stream), "cuMemAllocAsync");

	for (int i = 0; i < 4; i++)
		has_small[i] = got(cuMemAlloc(&small[i], 1 + next(&tools->random) % 100000), "cuMemAlloc");
	compute(tools);
	virtual_memory(tools);
	for (int i = 0; i < 4; i++)
		if (has_small[i])
			OK(cuMemFree(small[i]));
	if (has_pooled)
		OK(cuMemFreeAsync(pooled, tools->stream));
	if (has_big)
		OK(cuMemFree(big));
	OK(cuCtxSynchronize());
}

/* ---- processes ----------------------------------------------------------------------------------------------------- */

static void wait_word(const uint32_t *word, uint32_t seen, const struct timespec *timeout)
{
	syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout, NULL, 0);
}

static void wake_all(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void announce(uint32_t *own, uint32_t value)
{
	__atomic_store_n(own, value, __ATOMIC_RELEASE);
	__atomic_add_fetch(&control->turned, 1, __ATOMIC_RELEASE);
	wake_all(&control->turned);
}

static uint32_t own_slot(void)
{
	for (uint32_t i = 0; i < SIM_CLIENTS; i++)
		if (the_machine()->client[i].state && the_machine()->client[i].pid == getpid())
			return i;
	CHECK(0, "process %d has no slot", (int)getpid());
	return 0;
}

static void peer(int index)
{
	struct tools tools;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	set_up(&tools, (uint64_t)index);
	control->slot[index] = own_slot();
	control->baseline[index] = held();
	for (uint32_t done = 1;; done++) {
		cycle(&tools);
		announce(&control->cycles[index], done);
		uint32_t pause = __atomic_load_n(&control->pause, __ATOMIC_ACQUIRE);
		if (pause % 2) {
			announce(&control->paused[index], pause);
			while (__atomic_load_n(&control->pause, __ATOMIC_ACQUIRE) == pause)
				wait_word(&control->pause, pause, NULL);
		}
	}
}

/* Every other one is traced and stops once: before its start, or before its work. */
static void victim(int seed)
{
	struct tools tools;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (seed % 2) {
		CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0, "PTRACE_TRACEME: %s", strerror(errno));
		if (seed % 8 == 1)
			raise(SIGSTOP);
	}
	set_up(&tools, (uint64_t)seed + 1000);
	if (seed % 2 && seed % 8 != 1)
		raise(SIGSTOP);
	for (;;)
		cycle(&tools);
}

/* ---- killing --------------------------------------------------------------------------------------------------------- */

static void spin(uint64_t turns)
{
	while (turns--)
		__asm__ volatile("");
}

static void stopped(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "victim did not stop: %x", status);
}

/* A traced victim: goes on from where it stopped for a random while, is stopped there and goes some steps more. An
 * interruption alone would prefer the ends of system calls. */
static void step(pid_t pid, uint64_t *random)
{
	stopped(pid);
	CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0, "continue: %s", strerror(errno));
	spin(next(random) % 5000000);
	/* Its main thread: taken by the engine's thread, which is not traced, it would stop the whole process. */
	CHECK(syscall(SYS_tgkill, pid, pid, SIGSTOP) == 0, "stop: %s", strerror(errno));
	stopped(pid);
	for (uint64_t steps = next(random) % STEPS; steps; steps--) {
		CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0, "step: %s", strerror(errno));
		stopped(pid);
	}
}

static void kill_one(int seed, uint64_t *random)
{
	pid_t pid = start_child(victim, seed);
	int status;

	if (seed % 2)
		step(pid, random);
	else
		spin(next(random) % (seed % 8 == 2 ? 3000000 : 30000000));
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid, "kill");
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "victim %d ended by itself: %x", seed, status);
}

/* Waits until *word has passed `seen` in every peer: with cycles, everybody has come on. */
static void all_pass(const uint32_t *words, const uint32_t *seen, const char *what)
{
	const struct timespec second = {.tv_sec = 1};
	struct timespec now;
	time_t end = 0;

	for (int i = 0; i < PEERS;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		end = end ? end : now.tv_sec + WATCHDOG_S;
		uint32_t turned = __atomic_load_n(&control->turned, __ATOMIC_ACQUIRE);
		if ((int32_t)(__atomic_load_n(&words[i], __ATOMIC_ACQUIRE) - seen[i]) > 0) {
			i++;
			continue;
		}
		CHECK(waitpid(peers[i], NULL, WNOHANG) == 0, "peer %d died", i);
		CHECK(now.tv_sec < end, "peer %d hangs (%s): lock %lx", i, what, the_machine()->device[0].lock);
		wait_word(&control->turned, turned, &second);
	}
}

static void everybody_comes_on(void)
{
	uint32_t seen[PEERS];

	for (int i = 0; i < PEERS; i++)
		seen[i] = __atomic_load_n(&control->cycles[i], __ATOMIC_ACQUIRE);
	all_pass(control->cycles, seen, "cycles");
}

/* ---- what must be true ------------------------------------------------------------------------------------------------ */

/* In a process of its own, without a client slot. */
static void nvml_lists_the_living(int unused)
{
	nvmlProcessInfo_t list[2 * PEERS];
	nvmlUtilization_t rates;
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlDevice_t device;
	unsigned count = 2 * PEERS;

	(void)unused;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) == NVML_SUCCESS, "process list");
	CHECK(count == PEERS, "%u processes, %d live", count, PEERS);
	for (unsigned i = 0; i < count; i++) {
		int living = 0;
		for (int j = 0; j < PEERS; j++)
			living += list[i].pid == (unsigned)peers[j];
		CHECK(living == 1, "pid %u is no living client", list[i].pid);
	}
	CHECK(nvmlDeviceGetMemoryInfo_v2(device, &memory) == NVML_SUCCESS && memory.used <= usable(), "%llu used",
	      memory.used);
	CHECK(nvmlDeviceGetUtilizationRates(device, &rates) == NVML_SUCCESS && rates.gpu <= 100, "utilisation");
}

/* While all stand still: the card says what the living hold, to the byte. */
static void count_is_exact(int unused)
{
	uint64_t expected = 0, sum = 0;

	(void)unused;
	for (int i = 0; i < PEERS; i++)
		expected += control->baseline[i];
	start();
	expected += held();
	CHECK(free_bytes() == usable() - expected, "%lu free, must be %lu", free_bytes(), usable() - expected);
	for (int i = 0; i < SIM_CLIENTS; i++)
		sum += the_machine()->client[i].device[0].memory;
	CHECK(the_machine()->device[0].used == expected && sum == expected,
	      "used %lu, the clients' sum %lu, must be %lu", the_machine()->device[0].used, sum, expected);
	CHECK(the_machine()->device[0].peak <= usable(), "peak %lu", the_machine()->device[0].peak);
}

static void stand_still_and_count(void)
{
	uint32_t pause = __atomic_add_fetch(&control->pause, 1, __ATOMIC_ACQ_REL), seen[PEERS];

	for (int i = 0; i < PEERS; i++)
		seen[i] = pause - 1;
	all_pass(control->paused, seen, "pause");
	in_child(nvml_lists_the_living, 0);
	in_child(count_is_exact, 0);
	__atomic_add_fetch(&control->pause, 1, __ATOMIC_ACQ_REL);
	wake_all(&control->pause);
}

/* The engine is everybody's: each peer uses some more of it, and never two at once. */
static void engine_is_shared(void)
{
	struct sim_machine *machine = the_machine();
	uint64_t before[PEERS], until = machine->device[0].engine_until[0], busy = machine->device[0].engine_busy_ns;

	for (int i = 0; i < PEERS; i++)
		before[i] = machine->client[control->slot[i]].device[0].busy_ns;
	for (int i = 0; i < PEERS; i++)
		while (__atomic_load_n(&machine->client[control->slot[i]].device[0].busy_ns, __ATOMIC_RELAXED) <
		       before[i] + 5000000)
			everybody_comes_on();
	busy = __atomic_load_n(&machine->device[0].engine_busy_ns, __ATOMIC_RELAXED) - busy;
	until = __atomic_load_n(&machine->device[0].engine_until[0], __ATOMIC_RELAXED) - until;
	/* Each peer may have held one slice at the first look. */
	CHECK(busy <= until + PEERS * machine->model[0].slice_us * UINT64_C(1000),
	      "%lu ns of work in %lu ns of the engine", busy, until);
}

static int wanted(int argc, char **argv)
{
	const char *soak = getenv("PARTAGE_SOAK");

	if (argc > 1)
		return atoi(argv[1]);
	return soak && !strcmp(soak, "full") ? 600 : 100;
}

int main(int argc, char **argv)
{
	int kills = wanted(argc, argv), used = 0;
	uint64_t random = 88172645463325252u;

	setenv("PARTAGE_SIM", "zero", 1); /* contexts take no time: the kills hit everything else */
	control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(control != MAP_FAILED, "mmap: %s", strerror(errno));
	for (int i = 0; i < PEERS; i++)
		peers[i] = start_child(peer, i);
	everybody_comes_on();
	for (int i = 0; i < kills; i++) {
		kill_one(i, &random);
		everybody_comes_on();
		if (i % 10 == 9)
			stand_still_and_count();
	}
	stand_still_and_count();
	engine_is_shared();
	for (int i = 0; i < SIM_CLIENTS; i++)
		used += the_machine()->client[i].generation != 0;
	CHECK(used <= PEERS + 4, "%d slots were ever used: dead ones are not taken again", used);
	for (int i = 0; i < PEERS; i++)
		CHECK(kill(peers[i], SIGKILL) == 0 && waitpid(peers[i], NULL, 0) == peers[i], "kill");
	NOTE("%d kills, %u cycles of the others", kills, control->turned);
	return 0;
}
