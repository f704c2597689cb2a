/* K09, C061: what a tenant writes into its environment decides nothing under a policy: raised limits, the opt-out, another
 * ledger, free contexts. Each is tried in a process of its own, which then gets its share and not a byte more. The one
 * thing that does decide is written down here too: without the hand-over in /run/partage, a process that no longer says
 * PARTAGE_DIR has no share at all (SECURITY.md: delivery by environment).
 */
#include "grant.h"

#define LIMIT GIB

static const char *const attempts[][2] = {
        {"CUDA_DEVICE_MEMORY_LIMIT", "100g"},
        {"CUDA_DEVICE_MEMORY_LIMIT", "0"},
        {"CUDA_DEVICE_MEMORY_LIMIT_0", "100g"},
        {"MAX_GPU_MEM_MB", "100000"},
        {"CUDA_DISABLE_CONTROL", "true"},
        {"CUDA_OVERSUBSCRIBE", "true"},
        {"CUDA_DEVICE_MEMORY_SHARED_CACHE", "other-ledger"},
        {"PARTAGE_CONTEXT_MEMORY", "0"},
        {"XDG_RUNTIME_DIR", "/nowhere"},
        {"CUDA_VISIBLE_DEVICES", "0,0"},
        {"CUDA_VISIBLE_DEVICES", "1,0"},
        {"LD_PRELOAD", ""}, /* too late for a process that runs */
};
#define ATTEMPTS (sizeof(attempts) / sizeof(*attempts))

static unsigned attempt;

/* All of the share and no more: what could be had in blocks of 64 MiB. */
static uint64_t grab(void)
{
	CUdeviceptr p;
	CUcontext context;
	CUdevice device;
	uint64_t bytes = 0;
	if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
	    cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return 0; /* nothing is seen, so nothing is had */
	OK(cuCtxSetCurrent(context));
	while (bytes < 4 * LIMIT && cuMemAlloc_v2(&p, 64 * MIB) == CUDA_SUCCESS)
		bytes += 64 * MIB;
	return bytes;
}

static void try_one(void)
{
	const char *name = attempts[attempt][0];
	CHECK(setenv(name, attempts[attempt][1], 1) == 0, "setenv");
	uint64_t bytes = grab();
	bool senseless = strcmp(name, "CUDA_VISIBLE_DEVICES") == 0;
	CHECK(bytes == LIMIT || (senseless && bytes == 0), "%s=%s: %lu bytes were had", name, attempts[attempt][1],
	      (unsigned long)bytes);
	CHECK(peak() <= LIMIT, "%s: %lu bytes were held", name, (unsigned long)peak());
}

/* In a running process it is too late for anything. */
static void after_the_first_call(void)
{
	int count;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	for (unsigned i = 0; i < ATTEMPTS; i++)
		unsetenv(attempts[i][0]);
	unsetenv("PARTAGE_DIR");
	setenv("CUDA_DISABLE_CONTROL", "1", 1);
	CHECK(grab() == LIMIT, "the environment was changed after the first call");
}

static void without_a_name(void)
{
	unsetenv("PARTAGE_DIR");
	CHECK(grab() == 4 * LIMIT, "a process without PARTAGE_DIR is limited: SECURITY.md says it is not");
}

int main(void)
{
	const struct granted first[] = {{0, LIMIT}};
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("share", first, 1);
	for (attempt = 0; attempt < ATTEMPTS; attempt++)
		scene(attempts[attempt][0], try_one);
	scene("after the first call", after_the_first_call);
	if (access("/run/partage", F_OK) != 0)
		scene("PARTAGE_DIR unset: bypass, as documented", without_a_name);
	return 0;
}
