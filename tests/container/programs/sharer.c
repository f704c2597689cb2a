/* sharer.c: a program in a container with a share, for test_shares.py: becomes another user, uses its first device, and
 * does what it is told, a line each, with a line for an answer.
 *
 *     sharer UID
 * alloc BYTES: the driver's error. launch N: N kernels of 1 ms, then waits for them; the driver's error. spoil: what it can
 * do to the files of its hand-over, errno by errno. lock: how many bytes of its ledger it could lock, and the errno of
 * leases on policy and turns. cut BYTES: truncates its ledger. Ends with its input.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define HERE       "/run/partage/"
#define LOCK_BYTES 8192

static const char code[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";
static void *cuda, *function;

static _Noreturn void fail(const char *what, long value)
{
	printf("error %s %ld\n", what, value);
	exit(2);
}

#define CALL(name, ...)                                                                                                \
	({                                                                                                             \
		int (*call_)() = (int (*)())(uintptr_t)dlsym(cuda, name);                                              \
		call_ ? call_(__VA_ARGS__) : -1;                                                                       \
	})
#define MUST(name, ...)                                                                                                \
	do {                                                                                                           \
		int result_ = CALL(name, __VA_ARGS__);                                                                 \
		if (result_)                                                                                           \
			fail(name, result_);                                                                           \
	} while (0)

static void become(unsigned uid)
{
	if (uid && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		fail("setresuid", errno); /* 0: stays the root that the container began with */
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static void start(void)
{
	void *context = NULL, *module = NULL;
	int device = 0;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda)
		fail(dlerror(), 0);
	MUST("cuInit", 0);
	MUST("cuDeviceGet", &device, 0);
	MUST("cuDevicePrimaryCtxRetain", &context, device);
	MUST("cuCtxSetCurrent", context);
	MUST("cuModuleLoadData", &module, code);
	MUST("cuModuleGetFunction", &function, module, "spin_ns");
}

static int launch(long count)
{
	uint64_t ns = 1000000;
	void *params[] = {&ns};
	int error = 0;

	for (long i = 0; i < count && !error; i++)
		error = CALL("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
	return error ? error : CALL("cuCtxSynchronize");
}

static int open_error(const char *path, int flags)
{
	int fd = open(path, flags, 0600), error = fd < 0 ? errno : 0;

	if (fd >= 0)
		close(fd);
	return error;
}

static void spoil(void)
{
	printf("policy %d turns %d new %d ledger %d unlink %d chmod %d\n", open_error(HERE "policy", O_RDWR),
	       open_error(HERE "turns", O_RDWR), open_error(HERE "new", O_RDWR | O_CREAT),
	       open_error(HERE "ledger", O_RDWR), unlink(HERE "ledger") ? errno : 0,
	       chmod(HERE "policy", 0666) ? errno : 0);
}

static int lease_error(const char *path)
{
	int fd = open(path, O_RDONLY); /* stays open, with the lease */

	return fd < 0 || fcntl(fd, F_SETLEASE, F_RDLCK) ? errno : 0;
}

static void lock_all(void)
{
	int fd = open(HERE "ledger", O_RDWR), locked = 0;

	for (int byte = 0; byte < LOCK_BYTES; byte++) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
		locked += fcntl(fd, F_OFD_SETLK, &lock) == 0;
	}
	for (int i = 0; i < 2; i++) {
		struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
		locked += fcntl(open(i ? HERE "policy" : HERE "turns", O_RDONLY), F_OFD_SETLK, &lock) == 0;
	}
	printf("%d %d %d\n", locked, lease_error(HERE "policy"), lease_error(HERE "turns"));
}

static void obey(const char *word, long value)
{
	unsigned long long block = 0;

	if (!strcmp(word, "alloc"))
		printf("%d\n", CALL("cuMemAlloc_v2", &block, (size_t)value));
	else if (!strcmp(word, "launch"))
		printf("%d\n", launch(value));
	else if (!strcmp(word, "spoil"))
		spoil();
	else if (!strcmp(word, "lock"))
		lock_all();
	else if (!strcmp(word, "cut"))
		printf("%d\n", truncate(HERE "ledger", value) ? errno : 0);
	else
		fail("unknown", 0);
}

int main(int argc, char **argv)
{
	char line[256], word[32];

	if (argc != 2)
		fail("usage: sharer UID", argc);
	setvbuf(stdout, NULL, _IOLBF, 0);
	become((unsigned)strtoul(argv[1], NULL, 10));
	start();
	printf("self %d\nready\n", (int)getpid());
	while (fgets(line, sizeof line, stdin)) {
		long value = 0;
		if (sscanf(line, "%31s %ld", word, &value) >= 1)
			obey(word, value);
	}
	return 0;
}
