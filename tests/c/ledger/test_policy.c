/* C054, C061, D8: the policy file: where it is looked for, what makes it unusable (each way ends closed, none unlimited), and what a
 * running process makes of a change. */
#include "world.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *expected_reason;

static void is_closed(void)
{
	uint64_t total = 1, left = 1, context;
	CHECK(vgpu_mode() == VGPU_CLOSED, "mode %d", vgpu_mode());
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "a byte was granted");
	CHECK(vgpu_reserve_context(0, &context) == CUDA_ERROR_OUT_OF_MEMORY && context == 0, "a context was granted");
	vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
	CHECK(left == 0 && total <= 80 * GIB, "shown %llu free of %llu", (unsigned long long)left,
	      (unsigned long long)total);
	vgpu_charge(0, MIB);
	vgpu_give_back(0, MIB);
	CHECK(strstr(vgpu_reason(), expected_reason), "reason \"%s\" does not say \"%s\"", vgpu_reason(),
	      expected_reason);
}

static void is_limited_to_gib(void)
{
	CHECK(vgpu_mode() == VGPU_LIMITED, "mode %d: %s", vgpu_mode(), vgpu_reason());
	CHECK(vgpu_limit(0) == GIB, "limit %llu", (unsigned long long)vgpu_limit(0));
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS, "the share was refused: %s", vgpu_reason());
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "a byte past the limit");
	vgpu_give_back(0, GIB);
}

static void is_free(void)
{
	uint64_t total, left;
	CHECK(vgpu_mode() == VGPU_FREE, "mode %d: %s", vgpu_mode(), vgpu_reason());
	CHECK(vgpu_reserve(0, 100 * GIB) == CUDA_SUCCESS, "limited without a limit");
	CHECK(vgpu_limit(0) == UINT64_MAX && vgpu_used(0) == 0 && vgpu_granted_count() == -1 && vgpu_visible(3),
	      "not free");
	vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
	CHECK(total == 80 * GIB && left == 70 * GIB, "shown %llu of %llu", (unsigned long long)left,
	      (unsigned long long)total);
}

/* ---- unusable ------------------------------------------------------------------------------------------------------------ */

static void closed_by(const char *what, const char *reason, const void *bytes, size_t count)
{
	world_write("policy", bytes, count);
	expected_reason = reason;
	scene(what, is_closed);
}

static void bad_contents(void)
{
	struct ptg_policy good = world_policy(GIB), p;
	world_share(GIB);
	scene("good", is_limited_to_gib);
	closed_by("empty", "size", "", 0);
	closed_by("short", "size", &good, sizeof good - 1);
	closed_by("header only", "size", &good, 64);
	static const char text[sizeof good] = "memory: 80Gi\n";
	closed_by("text", "not a policy", text, sizeof text);
	p = good, p.layout = 2;
	closed_by("later layout", "layout", &p, sizeof p);
	p = good, p.size = 64;
	closed_by("other size", "layout", &p, sizeof p);
	p = good, p.seq = 7;
	closed_by("for ever half-written", "never finished", &p, sizeof p);
	p = good, p.ndev = 17, world_seal(&p);
	closed_by("17 devices", "more devices", &p, sizeof p);
	p = good, p.state = 2, world_seal(&p);
	closed_by("unknown state", "state", &p, sizeof p);
	p = good, p.state = PTG_STATE_CLOSED, world_seal(&p);
	closed_by("closed by the agent", "closed it", &p, sizeof p);
	p = good, p.share_class = 3, world_seal(&p);
	closed_by("unknown class", "class", &p, sizeof p);
	p = good, p.device[1].memory = 0, world_seal(&p);
	closed_by("limit 0", "limit of 0", &p, sizeof p);
	p = good, p.device[1].uuid[0] = '\0', world_seal(&p);
	closed_by("no UUID", "UUID", &p, sizeof p);
	p = good, memset(p.device[1].uuid, 'G', PTG_UUID_SIZE), world_seal(&p);
	closed_by("endless UUID", "UUID", &p, sizeof p);
	p = good, memcpy(p.device[1].uuid, p.device[0].uuid, PTG_UUID_SIZE), world_seal(&p);
	closed_by("one device twice", "twice", &p, sizeof p);
	for (size_t at = offsetof(struct ptg_policy, crc32c); at < sizeof p; at += 37) {
		p = good;
		((unsigned char *)&p)[at] ^= 0x10;
		closed_by("one bit wrong", "checksum", &p, sizeof p);
	}
}

