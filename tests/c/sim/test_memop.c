/* Streams that write and wait for words of memory. */
#include "sim_test.h"

static CUstream stream_new(void)
{
	CUstream stream;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static uint32_t word_at(CUdeviceptr p)
{
	uint32_t word;
	OK(cuMemcpyDtoH(&word, p, sizeof(word)));
	return word;
}

int main(void)
{
	CUdeviceptr p;
	uint64_t *host;
	test_context("zero", 0);
	CUstream writer = stream_new(), waiter = stream_new();
	OK(cuMemAlloc(&p, 64));
	OK(cuMemsetD8(p, 0, 64));
	OK(cuStreamWaitValue32(waiter, p, 5, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWriteValue32(waiter, p + 16, 77, 0));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
	OK(cuStreamWriteValue32(writer, p, 4, 0));
	OK(cuStreamSynchronize(writer));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
	CHECK(word_at(p + 16) == 0, "a write overtook the wait before it");
	OK(cuStreamWriteValue32(writer, p, 6, 0));
	OK(cuStreamSynchronize(waiter));
	CHECK(word_at(p + 16) == 77, "the word is %u", word_at(p + 16));

	/* The host opens a wait in pinned memory. */
	OK(cuMemAllocHost((void **)&host, 4096));
	host[0] = 0;
	OK(cuStreamWaitValue64(waiter, (CUdeviceptr)(uintptr_t)host, UINT64_C(1) << 40, CU_STREAM_WAIT_VALUE_AND));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
	__atomic_store_n(&host[0], UINT64_C(3) << 40, __ATOMIC_RELEASE);
	OK(cuStreamSynchronize(waiter));

	CUstreamBatchMemOpParams batch[3] = {0};
	batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	batch[0].writeValue.address = p + 20;
	batch[0].writeValue.value = 9;
	batch[1].operation = CU_STREAM_MEM_OP_BARRIER;
	batch[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	batch[2].waitValue.address = p + 20;
	batch[2].waitValue.value = 9;
	batch[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	OK(cuStreamBatchMemOp(writer, 3, batch, 0));
	OK(cuStreamSynchronize(writer));
	CHECK(word_at(p + 20) == 9, "the batch wrote %u", word_at(p + 20));
	batch[0].writeValue.address = p + 24;
	batch[2].waitValue.address = p + 21;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(writer, 3, batch, 0));
	OK(cuStreamSynchronize(writer));
	CHECK(word_at(p + 24) == 0, "half of a refused batch was done");

	int not_pinned;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(writer, (CUdeviceptr)(uintptr_t)&not_pinned, 1, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, p + 4, 1, 0));
	return 0;
}
