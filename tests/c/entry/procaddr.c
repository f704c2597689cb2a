/* D13, C025, C026: cuGetProcAddress in both ABIs, fetched in every way, against the driver's own answers.
 *
 * The driver's own function is the oracle: the result and the status must be the same, and the pointer is the driver's
 * or, where the driver answers with a function that we hook, the hook of that very function. */
#include "entry_test.h"

#include <cuda.h>

typedef CUresult look_up_v1(const char *, void **, int, cuuint64_t);
typedef CUresult look_up_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *driver;
static look_up_v1 *ours_v1, *own_v1;
static look_up_v2 *ours_v2, *own_v2;

static const int versions[] = {2000,  3020,  4000,  7000,  8000,  10020, 11020, 11030,
                               11040, 11050, 12000, 12020, 12050, 13000, 13030, 13050};
#define VERSIONS (sizeof versions / sizeof *versions)

/* exported symbol -> its hook, for the names of the version script */
static struct pair {
	char name[100];
	void *real, *hook;
} pairs[1000];
static unsigned pair_count;

static void add_pair(const char *name, void *argument)
{
	(void)argument;
	struct pair *pair = &pairs[pair_count++];
	CHECK(pair_count < 1000, "too many exported names");
	snprintf(pair->name, sizeof pair->name, "%s", name);
	pair->real = driver_own(driver, name);
	pair->hook = dlsym(driver, name);
}

static void *hook_of(const void *real)
{
	for (unsigned i = 0; i < pair_count; i++)
		if (pairs[i].real == real)
			return pairs[i].hook;
	return NULL;
}

static void compare(const char *name, int version, cuuint64_t flags)
{
	void *theirs = (void *)1, *ours = (void *)1;
	CUdriverProcAddressQueryResult their_status = 77, our_status = 77;
	CUresult their_result = own_v2(name, &theirs, version, flags, &their_status);
	CUresult our_result = ours_v2(name, &ours, version, flags, &our_status);
	CHECK(our_result == their_result, "%s@%d/%d: %d, the driver says %d", name, version, (int)flags, our_result,
	      their_result);
	CHECK(our_status == their_status, "%s@%d/%d: status %d, the driver says %d", name, version, (int)flags,
	      our_status, their_status);
	void *hook = hook_of(theirs);
	CHECK(ours == (hook ? hook : theirs), "%s@%d/%d: %p of %s, the driver gives %p, its hook is %p", name, version,
	      (int)flags, ours, owner_of(ours), theirs, hook);
	ours = (void *)1;
	CHECK(ours_v2(name, &ours, version, flags, NULL) == their_result, "%s: another result without a status", name);
	theirs = (void *)1;
	their_result = own_v1(name, &theirs, version, flags);
	our_result = ours_v1(name, &ours, version, flags);
	hook = hook_of(theirs);
	CHECK(our_result == their_result && (our_result != CUDA_SUCCESS || ours == (hook ? hook : theirs)),
	      "%s@%d/%d by the first ABI: %d, %p; the driver: %d, %p", name, version, (int)flags, our_result, ours,
	      their_result, theirs);
}

static void compare_everywhere(const char *name, void *argument)
{
	(void)argument;
	char base[100];
	snprintf(base, sizeof base, "%.*s", (int)strcspn(name, "_"), name);
	for (unsigned v = 0; v < VERSIONS; v++)
		for (cuuint64_t flags = 0; flags <= 2; flags++)
			compare(base, versions[v], flags);
}

/* The function fetched through itself, three deep, is the hook of the ABI that belongs to the version. */
static void check_itself(int version, const char *symbol)
{
	void *expected = dlsym(driver, symbol);
	look_up_v2 *through = ours_v2;
	for (int depth = 0; depth < 3; depth++) {
		void *itself = NULL;
		CUdriverProcAddressQueryResult status = 77;
		CUresult result = through("cuGetProcAddress", &itself, version, 0, &status);
		CHECK(result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS,
		      "cuGetProcAddress@%d: %d, status %d", version, result, status);
		CHECK(itself == expected, "cuGetProcAddress@%d is %p of %s, not %s", version, itself, owner_of(itself),
		      symbol);
		if (version >= 12000)
			through = (look_up_v2 *)itself;
	}
	void *first = NULL;
	CHECK(ours_v1("cuGetProcAddress", &first, version, 0) == CUDA_SUCCESS && first == expected,
	      "cuGetProcAddress@%d by the first ABI is of %s", version, owner_of(first));
}

int main(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	ours_v1 = (look_up_v1 *)dlsym(driver, "cuGetProcAddress");
	ours_v2 = (look_up_v2 *)dlsym(driver, "cuGetProcAddress_v2");
	CHECK(is_hook((void *)ours_v1) && is_hook((void *)ours_v2), "the look-up functions themselves are not hooked");
	own_v1 = (look_up_v1 *)driver_own(driver, "cuGetProcAddress");
	own_v2 = (look_up_v2 *)driver_own(driver, "cuGetProcAddress_v2");
	each_export("cu", add_pair, NULL);

	check_itself(11030, "cuGetProcAddress");
	check_itself(11050, "cuGetProcAddress");
	check_itself(12000, "cuGetProcAddress_v2");
	check_itself(13030, "cuGetProcAddress_v2");
	each_export("cu", compare_everywhere, NULL);
	compare("cuGetErrorString", 12000, 0);
	compare("cuNoSuchThing", 12000, 0);
	compare("", 12000, 0);

	CUdriverProcAddressQueryResult status;
	void *pointer;
	CHECK(ours_v2(NULL, &pointer, 12000, 0, &status) == own_v2(NULL, &pointer, 12000, 0, &status), "a NULL name");
	CHECK(ours_v2("cuInit", NULL, 12000, 0, &status) == own_v2("cuInit", NULL, 12000, 0, &status), "a NULL result");
	NOTE("%u names, %u versions, 3 flags", pair_count, (unsigned)VERSIONS);
	return 0;
}