static void bad_places(void)
{
	setenv("PARTAGE_DIR", world_dir, 1);
	expected_reason = "No such file";
	scene("no policy in PARTAGE_DIR", is_closed);
	CHECK(mkdir(world_path("policy"), 0700) == 0, "mkdir");
	expected_reason = "regular file";
	scene("a directory", is_closed);
	CHECK(rmdir(world_path("policy")) == 0 && mkfifo(world_path("policy"), 0600) == 0, "mkfifo");
	scene("a pipe nobody writes to", is_closed);
	CHECK(unlink(world_path("policy")) == 0 && symlink("/dev/full", world_path("policy")) == 0, "symlink");
	scene("a device", is_closed);
	setenv("PARTAGE_DIR", "/nonexistent/partage", 1);
	expected_reason = "No such file";
	scene("no such directory", is_closed);
	if (geteuid() != 0) {
		world_share(GIB);
		CHECK(chmod(world_path("policy"), 0) == 0, "chmod");
		expected_reason = "Permission denied";
		scene("unreadable", is_closed);
	}
}

/* ---- places and environment -------------------------------------------------------------------------------------------------- */

static void hand_over_wins(void)
{
	static char elsewhere[300];
	world_share(GIB);
	vgpu_system_dir = world_dir;
	snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", world_dir);
	CHECK(mkdir(elsewhere, 0700) == 0, "mkdir");
	struct ptg_policy large = world_policy(80 * GIB);
	world_write("elsewhere/policy", &large, sizeof large);
	world_write("elsewhere/ledger", "", 0);
	setenv("PARTAGE_DIR", elsewhere, 1);
	scene("PARTAGE_DIR beside a hand-over", is_limited_to_gib);
	unlink(world_path("policy"));
	expected_reason = "No such file";
	scene("PARTAGE_DIR beside a hand-over without its policy", is_closed);
	unsetenv("PARTAGE_DIR");
	unlink(world_path("ledger"));
	scene("an empty hand-over", is_closed);
}

static void nothing_named(void)
{
	scene("no policy, no limit", is_free);
}

static void only_lower(void)
{
	world_share(GIB);
	setenv("CUDA_DISABLE_CONTROL", "true", 1);
	setenv("CUDA_OVERSUBSCRIBE", "true", 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE", world_path("mine"), 1);
	scene("switches change nothing", is_limited_to_gib);
	CHECK(access(world_path("mine"), F_OK) != 0, "the environment has moved the ledger");
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "80g", 1);
	setenv("MAX_GPU_MEM_MB", "99999", 1);
	scene("higher changes nothing", is_limited_to_gib);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "80g", 1);
	scene("higher for one changes nothing", is_limited_to_gib);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "0", 1);
	scene("none for one changes nothing", is_limited_to_gib);
	struct ptg_policy p = world_policy(2 * GIB);
	world_write("policy", &p, sizeof p);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "1g", 1);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT_0");
	scene("lower for all", is_limited_to_gib);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	setenv("MAX_GPU_MEM_MB", "1024", 1);
	scene("lower in MiB", is_limited_to_gib);
	unsetenv("MAX_GPU_MEM_MB");
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1024m", 1);
	scene("lower for one", is_limited_to_gib);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_0", "1 gig", 1);
	expected_reason = "accepted: bytes";
	scene("unreadable", is_closed);
}

/* ---- live changes --------------------------------------------------------------------------------------------------------------- */

static void resize(void)
{
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS && vgpu_reserve(0, 1) != CUDA_SUCCESS, "before: %s", vgpu_reason());
	struct ptg_policy p = world_policy(3 * GIB);
	p.generation = 2;
	world_change(&p);
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS, "a grown share is not used at once: %s", vgpu_reason());
	p = world_policy(GIB + GIB / 2);
	world_change(&p);
	CHECK(vgpu_limit(0) == GIB + GIB / 2 && vgpu_used(0) == 2 * GIB, "limit %llu",
	      (unsigned long long)vgpu_limit(0));
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "granted above a shrunk limit");
	uint64_t total, left;
	vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
	CHECK(total == GIB + GIB / 2 && left == 0, "shown %llu free of %llu", (unsigned long long)left,
	      (unsigned long long)total);
	vgpu_give_back(0, GIB);
	CHECK(vgpu_reserve(0, GIB / 2) == CUDA_SUCCESS && vgpu_reserve(0, 1) != CUDA_SUCCESS,
	      "below the shrunk limit: %s", vgpu_reason());
	p.device[0].overhead = 100 * (int64_t)MIB;
	world_change(&p);
	CHECK(vgpu_used(0) == GIB + GIB / 2 + 100 * MIB, "overhead is not counted: %llu",
	      (unsigned long long)vgpu_used(0));
	p.device[0].overhead = -(int64_t)(100 * GIB);
	world_change(&p);
	CHECK(vgpu_used(0) == 0, "used below zero: %llu", (unsigned long long)vgpu_used(0));
	p = world_policy(2 * GIB);
	p.state = PTG_STATE_CLOSED;
	world_change(&p);
	CHECK(vgpu_mode() == VGPU_CLOSED && vgpu_reserve(0, 1) != CUDA_SUCCESS,
	      "closed by the agent and still granting");
	p.state = PTG_STATE_OPEN;
	world_change(&p);
	CHECK(vgpu_mode() == VGPU_LIMITED && vgpu_reserve(0, MIB) == CUDA_SUCCESS, "opened again: %s", vgpu_reason());
}

