/* K10, C066: 300 processes of 50 containers start at once. Everybody gets its first allocation, every container is held to
 * its own limit, and no file of ours is open in the processes of two containers. Prints how long the slowest took.
 */
#include <dirent.h>
#include <time.h>

#include "grant.h"

#define CONTAINERS 50
#define EACH       6

static uint64_t *slowest; /* shared: ns */

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Files of another container's hand-over, or of anywhere that all could share. */
static void only_own_files(const char *own)
{
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps != NULL, "maps");
	while (fgets(line, sizeof(line), maps)) {
		char *path = strstr(line, "/container-");
		if (path != NULL)
			CHECK(strncmp(path + 1, own, strlen(own)) == 0 && path[1 + strlen(own)] == '/',
			      "%s has mapped %s", own, path);
		CHECK(strstr(line, getenv("XDG_RUNTIME_DIR")) == NULL, "%s has mapped %s", own, line);
	}
	fclose(maps);
	DIR *directory = opendir("/proc/self/fd");
	for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
		char link[300], target[600];
		snprintf(link, sizeof(link), "/proc/self/fd/%s", entry->d_name);
		ssize_t n = readlink(link, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = '\0';
		char *path = strstr(target, "/container-");
		if (path != NULL)
			CHECK(strncmp(path + 1, own, strlen(own)) == 0 && path[1 + strlen(own)] == '/',
			      "%s has opened %s", own, target);
	}
	closedir(directory);
}

static void first_allocation(struct crew *crew, unsigned index)
{
	char own[32];
	CUdeviceptr p;
	snprintf(own, sizeof(own), "container-%u", index);
	setenv("PARTAGE_DIR", grant_path(own, ""), 1);
	crew_wait(crew);
	uint64_t begin = now();
	pid_t pid[EACH];
	for (int i = 0; i < EACH; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0, "fork");
		if (pid[i] != 0)
			continue;
		start(0);
		OK(cuMemAlloc_v2(&p, 64 * MIB));
		uint64_t took = now() - begin, seen = __atomic_load_n(slowest, __ATOMIC_RELAXED);
		while (took > seen &&
		       !__atomic_compare_exchange_n(slowest, &seen, took, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			;
		IS(cuMemAlloc_v2(&p, GIB), CUDA_ERROR_OUT_OF_MEMORY);
		only_own_files(own);
		_exit(0);
	}
	for (int i = 0; i < EACH; i++) {
		int status;
		CHECK(waitpid(pid[i], &status, 0) == pid[i] && status == 0, "%s: status 0x%x", own, status);
	}
}

int main(void)
{
	struct crew crew;
	char name[32];
	alarm(280); /* a hang is a failure, not a wait */
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	slowest = mmap(NULL, sizeof(*slowest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	scene("make the machine", touch);
	for (unsigned i = 0; i < CONTAINERS; i++) {
		snprintf(name, sizeof(name), "container-%u", i);
		grant(name, &(struct granted){0, GIB}, 1);
	}
	crew_start(&crew, CONTAINERS, first_allocation);
	crew_join(&crew);
	CHECK(peak() <= (uint64_t)CONTAINERS * GIB, "%lu bytes were held", (unsigned long)peak());
	NOTE("%u processes of %u containers: the slowest had its first block after %lu ms", CONTAINERS * EACH,
	     CONTAINERS, (unsigned long)(*slowest / 1000000));
	return 0;
}
