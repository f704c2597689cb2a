/* tenant.c: a program of the driver API that does what it is told, a command a line, an answer a line. Started by
 * tests/soak, which kills it, scribbles on its files, and starts it by the hundred.
 *
 *   init       cuInit and a context; answers the error and the nanoseconds from the command to the first 1 MiB given
 *   alloc N    keeps N more bytes; answers the error
 *   drop       frees all that is kept; answers the last error
 *   info       answers the error, free and total bytes
 *   churn N    N rounds of keeping blocks of 4 KiB to 8 MiB and freeing some; answers how many were given, refused, how
 *              many ended otherwise, and the most bytes that were kept at once; frees all of them
 *   die        kill -9 itself
 *
 * The end of the commands ends it; what is kept then is the driver's to take back. Exit 2: a command is not known. */
#include <cuda.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEPT 4096

static CUdeviceptr kept[KEPT];
static size_t size_of[KEPT], bytes;
static int count;

static CUresult keep(size_t size)
{
	if (count == KEPT)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = cuMemAlloc_v2(&kept[count], size);
	if (result == CUDA_SUCCESS) {
		size_of[count++] = size;
		bytes += size;
	}
	return result;
}

static CUresult drop_one(int i)
{
	CUresult result = cuMemFree_v2(kept[i]);
	bytes -= size_of[i];
	kept[i] = kept[--count];
	size_of[i] = size_of[count];
	return result;
}

static CUresult drop_all(void)
{
	CUresult last = CUDA_SUCCESS;
	while (count > 0) {
		CUresult result = drop_one(count - 1);
		last = result == CUDA_SUCCESS ? last : result;
	}
	return last;
}

static void init(void)
{
	struct timespec begin, end;
	CUcontext context;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	CUresult result = cuInit(0);
	if (result == CUDA_SUCCESS)
		result = cuDevicePrimaryCtxRetain(&context, 0);
	if (result == CUDA_SUCCESS)
		result = cuCtxSetCurrent(context);
	if (result == CUDA_SUCCESS)
		result = keep((size_t)1 << 20);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%d %lld\n", (int)result,
	       (long long)(end.tv_sec - begin.tv_sec) * 1000000000 + (end.tv_nsec - begin.tv_nsec));
}

static void churn(long rounds)
{
	static uint32_t random = 12345;
	long given = 0, refused = 0, other = 0;
	size_t most = bytes;
	for (long i = 0; i < rounds; i++) {
		random = random * 1664525 + 1013904223;
		CUresult result = keep((size_t)4096 << (random >> 16) % 12);
		given += result == CUDA_SUCCESS;
		refused += result == CUDA_ERROR_OUT_OF_MEMORY;
		other += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
		most = bytes > most ? bytes : most;
		if (count > 0 && (result != CUDA_SUCCESS || random >> 30 == 0))
			other += drop_one((int)((random >> 8) % (uint32_t)count)) != CUDA_SUCCESS;
	}
	other += drop_all() != CUDA_SUCCESS;
	printf("%ld %ld %ld %zu\n", given, refused, other, most);
}

static void info(void)
{
	size_t free = 0, total = 0;
	CUresult result = cuMemGetInfo_v2(&free, &total);
	printf("%d %zu %zu\n", (int)result, free, total);
}

int main(void)
{
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		const char *value = strchr(line, ' ');
		long number = value ? strtol(value, NULL, 10) : 0;
		if (strncmp(line, "init", 4) == 0)
			init();
		else if (strncmp(line, "alloc ", 6) == 0)
			printf("%d\n", (int)keep((size_t)number));
		else if (strncmp(line, "drop", 4) == 0)
			printf("%d\n", (int)drop_all());
		else if (strncmp(line, "info", 4) == 0)
			info();
		else if (strncmp(line, "churn ", 6) == 0)
			churn(number);
		else if (strncmp(line, "die", 3) == 0)
			kill(getpid(), SIGKILL);
		else
			return 2;
		fflush(stdout);
	}
	return 0;
}
