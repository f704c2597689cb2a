/* K10, D21, D22, D23, D24, D26, D27: what a process that used the driver hard keeps of itself. After allocations, refusals,
 * forks and queries of NVML under a limit: the file mode mask, signal handlers and masks, working directory and threads
 * are what they were; every descriptor of ours is closed by exec and above those that programs count on; stdout and
 * stderr are empty; and no context was ever made that the program did not make.
 */
#include <dirent.h>
#include <nvml.h>
#include <sys/stat.h>

#include "grant.h"

struct self {
	mode_t mask;
	struct sigaction action[NSIG];
	sigset_t blocked;
	unsigned threads;
	char directory[512];
	int said[2]; /* bytes on stdout and stderr */
};

static int output[2];

static unsigned entries_of(const char *path)
{
	unsigned count = 0;
	DIR *directory = opendir(path);
	CHECK(directory != NULL, "cannot read %s", path);
	while (readdir(directory) != NULL)
		count++;
	closedir(directory);
	return count;
}

static struct self look(void)
{
	struct self s;
	memset(&s, 0, sizeof(s));
	s.mask = umask(0);
	umask(s.mask);
	for (int i = 1; i < NSIG; i++)
		sigaction(i, NULL, &s.action[i]);
	sigprocmask(SIG_SETMASK, NULL, &s.blocked);
	s.threads = entries_of("/proc/self/task");
	CHECK(getcwd(s.directory, sizeof(s.directory)) != NULL, "getcwd");
	for (int i = 0; i < 2; i++) {
		struct stat st;
		CHECK(fstat(output[i], &st) == 0, "output");
		s.said[i] = (int)st.st_size;
	}
	return s;
}

static bool handlers_differ(const struct self *a, const struct self *b)
{
	for (int i = 1; i < NSIG; i++)
		if (a->action[i].sa_handler != b->action[i].sa_handler ||
		    a->action[i].sa_flags != b->action[i].sa_flags)
			return true;
	return memcmp(&a->blocked, &b->blocked, sizeof(a->blocked)) != 0;
}

static void same(const struct self *before, const char *when)
{
	struct self now = look();
	CHECK(now.mask == before->mask, "%s: umask is %o", when, now.mask);
	CHECK(!handlers_differ(before, &now), "%s: a signal is handled or blocked otherwise", when);
	CHECK(now.threads == before->threads, "%s: %u threads", when, now.threads);
	CHECK(strcmp(now.directory, before->directory) == 0, "%s: in %s", when, now.directory);
	for (int i = 0; i < 2; i++)
		CHECK(now.said[i] == 0, "%s: %d bytes on %s", when, now.said[i], i ? "stderr" : "stdout");
}

static void descriptors_are_private(const char *hand_over)
{
	unsigned ours = 0;
	for (int fd = 0; fd < 4096; fd++) {
		char path[64], target[600];
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = '\0';
		if (strstr(target, hand_over) == NULL)
			continue;
		ours++;
		CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "descriptor %d (%s) survives exec", fd, target);
		CHECK(fd > 64, "descriptor %d is one that programs count on", fd);
	}
	NOTE("%u descriptors of ours", ours);
}

static uint64_t contexts_made(void)
{
	return partage_sim_calls("cuDevicePrimaryCtxRetain") + partage_sim_calls("cuCtxCreate_v2") +
	       partage_sim_calls("cuCtxCreate_v4") + partage_sim_calls("cuCtxCreate");
}

static void ask_everything(void)
{
	int count;
	size_t total;
	nvmlDevice_t device;
	nvmlMemory_t memory;
	unsigned n = 0;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	OK(cuDeviceTotalMem_v2(&total, 0));
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS, "memory");
	nvmlDeviceGetComputeRunningProcesses_v3(device, &n, NULL);
	CHECK(contexts_made() == 0, "%lu contexts were made for questions", (unsigned long)contexts_made());
	CHECK(held(0) == 0, "questions cost %lu bytes", (unsigned long)held(0));
}

static void work_hard(void)
{
	CUdeviceptr p;
	size_t f, t;
	start(0);
	for (int i = 0; i < 10; i++) {
		OK(cuMemAlloc_v2(&p, GIB));
		IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 4 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
		OK(cuMemGetInfo_v2(&f, &t));
		OK(cuMemFree_v2(p));
		OK(cuMemAllocAsync(&p, MIB, NULL));
		OK(cuMemFree_v2(p));
		CHECK(cuMemFree_v2(p) != CUDA_SUCCESS, "freed twice");
		int status;
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a forked child ended with 0x%x", status);
	}
	CHECK(contexts_made() == 1, "%lu contexts for one", (unsigned long)contexts_made());
}

static void handler(int signal)
{
	(void)signal;
}

static void program(void)
{
	umask(027);
	signal(SIGUSR1, handler);
	signal(SIGUSR2, SIG_IGN);
	for (int i = 0; i < 2; i++)
		CHECK(dup2(output[i], i + 1) == i + 1, "dup2");
	struct self before = look();
	ask_everything();
	same(&before, "after questions");
	work_hard();
	same(&before, "after work");
	descriptors_are_private("/share");
}

/* What the program said goes to files; a failure is told afterwards. */
int main(void)
{
	int status;
	char text[4096] = "";
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	unsetenv("PARTAGE_LOG");
	for (int i = 0; i < 2; i++) {
		char path[512];
		snprintf(path, sizeof(path), "%s/said-%d", getenv("TEST_SCRATCH"), i + 1);
		output[i] = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		CHECK(output[i] >= 0, "a file for what is said");
	}
	scene("make the machine", touch);
	grant("share", &(struct granted){0, 4 * GIB}, 1);
	pid_t pid = fork();
	if (pid == 0) {
		program();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	CHECK(pread(output[1], text, sizeof(text) - 1, 0) >= 0, "what was said");
	CHECK(status == 0, "status 0x%x: %s", status, text);
	return 0;
}
