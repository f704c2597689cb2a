/* What a program learns of its devices. We test: names and memory against the machine file, attributes against each
 * other and the older calls, UUIDs and PCI places there and back, CUDA_VISIBLE_DEVICES in all its forms, peers by
 * links, a device that is lost, error names and texts, the refusal beside a real driver. */
#include "memory_test.h"

static void says_simulated(int unused)
{
	char name[128], cut[5];
	size_t total;
	int major, minor, value, count;
	CUdevprop properties;

	(void)unused;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == (int)the_machine()->ndev, "%d devices", count);
	OK(cuDeviceGetName(name, sizeof name, 0));
	CHECK(strstr(name, "SIMULATED"), "%s", name);
	OK(cuDeviceGetName(cut, sizeof cut, 0));
	CHECK(strlen(cut) == 4, "a short buffer is respected: %s", cut);
	OK(cuDeviceTotalMem(&total, 0));
	CHECK(total == the_machine()->model[0].memory, "%zu", total);
	OK(cuDeviceComputeCapability(&major, &minor, 0));
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	CHECK(value == major && major >= 7, "capability %d.%d", major, minor);
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	CHECK(value == (int)the_machine()->model[0].sms, "%d SMs", value);
	OK(cuDeviceGetProperties(&properties, 0));
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 0));
	CHECK(properties.maxGridSize[1] == value && properties.SIMDWidth == 32, "grid %d", value);
	for (int i = 1; i < CU_DEVICE_ATTRIBUTE_MAX; i++)
		OK(cuDeviceGetAttribute(&value, i, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, 1, count));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&value, -1));
}

static void places(int unused)
{
	char text[32], hex[64];
	CUdevice back;
	CUuuid uuid;
	int count;

	(void)unused;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		OK(cuDeviceGetPCIBusId(text, sizeof text, i));
		OK(cuDeviceGetByPCIBusId(&back, text));
		CHECK(back == i, "%s is device %d, must be %d", text, back, i);
		OK(cuDeviceGetUuid(&uuid, i));
		const unsigned char *b = (const unsigned char *)uuid.bytes;
		snprintf(hex, sizeof hex, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		         b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
		         b[15]);
		CHECK(!strcmp(hex, the_machine()->model[i].uuid), "%s, the machine says %s", hex,
		      the_machine()->model[i].uuid);
	}
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&back, "00FF:77:00.0"));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId(&back, "nonsense"));
}

/* list: CUDA_VISIBLE_DEVICES; wanted: the physical indices that must be seen, NULL: cuInit finds no device. */
static void see(const char *list, const char *wanted)
{
	CUuuid uuid;
	int count;

	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		setenv("CUDA_VISIBLE_DEVICES", list, 1);
		if (!wanted) {
			GIVES(CUDA_ERROR_NO_DEVICE, cuInit(0));
			GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
			_exit(0);
		}
		OK(cuInit(0));
		setenv("CUDA_VISIBLE_DEVICES", "7", 1); /* too late */
		OK(cuDeviceGetCount(&count));
		CHECK(count == (int)strlen(wanted), "'%s' shows %d devices, must show '%s'", list, count, wanted);
		for (int i = 0; i < count; i++) {
			char place[32], other[32];
			OK(cuDeviceGetPCIBusId(place, sizeof place, i));
			snprintf(other, sizeof other, "%.12s",
			         strchr(the_machine()->model[wanted[i] - '0'].pci, ':') - 4);
			CHECK(!strcasecmp(place, other), "'%s': device %d is at %s, must be %s", list, i, place, other);
			OK(cuDeviceGetUuid(&uuid, i));
		}
		_exit(0);
	}
	end_child(child);
}

static void visible(void)
{
	char uuid[200], both[400];

	see("0,1,2,3,4,5,6,7", "01234567");
	see("3,1", "31");
	see("2,9,1", "2"); /* the first bad entry ends the list */
	see("1,-1,2", "1");
	see(" 4 , 5", "45");
	see("", NULL);
	see("-1", NULL);
	see("none", NULL);
	see("1,1", NULL);
	see("1x", NULL);
	snprintf(uuid, sizeof uuid, "%s", the_machine()->model[5].uuid);
	see(uuid, "5");
	uuid[16] = 0; /* a unique beginning */
	snprintf(both, sizeof both, "%s,0", uuid);
	see(both, "50");
	see("GPU-", NULL); /* not unique */
	see("GPU-ffffffff-ffff", NULL);
}

static void peers(int unused)
{
	int can, rank;

	(void)unused;
	OK(cuInit(0));
	OK(cuDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can == (the_machine()->link[0][1].kind >= SIM_LINK_SWITCH), "peer %d", can);
	OK(cuDeviceCanAccessPeer(&can, 0, 0));
	CHECK(can == 0, "no peer of itself");
	OK(cuDeviceGetP2PAttribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1));
	CHECK(rank == (the_machine()->link[0][1].kind >= SIM_LINK_NVLINK), "atomics %d", rank);
	GIVES(CUDA_ERROR_INVALID_DEVICE,
	      cuDeviceGetP2PAttribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
	CUcontext context[2];
	CUdeviceptr p[2];
	char text[6];
	for (int i = 0; i < 2; i++) {
		OK(cuCtxCreate(&context[i], NULL, 0, i));
		OK(cuMemAlloc(&p[i], MIB));
	}
	OK(cuCtxEnablePeerAccess(context[0], 0));
	GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context[0], 0));
	OK(cuMemcpyHtoD(p[1], "peers", 6));
	OK(cuMemcpyPeer(p[0], context[0], p[1], context[1], 6));
	OK(cuMemcpyDtoH(text, p[0], 6));
	CHECK(!strcmp(text, "peers"), "%s", text);
	OK(cuCtxDisablePeerAccess(context[0]));
	GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context[0]));
}

static void lost(int unused)
{
	CUcontext context;
	CUdeviceptr p;

	(void)unused;
	start();
	OK(cuMemAlloc(&p, 16));
	__atomic_store_n(&the_machine()->device[0].lost, 1, __ATOMIC_RELEASE);
	CHECK(cuMemAlloc(&p, 16) != CUDA_SUCCESS, "a lost device gives no memory");
	CHECK(cuCtxCreate(&context, NULL, 0, 0) != CUDA_SUCCESS, "nor contexts");
	__atomic_store_n(&the_machine()->device[0].lost, 0, __ATOMIC_RELEASE);
}

static void errors(int unused)
{
	const char *name, *text;

	(void)unused;
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name)); /* before cuInit */
	OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(!strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") && !strcmp(text, "out of memory"), "%s: %s", name, text);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &name));
	CHECK(!name, "no name");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorString(CUDA_ERROR_UNKNOWN, NULL));
}

static void real_driver(int present)
{
	char path[4200];

	snprintf(path, sizeof path, "%s/nvidiactl", getenv("TEST_SCRATCH"));
	setenv("PARTAGE_SIM_REAL_DRIVER_PROBE", path, 1);
	unsetenv("PARTAGE_SIM_FORCE");
	if (present)
		close(open(path, O_CREAT | O_WRONLY, 0600));
	GIVES(present ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_SUCCESS, cuInit(0));
	setenv("PARTAGE_SIM_FORCE", "1", 1);
	OK(cuInit(0));
	unlink(path);
}

int main(void)
{
	setenv("PARTAGE_SIM", "8xh100", 1);
	void (*const cases[])(int) = {says_simulated, places, peers, lost, errors};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		in_child(cases[i], 0);
	visible();
	in_child(real_driver, 0);
	in_child(real_driver, 1);
	return 0;
}
