/* K01: a variable of a module is memory like any other: `.global .b8 big[402653184];` and cuModuleGetGlobal would be an
 * allocation that nobody meters. By every way of loading code it is refused where it does not fit, before the driver is
 * asked; it is charged where it fits, in a library once for every context; and it is given back with its module, library
 * or context. The limit is 256 MiB.
 */
#include <stdlib.h>

#include "shim_test.h"

#define EACH  (64 * MIB) /* of a small one; four fill the share */
#define HEAD  ".version 8.0\n.target sm_80\n.address_size 64\n"
#define LARGE HEAD ".visible .global .align 8 .b8 big[402653184];\n"
#define SMALL HEAD ".visible .global .align 8 .b8 big[67108864];\n"

struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t bytes;
	struct {
		uint16_t kind, version;
		uint32_t header_size;
		uint64_t payload_size;
		uint32_t packed_size, options;
		uint16_t minor, major;
		uint32_t sm, name, name_size;
		uint64_t flags, reserved, unpacked_size;
	} entry;
	char payload[256];
};

static struct fatbin fatbin_of(const char *text)
{
	struct fatbin f = {.magic = 0xba55ed50u, .version = 1, .header_size = 16, .bytes = sizeof(f) - 16};
	f.entry.kind = 1;
	f.entry.header_size = sizeof(f.entry);
	f.entry.payload_size = sizeof(f.payload);
	f.entry.sm = 80;
	snprintf(f.payload, sizeof(f.payload), "%s", text);
	return f;
}

static const char *file_of(const char *text)
{
	static char path[512];
	snprintf(path, sizeof(path), "%s/code.ptx", getenv("TEST_SCRATCH"));
	FILE *file = fopen(path, "w");
	CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s cannot be written", path);
	return path;
}

/* PTX as the cubin that the driver's linker makes of it; lives as long as the link. */
static void *cubin_of(const char *text, CUlinkState *state)
{
	void *cubin;
	size_t size;
	OK(cuLinkCreate_v2(0, NULL, NULL, state));
	OK(cuLinkAddData_v2(*state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1, "code", 0, NULL,
	                    NULL));
	OK(cuLinkComplete(*state, &cubin, &size));
	return cubin;
}

static uint64_t load_calls(void)
{
	return partage_sim_calls("cuModuleLoad") + partage_sim_calls("cuModuleLoadData") +
	       partage_sim_calls("cuModuleLoadDataEx") + partage_sim_calls("cuModuleLoadFatBinary") +
	       partage_sim_calls("cuLibraryLoadData") + partage_sim_calls("cuLibraryLoadFromFile");
}

static void refused_everywhere(void)
{
	CUmodule m = (CUmodule)1;
	CUlibrary l = (CUlibrary)1;
	CUlinkState state;
	struct fatbin fatbin = fatbin_of(LARGE);
	void *cubin = cubin_of(LARGE, &state);
	uint64_t before = load_calls();
	IS(cuModuleLoadData(&m, LARGE), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuModuleLoadDataEx(&m, LARGE, 0, NULL, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuModuleLoadFatBinary(&m, &fatbin), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuModuleLoadData(&m, cubin), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuModuleLoad(&m, file_of(LARGE)), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuLibraryLoadData(&l, LARGE, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuLibraryLoadFromFile(&l, file_of(LARGE), NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(load_calls() == before, "refused code reached the driver");
	CHECK(m == (CUmodule)1 && l == (CUlibrary)1, "a refusal wrote a handle");
	CHECK(used() == 0, "charged %lu", (unsigned long)used());
	OK(cuLinkDestroy(state));
}

static void one_module(CUmodule m, const char *how)
{
	CUdeviceptr p;
	size_t bytes;
	OK(cuModuleGetGlobal_v2(&p, &bytes, m, "big"));
	CHECK(bytes == EACH && used() == EACH, "%s: %zu bytes, charged %lu", how, bytes, (unsigned long)used());
	OK(cuModuleUnload(m));
	CHECK(used() == 0, "%s: charged %lu after the unload", how, (unsigned long)used());
	CHECK(cuModuleUnload(m) != CUDA_SUCCESS && used() == 0, "%s: unloaded twice", how);
}

static void charged_and_given_back(void)
{
	CUmodule m, more[4];
	CUlinkState state;
	struct fatbin fatbin = fatbin_of(SMALL);
	void *cubin = cubin_of(SMALL, &state);
	OK(cuModuleLoadData(&m, SMALL));
	one_module(m, "PTX");
	OK(cuModuleLoadDataEx(&m, SMALL, 0, NULL, NULL));
	one_module(m, "PTX with options");
	OK(cuModuleLoadFatBinary(&m, &fatbin));
	one_module(m, "fatbin");
	OK(cuModuleLoadData(&m, cubin));
	one_module(m, "cubin");
	OK(cuModuleLoad(&m, file_of(SMALL)));
	one_module(m, "file");
	for (int i = 0; i < 4; i++)
		OK(cuModuleLoadData(&more[i], SMALL));
	IS(cuModuleLoadData(&m, SMALL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuModuleUnload(more[0]));
	OK(cuModuleLoadData(&more[0], SMALL));
	for (int i = 0; i < 4; i++)
		OK(cuModuleUnload(more[i]));
	arm("cuModuleLoadData", CUDA_ERROR_INVALID_PTX, 0, 1);
	IS(cuModuleLoadData(&m, SMALL), CUDA_ERROR_INVALID_PTX);
	disarm();
	CHECK(used() == 0, "charged %lu", (unsigned long)used());
	OK(cuLinkDestroy(state));
}

static void ends_with_its_context(void)
{
	CUcontext context, first;
	CUmodule m;
	OK(cuCtxGetCurrent(&first));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuModuleLoadData(&m, SMALL));
	CHECK(used() == EACH, "charged %lu", (unsigned long)used());
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(first));
	CHECK(used() == 0, "charged %lu after the context", (unsigned long)used());
}

/* Its variables lie once in every context. */
static void libraries(void)
{
	CUlibrary l, second;
	CUcontext before, after, first;
	CUdeviceptr p;
	size_t bytes;
	OK(cuCtxGetCurrent(&first));
	OK(cuLibraryLoadData(&l, SMALL, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(used() == EACH, "charged %lu", (unsigned long)used());
	OK(cuLibraryUnload(l));
	OK(cuCtxCreate_v2(&before, 0, 0));
	OK(cuLibraryLoadData(&l, SMALL, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(used() == 2 * EACH, "two contexts: charged %lu", (unsigned long)used());
	OK(cuCtxCreate_v2(&after, 0, 0));
	OK(cuLibraryGetGlobal(&p, &bytes, l, "big"));
	CHECK(bytes == EACH && used() == 3 * EACH, "three contexts: %zu, charged %lu", bytes, (unsigned long)used());
	IS(cuLibraryLoadFromFile(&second, file_of(SMALL), NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(used() == 3 * EACH, "a refusal: charged %lu", (unsigned long)used());
	OK(cuMemAlloc_v2(&p, EACH));
	IS(cuCtxCreate_v2(&(CUcontext){NULL}, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(p));
	OK(cuCtxDestroy_v2(after));
	CHECK(used() == 2 * EACH, "a context less: charged %lu", (unsigned long)used());
	OK(cuCtxDestroy_v2(before));
	OK(cuLibraryUnload(l));
	OK(cuCtxSetCurrent(first));
	CHECK(used() == 0, "charged %lu", (unsigned long)used());
}

int main(void)
{
	start(0);
	refused_everywhere();
	charged_and_given_back();
	ends_with_its_context();
	libraries();
	return 0;
}
