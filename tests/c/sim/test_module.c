/* Modules: what loads, what is refused and with which words, variables as device memory, and what it costs. */
#include "sim_test.h"

static const char rich_ptx[] =
        "//\n// a comment\n.version 8.3\n.target sm_80, debug\n.address_size 64\n"
        ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
        ".global .align 4 .u32 counter = 7;\n"
        ".global .align 16 .b8 table[4096];\n"
        ".const .align 8 .f64 coef[2] = {0d3FF0000000000000, 0d4000000000000000};\n"
        ".global .attribute(.managed) .align 4 .u32 shared_with_host;\n"
        ".visible .func (.param .b32 r) helper(.param .b32 x) { .reg .b32 %r<2>; ret; }\n"
        ".visible .entry work(\n .param .u8 c,\n .param .align 8 .b8 s[24],\n .param .u32 n, .param .u64 .ptr .global "
        ".align 4 p)\n"
        ".maxntid 256, 1, 1\n"
        "{ .shared .align 4 .b8 tile[512]; .reg .b32 %r<9>; { mov.u32 %r1, %tid.x; } L1: @%p1 bra L1; /* } */ ret; }\n"
        ".weak .entry nothing() { ret; }\n";

static void functions(CUmodule module)
{
	CUfunction work, all[4] = {0};
	CUmodule home;
	unsigned count;
	size_t offset, size;
	const char *name;
	int value;
	OK(cuModuleGetFunctionCount(&count, module));
	CHECK(count == 2, "%u functions", count);
	OK(cuModuleEnumerateFunctions(all, 4, module));
	OK(cuModuleGetFunction(&work, module, "work"));
	CHECK(all[0] == work || all[1] == work, "the listed functions do not contain the one found by name");
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&work, module, "helper"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&work, module, "wor"));
	OK(cuModuleGetFunction(&work, module, "work"));
	OK(cuFuncGetModule(&home, work));
	OK(cuFuncGetName(&name, work));
	CHECK(home == module && !strcmp(name, "work"), "function '%s' of module %p", name, (void *)home);
	const size_t where[4][2] = {{0, 1}, {8, 24}, {32, 4}, {40, 8}};
	for (size_t i = 0; i < 4; i++) {
		OK(cuFuncGetParamInfo(work, i, &offset, &size));
		CHECK(offset == where[i][0] && size == where[i][1], "parameter %zu: %zu bytes at %zu", i, size, offset);
	}
	GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(work, 4, &offset, &size));
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, work));
	CHECK(value == 256, "launch bounds of 256 give %d", value);
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, work));
	CHECK(value == 512, "%d bytes of shared memory", value);
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, work));
	CHECK(value == 16, "%d bytes of constants", value);
	OK(cuFuncSetAttribute(work, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
	OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, work));
	CHECK(value == 100000, "%d bytes of dynamic shared memory", value);
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuFuncSetAttribute(work, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 10000000));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(work, CU_FUNC_ATTRIBUTE_NUM_REGS, 8));
}

static void variables(CUmodule module)
{
	CUdeviceptr at;
	size_t size;
	uint32_t word = 0, other = 0x12345678;
	double coef[2];
	OK(cuModuleGetGlobal(&at, &size, module, "counter"));
	OK(cuMemcpyDtoH(&word, at, sizeof(word)));
	CHECK(size == 4 && word == 7, "counter: %zu bytes, value %u", size, word);
	OK(cuMemcpyHtoD(at, &other, sizeof(other)));
	OK(cuMemcpyDtoH(&word, at, sizeof(word)));
	CHECK(word == other, "read back %x", word);
	OK(cuModuleGetGlobal(&at, &size, module, "table"));
	OK(cuMemcpyDtoH(&word, at + 4092, sizeof(word)));
	CHECK(size == 4096 && at % 16 == 0 && word == 0, "table: %zu bytes at %llx, last word %x", size, at, word);
	OK(cuModuleGetGlobal(&at, &size, module, "coef"));
	OK(cuMemcpyDtoH(coef, at, sizeof(coef)));
	CHECK(size == 16 && coef[0] == 1 && coef[1] == 2, "coef: %zu bytes, %f %f", size, coef[0], coef[1]);
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&at, &size, module, "absent"));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleGetGlobal(NULL, NULL, module, "counter"));
}

static void refuse(CUresult expected, const char *ptx, const char *words)
{
	char error[512] = "untouched", info[512] = "untouched";
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
	                          CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {error, (void *)sizeof(error), info, (void *)sizeof(info)};
	CUmodule module;
	GIVES(expected, cuModuleLoadDataEx(&module, ptx, 4, options, values));
	CHECK(strstr(error, words), "the error log for '%.40s' says '%s', nothing of '%s'", ptx, error, words);
	CHECK((size_t)values[1] == strlen(error), "%zu bytes logged, %zu told", strlen(error), (size_t)values[1]);
	CHECK(info[0] == '\0', "info log '%s' beside an error", info);
}

static void refusals(void)
{
	CUmodule module;
	refuse(CUDA_ERROR_INVALID_PTX, ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 p { ret; }",
	       "line 3");
	refuse(CUDA_ERROR_INVALID_PTX, ".version 8.0\n.target sm_80\n.visible .entry k() { ret;", "'}'");
	refuse(CUDA_ERROR_INVALID_PTX, ".version 8.0\n.target sm_80\nthis is not code", "a directive");
	refuse(CUDA_ERROR_INVALID_PTX, ".version 8.0\n.target sm_100\n", "sm_100");
	refuse(CUDA_ERROR_INVALID_PTX, ".version 8.0\n.target sm_80\n.extern .func f();\n", "'f'");
	refuse(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, ".version 99.0\n.target sm_80\n", "99.0");
	refuse(CUDA_ERROR_INVALID_IMAGE, "garbage", "neither");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, NULL));
	GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent/code.ptx"));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload((CUmodule)&module));
}

/* A module takes the profile's bytes and its variables; unloading gives them back. */
static void accounting(void)
{
	size_t before, with, after, total;
	CUmodule module;
	struct sim_machine *machine = test_machine();
	OK(cuMemGetInfo(&before, &total));
	OK(cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.global .b8 big[104857600];\n.entry k() { ret; }"));
	OK(cuMemGetInfo(&with, &total));
	CHECK(before - with >= machine->model[0].module + 104857600,
	      "%zu bytes for a module of %llu with 100 MiB of variables", before - with,
	      (unsigned long long)machine->model[0].module);
	OK(cuModuleUnload(module));
	OK(cuMemGetInfo(&after, &total));
	CHECK(after == before, "%zu bytes free before, %zu after", before, after);
	char ptx[128];
	snprintf(ptx, sizeof(ptx), ".version 8.0\n.target sm_80\n.global .b8 big[%zu];\n", before + 1);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&module, ptx));
	OK(cuMemGetInfo(&after, &total));
	CHECK(after == before, "a module that did not fit kept %zu bytes", before - after);
}

int main(void)
{
	CUmodule module;
	CUfunction function;
	setenv("PARTAGE_SIM", "h100-80g", 1);
	OK(cuInit(0));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuModuleLoadData(&module, rich_ptx));
	test_context(NULL, 0);
	OK(cuModuleLoadData(&module, rich_ptx));
	functions(module);
	variables(module);
	OK(cuModuleGetFunction(&function, module, "nothing"));
	OK(cuModuleUnload(module));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	refusals();
	accounting();
	return 0;
}
