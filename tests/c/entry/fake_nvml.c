/* An NVML of another release: lacks nearly all names that are known, has names that nobody knows, and a function that
 * calls back into a hooked one. Built without libc, so that it has no symbol versions. One device of 1 GiB.
 * `fake_calls` counts what reached it. Used by nvml_release.c. */
#include <nvml.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int fake_calls;

static int device;

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	fake_calls++;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	fake_calls++;
	*count = 1;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle)
{
	unsigned int count;
	fake_calls++;
	/* Through the global scope: this is the shim's. */
	if (nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS || index >= count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*handle = (nvmlDevice_t)&device;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length)
{
	static const char text[] = "GPU-00000001-0002-0003-0004-000000000005";
	if (handle != (nvmlDevice_t)&device || length < sizeof text)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < sizeof text; i++)
		uuid[i] = text[i];
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
	nvmlDevice_t again;
	fake_calls++;
	if (nvmlDeviceGetHandleByIndex_v2(0, &again) != NVML_SUCCESS || handle != again)
		return NVML_ERROR_INVALID_ARGUMENT;
	memory->total = memory->free = 1ull << 30;
	memory->used = 0;
	return NVML_SUCCESS;
}

#define UNKNOWN(n)                                                                                                     \
	EXPORT int nvmlFuture##n(void)                                                                                 \
	{                                                                                                              \
		return 1000 + n;                                                                                       \
	}
#define UNKNOWN_FIVE(a, b, c, d, e) UNKNOWN(a) UNKNOWN(b) UNKNOWN(c) UNKNOWN(d) UNKNOWN(e)
UNKNOWN_FIVE(0, 1, 2, 3, 4)
UNKNOWN_FIVE(5, 6, 7, 8, 9)
UNKNOWN_FIVE(10, 11, 12, 13, 14)
UNKNOWN_FIVE(15, 16, 17, 18, 19)