static void damage(void)
{
	int fd_prot = PROT_READ | PROT_WRITE;
	CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS, "before: %s", vgpu_reason());
	FILE *file = fopen(world_path("policy"), "r+");
	struct ptg_policy *map = mmap(NULL, sizeof *map, fd_prot, MAP_SHARED, fileno(file), 0);
	fclose(file);
	map->seq = 1;
	map->device[0].memory = 80 * GIB;
	CHECK(vgpu_limit(0) == GIB && vgpu_reserve(0, GIB) != CUDA_SUCCESS, "half-written bytes were believed");
	CHECK(!vgpu_stale(vgpu_state()), "each call waits once more for a writer that is gone");
	CHECK(vgpu_reserve(0, 4096) == CUDA_SUCCESS, "half-written: %s", vgpu_reason());
	map->seq = 2;
	CHECK(vgpu_limit(0) == GIB, "a wrong checksum was believed");
	struct ptg_policy p = world_policy(2 * GIB);
	memcpy(p.device[0].uuid, fake_uuid(3), PTG_UUID_SIZE);
	world_change(&p);
	CHECK(vgpu_limit(0) == GIB && strstr(vgpu_reason(), "other devices"), "another grant was taken for ours");
	p = world_policy(2 * GIB);
	world_change(&p);
	CHECK(vgpu_limit(0) == 2 * GIB && vgpu_mode() == VGPU_LIMITED, "the repaired policy is not used: %s",
	      vgpu_reason());
}

/* Closed from the first call for want of a good policy, until the agent writes one. */
static void late(void)
{
	struct ptg_policy p = world_policy(GIB);
	p.magic = 0;
	world_write("policy", &p, sizeof p);
	CHECK(vgpu_mode() == VGPU_CLOSED && vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "granted without a policy");
	p = world_policy(GIB);
	FILE *file = fopen(world_path("policy"), "r+");
	CHECK(fwrite(&p.magic, sizeof p.magic, 1, file) == 1, "write");
	fclose(file);
	world_change(&p);
	is_limited_to_gib();
}

static bool stop;

static void *use_it(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		CHECK(vgpu_mode() == VGPU_LIMITED, "mode %d: %s", vgpu_mode(), vgpu_reason());
		uint64_t limit = vgpu_limit(0);
		CHECK(limit % GIB == 0 && limit >= GIB && limit <= 64 * GIB, "limit %llu", (unsigned long long)limit);
		if (vgpu_reserve(0, MIB) == CUDA_SUCCESS)
			vgpu_give_back(0, MIB);
	}
	return NULL;
}

static void many_changes(void)
{
	pthread_t thread[3];
	for (int i = 0; i < 3; i++)
		pthread_create(&thread[i], NULL, use_it, NULL);
	for (uint64_t i = 0; i < 3000; i++) {
		struct ptg_policy p = world_policy((i % 64 + 1) * GIB);
		world_change(&p);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	CHECK(vgpu_used(0) == 0, "%llu bytes left", (unsigned long long)vgpu_used(0));
}

static void live(void)
{
	static void (*const bodies[])(void) = {resize, damage, late, many_changes};
	for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
		world_begin();
		world_share(GIB);
		scene("live change", bodies[i]);
	}
}

/* ---- devices and contexts --------------------------------------------------------------------------------------------------------- */

static void reordered(void)
{
	fake_count = 3;
	fake_visible[0] = 2;
	fake_visible[1] = 1;
	fake_visible[2] = 0;
	CHECK(vgpu_granted_count() == 2 && strcmp(vgpu_granted_uuid(1), fake_uuid(1)) == 0 && !vgpu_granted_uuid(2),
	      "granted");
	CHECK(!vgpu_visible(0) && vgpu_visible(1) && vgpu_visible(2) && !vgpu_visible(3) && !vgpu_visible(-1),
	      "visible");
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "charged on a device of somebody else");
	CHECK(vgpu_reserve(2, 5 * MIB) == CUDA_SUCCESS && vgpu_reserve(1, 7 * MIB) == CUDA_SUCCESS, "%s",
	      vgpu_reason());
	CHECK(world_used(0) == 5 * MIB && world_used(1) == 7 * MIB, "charged to the wrong device");
	CHECK(vgpu_used_index(0) == 5 * MIB && vgpu_limit_index(1) == GIB, "by index");
	CHECK(vgpu_granted_device(0) == 2 && vgpu_granted_device(1) == 1 && vgpu_granted_device(2) == -1, "ordinals");
	CHECK(vgpu_device_by_uuid(fake_uuid(1)) == 1 && vgpu_device_by_uuid(fake_uuid(2)) == -1, "by UUID");
	CHECK(vgpu_device_by_uuid("MIG-00000001-0001-0002-0003-000000000004") == 1, "the digits count");
}

