/* Libraries belong to no context: kernels can be asked before one exists, and load where they are first used. */
#include "sim_test.h"

static const char code[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                           ".global .u32 counter = 9;\n.global .attribute(.managed) .u32 both = 5;\n"
                           ".visible .entry spin_ns(.param .u64 ns) { ret; }\n.visible .entry other() { ret; }\n";

static void without_context(CUlibrary library, CUkernel kernel)
{
	CUkernel list[2];
	CUlibrary home;
	CUfunction function;
	unsigned count;
	size_t offset, size;
	const char *name;
	int value;
	OK(cuLibraryGetKernelCount(&count, library));
	OK(cuLibraryEnumerateKernels(list, 2, library));
	CHECK(count == 2 && (list[0] == kernel || list[1] == kernel), "%u kernels", count);
	OK(cuKernelGetName(&name, kernel));
	OK(cuKernelGetLibrary(&home, kernel));
	CHECK(!strcmp(name, "spin_ns") && home == library, "kernel '%s'", name);
	OK(cuKernelGetParamInfo(kernel, 0, &offset, &size));
	CHECK(offset == 0 && size == 8, "parameter of %zu bytes at %zu", size, offset);
	OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
	CHECK(value == 1024, "%d threads", value);
	GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "absent"));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&function, list[0]));
}

static void in_context(CUlibrary library, CUkernel kernel, int device)
{
	CUcontext context;
	CUfunction function;
	CUmodule module, same;
	CUdeviceptr at;
	size_t size;
	uint32_t word;
	int value;
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	OK(cuKernelGetFunction(&function, kernel));
	OK(cuFuncGetModule(&module, function));
	OK(cuLibraryGetModule(&same, library));
	CHECK(module == same, "two modules of one library in one context");
	GIVES(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
	OK(cuLibraryGetGlobal(&at, &size, library, "counter"));
	OK(cuMemcpyDtoH(&word, at, 4));
	CHECK(size == 4 && word == 9, "counter %u", word);
	OK(cuLibraryGetManaged(&at, &size, library, "both"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&at, &size, library, "counter"));
	/* What is set on the kernel for a device shows on its function there, and only there. */
	OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000 + device, kernel, device));
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
	CHECK(value == 60000 + device, "device %d: %d bytes", device, value);
	/* A kernel can be launched in place of a function. */
	test_spin((CUfunction)kernel, NULL, 1000);
	OK(cuCtxSynchronize());
}

int main(void)
{
	CUlibrary library;
	CUkernel kernel;
	setenv("PARTAGE_SIM", "zero2", 1);
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuInit(0));
	OK(cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "spin_ns"));
	without_context(library, kernel);
	in_context(library, kernel, 0);
	in_context(library, kernel, 1);
	struct sim_machine *machine = test_machine();
	for (int device = 0; device < 2; device++) {
		uint64_t busy = test_counters(machine, device)->busy_ns;
		CHECK(busy == 1000, "device %d was busy for %llu ns", device, (unsigned long long)busy);
	}
	OK(cuLibraryUnload(library));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuKernelGetAttribute(&(int){0}, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0));
	GIVES(CUDA_ERROR_INVALID_IMAGE, cuLibraryLoadData(&library, "garbage", NULL, NULL, 0, NULL, NULL, 0));
	GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLibraryLoadFromFile(&library, "/nonexistent", NULL, NULL, 0, NULL, NULL, 0));
	return 0;
}
