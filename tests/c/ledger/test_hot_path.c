/* C067: the hot calls make no system call and read no environment: they run in a process that may do nothing else. The bench
 * says how long they take. */
#include "world.h"

#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static void calls(void)
{
	uint64_t total, left;
	for (int i = 0; i < 100000; i++) {
		vgpu_mode();
		if (vgpu_reserve(0, 2 * MIB) != CUDA_SUCCESS)
			syscall(SYS_exit, 2);
		vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
		vgpu_visible(0);
		vgpu_give_back(0, 2 * MIB);
	}
	if (vgpu_reserve(0, 2 * GIB) != CUDA_ERROR_OUT_OF_MEMORY) /* alone: nothing to sweep */
		syscall(SYS_exit, 3);
}

static void prepared(void)
{
	CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS && vgpu_reserve(0, GIB) == CUDA_ERROR_OUT_OF_MEMORY, "%s",
	      vgpu_reason());
	uint64_t asked = fake_calls;
	calls();
	CHECK(fake_calls == asked, "the driver was asked %llu times on the hot path",
	      (unsigned long long)fake_calls - asked);
}

int main(void)
{
	int status;
	world_begin();
	world_share(GIB);
	scene("the driver is not asked", prepared);
	if (SANITIZED)
		SKIP("a sanitizer makes system calls of its own");
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS && vgpu_reserve(0, GIB) == CUDA_ERROR_OUT_OF_MEMORY, "%s",
		      vgpu_reason());
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0, "seccomp");
		calls();
		syscall(SYS_exit, 0);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with %#x: %s", status,
	      WIFSIGNALED(status) ? "a system call" : "a wrong answer");
	return 0;
}