static void before_init(void)
{
	fake_ready = false;
	CHECK(vgpu_mode() == VGPU_LIMITED, "mode %d", vgpu_mode());
	CHECK(vgpu_reserve(0, MIB) == CUDA_ERROR_NOT_INITIALIZED, "the driver's own error is not passed on");
	vgpu_give_back(0, MIB);
	fake_ready = true;
	is_limited_to_gib();
}

static void contexts(void)
{
	struct ptg_policy p = world_policy(GIB);
	uint64_t first, second, third;
	p.device[0].context = 2 * GIB;
	p.device[1].context = PTG_CONTEXT_UNKNOWN;
	world_change(&p);
	CHECK(vgpu_reserve_context(0, &first) == CUDA_SUCCESS && first == 2 * GIB, "the first context was refused");
	CHECK(vgpu_reserve_context(0, &second) == CUDA_ERROR_OUT_OF_MEMORY && second == 0, "the second was not");
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "granted past the limit");
	CHECK(world_ledger()->slot[0].device[0].context == 2 * GIB / PTG_UNIT, "the estimate is not shown");
	vgpu_give_back_context(0, first);
	CHECK(vgpu_used(0) == 0 && world_ledger()->slot[0].device[0].context == 0, "not given back");
	CHECK(vgpu_reserve_context(1, &first) == CUDA_SUCCESS && first == 256 * MIB, "guess %llu",
	      (unsigned long long)first);
	CHECK(vgpu_settle_context(1, first, 100 * MIB) == 100 * MIB && vgpu_used(1) == 100 * MIB, "not settled");
	CHECK(vgpu_reserve_context(1, &second) == CUDA_SUCCESS && vgpu_reserve_context(1, &third) == CUDA_SUCCESS,
	      "room for two more");
	CHECK(vgpu_settle_context(1, second, 10 * GIB) == 256 * MIB, "a guess is never raised");
	vgpu_give_back(1, UINT64_MAX);
	CHECK(vgpu_used(1) == 0 && vgpu_used(0) == 0, "saturates");
}

static void numbers(void)
{
	CHECK(vgpu_reserve(0, UINT64_MAX) == CUDA_ERROR_OUT_OF_MEMORY, "2^64 - 1 bytes granted");
	CHECK(vgpu_reserve(0, UINT64_MAX - 4095) == CUDA_ERROR_OUT_OF_MEMORY, "2^64 - 4096 bytes granted");
	CHECK(vgpu_reserve(0, UINT64_C(1) << 44) == CUDA_ERROR_OUT_OF_MEMORY, "2^44 bytes granted");
	CHECK(vgpu_reserve(0, 0) == CUDA_SUCCESS && vgpu_used(0) == 0, "nothing costs something");
	CHECK(vgpu_reserve(0, 1) == CUDA_SUCCESS && vgpu_used(0) == 4096, "one byte is one unit");
	vgpu_charge(0, 3 * GIB);
	CHECK(vgpu_used(0) == 3 * GIB + 4096, "a charge without a check");
	vgpu_charge(0, UINT64_MAX);
	CHECK(vgpu_used(0) < UINT64_C(1) << 48, "wrapped");
	vgpu_give_back(0, UINT64_MAX);
	vgpu_give_back(0, 12345);
	CHECK(vgpu_used(0) == 0, "%llu bytes used", (unsigned long long)vgpu_used(0));
}

static void oversubscribed(void)
{
	struct ptg_policy p = world_policy(100 * GIB);
	uint64_t total, left;
	world_change(&p);
	vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
	CHECK(total == 80 * GIB && left == 70 * GIB, "shown %llu of %llu", (unsigned long long)left,
	      (unsigned long long)total);
	p.flags = PTG_FLAG_OVERSUBSCRIBED;
	world_change(&p);
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS, "%s", vgpu_reason());
	vgpu_view(0, 80 * GIB, 70 * GIB, &total, &left);
	CHECK(total == 100 * GIB && left == 99 * GIB, "shown %llu of %llu", (unsigned long long)left,
	      (unsigned long long)total);
}

int main(void)
{
	static void (*const parts[])(void) = {bad_contents,  bad_places, hand_over_wins,
	                                      nothing_named, only_lower, live};
	static void (*const scenes[])(void) = {reordered, before_init, contexts, numbers, oversubscribed};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		world_begin();
		parts[i]();
	}
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
		world_begin();
		world_share(GIB);
		scene("devices and contexts", scenes[i]);
	}
	return 0;
}
