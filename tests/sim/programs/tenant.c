/* tenant.c: a program in a container, for test_containers.py: becomes another user, uses the first device that it sees,
 * says what it sees, and works until its input ends.
 *
 * It is built without the headers of CUDA and NVML and loads both libraries by name, as programs do that somebody else
 * built; in the container there is nothing but this program, the loader and the C library.
 *     tenant UID BYTES
 * prints one line for each thing it learns: `key value...`. Exit status 2 and a line `error ...` where it cannot go on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char code[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

static _Noreturn void fail(const char *what, long value)
{
	printf("error %s %ld\n", what, value);
	exit(2);
}

#define CALL(library, name, ...)                                                                                       \
	do {                                                                                                           \
		int (*call_)() = (int (*)())(uintptr_t)dlsym(library, name);                                           \
		int result_ = call_ ? call_(__VA_ARGS__) : -1;                                                         \
		if (result_)                                                                                           \
			fail(name, result_);                                                                           \
	} while (0)

static void *load(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);

	if (!library) {
		printf("error %s\n", dlerror());
		exit(2);
	}
	return library;
}

static void become(unsigned uid)
{
	if (uid && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		fail("setresuid", errno); /* 0: the root of its own user namespace, which has no other users */
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (uid && setresuid(0, 0, 0) == 0)
		fail("is still root", 0);
}

static void tell_nvml(void *nvml)
{
	struct {
		unsigned pid;
		unsigned long long memory;
		unsigned gpu_instance, compute_instance;
	} list[16];
	unsigned count = 0, minor = 0, processes = 16;
	void *device = NULL;
	char uuid[96] = "";

	CALL(nvml, "nvmlDeviceGetCount_v2", &count);
	printf("nvml %u\n", count);
	CALL(nvml, "nvmlDeviceGetHandleByIndex_v2", 0, &device);
	CALL(nvml, "nvmlDeviceGetMinorNumber", device, &minor);
	CALL(nvml, "nvmlDeviceGetUUID", device, uuid, (unsigned)sizeof uuid);
	CALL(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", device, &processes, list);
	printf("card %u %s\npids", minor, uuid);
	for (unsigned i = 0; i < processes; i++)
		printf(" %u", list[i].pid);
	printf("\nself %d\n", (int)getpid());
}

/* Memory is committed when it is written, here where only this container's own mounts are. */
static void use_memory(void *cuda, size_t bytes)
{
	unsigned long long block = 0;
	unsigned char seen = 0;

	CALL(cuda, "cuMemAlloc_v2", &block, bytes);
	CALL(cuda, "cuMemsetD8_v2", block, 7, (size_t)1 << 20);
	CALL(cuda, "cuMemcpyDtoH_v2", &seen, block + (1 << 20) - 1, (size_t)1);
	printf("byte %u\n", seen);
}

static void work(void *cuda)
{
	uint64_t ns = 20000000;
	void *module = NULL, *function = NULL, *params[] = {&ns};
	struct pollfd input = {.fd = 0, .events = POLLIN};

	CALL(cuda, "cuModuleLoadData", &module, code);
	CALL(cuda, "cuModuleGetFunction", &function, module, "spin_ns");
	while (poll(&input, 1, 0) == 0) {
		CALL(cuda, "cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
		CALL(cuda, "cuCtxSynchronize");
	}
}

int main(int argc, char **argv)
{
	int count = 0;
	void *context = NULL;

	if (argc != 3)
		fail("usage: tenant UID BYTES", argc);
	setvbuf(stdout, NULL, _IOLBF, 0);
	become((unsigned)strtoul(argv[1], NULL, 10));
	void *cuda = load("libcuda.so.1"), *nvml = load("libnvidia-ml.so.1");
	CALL(cuda, "cuInit", 0);
	CALL(cuda, "cuDeviceGetCount", &count);
	printf("cuda %d\n", count);
	CALL(cuda, "cuDevicePrimaryCtxRetain", &context, 0);
	CALL(cuda, "cuCtxSetCurrent", context);
	use_memory(cuda, strtoull(argv[2], NULL, 10));
	CALL(nvml, "nvmlInit_v2");
	tell_nvml(nvml);
	printf("ready\n");
	work(cuda);
	return 0;
}
