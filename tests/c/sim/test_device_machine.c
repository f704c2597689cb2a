/* The machine file: made once by whoever comes first, also when many come at once or a maker died half-way; refused
 * with an error, never a crash, where it is foreign, corrupt, of another layout or not ours; kept away from forged
 * directories; left alone by umask. */
#include <stddef.h>

#include "memory_test.h"

static const char *machine_path(void)
{
	static char path[4200];

	snprintf(path, sizeof path, "%s/machine", getenv("PARTAGE_SIM_DIR"));
	return path;
}

static int gate[2];

static void comes_first(int unused)
{
	(void)unused;
	gate_wait(gate);
	OK(cuInit(0));
	CHECK(the_machine()->magic == SIM_MACHINE_MAGIC && the_machine()->ndev == 1, "%u devices", the_machine()->ndev);
}

static void many_at_once(void)
{
	pid_t child[12];

	CHECK(pipe2(gate, O_CLOEXEC) == 0, "pipe");
	for (int i = 0; i < 12; i++)
		child[i] = start_child(comes_first, 0);
	close(gate[0]);
	close(gate[1]);
	for (int i = 0; i < 12; i++)
		end_child(child[i]);
}

static void init_gives(int code)
{
	GIVES((CUresult)code, cuInit(0));
}

static void write_file(const void *bytes, size_t n, off_t size)
{
	unlink(machine_path());
	int fd = open(machine_path(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && ftruncate(fd, size) == 0, "write %s", machine_path());
	close(fd);
}

static void bad_files(void)
{
	struct {
		uint64_t magic;
		uint32_t layout, size, ndev;
	} head = {SIM_MACHINE_MAGIC, SIM_MACHINE_LAYOUT + 1, sizeof(struct sim_machine), 1};

	the_machine()->layout++; /* else a good file */
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	the_machine()->layout--;
	the_machine()->model[0].granule = 3;
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	write_file("hello, this is a text file\n", 27, 27);
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	write_file("x", 1, 1);
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	write_file(&head, sizeof head, sizeof(struct sim_machine));
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	head.layout = SIM_MACHINE_LAYOUT;
	write_file(&head, sizeof head, sizeof head); /* cut off: reading it would be SIGBUS */
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	write_file(&head, sizeof head, sizeof(struct sim_machine)); /* a device of zeroes */
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	head.ndev = 1000;
	write_file(&head, sizeof head, sizeof(struct sim_machine));
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	unlink(machine_path());
	CHECK(symlink("/dev/null", machine_path()) == 0, "symlink");
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	unlink(machine_path());
	CHECK(mkfifo(machine_path(), 0600) == 0, "fifo");
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	/* a maker that died before it stored the magic */
	head.magic = 0;
	write_file(&head, sizeof head, sizeof(struct sim_machine));
	in_child(init_gives, CUDA_SUCCESS);
}

/* A machine whose card does not say that it is simulated: a program could take it for hardware. */
static void not_simulated(int unused)
{
	const char name[96] = "NVIDIA H100 80GB HBM3";

	(void)unused;
	OK(cuInit(0));
	int fd = open(machine_path(), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && pwrite(fd, name, sizeof name, offsetof(struct sim_machine, model[0].name)) == sizeof name,
	      "write %s", machine_path());
	close(fd);
}

static void no_such_profile(int unused)
{
	struct stat st;

	(void)unused;
	unlink(machine_path());
	setenv("PARTAGE_SIM", "a-card-that-nobody-made", 1);
	GIVES(CUDA_ERROR_SYSTEM_NOT_READY, cuInit(0));
	CHECK(stat(machine_path(), &st) < 0 || st.st_size == 0, "nothing half-made is left");
	unsetenv("PARTAGE_SIM");
	OK(cuInit(0)); /* it may try again */
}

/* Where nobody said which directory, one that others could have planted is refused. */
static void default_directory(int planted)
{
	char runtime[4200], directory[4300], elsewhere[4300];
	struct stat st;

	snprintf(runtime, sizeof runtime, "%s/runtime-%d", getenv("TEST_SCRATCH"), planted);
	snprintf(directory, sizeof directory, "%s/partage-sim", runtime);
	snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", runtime);
	CHECK(mkdir(runtime, 0700) == 0 && mkdir(elsewhere, 0700) == 0, "mkdir");
	unsetenv("PARTAGE_SIM_DIR");
	setenv("XDG_RUNTIME_DIR", runtime, 1);
	if (planted == 1)
		CHECK(symlink(elsewhere, directory) == 0, "symlink");
	if (planted == 2)
		CHECK(mkdir(directory, 0700) == 0 && chmod(directory, 0777) == 0, "mkdir");
	mode_t mask = umask(0);
	GIVES(planted ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS, cuInit(0));
	CHECK(umask(mask) == 0, "the umask is the program's own");
	if (!planted)
		CHECK(stat(directory, &st) == 0 && (st.st_mode & 0777) == 0700, "mode %o", st.st_mode);
}

int main(void)
{
	many_at_once();
	bad_files();
	in_child(not_simulated, 0);
	in_child(init_gives, CUDA_ERROR_SYSTEM_NOT_READY);
	in_child(no_such_profile, 0);
	for (int planted = 0; planted < 3; planted++)
		in_child(default_directory, planted);
	return 0;
}
