/* fork in all its forms: the child is a process of its own, refunds and charges nothing of its parent's, and does not keep
 * its parent's slot alive. */
#include "world.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void child_of_its_own(int number)
{
	vgpu_give_back(0, 100 * MIB);
	CHECK(world_used(0) == 100 * MIB, "child %d refunded its parent's charge", number);
	CHECK(vgpu_reserve(0, 10 * MIB) == CUDA_SUCCESS, "child %d: %s", number, vgpu_reason());
	vgpu_give_back(0, 100 * MIB);
	CHECK(world_used(0) == 100 * MIB, "child %d: %llu bytes used", number, (unsigned long long)world_used(0));
}

static void ten_children(void)
{
	CHECK(vgpu_reserve(0, 100 * MIB) == CUDA_SUCCESS, "parent: %s", vgpu_reason());
	for (int i = 0; i < 10; i++) {
		int status;
		pid_t pid = i & 1 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			child_of_its_own(i);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d ended with %#x", i, status);
	}
	CHECK(vgpu_used(0) == 100 * MIB, "%llu bytes used after ten children", (unsigned long long)vgpu_used(0));
	vgpu_give_back(0, 100 * MIB);
	CHECK(vgpu_used(0) == 0, "%llu bytes used", (unsigned long long)vgpu_used(0));
}

static int report[2];

/* Parent charges, forks a child that lives on without touching us, and dies. */
static void parent_of_a_survivor(void)
{
	CHECK(vgpu_reserve(0, 600 * MIB) == CUDA_SUCCESS, "parent: %s", vgpu_reason());
	CHECK(vgpu_reserve(0, 600 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "past the limit");
	if (syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) == 0) {
		pid_t pid = (pid_t)syscall(SYS_getpid);
		CHECK(write(report[1], &pid, sizeof pid) == sizeof pid, "report");
		pause();
	}
	kill(getpid(), SIGKILL);
}

static void newcomer(void)
{
	CHECK(vgpu_reserve(0, 1000 * MIB) == CUDA_SUCCESS, "a dead parent's slot lives on in its child: %s",
	      vgpu_reason());
}

static void survivor(void)
{
	int status;
	CHECK(pipe2(report, O_CLOEXEC) == 0, "pipe");
	pid_t parent = fork(), pid = 0;
	if (parent == 0)
		parent_of_a_survivor();
	CHECK(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status), "the parent ended with %#x", status);
	CHECK(read(report[0], &pid, sizeof pid) == sizeof pid, "report");
	scene("newcomer", newcomer);
	kill(pid, SIGKILL);
}

static bool stop;

static void *busy(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		if (vgpu_reserve(0, MIB) == CUDA_SUCCESS)
			vgpu_give_back(0, MIB);
		vgpu_used(0);
	}
	return NULL;
}

/* Threads hold our lock at the moment of the fork; the child must neither hang nor believe what it interrupted. */
static void in_the_middle(void)
{
	pthread_t thread[3];
	CHECK(vgpu_reserve(0, 100 * MIB) == CUDA_SUCCESS, "parent: %s", vgpu_reason());
	for (int i = 0; i < 3; i++)
		pthread_create(&thread[i], NULL, busy, NULL);
	for (int i = 0; i < 200; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			CHECK(vgpu_reserve(0, 10 * MIB) == CUDA_SUCCESS, "child: %s", vgpu_reason());
			vgpu_give_back(0, 10 * MIB);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d ended with %#x", i, status);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	CHECK(vgpu_used(0) == 100 * MIB && world_sum(0) == 100 * MIB, "%llu bytes used",
	      (unsigned long long)vgpu_used(0));
}

static bool ledger_is_open(void)
{
	for (int fd = 3; fd < 1100; fd++) {
		char path[64], target[512];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		if (strstr(target, world_dir)) {
			CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "descriptor %d (%s) survives exec", fd, target);
			CHECK(fd > 64, "descriptor %d is one that programs count on", fd);
			return true;
		}
	}
	return false;
}

static void descriptors(void)
{
	int status;
	CHECK(vgpu_reserve(0, 100 * MIB) == CUDA_SUCCESS, "parent: %s", vgpu_reason());
	CHECK(vgpu_reserve(0, 10 * GIB) == CUDA_ERROR_OUT_OF_MEMORY, "past the limit");
	ledger_is_open();
	pid_t pid = fork();
	if (pid == 0)
		_exit(ledger_is_open());
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child inherited a descriptor");
}

static void before_the_call(void)
{
	CHECK(!vgpu_state_pointer, "something was set up before the first call");
}

int main(void)
{
	static const struct {
		const char *name;
		void (*body)(void);
	} parts[] = {{"first", before_the_call},
	             {"ten children", ten_children},
	             {"survivor", survivor},
	             {"in the middle", in_the_middle},
	             {"descriptors", descriptors}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		NOTE("%s", parts[i].name);
		world_begin();
		world_share(GIB);
		scene(parts[i].name, parts[i].body);
	}
	return 0;
}
