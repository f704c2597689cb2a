/* K08, C055, C056: a ledger and a policy that root made, used by somebody else: any user whom the file lets write is held to
 * the limit, together with the others; one whom it does not let is refused with one clear reason; and a hand-over on a
 * file system that nobody may write, with the ledger bound over it, works like any other.
 */
#include "world.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

static uid_t user;

static void become(void)
{
	CHECK(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0, "cannot become %u: %s", user,
	      strerror(errno));
}

static void limited(void)
{
	become();
	CHECK(vgpu_reserve(0, GIB / 2) == CUDA_SUCCESS, "user %u: %s", user, vgpu_reason());
	CHECK(vgpu_reserve(0, GIB) == CUDA_ERROR_OUT_OF_MEMORY && vgpu_mode() == VGPU_LIMITED, "user %u: not limited",
	      user);
	CHECK(vgpu_used(0) == GIB / 2, "user %u sees %llu", user, (unsigned long long)vgpu_used(0));
}

static void holds_half(void)
{
	CHECK(vgpu_reserve(0, GIB / 2) == CUDA_SUCCESS, "root: %s", vgpu_reason());
}

static void beside_root(void)
{
	become();
	CHECK(vgpu_used(0) == GIB / 2, "user %u does not see what root holds: %llu", user,
	      (unsigned long long)vgpu_used(0));
	CHECK(vgpu_reserve(0, GIB / 2) == CUDA_SUCCESS, "user %u: %s", user, vgpu_reason());
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "together they passed the limit");
}

static void refused(void)
{
	become();
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY && vgpu_mode() == VGPU_CLOSED, "user %u is not refused",
	      user);
	CHECK(strstr(vgpu_reason(), "Permission denied"), "reason \"%s\"", vgpu_reason());
}

static void let_in(mode_t ledger)
{
	CHECK(chmod(world_dir, 0755) == 0 && chmod(world_path("policy"), 0444) == 0 &&
	              chmod(world_path("ledger"), ledger) == 0,
	      "chmod");
}

static void users(void)
{
	static const uid_t all[] = {1001, 65534, 4000000000u};
	for (unsigned i = 0; i < 3; i++) {
		user = all[i];
		world_share(GIB);
		let_in(0666);
		scene("alone", limited);
		struct actor root = actor_start(holds_half);
		scene("beside root", beside_root);
		actor_kill(&root);
		scene("root was killed", limited);
		let_in(0644);
		scene("may only read", refused);
		let_in(0600);
		scene("may nothing", refused);
	}
}

/* As a container has it: directory read-only, the ledger mounted over it. */
static void read_only(void)
{
	world_share(GIB);
	let_in(0666);
	char ledger[400];
	snprintf(ledger, sizeof ledger, "%s", world_path("../kept-ledger"));
	world_write("../kept-ledger", "", 0);
	CHECK(chmod(ledger, 0666) == 0, "chmod");
	CHECK(mount(world_dir, world_dir, NULL, MS_BIND, NULL) == 0 &&
	              mount(NULL, world_dir, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0 &&
	              mount(ledger, world_path("ledger"), NULL, MS_BIND, NULL) == 0,
	      "mounts: %s", strerror(errno));
	CHECK(access(world_path("policy"), W_OK) != 0, "the directory is not read-only");
	user = 1001;
	scene("a read-only directory", limited);
}

int main(void)
{
	if (geteuid() != 0)
		SKIP("only root can become somebody else");
	world_begin();
	const char *scratch = getenv("TEST_SCRATCH");
	CHECK(scratch == NULL || chmod(scratch, 0711) == 0, "chmod");
	users();
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		SKIP("no right to make a mount namespace (the rest has passed)");
	read_only();
	return 0;
}
