/* Green contexts and device resources: how SMs split on each architecture, what goes into a descriptor, that kernels have
 * only the SMs of their green context, that it keeps the primary context alive and costs memory, and what is left of its
 * streams when it is gone. Argument of a child: which machine. */
#include <sys/wait.h>

#include "sim_test.h"

static const char *const machines[] = {"v100", "4xa100-pcie", "h100-80g"};

static CUdevResource device_sms(void)
{
	CUdevResource sms;
	OK(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
	return sms;
}

static uint64_t held(void)
{
	return test_counters(test_machine(), 0)->memory;
}

/* ---- splitting, by architecture ------------------------------------------------------------------------------------ */

static void split_by_count(unsigned total, unsigned least, unsigned align)
{
	CUdevResource all = device_sms(), group[80], rest;
	CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM && all.sm.smCount == total && all.sm.minSmPartitionSize == least &&
	              all.sm.smCoscheduledAlignment == align,
	      "%u SMs, at least %u, in steps of %u", all.sm.smCount, all.sm.minSmPartitionSize,
	      all.sm.smCoscheduledAlignment);
	unsigned n = 0;
	OK(cuDevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 0));
	CHECK(n == total / least, "%u groups of %u in %u", n, least, total);
	n = 2;
	OK(cuDevSmResourceSplitByCount(group, &n, &all, &rest, 0, 17));
	unsigned size = (17 + align - 1) / align * align;
	CHECK(n == 2 && group[0].sm.smCount == size && group[1].sm.smCount == size, "%u groups of %u", n,
	      group[0].sm.smCount);
	CHECK(rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount == total - 2 * size, "%u left", rest.sm.smCount);
	n = 80;
	OK(cuDevSmResourceSplitByCount(group, &n, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 0));
	CHECK(n == (total / 2 < 80 ? total / 2 : 80) && group[0].sm.smCount == 2, "%u groups of %u", n,
	      group[0].sm.smCount);
	n = 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(group, &n, &all, NULL, 0, total + 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(group, NULL, &all, NULL, 0, 2));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(group, &n, &all, NULL, 4, 2));
	OK(cuDevSmResourceSplitByCount(group, &n, &all, NULL, 0, 16));
	GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevSmResourceSplitByCount(&rest, &n, group, NULL, 0, 2));
	n = 1;
	CUresult largest = total == 132 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* clusters began with 9.0 */
	GIVES(largest, cuDevSmResourceSplitByCount(group, &n, &all, NULL,
	                                           CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE, 1));
}

static void split_structured(unsigned total, unsigned align)
{
	CUdevResource all = device_sms(), group[2], rest;
	CU_DEV_SM_RESOURCE_GROUP_PARAMS all_there_is = {0}, two[2] = {{.smCount = 16, .coscheduledSmCount = 2},
	                                                              {.flags = CU_DEV_SM_RESOURCE_GROUP_BACKFILL}};
	OK(cuDevSmResourceSplit(NULL, 1, &all, NULL, 0, &all_there_is));
	CHECK(all_there_is.smCount == total / align * align, "found %u of %u", all_there_is.smCount, total);
	OK(cuDevSmResourceSplit(group, 2, &all, &rest, 0, two));
	CHECK(group[0].sm.smCount == 16 && group[1].sm.smCount == total - 16 && two[1].smCount == total - 16,
	      "groups of %u and %u", group[0].sm.smCount, group[1].sm.smCount);
	CHECK(rest.type == CU_DEV_RESOURCE_TYPE_INVALID, "something is left");
	two[0].smCount = total + 2;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplit(group, 2, &all, NULL, 0, two));
	two[0].smCount = 15;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplit(group, 2, &all, NULL, 0, two));
	two[0] = (CU_DEV_SM_RESOURCE_GROUP_PARAMS){.smCount = total};
	two[0].flags = CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
	two[1] = (CU_DEV_SM_RESOURCE_GROUP_PARAMS){0};
	GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevSmResourceSplit(group, 2, &all, NULL, 0, two));
	two[1] = (CU_DEV_SM_RESOURCE_GROUP_PARAMS){0};
	OK(cuDevSmResourceSplit(NULL, 2, &all, NULL, 0, two)); /* nothing left is an answer where nobody takes it */
	CHECK(two[1].smCount == 0, "found %u", two[1].smCount);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplit(group, 1, &all, NULL, 1, &all_there_is));
}

