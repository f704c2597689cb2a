/* C029: a user's own preload that interposes dlsym and one entry point, before and after the shim.
 *
 * interposers before|after INTERPOSER: starts itself again with both preloaded in that order. Either way the program
 * ends, nobody is entered from within itself, and whoever asks for the next function behind him gets the hook, never
 * the driver's own. In front of the shim the tool's function runs; behind it the shim's does. */
#include "entry_test.h"

#include <cuda.h>
#include <stdbool.h>

static void start_with_both(char **argv, bool before)
{
	char *preload;
	const char *old = getenv("LD_PRELOAD"), *shim = getenv("TEST_SHIM");
	const char *at = strstr(old, shim); /* a sanitizer's run-time stays in front */
	CHECK(at, "LD_PRELOAD is %s", old);
	int length =
	        asprintf(&preload, "%.*s%s:%s", (int)(at - old), old, before ? argv[2] : shim, before ? shim : argv[2]);
	CHECK(length > 0, "no memory");
	setenv("LD_PRELOAD", preload, 1);
	setenv("TEST_BOTH", "1", 1);
	execv(argv[0], argv);
	CHECK(0, "cannot start %s again", argv[0]);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: interposers before|after INTERPOSER");
	bool before = strcmp(argv[1], "before") == 0;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	if (before)
		SKIP("an interposer of dlsym in front crashes the sanitizer's run-time, also without the shim");
#endif
	if (!getenv("TEST_BOTH"))
		start_with_both(argv, before);
	void *interposer = dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD);
	CHECK(interposer, "the interposer is not preloaded");
	int *recursions = dlsym(interposer, "interposer_recursions");
	int *calls = dlsym(interposer, "interposer_calls");
	void *(*next_allocate)(void) = (void *(*)(void))dlsym(interposer, "interposer_next_allocate");
	CHECK(recursions && calls && next_allocate, "the interposer lost its own names");

	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	CHECK(is_hook(dlsym(driver, "cuMemFree_v2")), "cuMemFree_v2 is of %s", owner_of(dlsym(driver, "cuMemFree_v2")));
	CHECK(is_hook(dlsym(driver, "cuMemAlloc_v2")), "the driver's cuMemAlloc_v2 is of %s",
	      owner_of(dlsym(driver, "cuMemAlloc_v2")));
	CHECK(is_hook(next_allocate()), "behind the interposer comes %s", owner_of(next_allocate()));
	void *first = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
	CHECK(is_hook(first) == !before, "the first cuMemAlloc_v2 of the process is of %s", owner_of(first));

	/* libc's own dlsym, asked for by handle or as the next one, is no way round. */
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	void *(*own)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
	CHECK(own && is_hook(own(driver, "cuMemFree_v2")), "libc's dlsym gives cuMemFree_v2 of %s",
	      owner_of(own(driver, "cuMemFree_v2")));
	CHECK(is_hook(dlsym(libc, "dlvsym")), "libc's dlvsym is handed out, of %s", owner_of(dlsym(libc, "dlvsym")));
	own = (void *(*)(void *, const char *))dlsym(interposer, "dlsym");
	CHECK(own && is_hook(own(driver, "cuMemFree_v2")), "the interposer's dlsym gives cuMemFree_v2 of %s",
	      owner_of(own(driver, "cuMemFree_v2")));
	CHECK(*calls > 0, "the interposer was never called");
	CHECK(*recursions == 0, "the interposer was entered %d times from within itself", *recursions);
	return 0;
}
