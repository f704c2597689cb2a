/* One process, many threads: blocks of every kind come and go at once, each keeps its own bytes, and when all are
 * gone the card's count is where it was. For the sanitizers as much as for itself. */
#include <pthread.h>

#include "memory_test.h"

#define THREADS 8
#define ROUNDS  200

static CUcontext context;

static void use(CUdeviceptr p, unsigned size, unsigned mark, CUstream stream)
{
	unsigned back[2] = {0, 0};

	OK(cuMemsetD32Async(p, mark, size / 4, stream));
	OK(cuMemcpyDtoHAsync(&back[0], p, 4, stream));
	OK(cuMemcpyDtoHAsync(&back[1], p + size / 4 * 4 - 4, 4, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(back[0] == mark && back[1] == mark, "%x %x, must be %x", back[0], back[1], mark);
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	uint64_t x = 88172645463325252u * (seed + 1);
	CUstream stream;
	CUdeviceptr p, q;
	void *host;

	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0; i < ROUNDS; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		unsigned size = (unsigned)(x >> 20) % (i % 16 ? 20000 : 3000000) + 4;
		OK(cuMemAlloc(&p, size));
		OK(cuMemAllocAsync(&q, size, stream));
		use(p, size, seed << 16 | i, stream);
		use(q, size, ~(seed << 16 | i), stream);
		OK(cuMemFreeAsync(i % 3 ? q : p, stream));
		OK(cuMemFree(i % 3 ? p : q));
		OK(cuMemAllocHost(&host, size));
		OK(cuMemFreeHost(host));
	}
	OK(cuStreamDestroy(stream));
	return NULL;
}

int main(void)
{
	pthread_t thread[THREADS];

	setenv("PARTAGE_SIM", "zero", 1);
	context = start();
	uint64_t before = held();
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, work, (void *)i) == 0, "thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	OK(cuCtxSynchronize());
	CHECK(held() == before, "%lu left", held() - before);
	CHECK(the_machine()->device[0].used == held(), "the card says %lu", the_machine()->device[0].used);
	return 0;
}
