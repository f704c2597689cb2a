/* Entry points that few programs call: the log of errors, settings of core dumps, atomics over links, RDMA flushes, where
 * managed memory lies, unified functions, 32-bit variables, graphics without graphics. */
#include <stdlib.h>

#include "sim_test.h"

static unsigned told;
static char told_text[256];

static void tell(void *data, CUlogLevel level, char *message, size_t length)
{
	CHECK(data == &told && level == CU_LOG_LEVEL_ERROR && strlen(message) == length, "callback");
	snprintf(told_text, sizeof(told_text), "%s", message);
	cuMemFree((CUdeviceptr)1); /* what fails in a callback is not told again */
	told++;
}

static void logs(void)
{
	CUlogsCallbackHandle handle;
	CUlogIterator here, before;
	static char text[26000], small[120];
	size_t size = sizeof(text);
	CUdeviceptr p;
	OK(cuLogsCurrent(&here, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(&here, 1));
	OK(cuLogsRegisterCallback(tell, &told, &handle));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
	CHECK(told == 1 && strstr(told_text, "cuMemAlloc_v2 returned 1 (CUDA_ERROR_INVALID_VALUE)"), "told %u: %s",
	      told, told_text);
	OK(cuLogsUnregisterCallback(handle));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsUnregisterCallback(handle));
	OK(cuLogsDumpToMemory(&here, text, &size, 0));
	CHECK(size == strlen(text) && strstr(text, "cuLogsCurrent returned 1") &&
	              strstr(text, "cuMemAlloc_v2 returned 1"),
	      "dumped %zu bytes: %s", size, text);
	before = here;
	size = sizeof(text);
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)&here));
	OK(cuLogsDumpToMemory(&here, text, &size, 0));
	CHECK(here == before + 1 && strchr(text, '\n') == text + size - 1, "one line: %s", text);
	size = sizeof(text);
	OK(cuLogsDumpToMemory(&here, text, &size, 0));
	CHECK(size == 0, "nothing new: %zu", size);
	for (int i = 0; i < 300; i++)
		cuMemAlloc(&p, 0);
	size = sizeof(text);
	OK(cuLogsDumpToMemory(&before, text, &size, 0));
	CHECK(strstr(text, "missing") != NULL && size <= 25600, "%zu bytes of too many lines", size);
	size = sizeof(small);
	OK(cuLogsDumpToMemory(NULL, small, &size, 0));
	CHECK(strncmp(small, "[CUDA][W]", 9) == 0 && strchr(small, '\n') < small + size - 1, "the newest line: %s",
	      small);
	size = 4;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(NULL, small, &size, 0));
	char path[512];
	snprintf(path, sizeof(path), "%s/errors", getenv("TEST_SCRATCH"));
	OK(cuLogsDumpToFile(NULL, path, 0));
	FILE *file = fopen(path, "r");
	CHECK(file && fgets(text, sizeof(text), file) && strstr(text, "[CUDA]"), "%s", path);
	fclose(file);
}

static void finished(void *data, int pid, CUdevice device)
{
	(void)data;
	(void)pid;
	(void)device;
}

static void core_dumps(void)
{
	CUcoredumpCallbackHandle handle;
	bool on = true, off = false, value = false;
	unsigned flags = 0;
	size_t size = sizeof(bool);
	char text[1024];
	OK(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &value, &size));
	CHECK(!value, "nothing is dumped unasked");
	OK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size));
	OK(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &value, &size));
	CHECK(value, "the process's setting holds for a context without its own");
	OK(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &off, &size));
	OK(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &value, &size));
	CHECK(!value, "a context's own");
	OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &value, &size));
	CHECK(value, "is not the process's");
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_USER_TRIGGER, &on, &size));
	OK(cuCoredumpSetAttribute(CU_COREDUMP_LIGHTWEIGHT, &on, &size));
	size = sizeof(flags);
	OK(cuCoredumpGetAttribute(CU_COREDUMP_GENERATION_FLAGS, &flags, &size));
	CHECK(flags == CU_COREDUMP_LIGHTWEIGHT_FLAGS, "flags %x", flags);
	size = sizeof(text);
	OK(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
	CHECK(strncmp(text, "core.cuda.", 10) == 0, "%s", text);
	size = sizeof("/tmp/dump");
	OK(cuCoredumpSetAttribute(CU_COREDUMP_FILE, "/tmp/dump", &size));
	size = 4;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
	OK(cuCoredumpGetAttribute(CU_COREDUMP_FILE, NULL, &size));
	CHECK(size == 1024, "room for %zu bytes", size);
	OK(cuCoredumpGetAttribute(CU_COREDUMP_FILE, text, &size));
	CHECK(strcmp(text, "/tmp/dump") == 0, "%s", text);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCoredumpGetAttribute(CU_COREDUMP_MAX, text, &size));
	OK(cuCoredumpRegisterStartCallback(finished, NULL, &handle));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCoredumpDeregisterCompleteCallback(handle));
	OK(cuCoredumpDeregisterStartCallback(handle));
}

