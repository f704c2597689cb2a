/* K08, K09: a program that takes away what the library lives on - descriptors, address space, file sizes, system calls, the
 * files themselves - is refused or stays limited; it is never unlimited, and the library neither ends nor stops it.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "grant.h"

#define LIMIT GIB

static void lower(int resource, rlim_t value)
{
	struct rlimit limit = {value, value};
	CHECK(setrlimit(resource, &limit) == 0, "setrlimit %d", resource);
}

/* From now on one system call fails for this process. */
static void deny(int call)
{
	struct sock_filter filter[] = {
	        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
	        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		_exit(0); /* no filters here: nothing to try */
}

static uint64_t grab(void)
{
	CUdeviceptr p;
	uint64_t bytes = 0;
	while (bytes < 4 * LIMIT && cuMemAlloc_v2(&p, 16 * MIB) == CUDA_SUCCESS)
		bytes += 16 * MIB;
	return bytes;
}

static void limited(const char *how)
{
	uint64_t bytes = grab();
	CHECK(bytes <= LIMIT, "%s: %lu bytes were had", how, (unsigned long)bytes);
	CHECK(held(0) <= LIMIT, "%s: %lu bytes are held", how, (unsigned long)held(0));
}

static void no_descriptors(void)
{
	start(0);
	machine();
	lower(RLIMIT_NOFILE, 3);
	limited("no descriptor is left");
}

static void no_address_space(void)
{
	start(0);
	machine();
	lower(RLIMIT_AS, MIB);
	limited("no address space is left");
}

static void no_locks(void)
{
	start(0);
	machine();
	deny(SYS_fcntl);
	limited("no lock can be taken");
}

static void no_files(void)
{
	start(0);
	machine();
	deny(SYS_openat);
	limited("no file can be opened");
}

/* As daemons do, and as servers do with what they find open: before and after the library has files of its own. */
static void closes_everything(void)
{
	CUdeviceptr p;
	start(0);
	machine();
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	OK(cuMemAlloc_v2(&p, MIB));
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	limited("every descriptor was closed");
}

static void covers_everything(void)
{
	CUdeviceptr p;
	start(0);
	machine();
	OK(cuMemAlloc_v2(&p, MIB));
	int own = open("/dev/zero", O_RDWR);
	for (int fd = 3; fd < 1024; fd++)
		if (fd != own)
			dup2(own, fd);
	limited("every descriptor is another file");
}

static void removes_the_files(void)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, MIB));
	CHECK(unlink(grant_path("removed", "ledger")) == 0 && unlink(grant_path("removed", "policy")) == 0, "unlink");
	limited("the files were removed");
}

/* Whoever comes afterwards finds a named place without a policy. */
static void comes_too_late(void)
{
	CUcontext context;
	OK(cuInit(0));
	IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
	const struct granted first[] = {{0, LIMIT}};
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("share", first, 1);
	scene("descriptors", no_descriptors);
	scene("address space", no_address_space);
	scene("locks", no_locks);
	scene("files", no_files);
	scene("closing", closes_everything);
	scene("covering", covers_everything);
	grant("removed", first, 1);
	scene("removing", removes_the_files);
	scene("too late", comes_too_late);
	return 0;
}
