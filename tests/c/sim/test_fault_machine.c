/* Faults in the machine file: a call fails as often as armed, on the device it was armed for, and a dropped symbol is
 * one that cuGetProcAddress does not know. */
#include "nvml_test.h"

static void arm(struct sim_machine *machine, unsigned place, const char *call, int code, int device, uint64_t after,
                uint64_t n)
{
	struct sim_fault *fault = &machine->fault[place];
	memset(fault, 0, sizeof(*fault));
	snprintf(fault->call, sizeof(fault->call), "%s", call);
	fault->code = code;
	fault->device = device;
	fault->after = after;
	fault->count = n;
	__atomic_store_n(&fault->active, 1, __ATOMIC_RELEASE);
	if (machine->faults <= place)
		__atomic_store_n(&machine->faults, place + 1, __ATOMIC_RELEASE);
}

static CUresult allocate(void)
{
	CUdeviceptr p;
	CUresult result = cuMemAlloc_v2(&p, 1 << 21);
	return result == CUDA_SUCCESS ? cuMemFree_v2(p) : result;
}

static void calls_and_symbols(void)
{
	struct sim_machine *machine = map_machine();
	CUdriverProcAddressQueryResult status;
	CUcontext context[2];
	void *p;

	CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
	for (int i = 0; i < 2; i++)
		CHECK(cuDevicePrimaryCtxRetain(&context[i], i) == CUDA_SUCCESS, "context %d", i);
	CHECK(cuCtxSetCurrent(context[0]) == CUDA_SUCCESS, "current");
	arm(machine, 0, "cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY, 0, 2, 3);
	static const CUresult expected[] = {0, 0, 2, 2, 2, 0, 0};
	for (unsigned i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
		CUresult got = allocate();
		CHECK(got == expected[i], "call %u gives %d, armed for %d", i, (int)got, (int)expected[i]);
	}
	arm(machine, 0, "cuMemAlloc_v2", CUDA_ERROR_ECC_UNCORRECTABLE, 0, 0, 0);
	CHECK(allocate() == CUDA_ERROR_ECC_UNCORRECTABLE, "for ever");
	CHECK(cuCtxSetCurrent(context[1]) == CUDA_SUCCESS && allocate() == CUDA_SUCCESS, "the other device works");
	machine->fault[0].active = 0;
	CHECK(cuCtxSetCurrent(context[0]) == CUDA_SUCCESS && allocate() == CUDA_SUCCESS, "cleared");

	arm(machine, 3, "drop:cuMemCreate", 0, -1, 0, 0);
	CUresult result = cuGetProcAddress_v2("cuMemCreate", &p, 12000, 0, &status);
	CHECK(result == CUDA_ERROR_NOT_FOUND || !p, "a dropped symbol was found");
	CHECK(cuGetProcAddress_v2("cuMemMap", &p, 12000, 0, &status) == CUDA_SUCCESS && p,
	      "another symbol is gone too");
	machine->fault[3].active = 0;
	CHECK(cuGetProcAddress_v2("cuMemCreate", &p, 12000, 0, &status) == CUDA_SUCCESS && p, "it is back");
}

static void lost_device(void)
{
	struct sim_machine *machine = map_machine();
	CUcontext context;
	CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS, "context");
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS && allocate() == CUDA_SUCCESS, "before");
	machine->device[1].lost = 1;
	CHECK(allocate() != CUDA_SUCCESS, "memory of a card that fell off the bus");
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS &&
	              allocate() == CUDA_SUCCESS,
	      "the other card goes on");
}

int main(void)
{
	run_on("zero2", calls_and_symbols);
	run_on("zero2", lost_device);
	return 0;
}
