/* C056: limits from the environment: the forms of each variable, which device a number means, and the ledger that a user's
 * programs share without an agent. */
#include "world.h"

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static uint64_t expected[3];
static enum vgpu_mode expected_mode;

static void answers(void)
{
	CHECK(vgpu_mode() == expected_mode, "mode %d: %s", vgpu_mode(), vgpu_reason());
	for (int i = 0; i < fake_count; i++) {
		uint64_t limit = vgpu_limit(i);
		CHECK(expected_mode == VGPU_CLOSED || limit == expected[i], "device %d: limit %llu, not %llu: %s", i,
		      (unsigned long long)limit, (unsigned long long)expected[i], vgpu_reason());
		CHECK((vgpu_reserve(i, GIB) == CUDA_SUCCESS) == (expected_mode != VGPU_CLOSED && expected[i] >= GIB),
		      "device %d of limit %llu answers otherwise to 1 GiB", i, (unsigned long long)limit);
		vgpu_give_back(i, GIB);
		CHECK(vgpu_used(i) == 0, "device %d: %llu bytes used", i, (unsigned long long)vgpu_used(i));
	}
}

struct line {
	const char *text; /* assignments separated by blanks */
	enum vgpu_mode mode;
	uint64_t limit[2];
};

#define NONE UINT64_MAX
static const struct line lines[] = {
        {"", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4g", VGPU_LIMITED, {4 * GIB, 4 * GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4096m", VGPU_LIMITED, {4 * GIB, 4 * GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4Gi", VGPU_LIMITED, {4 * GIB, 4 * GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4294967296", VGPU_LIMITED, {4 * GIB, 4 * GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT=512m", VGPU_LIMITED, {512 * MIB, 512 * MIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4", VGPU_LIMITED, {4, 4}},
        {"CUDA_DEVICE_MEMORY_LIMIT=0", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=0m", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4.5g", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4Gx", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT=-1", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT=unlimited", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT=99999999999g", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT_0=2g", VGPU_LIMITED, {2 * GIB, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT_1=2g", VGPU_LIMITED, {NONE, 2 * GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT_1=2Gx", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT_7=nonsense", VGPU_CLOSED, {0}},
        {"CUDA_DEVICE_MEMORY_LIMIT_0=2g CUDA_DEVICE_MEMORY_LIMIT=1g", VGPU_LIMITED, {2 * GIB, GIB}},
        {"CUDA_DEVICE_MEMORY_LIMIT_0=0 CUDA_DEVICE_MEMORY_LIMIT=1g", VGPU_LIMITED, {NONE, GIB}},
        {"MAX_GPU_MEM_MB=3072", VGPU_LIMITED, {3 * GIB, 3 * GIB}},
        {"MAX_GPU_MEM_MB=3072 CUDA_DEVICE_MEMORY_LIMIT=4g", VGPU_LIMITED, {3 * GIB, 3 * GIB}},
        {"MAX_GPU_MEM_MB=3072 CUDA_DEVICE_MEMORY_LIMIT=2g", VGPU_LIMITED, {2 * GIB, 2 * GIB}},
        {"MAX_GPU_MEM_MB=3072m", VGPU_CLOSED, {0}},
        {"MAX_GPU_MEM_MB=0", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4g CUDA_DISABLE_CONTROL=true", VGPU_FREE, {NONE, NONE}},
        {"CUDA_DEVICE_MEMORY_LIMIT=4g CUDA_DISABLE_CONTROL=false", VGPU_LIMITED, {4 * GIB, 4 * GIB}},
        /* CUDA_VISIBLE_DEVICES as the fake driver is told below: numbers are the machine's all the same. */
        {"CUDA_VISIBLE_DEVICES=1,0 CUDA_DEVICE_MEMORY_LIMIT_1=2g CUDA_DEVICE_MEMORY_LIMIT_0=3g",
	 VGPU_LIMITED,
	 {2 * GIB, 3 * GIB}},
        {"CUDA_VISIBLE_DEVICES=2,3 CUDA_DEVICE_MEMORY_LIMIT_2=2g CUDA_DEVICE_MEMORY_LIMIT_0=3g",
	 VGPU_LIMITED,
	 {2 * GIB, NONE}},
        {"CUDA_VISIBLE_DEVICES=3,2 CUDA_DEVICE_MEMORY_LIMIT=5g", VGPU_LIMITED, {5 * GIB, 5 * GIB}},
};

static void set(const char *text)
{
	char copy[256];
	snprintf(copy, sizeof copy, "%s", text);
	for (char *rest, *one = strtok_r(copy, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
		char *equals = strchr(one, '=');
		*equals = '\0';
		setenv(one, equals + 1, 1);
		if (strcmp(one, "CUDA_VISIBLE_DEVICES") == 0)
			sscanf(equals + 1, "%d,%d", &fake_visible[0], &fake_visible[1]);
	}
}

static void table(void)
{
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		world_begin();
		fake_visible[0] = 0;
		fake_visible[1] = 1;
		set(lines[i].text);
		expected_mode = lines[i].mode;
		memcpy(expected, lines[i].limit, sizeof lines[i].limit);
		scene(lines[i].text, answers);
	}
	fake_visible[0] = 0;
	fake_visible[1] = 1;
}

static void cannot_tell(void)
{
	fake_nvml = false;
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY && strstr(vgpu_reason(), "NVML"), "reason \"%s\"",
	      vgpu_reason());
}

/* Ordinals need not be in the order of the bus. */
static void fastest_first(void)
{
	fake_visible[0] = 1;
	fake_visible[1] = 0;
	fake_nvml = false;
	CHECK(vgpu_limit(0) == 2 * GIB && vgpu_limit(1) == GIB, "limits %llu and %llu",
	      (unsigned long long)vgpu_limit(0), (unsigned long long)vgpu_limit(1));
}

static void nvml_alone(void)
{
	fake_ready = false;
	int index = vgpu_device_by_uuid(fake_uuid(1));
	CHECK(index >= 0 && vgpu_limit_index(index) == 2 * GIB, "NVML's device 1 has limit %llu",
	      (unsigned long long)vgpu_limit_index(index));
	CHECK(vgpu_granted_count() == -1, "the environment grants no devices");
}

static void numbers(void)
{
	world_begin();
	set("CUDA_DEVICE_MEMORY_LIMIT_0=1g CUDA_DEVICE_MEMORY_LIMIT_1=2g");
	scene("fastest first", fastest_first);
	scene("a program of NVML alone", nvml_alone);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	scene("no NVML", cannot_tell);
}

/* ---- one ledger per user and limit set ---------------------------------------------------------------------------------------- */

static int ledgers(char name[300])
{
	int count = 0;
	DIR *dir = opendir(world_path("partage"));
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (strncmp(entry->d_name, "ledger", 6) == 0) {
			snprintf(name, 300, "partage/%.200s", entry->d_name);
			count++;
		}
	if (dir)
		closedir(dir);
	return count;
}

static void takes_three(void)
{
	CHECK(vgpu_reserve(0, 3 * GIB) == CUDA_SUCCESS, "3 GiB of 4: %s", vgpu_reason());
}

static void takes_half(void)
{
	CHECK(vgpu_reserve(0, 2 * GIB) == CUDA_SUCCESS, "2 GiB of 4: %s", vgpu_reason());
}

static void finds_one_left(void)
{
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS && vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY,
	      "1 GiB of 4 was left");
}

static void other_card_first(void)
{
	fake_visible[0] = 1;
	fake_visible[1] = 0;
	CHECK(vgpu_reserve(0, 4 * GIB) == CUDA_SUCCESS, "the other card is all free: %s", vgpu_reason());
	CHECK(vgpu_reserve(1, GIB) == CUDA_SUCCESS && vgpu_reserve(1, 1) == CUDA_ERROR_OUT_OF_MEMORY,
	      "1 GiB of 4 was left");
}

static void shared_by_programs(void)
{
	char name[300];
	struct stat st;
	world_begin();
	set("CUDA_DEVICE_MEMORY_LIMIT=4g");
	struct actor first = actor_start(takes_three);
	CHECK(ledgers(name) == 1, "%d ledgers", ledgers(name));
	CHECK(stat(world_path("partage"), &st) == 0 && (st.st_mode & 077) == 0, "others may enter: %o", st.st_mode);
	scene("a second program", finds_one_left);
	scene("in another order", other_card_first);
	CHECK(ledgers(name) == 1, "%d ledgers while one program runs", ledgers(name));
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "5g", 1);
	struct actor other = actor_start(takes_three);
	CHECK(ledgers(name) == 2, "other limits share the ledger");
	actor_end(&other);
	CHECK(ledgers(name) == 1, "the last user of a ledger leaves it behind");
	actor_kill(&first);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "4g", 1);
	scene("after a kill", takes_three);
	CHECK(ledgers(name) == 0, "%d ledgers left", ledgers(name));
	first = actor_start(takes_half);
	other = actor_start(takes_half);
	actor_kill(&first);
	actor_end(&other);
	CHECK(ledgers(name) == 0, "%d ledgers left", ledgers(name));
}

