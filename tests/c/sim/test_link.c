/* Linking: two inputs become one cubin that loads; what is missing is named in the log. */
#include "sim_test.h"

static char caller[] =
        ".version 8.0\n.target sm_70\n.address_size 64\n"
        ".extern .func (.param .b32 r) helper(.param .b32 x);\n.extern .global .u32 total;\n"
        ".visible .entry spin_ns(.param .u64 ns, .param .u8 flag, .param .align 4 .b8 s[12]) .maxntid 64, 2, 1\n"
        "{ .shared .align 4 .b8 t[256]; ret; }\n";
static char callee[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                       ".visible .global .align 4 .u32 total = 41;\n.visible .global .align 8 .b8 zeros[100];\n"
                       ".visible .const .align 4 .u32 seven = 7;\n"
                       ".visible .func (.param .b32 r) helper(.param .b32 x) { ret; }\n";

static char error_log[1024], info_log[1024];
static CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
                                 CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
static void *values[4];

static CUlinkState begin(void)
{
	CUlinkState state;
	void *fresh[] = {error_log, (void *)sizeof(error_log), info_log, (void *)sizeof(info_log)};
	memcpy(values, fresh, sizeof(values));
	OK(cuLinkCreate(4, options, values, &state));
	return state;
}

static void check_kernel(CUmodule module)
{
	CUfunction spin;
	CUdeviceptr at;
	size_t offset, size;
	int value;
	uint32_t word;
	OK(cuModuleGetFunction(&spin, module, "spin_ns"));
	const size_t where[3][2] = {{0, 8}, {8, 1}, {12, 12}};
	for (size_t i = 0; i < 3; i++) {
		OK(cuFuncGetParamInfo(spin, i, &offset, &size));
		CHECK(offset == where[i][0] && size == where[i][1], "parameter %zu: %zu bytes at %zu", i, size, offset);
	}
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, spin));
	CHECK(value == 256, "%d bytes of shared memory", value);
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, spin));
	CHECK(value == 128, "%d threads", value);
	OK(cuModuleGetGlobal(&at, &size, module, "total"));
	OK(cuMemcpyDtoH(&word, at, 4));
	CHECK(size == 4 && word == 41, "total is %u", word);
	OK(cuModuleGetGlobal(&at, &size, module, "seven"));
	OK(cuMemcpyDtoH(&word, at, 4));
	CHECK(word == 7, "seven is %u", word);
	OK(cuModuleGetGlobal(&at, &size, module, "zeros"));
	CHECK(size == 100, "zeros has %zu bytes", size);
}

int main(void)
{
	CUmodule module;
	void *cubin;
	size_t size;
	test_context("h100-80g", 0);
	CUlinkState state = begin();
	OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, caller, sizeof(caller), "caller.ptx", 0, NULL, NULL));
	OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, callee, sizeof(callee), "callee.ptx", 0, NULL, NULL));
	OK(cuLinkComplete(state, &cubin, &size));
	OK(cuModuleLoadData(&module, cubin));
	check_kernel(module);
	OK(cuLinkDestroy(state));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state));

	state = begin();
	OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, caller, sizeof(caller), "caller.ptx", 0, NULL, NULL));
	GIVES(CUDA_ERROR_UNKNOWN, cuLinkComplete(state, &cubin, &size));
	CHECK(strstr(error_log, "Undefined reference to 'helper'"), "the log says '%s'", error_log);
	OK(cuLinkDestroy(state));

	state = begin();
	GIVES(CUDA_ERROR_INVALID_PTX, cuLinkAddData(state, CU_JIT_INPUT_PTX, "oops", 5, "bad.ptx", 0, NULL, NULL));
	CHECK(strstr(error_log, "bad.ptx"), "the log does not name the input: '%s'", error_log);
	GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/nonexistent", 0, NULL, NULL));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuLinkAddData(state, CU_JIT_INPUT_NVVM, "BC", 3, "a.bc", 0, NULL, NULL));
	OK(cuLinkDestroy(state));
	return 0;
}