static void links(void)
{
	CUatomicOperation asked[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS},
	                  wrong = CU_ATOMIC_OPERATION_MAX;
	unsigned can[2] = {9, 9};
	OK(cuDeviceGetHostAtomicCapabilities(can, asked, 2, 0));
	CHECK(can[0] == 0 && can[1] == 0, "over PCI Express: %x %x", can[0], can[1]);
	OK(cuDeviceGetP2PAtomicCapabilities(can, asked, 2, 0, 1));
	CHECK((can[0] & CU_ATOMIC_CAPABILITY_REDUCTION) && (can[1] & CU_ATOMIC_CAPABILITY_SCALAR_64) &&
	              !(can[1] & CU_ATOMIC_CAPABILITY_REDUCTION),
	      "over NVLink: %x %x", can[0], can[1]);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetHostAtomicCapabilities(can, &wrong, 1, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetHostAtomicCapabilities(can, asked, 0, 0));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAtomicCapabilities(can, asked, 2, 0, 0));
	OK(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
	                              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
	                                                           (CUflushGPUDirectRDMAWritesScope)7));
}

static void places(void)
{
	CUmemLocation where[4], host = {.type = CU_MEM_LOCATION_TYPE_HOST};
	CUdeviceptr managed, plain;
	size_t mib = 1 << 20;
	OK(cuMemAllocManaged(&managed, 7 * mib, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemAlloc(&plain, mib));
	OK(cuMemGetLocationInfo(managed, 7 * mib, 2 * mib, 0, where));
	CHECK(where[0].type == CU_MEM_LOCATION_TYPE_DEVICE && where[3].type == CU_MEM_LOCATION_TYPE_DEVICE &&
	              where[3].id == 0,
	      "places %d and %d", where[0].type, where[3].type);
	OK(cuMemPrefetchAsync_v2(managed, 7 * mib, host, 0, NULL));
	OK(cuMemGetLocationInfo(managed, 7 * mib, 7 * mib, mib, where));
	CHECK(where[0].type == CU_MEM_LOCATION_TYPE_HOST, "after a prefetch: %d", where[0].type);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetLocationInfo(managed, mib, 2 * mib, 0, where));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetLocationInfo(managed, mib, mib, 2 * mib, where));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetLocationInfo(plain, mib, mib, 0, where));
	OK(cuMemFree(managed));
	OK(cuMemFree(plain));
}

static void code(void)
{
	static const char image[] = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .global .b8 v[64];\n";
	CUlibrary library;
	CUmodule module;
	void *function;
	CUgraphicsResource none = NULL;
	CUdeviceptr p;
	unsigned size = 0, address = 0;
	CUresult (*old)(unsigned *, unsigned *, CUmodule, const char *) = NULL;
	CUdriverProcAddressQueryResult status;
	OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetUnifiedFunction(&function, library, "f"));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetUnifiedFunction(&function, library, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetUnifiedFunction(&function, (CUlibrary)&p, "f"));
	OK(cuLibraryUnload(library));
	OK(cuModuleLoadData(&module, image));
	OK(cuGetProcAddress("cuModuleGetGlobal", (void **)&old, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
	OK(old(NULL, &size, module, "v"));
	CHECK(size == 64, "%u bytes", size);
	OK(cuModuleGetGlobal(&p, NULL, module, "v"));
	GIVES(p > UINT32_MAX ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS, old(&address, &size, module, "v"));
	OK(cuModuleUnload(module));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphicsUnregisterResource(none));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphicsMapResources(1, &none, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphicsMapResources(0, &none, NULL));
}

int main(void)
{
	test_context("8xh100", 0);
	logs();
	core_dumps();
	links();
	places();
	code();
	return 0;
}