static void descriptors(void)
{
	CUdevResource all = device_sms(), group[2], other[2], queues, none = {0};
	CUdevResourceDesc desc;
	unsigned n = 2;
	OK(cuDevSmResourceSplitByCount(group, &n, &all, NULL, 0, 8));
	OK(cuDevSmResourceSplitByCount(other, &n, &all, NULL, 0, 8));
	OK(cuDeviceGetDevResource(0, &queues, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
	CHECK(queues.wqConfig.wqConcurrencyLimit == 8 && queues.wqConfig.device == 0, "queues");
	GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE,
	      cuDeviceGetDevResource(0, &queues,
	                             CU_DEV_RESOURCE_TYPE_WORKQUEUE)); /* a context has one, a device none */
	OK(cuDevResourceGenerateDesc(&desc, group, 2));
	other[1] = group[0];
	GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&desc, other, 2));
	GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc(&desc, &none, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, group, 0));
	group[1] = queues;
	OK(cuDevResourceGenerateDesc(&desc, group, 2));
	GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevSmResourceSplitByCount(group, &n, &queues, NULL, 0, 8));
}

static void on_machine(int which)
{
	static const unsigned total[] = {80, 108, 132}, least[] = {2, 4, 8}, align[] = {2, 2, 8};
	char directory[4096];
	snprintf(directory, sizeof(directory), "%s/%s", getenv("TEST_SCRATCH"), machines[which]);
	setenv("PARTAGE_SIM_DIR", directory, 1);
	setenv("PARTAGE_SIM", machines[which], 1);
	OK(cuInit(0));
	split_by_count(total[which], least[which], align[which]);
	split_structured(total[which], align[which]);
	descriptors();
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static CUgreenCtx green_of(unsigned sms, unsigned flags)
{
	CUdevResource all = device_sms(), group;
	CUdevResourceDesc desc;
	CUgreenCtx green;
	unsigned n = 1;
	OK(cuDevSmResourceSplitByCount(&group, &n, &all, NULL, 0, sms));
	OK(cuDevResourceGenerateDesc(&desc, &group, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 0, 2));
	OK(cuGreenCtxCreate(&green, desc, 0, flags));
	return green;
}

static void memory(uint64_t context)
{
	CUcontext as, current, primary;
	CUdeviceptr p, q;
	CUgreenCtx green = green_of(16, CU_GREEN_CTX_NONE), second;
	CHECK(held() == 2 * context, "the primary context and the green one: %lu", (unsigned long)held());
	OK(cuCtxFromGreenCtx(&as, green));
	OK(cuCtxSetCurrent(as));
	OK(cuCtxGetCurrent(&current));
	CHECK(current == as && (void *)as != (void *)green, "the context of the green context is current");
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)green));
	OK(cuMemAlloc(&p, 64 << 20));
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	second = green_of(16, 0);
	CHECK(held() == 3 * context + (64 << 20), "two green contexts: %lu", (unsigned long)held());
	OK(cuGreenCtxDestroy(green));
	CHECK(held() == 2 * context + (64 << 20), "the memory is the primary context's: %lu", (unsigned long)held());
	GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&q, 16));
	GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy(green));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(as));
	OK(cuCtxSetCurrent(primary));
	OK(cuMemFree(p));
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(held() == 2 * context, "the second green context keeps it: %lu", (unsigned long)held());
	OK(cuGreenCtxDestroy(second));
	CHECK(held() == 0, "left: %lu", (unsigned long)held());
	second = green_of(16, CU_GREEN_CTX_DEFAULT_STREAM);
	OK(cuDevicePrimaryCtxReset(0));
	CHECK(held() == 0, "a reset ends it: %lu", (unsigned long)held());
	GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy(second));
}