static void brief(void)
{
	CHECK(vgpu_reserve(0, 3 * GIB / 100) == CUDA_SUCCESS, "%s", vgpu_reason());
	CHECK(vgpu_reserve(0, 4 * GIB) == CUDA_ERROR_OUT_OF_MEMORY, "past the limit");
	struct vgpu_state *s = vgpu_state();
	CHECK(!vgpu_ledger_unlinked(&s->ledger), "goes on with a ledger that is gone");
}

/* The last one out and the next one in, again and again: nobody is left on a file that was removed. */
static void coming_and_going(void)
{
	enum { AT_ONCE = 6, ALL = 300 };
	char name[300];
	int running = 0, status;
	world_begin();
	set("CUDA_DEVICE_MEMORY_LIMIT=4g");
	for (int i = 0; i < ALL; i++) {
		if (running == AT_ONCE) {
			CHECK(wait(&status) > 0 && status == 0, "a program ended with %#x", status);
			running--;
		}
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			brief();
			exit(0);
		}
		running++;
	}
	for (; running; running--)
		CHECK(wait(&status) > 0 && status == 0, "a program ended with %#x", status);
	scene("the last", brief);
	CHECK(ledgers(name) == 0, "%d ledgers left", ledgers(name));
}

static void fails_closed(void)
{
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY && vgpu_mode() == VGPU_CLOSED, "granted: %s",
	      vgpu_reason());
}

