/* world.c: see world.h. */
#include "world.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

char world_dir[256];
int fake_visible[8] = {0, 1};
int fake_count = 2;
int fake_machine = 4;
bool fake_ready = true;
bool fake_nvml = true;
atomic_uint fake_calls;

/* ---- directory ------------------------------------------------------------------------------------------------------- */

const char *world_path(const char *name)
{
	static char path[4][320];
	static unsigned turn;
	char *to = path[turn++ % 4];
	snprintf(to, sizeof path[0], "%s/%s", world_dir, name);
	return to;
}

void world_begin(void)
{
	const char *base = getenv("TEST_SCRATCH");
	snprintf(world_dir, sizeof world_dir, "%s/ledger-XXXXXX", base && strlen(base) < 200 ? base : "/tmp");
	CHECK(mkdtemp(world_dir), "cannot make %s", world_dir);
	static char system_dir[320];
	snprintf(system_dir, sizeof system_dir, "%s/no-hand-over", world_dir);
	vgpu_system_dir = system_dir;
	static const char *const names[] = {
	        "PARTAGE_DIR",          "CUDA_DEVICE_MEMORY_LIMIT", "MAX_GPU_MEM_MB",
	        "CUDA_DISABLE_CONTROL", "CUDA_OVERSUBSCRIBE",       "CUDA_DEVICE_MEMORY_SHARED_CACHE",
	        "CUDA_VISIBLE_DEVICES", "PARTAGE_CONTEXT_MEMORY",   "PARTAGE_LOG"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		unsetenv(names[i]);
	for (int i = 0; i < 8; i++) {
		char name[64];
		snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
		unsetenv(name);
	}
	setenv("XDG_RUNTIME_DIR", world_dir, 1);
}

void world_write(const char *name, const void *bytes, size_t count)
{
	int fd = open(world_path(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0, "cannot make %s", world_path(name));
	CHECK(write(fd, bytes, count) == (ssize_t)count, "cannot write %s", name);
	close(fd);
}

/* ---- policy and ledger -------------------------------------------------------------------------------------------------- */

void world_seal(struct ptg_policy *policy)
{
	policy->crc32c = vgpu_crc32c(&policy->generation, sizeof *policy - offsetof(struct ptg_policy, generation));
}

struct ptg_policy world_policy(uint64_t limit)
{
	struct ptg_policy p = {.magic = PTG_POLICY_MAGIC,
	                       .layout = PTG_POLICY_LAYOUT,
	                       .size = sizeof p,
	                       .generation = 1,
	                       .state = PTG_STATE_OPEN,
	                       .enforcement = PTG_ENFORCE_SHIM,
	                       .ndev = 2};
	for (unsigned i = 0; i < p.ndev; i++) {
		memcpy(p.device[i].uuid, fake_uuid((int)i), PTG_UUID_SIZE);
		p.device[i].memory = limit;
		p.device[i].physical = 80 * GIB;
	}
	world_seal(&p);
	return p;
}

void world_share(uint64_t limit)
{
	struct ptg_policy p = world_policy(limit);
	world_write("policy", &p, sizeof p);
	world_write("ledger", "", 0);
	setenv("PARTAGE_DIR", world_dir, 1);
}

void world_change(const struct ptg_policy *policy)
{
	int fd = open(world_path("policy"), O_RDWR);
	struct ptg_policy *map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED, "cannot map the policy");
	close(fd);
	uint32_t seq = map->seq;
	struct ptg_policy copy = *policy;
	world_seal(&copy);
	__atomic_store_n(&map->seq, seq | 1, __ATOMIC_SEQ_CST);
	memcpy(&map->generation, &copy.generation, sizeof copy - offsetof(struct ptg_policy, generation));
	map->crc32c = copy.crc32c;
	__atomic_store_n(&map->seq, (seq | 1) + 1, __ATOMIC_SEQ_CST);
	munmap(map, sizeof *map);
}

struct ptg_ledger *world_ledger(void)
{
	static struct ptg_ledger *map;
	static ino_t of;
	struct stat st;
	int fd = open(world_path("ledger"), O_RDWR);
	CHECK(fd >= 0 && fstat(fd, &st) == 0, "no ledger in %s", world_dir);
	CHECK(st.st_size >= (off_t)sizeof *map, "the ledger is not initialised");
	if (!map || of != st.st_ino)
		map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	of = st.st_ino;
	close(fd);
	CHECK(map != MAP_FAILED, "cannot map the ledger");
	return map;
}

uint64_t world_used(unsigned device)
{
	return (uint64_t)ptg_word_used(ptg_load(&world_ledger()->device[device].word)) * PTG_UNIT;
}

uint64_t world_sum(unsigned device)
{
	struct ptg_ledger *map = world_ledger();
	uint64_t sum = 0;
	ptg_complete(map, device, ptg_load(&map->device[device].word));
	for (unsigned i = 0; i < PTG_SLOTS; i++)
		sum += (uint64_t)ptg_word_used(ptg_load(&map->slot[i].device[device].done)) * PTG_UNIT;
	return sum;
}

/* ---- the driver ----------------------------------------------------------------------------------------------------------- */

const char *fake_uuid(int number)
{
	static char text[8][PTG_UUID_SIZE];
	snprintf(text[number], PTG_UUID_SIZE, "GPU-0000000%d-0001-0002-0003-000000000004", number);
	return text[number];
}

static CUresult get_count(int *count)
{
	atomic_fetch_add_explicit(&fake_calls, 1, memory_order_relaxed);
	*count = fake_count;
	return fake_ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult get_device(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	static const char rest[12] = {0, 1, 0, 2, 0, 3, 0, 0, 0, 0, 0, 4};
	memset(uuid, 0, sizeof *uuid);
	uuid->bytes[3] = (char)fake_visible[device];
	memcpy(uuid->bytes + 4, rest, sizeof rest);
	return CUDA_SUCCESS;
}

static CUresult get_bus(char *text, int size, CUdevice device)
{
	snprintf(text, (size_t)size, "0000:%02x:00.0", 0x10 + fake_visible[device]);
	return CUDA_SUCCESS;
}

static CUresult get_current(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

void *vgpu_real_cuda(const char *symbol)
{
	static const struct {
		const char *name;
		void *function;
	} names[] = {{"cuDeviceGetCount", (void *)get_count},
	             {"cuDeviceGet", (void *)get_device},
	             {"cuDeviceGetUuid_v2", (void *)get_uuid},
	             {"cuDeviceGetPCIBusId", (void *)get_bus},
	             {"cuCtxGetDevice", (void *)get_current}};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(symbol, names[i].name) == 0)
			return names[i].function;
	return NULL;
}

static int nvml_nothing(void)
{
	return 0;
}

static int nvml_count(unsigned *count)
{
	*count = (unsigned)fake_machine;
	return 0;
}

static int nvml_handle(unsigned number, void **handle)
{
	*handle = (void *)(uintptr_t)(number + 1);
	return 0;
}

static int nvml_uuid(void *handle, char *text, unsigned size)
{
	snprintf(text, size, "%s", fake_uuid((int)(uintptr_t)handle - 1));
	return 0;
}

void *vgpu_real_nvml(const char *symbol)
{
	static const struct {
		const char *name;
		void *function;
	} names[] = {{"nvmlInit_v2", (void *)nvml_nothing},
	             {"nvmlShutdown", (void *)nvml_nothing},
	             {"nvmlDeviceGetCount_v2", (void *)nvml_count},
	             {"nvmlDeviceGetHandleByIndex_v2", (void *)nvml_handle},
	             {"nvmlDeviceGetUUID", (void *)nvml_uuid}};
	for (size_t i = 0; fake_nvml && i < sizeof names / sizeof *names; i++)
		if (strcmp(symbol, names[i].name) == 0)
			return names[i].function;
	return NULL;
}

/* ---- scenes ------------------------------------------------------------------------------------------------------------------ */

void scene(const char *name, void (*body)(void))
{
	int status = -1;
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		body();
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "scene \"%s\" ended with status %#x", name, status);
}

struct actor actor_start(void (*body)(void))
{
	struct actor actor;
	int to[2], from[2];
	char byte;
	fflush(NULL);
	CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0, "pipe");
	actor.pid = fork();
	CHECK(actor.pid >= 0, "fork");
	if (actor.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGPIPE, SIG_DFL);
		close(to[1]);
		close(from[0]);
		body();
		if (write(from[1], "x", 1) != 1 || read(to[0], &byte, 1) < 0)
			_exit(1);
		exit(0);
	}
	close(to[0]);
	close(from[1]);
	actor.to = to[1];
	actor.from = from[0];
	CHECK(read(actor.from, &byte, 1) == 1, "an actor died before it had done its part");
	return actor;
}

static int actor_wait(struct actor *actor)
{
	int status = -1;
	/* A killed one does not listen any more. */
	if (write(actor->to, "x", 1) != 1)
		NOTE("actor %d is gone", (int)actor->pid);
	close(actor->to);
	close(actor->from);
	CHECK(waitpid(actor->pid, &status, 0) == actor->pid, "waitpid");
	return status;
}

void actor_end(struct actor *actor)
{
	int status = actor_wait(actor);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "an actor ended with status %#x", status);
}

void actor_kill(struct actor *actor)
{
	signal(SIGPIPE, SIG_IGN);
	kill(actor->pid, SIGKILL);
	actor_wait(actor);
}