static void told(void)
{
	CUcontext as, primary, seen;
	CUgreenCtx green = green_of(16, 0), other = green_of(24, 0), found;
	CUdevResource sms, half;
	CUstream own, plain;
	unsigned long long id, other_id;
	unsigned n = 1;
	OK(cuGreenCtxGetId(green, &id));
	OK(cuGreenCtxGetId(other, &other_id));
	CHECK(id != other_id, "ids");
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuCtxSetCurrent(primary));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxGetId(NULL, &id));
	OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&own, green, 0, 0));
	OK(cuGreenCtxStreamCreate(&own, green, CU_STREAM_NON_BLOCKING, 0));
	OK(cuStreamGetGreenCtx(own, &found));
	CHECK(found == green, "the stream's green context");
	OK(cuStreamGetGreenCtx(plain, &found));
	CHECK(found == NULL, "a stream of none");
	OK(cuStreamGetCtx_v2(own, &seen, &found));
	CHECK(seen == primary && found == green, "both contexts of the stream");
	OK(cuCtxFromGreenCtx(&as, green));
	OK(cuStreamGetCtx(own, &seen));
	CHECK(seen == as, "the stream's context");
	OK(cuCtxSetCurrent(as));
	OK(cuStreamGetGreenCtx(NULL, &found));
	CHECK(found == green, "the NULL stream of the current green context");
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamGetGreenCtx(CU_STREAM_PER_THREAD, &found));
	OK(cuCtxGetDevResource(NULL, &sms, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(sms.sm.smCount == 16, "it has %u SMs", sms.sm.smCount);
	OK(cuStreamGetDevResource(own, &sms, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(sms.sm.smCount == 16, "its stream has %u SMs", sms.sm.smCount);
	GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE,
	      cuStreamGetDevResource(own, &sms, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG));
	OK(cuGreenCtxGetDevResource(other, &sms, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevSmResourceSplitByCount(&half, &n, &sms, NULL, 0, 8)); /* what a green context has may be split again */
	CHECK(sms.sm.smCount == 24 && half.sm.smCount == 8, "split again");
	OK(cuGreenCtxGetDevResource(other, &sms, CU_DEV_RESOURCE_TYPE_WORKQUEUE));
	OK(cuGreenCtxDestroy(green));
	OK(cuCtxSetCurrent(primary));
	GIVES(CUDA_ERROR_STREAM_DETACHED, cuStreamQuery(own));
	GIVES(CUDA_ERROR_STREAM_DETACHED, cuStreamSynchronize(own));
	OK(cuStreamDestroy(own));
	OK(cuGreenCtxDestroy(other));
	OK(cuDevicePrimaryCtxRelease(0));
}

/* A kernel of one wave on the whole device takes as many as fit into fewer SMs. */
static void fewer_sms(const struct sim_device_model *model)
{
	uint64_t p = 0;
	uint32_t n = 1;
	void *params[] = {&p, &n};
	test_context(NULL, 0);
	CUgreenCtx green = green_of(model->sms / 2, 0);
	CUfunction plain = test_function("plain");
	CUstream stream;
	struct sim_client_device *counters = test_counters(test_machine(), 0);
	OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	uint64_t before = counters->busy_ns;
	OK(cuLaunchKernel(plain, model->sms * model->blocks_per_sm, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	OK(cuCtxSynchronize());
	uint64_t whole = counters->busy_ns - before;
	before = counters->busy_ns;
	OK(cuLaunchKernel(plain, model->sms * model->blocks_per_sm, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	OK(cuStreamSynchronize(stream));
	CHECK(whole == 13000 && counters->busy_ns - before == 23000, "%lu ns on all SMs, %lu on half of them",
	      (unsigned long)whole, (unsigned long)(counters->busy_ns - before));
	CUgraph graph; /* a captured kernel runs where it was captured */
	CUgraphExec exec;
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel(plain, model->sms * model->blocks_per_sm, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	before = counters->busy_ns;
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	CHECK(counters->busy_ns - before == 23000, "captured: %lu ns", (unsigned long)(counters->busy_ns - before));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuGreenCtxDestroy(green));
}

/* A record comes after all streams of the green context and of no other; a wait holds up all of them, later ones too. */
static void events(void)
{
	static sem_t gate, other_gate;
	CUstream a, b, foreign, late;
	CUevent event, go;
	CUgreenCtx green = green_of(16, 0), other = green_of(16, 0);
	OK(cuGreenCtxStreamCreate(&a, green, CU_STREAM_NON_BLOCKING, 0));
	OK(cuGreenCtxStreamCreate(&b, green, CU_STREAM_NON_BLOCKING, 0));
	OK(cuGreenCtxStreamCreate(&foreign, other, CU_STREAM_NON_BLOCKING, 0));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&go, CU_EVENT_DISABLE_TIMING));
	test_gate_close(&gate, b);
	OK(cuGreenCtxRecordEvent(green, event));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	test_gate_open(&gate);
	OK(cuEventSynchronize(event));
	test_gate_close(&other_gate, foreign);
	OK(cuEventRecord(go, foreign));
	OK(cuGreenCtxWaitEvent(green, go));
	OK(cuGreenCtxStreamCreate(&late, green, CU_STREAM_NON_BLOCKING, 0));
	OK(cuEventRecord(event, late));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	test_gate_open(&other_gate);
	OK(cuStreamSynchronize(a));
	OK(cuStreamSynchronize(late));
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGreenCtxRecordEvent(green, event));
	CUgraph graph;
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxRecordEvent(NULL, event));
	OK(cuGreenCtxDestroy(green));
	OK(cuGreenCtxDestroy(other));
}

int main(void)
{
	for (int i = 0; i < 3; i++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0, "fork");
		if (child == 0) {
			on_machine(i);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0, "%s: status 0x%x", machines[i], status);
	}
	setenv("PARTAGE_SIM", "h100-80g", 1);
	OK(cuInit(0));
	const struct sim_device_model *model = &test_machine()->model[0];
	memory(model->context);
	told();
	fewer_sms(model);
	events();
	return 0;
}