static void places(void)
{
	world_begin();
	set("CUDA_DEVICE_MEMORY_LIMIT=4g");
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", world_path("new/named.cache"), 1);
	scene("a named ledger in a new directory", takes_three);
	CHECK(access(world_path("new/named.cache"), F_OK) == 0, "a named ledger is not ours to remove");
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/proc/named.cache", 1);
	scene("no place for it", fails_closed);
	world_write("old.cache", "HAMi's old ledger", 17);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", world_path("old.cache"), 1);
	scene("another's file", fails_closed);
}

/* PARTAGE_LOG: silent unless asked, and then only where asked. */
static void logs(void)
{
	char text[4096] = "";
	world_begin();
	set("CUDA_DEVICE_MEMORY_LIMIT=4Gx");
	static char target[400];
	snprintf(target, sizeof target, "PARTAGE_LOG=%s", world_path("log"));
	scene("silent", fails_closed);
	CHECK(access(world_path("log"), F_OK) != 0, "not silent");
	putenv(target);
	scene("asked", fails_closed);
	FILE *file = fopen(world_path("log"), "r");
	CHECK(file && fread(text, 1, sizeof text - 1, file) > 0, "nothing logged");
	fclose(file);
	CHECK(strstr(text, "CUDA_DEVICE_MEMORY_LIMIT=4Gx") && strstr(text, "accepted"), "logged \"%s\"", text);
	unlink(world_path("log"));
	setenv("PARTAGE_LOG_LEVEL", "0", 1);
	scene("level 0", fails_closed);
	CHECK(access(world_path("log"), F_OK) != 0, "level 0 writes");
	unsetenv("PARTAGE_LOG_LEVEL");
}

int main(void)
{
	table();
	numbers();
	shared_by_programs();
	coming_and_going();
	places();
	logs();
	return 0;
}
