/* static_tenant.c: a program that carries the simulated driver in itself, for test_containers.py.
 *
 * It stands for what reaches a card without the driver's shared library: a statically linked program, one that talks to
 * the device node itself. Nothing can be preloaded into it. Linked with libcuda_static.a; prints what it sees and holds
 * its memory until its input ends.
 *     static_tenant BYTES
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);

static void check(const char *what, int result)
{
	if (result == 0)
		return;
	printf("error %s %d\n", what, result);
	exit(2);
}

int main(int argc, char **argv)
{
	unsigned long long address = 0;
	struct pollfd input = {.fd = 0, .events = POLLIN};
	void *context = NULL;
	int count = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check("cuInit", cuInit(0));
	check("cuDeviceGetCount", cuDeviceGetCount(&count));
	printf("cuda %d\n", count);
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	check("cuMemAlloc_v2", cuMemAlloc_v2(&address, argc > 1 ? strtoull(argv[1], NULL, 10) : 1));
	printf("ready\n");
	poll(&input, 1, -1);
	return 0;
}
