/* Programs of CUDA 12 and of CUDA 13 in one container: built with the two releases' headers, they use one ledger at the
 * same time, each through its own versions of the entry points; both are charged for all they take, see the same total,
 * and leave nothing.
 * Arguments: the program of release 12, the program of release 13 (the same one twice: that release with itself).
 */
#include "life.h"

#define EACH (768 * MIB)

struct program {
	pid_t pid;
	FILE *says;
	int end;
};

static struct program start_program(const char *path)
{
	struct program p;
	int to[2], from[2];
	CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0, "pipe");
	p.pid = fork();
	CHECK(p.pid >= 0, "fork");
	if (p.pid == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		execl(path, path, (char *)NULL);
		_exit(9);
	}
	close(to[0]);
	close(from[1]);
	p.end = to[1];
	p.says = fdopen(from[0], "r");
	return p;
}

static void both(char **path)
{
	struct program program[4];
	for (int i = 0; i < 4; i++) {
		size_t total, unused;
		program[i] = start_program(path[i % 2]);
		CHECK(fscanf(program[i].says, "%zu %zu", &total, &unused) == 2, "%s says nothing", path[i % 2]);
		CHECK(total == LIFE_LIMIT && unused == LIFE_LIMIT - (uint64_t)(i + 1) * EACH, "%s sees %zu of %zu free",
		      path[i % 2], unused, total);
		CHECK(life_charged_by(program[i].pid) == EACH, "%s is charged %lu", path[i % 2],
		      (unsigned long)life_charged_by(program[i].pid));
	}
	CHECK(life_charged() == 4 * EACH && held(0) == 4 * EACH, "charged %lu, held %lu", (unsigned long)life_charged(),
	      (unsigned long)held(0));
	for (int i = 0; i < 4; i++) {
		CHECK(write(program[i].end, "\n", 1) == 1, "end");
		life_wait(path[i % 2], program[i].pid, 0);
		fclose(program[i].says);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: test_life_releases PROGRAM12 PROGRAM13");
	life_begin();
	for (int i = 0; i < 3; i++)
		both(argv + 1);
	scene("afterwards", life_all_free);
	return 0;
}
