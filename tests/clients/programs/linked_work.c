/* linked_work.c: a C program that is linked to libcuda, as nvcc's host code is: loads PTX, launches, copies both ways,
 * then allocates until it is refused. Prints one JSON object; a failed call names itself on stderr, exit 1. Kernels take
 * time on the simulator but compute nothing, so only copies are compared.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)64 << 20)
#define OK(call)                                                                                                       \
	do {                                                                                                           \
		CUresult e = (call);                                                                                   \
		if (e != CUDA_SUCCESS) {                                                                               \
			fprintf(stderr, #call ": %d\n", e);                                                            \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

static const char ptx[] = ".version 8.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry touch(.param .u64 touch_param_0)\n{\n\tret;\n}\n";

int main(void)
{
	static unsigned char source[1 << 20], target[1 << 20];
	CUdeviceptr p, held[1024];
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction function;
	CUstream stream;
	size_t free_before, free_after, total, count = 0;

	for (size_t i = 0; i < sizeof source; i++)
		source[i] = (unsigned char)(i * 31 + i / 251);
	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&function, module, "touch"));
	OK(cuMemAlloc(&p, sizeof source));
	OK(cuMemcpyHtoDAsync(p, source, sizeof source, stream));
	void *arguments[] = {&p};
	OK(cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
	OK(cuMemcpyDtoHAsync(target, p, sizeof target, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree(p));
	OK(cuMemGetInfo(&free_before, &total));
	CUresult refusal = CUDA_SUCCESS;
	while (count < 1024 && (refusal = cuMemAlloc(&held[count], CHUNK)) == CUDA_SUCCESS)
		count++;
	for (size_t i = 0; i < count; i++)
		OK(cuMemFree(held[i]));
	OK(cuMemGetInfo(&free_after, &total));
	printf("{\"same_bytes\": %s, \"total\": %zu, \"free_before\": %zu, \"free_after\": %zu, \"given\": %zu, "
	       "\"error\": %d}\n",
	       memcmp(source, target, sizeof source) ? "false" : "true", total, free_before, free_after, count * CHUNK,
	       refusal);
	return 0;
}
