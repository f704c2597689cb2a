/* K06, C035, D11: with the library = without it, for calls that make no sense. Every exported hook and the driver's own
 * function behind it are called with nothing but zeros, and with nothing but the address of an empty page, before cuInit,
 * after it, and with a context, each in a process of its own: the same code comes back and the same bytes are written,
 * and where one of the two faults, so does the driver's own. What is refused under a limit is refused here too, and
 * nothing else differs.
 * Argument: cuda or nvml.
 */
#include <nvml.h>
#include <sys/resource.h>

#include "entry/entry_test.h"
#include "shim_test.h"

enum state { BEFORE, READY, WORKING, STATES };
static const char *const state_name[STATES] = {"before initialisation", "initialised", "with a context"};

enum arguments { ZEROS, PAGES, ARGUMENTS };
static const char *const arguments_name[ARGUMENTS] = {"zeros", "pointers"};

static bool nvml;
static void *driver;
static unsigned char *page; /* what calls may write to */
static unsigned char *trace; /* shared: what they wrote */
static char refused[200][96];
static unsigned refusals, compared, differences;

/* Says what differs, and goes on, so that one run shows all of it. */
#define SAME(condition, ...)                                                                                           \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			differences++;                                                                                 \
			NOTE(__VA_ARGS__);                                                                             \
		}                                                                                                      \
	} while (0)

struct outcome {
	int status; /* of waitpid, where it did not end well */
	int code;
	unsigned char bytes[256];
};

typedef int any_call(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                     uintptr_t, uintptr_t, uintptr_t);

static void prepare(enum state state)
{
	nvmlDevice_t device;
	if (state == BEFORE)
		return;
	if (nvml) {
		CHECK(nvmlInit_v2() == NVML_SUCCESS, "nvmlInit");
		CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "handle");
		if (state == WORKING) /* calls about a real device: its handle is what the zeroed page begins with */
			memcpy(page, &device, sizeof(device));
	} else if (state == READY) {
		OK(cuInit(0));
	} else {
		start(0);
	}
}

static void child(any_call *function, enum state state, enum arguments arguments)
{
	struct rlimit none = {0};
	setrlimit(RLIMIT_CORE, &none);
	alarm(60); /* a hang is a failure, and a busy machine slow */
	prepare(state);
	uintptr_t a = arguments == PAGES ? (uintptr_t)page : 0, first = a;
	if (nvml && state == WORKING && arguments == PAGES)
		memcpy(&first, page, sizeof(first));
	int code = function(first, a, a, a, a, a, a, a, a, a, a, a);
	memcpy(trace, &code, sizeof(code));
	memcpy(trace + 64, page, 256);
	_exit(0);
}

static struct outcome call(any_call *function, enum state state, enum arguments arguments)
{
	struct outcome o = {0};
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0)
		child(function, state, arguments);
	CHECK(waitpid(pid, &o.status, 0) == pid, "wait");
	if (o.status == 0) {
		memcpy(&o.code, trace, sizeof(o.code));
		memcpy(o.bytes, trace + 64, sizeof(o.bytes));
	}
	return o;
}

/* Two things are wrong at once, and ours is found first: the size is over any limit before the driver sees the flags or the
 * element size, and where no stream or context is current, no pool is looked at. */
static bool is_wrong_twice(const char *name, enum arguments arguments, int code)
{
	static const struct {
		const char *prefix;
		int code;
	} first[] = {{"cuMemAllocManaged", CUDA_ERROR_OUT_OF_MEMORY},
	             {"cuMemAllocPitch", CUDA_ERROR_OUT_OF_MEMORY},
	             {"cuMemAllocFromPoolAsync", CUDA_ERROR_INVALID_CONTEXT},
	             {"cuMemAllocFromPoolAsync", CUDA_ERROR_INVALID_HANDLE}};
	for (unsigned i = 0; !nvml && arguments == PAGES && i < sizeof(first) / sizeof(*first); i++)
		if (strncmp(name, first[i].prefix, strlen(first[i].prefix)) == 0 && code == first[i].code)
			return true;
	return false;
}

static bool is_refused(const char *name)
{
	for (unsigned i = 0; i < refusals; i++)
		if (strcmp(refused[i], name) == 0)
			return true;
	return false;
}

/* From the table of classes. */
static void read_refused(void)
{
	char path[600], line[256];
	snprintf(path, sizeof(path), "%s/partage/%s_api.def", INCLUDE_DIR, nvml ? "nvml" : "cuda");
	FILE *file = fopen(path, "r");
	CHECK(file != NULL, "cannot read %s", path);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "API(%95[^,], REFUSED)", refused[refusals]) == 1 && strstr(line, "REFUSED"))
			refusals++;
	fclose(file);
	CHECK(refusals > 0 && refusals < 200, "%u refused names", refusals);
}

static void compare_in(const char *name, enum state state, enum arguments arguments)
{
	any_call *hook = (any_call *)dlsym(driver, name), *own = (any_call *)driver_own(driver, name);
	CHECK(hook != NULL && own != NULL && hook != own, "%s is not hooked", name);
	struct outcome with = call(hook, state, arguments), without = call(own, state, arguments);
	compared++;
	if (is_refused(name)) {
		SAME(with.status == 0 &&
		             with.code == (nvml ? (int)NVML_ERROR_NOT_SUPPORTED : (int)CUDA_ERROR_NOT_SUPPORTED),
		     "%s %s, %s: status 0x%x, code %d", name, state_name[state], arguments_name[arguments], with.status,
		     with.code);
		return;
	}
	SAME(with.status == without.status, "%s %s, %s: status 0x%x, the driver's own ends with 0x%x", name,
	     state_name[state], arguments_name[arguments], with.status, without.status);
	SAME(with.code == without.code || (without.code != 0 && is_wrong_twice(name, arguments, with.code)),
	     "%s %s, %s: %d, the driver says %d", name, state_name[state], arguments_name[arguments], with.code,
	     without.code);
	SAME(with.code == 0 || memcmp(with.bytes, without.bytes, sizeof(with.bytes)) == 0,
	     "%s %s, %s: an output was touched on error %d", name, state_name[state], arguments_name[arguments],
	     with.code);
}

static void compare(const char *name, void *unused)
{
	(void)unused;
	for (enum state state = BEFORE; state < STATES; state++)
		for (enum arguments arguments = ZEROS; arguments < ARGUMENTS; arguments++)
			compare_in(name, state, arguments);
}

int main(int argc, char **argv)
{
	nvml = argc > 1 && strcmp(argv[1], "nvml") == 0;
	driver = dlopen(nvml ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_NOW);
	CHECK(driver != NULL, "%s", dlerror());
	page = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	trace = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && trace != MAP_FAILED, "mmap");
	read_refused();
	unsigned names = each_export(nvml ? "nvml" : "cu", compare, NULL);
	CHECK(names > 20, "only %u names", names);
	NOTE("%u names, %u comparisons", names, compared);
	CHECK(differences == 0, "%u calls behave otherwise than without the library", differences);
	return 0;
}
