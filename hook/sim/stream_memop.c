/* stream_memop.c: streams that write a word of memory, or wait for one, in order with their other work.
 *
 * A wait is looked at by the device's worker every 100 us. What can go wrong: an address that is neither device nor
 * registered host memory, or not aligned to the word (CUDA_ERROR_INVALID_VALUE).
 */
#include <string.h>

#include "capture.h"
#include "multicast.h"
#include "sim_impl.h"

struct memop {
	CUdeviceptr address;
	uint64_t value;
	unsigned flags;
	bool wide; /* 64 bits */
	bool wait;
};

static void run_write(void *arg)
{
	const struct memop *op = arg;
	if (op->wide)
		__atomic_store_n((uint64_t *)op->address, op->value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)op->address, (uint32_t)op->value, __ATOMIC_RELEASE);
	sim_multicast_stored(op->address, op->wide ? 8 : 4);
}

/* GEQ is cyclic, as the header says: (int)(*address - value) >= 0. */
static bool poll_wait(const void *arg)
{
	const struct memop *op = arg;
	uint64_t now = op->wide ? __atomic_load_n((uint64_t *)op->address, __ATOMIC_ACQUIRE)
	                        : __atomic_load_n((uint32_t *)op->address, __ATOMIC_ACQUIRE);
	uint64_t mask = op->wide ? UINT64_MAX : UINT32_MAX;
	switch (op->flags & 3) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return now == (op->value & mask);
	case CU_STREAM_WAIT_VALUE_AND:
		return (now & op->value & mask) != 0;
	case CU_STREAM_WAIT_VALUE_NOR:
		return (~(now | op->value) & mask) != 0;
	default:
		return op->wide ? (int64_t)(now - op->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)op->value) >= 0;
	}
}

static CUresult check(const struct memop *op)
{
	size_t size = op->wide ? 8 : 4;
	if (op->address % size != 0 || !sim_is_mapped(op->address, size))
		return CUDA_ERROR_INVALID_VALUE;
	unsigned allowed =
	        op->wait ? 3u | CU_STREAM_WAIT_VALUE_FLUSH : (unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
	return op->flags & ~allowed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void make_item(struct sim_item *item, const struct memop *op)
{
	memset(item, 0, sizeof(*item));
	item->kind = op->wait ? SIM_ITEM_POLL : SIM_ITEM_WORK;
	item->poll = poll_wait;
	item->work.run = op->wait ? NULL : run_write;
	item->work.arg_size = sizeof(*op);
	memcpy(item->work.arg, op, sizeof(*op));
}

static CUresult submit(struct sim_stream *stream, const struct memop *op)
{
	struct sim_item item;
	make_item(&item, op);
	return sim_engine_submit(stream, &item, false);
}

static CUresult capture(struct sim_stream *stream, CUstreamBatchMemOpParams *array, unsigned count)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
	params.memOp.ctx = (CUcontext)stream->context;
	params.memOp.count = count;
	params.memOp.paramArray = array;
	return sim_capture_node(stream, &params);
}

static CUresult capture_one(struct sim_stream *stream, const struct memop *op)
{
	CUstreamBatchMemOpType wait = op->wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
	CUstreamBatchMemOpType write = op->wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
	CUstreamBatchMemOpParams param = {.operation = op->wait ? wait : write};
	param.writeValue.address = op->address;
	param.writeValue.value64 = op->value;
	param.writeValue.flags = op->flags;
	return capture(stream, &param, 1);
}

static CUresult queue_memop(CUstream handle, struct memop op)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(handle, &error);
	if (!stream)
		return error;
	error = check(&op);
	if (error != CUDA_SUCCESS)
		return error;
	return sim_stream_capturing(stream) ? capture_one(stream, &op) : submit(stream, &op);
}

CUresult sim_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
	return queue_memop(stream, (struct memop){.address = addr, .value = value, .flags = flags});
}

CUresult sim_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
	return queue_memop(stream, (struct memop){.address = addr, .value = value, .flags = flags, .wide = true});
}

CUresult sim_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
	return queue_memop(stream, (struct memop){.address = addr, .value = value, .flags = flags, .wait = true});
}

CUresult sim_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
	return queue_memop(stream,
	                   (struct memop){.address = addr, .value = value, .flags = flags, .wide = true, .wait = true});
}

CUresult sim_cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
	return sim_cuStreamWriteValue32_v2(stream, addr, value, flags);
}

CUresult sim_cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
	return sim_cuStreamWriteValue64_v2(stream, addr, value, flags);
}

CUresult sim_cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
	return sim_cuStreamWaitValue32_v2(stream, addr, value, flags);
}

CUresult sim_cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
	return sim_cuStreamWaitValue64_v2(stream, addr, value, flags);
}

/* One entry of a batch. Barriers and flushes need nothing: items run in order and memory is coherent. */
static CUresult read_batch(const CUstreamBatchMemOpParams *param, struct memop *op, bool *empty)
{
	bool wait = param->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
	            param->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
	*empty = false;
	switch (param->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		*op = (struct memop){.address = param->writeValue.address,
		                     .value = param->writeValue.value,
		                     .flags = param->writeValue.flags,
		                     .wait = wait};
		return check(op);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		*op = (struct memop){.address = param->writeValue.address,
		                     .value = param->writeValue.value64,
		                     .flags = param->writeValue.flags,
		                     .wide = true,
		                     .wait = wait};
		return check(op);
	case CU_STREAM_MEM_OP_BARRIER:
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		*empty = true;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult sim_memop_item(const CUstreamBatchMemOpParams *param, struct sim_item *item, bool *empty)
{
	struct memop op;
	CUresult error = read_batch(param, &op, empty);
	if (error == CUDA_SUCCESS && !*empty)
		make_item(item, &op);
	return error;
}

CUresult sim_cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
                                   unsigned int flags)
{
	CUresult error;
	struct sim_stream *target = sim_stream_of(stream, &error);
	if (!target)
		return error;
	if (!paramArray || flags || count > 256)
		return CUDA_ERROR_INVALID_VALUE;
	struct memop op;
	bool empty;
	for (unsigned i = 0; i < count; i++)
		if ((error = read_batch(&paramArray[i], &op, &empty)) != CUDA_SUCCESS)
			return error; /* all or nothing */
	if (sim_stream_capturing(target))
		return capture(target, paramArray, count);
	for (unsigned i = 0; i < count; i++) {
		read_batch(&paramArray[i], &op, &empty);
		if (!empty && (error = submit(target, &op)) != CUDA_SUCCESS)
			return error;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
                                unsigned int flags)
{
	return sim_cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
}
