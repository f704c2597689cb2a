/* A second interposer of dlsym, as profilers are: counts, passes on to the next one behind it, and says when it is
 * entered from within itself. With -DTOOL it also stands in for one entry point of the driver, as tracing tools do.
 * Used by interposers.c. */
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int interposer_calls, interposer_recursions;

typedef void *look_up(void *, const char *);

static look_up *next_look_up(void)
{
	static look_up *next;
#ifdef __aarch64__
	if (!next)
		next = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#else
	if (!next)
		next = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#endif
	return next;
}

EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
	static _Thread_local int depth;
	interposer_calls++;
	interposer_recursions += depth > 0;
	depth++;
	void *value = next_look_up()(handle, name);
	depth--;
	return value;
}

/* What a tool does around the driver's function: calls the next one behind itself. */
EXPORT int interposer_allocated;

EXPORT int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	int (*next)(unsigned long long *, size_t) =
	        (int (*)(unsigned long long *, size_t))next_look_up()(RTLD_NEXT, "cuMemAlloc_v2");
	interposer_allocated++;
	return next ? next(pointer, bytes) : -1;
}

/* Where does this library, from its place in the order, get the driver's function from? */
EXPORT void *interposer_next_allocate(void)
{
	/* Not as a jump: "next" counts from where the call returns to. */
	void *volatile next = next_look_up()(RTLD_NEXT, "cuMemAlloc_v2");
	return next;
}
