/* Pids across pid namespaces: the host sees a container's process by its host pid, the container by its own pid, and
 * never somebody else's; older drivers' foreign pids only where the fault asks for them. */
#include <sched.h>
#include <signal.h>

#include "nvml_test.h"

static unsigned pids(unsigned list[8])
{
	nvmlProcessInfo_t infos[8];
	unsigned count = 8;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, infos));
	for (unsigned i = 0; i < count; i++)
		list[i] = infos[i].pid;
	return count;
}

/* As a daemon does at its start, though this one has begun to use the card: the driver's descriptors are gone, too. The
 * next call that looks at the card's other tenants brings everything back, also what tells its pid to the host. */
static void close_everything(int but)
{
	CUdeviceptr p;
	for (int fd = 3; fd < 256; fd++)
		if (fd != but)
			close(fd);
	CHECK(cuMemAlloc_v2(&p, 1 << 21) == CUDA_SUCCESS, "allocation without descriptors");
}

static void take_memory(void)
{
	CUcontext context;
	CUdeviceptr p;
	CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "context");
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc_v2(&p, 1 << 21) == CUDA_SUCCESS, "allocation");
}

/* Pid 1 of a new namespace. Its /proc is still the host's, so it can only know its own. */
static void inside(int say)
{
	struct sim_machine *machine = map_machine();
	unsigned list[8];
	take_memory();
	close_everything(say);
	CHECK(getpid() == 1, "pid %d", (int)getpid());
	unsigned count = pids(list);
	CHECK(count == 1 && list[0] == 1, "inside: %u processes, the first is %u", count, list[0]);
	strcpy(machine->fault[0].call, "foreign-pids");
	machine->fault[0].active = 1;
	CHECK(pids(list) == 2, "an older driver gives both");
	machine->fault[0].active = 0;
	CHECK(write(say, "x", 1) == 1, "pipe");
	pause();
}

static void container(int say, int ask)
{
	if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0 && unshare(CLONE_NEWPID) != 0)
		_exit(77);
	pid_t first = fork();
	if (first == 0) {
		inside(say);
		_exit(1);
	}
	CHECK(write(say, &first, sizeof(first)) == sizeof(first), "pipe");
	char byte;
	CHECK(read(ask, &byte, 1) >= 0, "pipe");
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	_exit(0);
}

static void host_and_container(void)
{
	int from[2], to[2], status;
	unsigned list[8], count;
	char bytes[sizeof(pid_t) + 1];
	pid_t inner = 0;
	pid_t outside = fork();

	if (outside == 0) {
		take_memory();
		pause();
	}
	while (pids(list) == 0) /* until the outside tenant has its memory */
		CHECK(waitpid(outside, NULL, WNOHANG) == 0, "the tenant outside died");
	CHECK(pipe(from) == 0 && pipe(to) == 0, "pipes");
	pid_t child = fork();
	if (child == 0) {
		close(from[0]);
		close(to[1]);
		container(from[1], to[0]);
	}
	close(from[1]);
	size_t got = 0;
	for (ssize_t n; got < sizeof(bytes) && (n = read(from[0], bytes + got, sizeof(bytes) - got)) > 0;)
		got += (size_t)n;
	if (got == sizeof(bytes)) {
		/* The byte may come before or after the number, but never within it. */
		memcpy(&inner, bytes[0] == 'x' && bytes[sizeof(pid_t)] != 'x' ? bytes + 1 : bytes, sizeof(inner));
		count = pids(list);
		CHECK(count == 2, "the host sees %u processes", count);
		CHECK((list[0] == (unsigned)inner && list[1] == (unsigned)outside) ||
		              (list[1] == (unsigned)inner && list[0] == (unsigned)outside),
		      "host pids %d and %d, seen %u and %u", (int)inner, (int)outside, list[0], list[1]);
	}
	close(to[1]);
	kill(outside, SIGKILL);
	waitpid(outside, NULL, 0);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "status %#x", status);
	if (WEXITSTATUS(status) == 77) {
		printf("skipped: no pid namespaces here\n");
		exit(77);
	}
	CHECK(got == sizeof(bytes) && WEXITSTATUS(status) == 0, "the container ended with %d", WEXITSTATUS(status));
}

int main(void)
{
	char directory[4096];
	snprintf(directory, sizeof(directory), "%s/machine", getenv("TEST_SCRATCH") ? getenv("TEST_SCRATCH") : "/tmp");
	CHECK(mkdir(directory, 0700) == 0, "%s", directory);
	setenv("PARTAGE_SIM_DIR", directory, 1);
	setenv("PARTAGE_SIM", "zero", 1);
	OK(nvmlInit_v2());
	host_and_container();
	return 0;
}
