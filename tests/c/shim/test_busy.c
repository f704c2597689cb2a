/* How busy a device is, as a container reads it: its own part of the device's time, whatever its neighbours do. What both
 * do is written into the machine as the driver's own count; where the driver says nothing of processes, the container's
 * time with work in flight stands for it, and where there is no such, the card's figure.
 */
#include <nvml.h>
#include <time.h>

#include "grant.h"

#define NEIGHBOUR 40
#define IN(call)                                                                                                       \
	do {                                                                                                           \
		nvmlReturn_t in_ = (call);                                                                             \
		CHECK(in_ == NVML_SUCCESS, "%s is %d", #call, (int)in_);                                               \
	} while (0)

static nvmlDevice_t device;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A living process outside this container: this test's parent, in the driver's books. */
static void neighbour(void)
{
	struct sim_client *client = &machine()->client[NEIGHBOUR];
	struct flock lock = {.l_type = F_WRLCK, .l_start = SIM_LOCK_CLIENT + NEIGHBOUR, .l_len = 1};
	char path[512];
	struct stat st;
	snprintf(path, sizeof(path), "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC); /* stays open: it lives */
	CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0 && stat("/proc/self/ns/pid", &st) == 0, "%s", path);
	for (int i = 0; i <= NEIGHBOUR; i++) /* slots are taken lowest first */
		machine()->client[i].generation |= 1;
	client->pid = getppid();
	client->pid_ns = st.st_ino;
	client->state = 1;
}

static int own_slot(void)
{
	for (int i = 0; i < NEIGHBOUR; i++)
		if (machine()->client[i].state && machine()->client[i].pid == (int)getpid())
			return i;
	CHECK(0, "no client slot");
	return -1;
}

/* Busy for so many percent, from a second ago until some seconds ahead. */
static void busy(int slot, unsigned percent)
{
	struct sim_client_device *client = &machine()->client[slot].device[0];
	uint64_t bucket = now_ns() / SIM_BUCKET_NS;
	for (uint64_t b = bucket - 30; b < bucket + 90; b++) {
		client->bucket_at[b % SIM_BUCKETS] = b;
		client->bucket_ns[b % SIM_BUCKETS] = SIM_BUCKET_NS / 100 * percent;
	}
}

static void reads(unsigned percent, const char *what)
{
	nvmlGpuDynamicPstatesInfo_t states;
	nvmlUtilization_t rates;
	nvmlSample_t samples[200];
	nvmlValueType_t type;
	unsigned n = 200;
	IN(nvmlDeviceGetUtilizationRates(device, &rates));
	CHECK(rates.gpu == percent && rates.memory == percent, "%s: rates %u and %u, not %u", what, rates.gpu,
	      rates.memory, percent);
	IN(nvmlDeviceGetDynamicPstatesInfo(device, &states));
	CHECK(states.utilization[0].percentage == percent && states.utilization[1].percentage == percent &&
	              states.utilization[2].percentage == 0,
	      "%s: domains %u, %u, %u", what, states.utilization[0].percentage, states.utilization[1].percentage,
	      states.utilization[2].percentage);
	IN(nvmlDeviceGetSamples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &n, samples));
	CHECK(n >= 1 && samples[n - 1].sampleValue.uiVal == percent, "%s: %u samples, the last %u", what, n,
	      n ? samples[n - 1].sampleValue.uiVal : 0);
}

static void by_samples(int self)
{
	nvmlSample_t samples[200];
	nvmlValueType_t type;
	unsigned n = 200;
	busy(NEIGHBOUR, 60);
	busy(self, 30);
	reads(30, "both at work");
	IN(nvmlDeviceGetSamples(device, NVML_MEMORY_UTILIZATION_SAMPLES, 0, &type, &n, samples));
	CHECK(n == 1, "%u samples, where the card's history is not ours", n);
	busy(self, 0);
	reads(0, "only the neighbour at work");
	busy(self, 40);
	busy(NEIGHBOUR, 0);
	reads(40, "alone");
}

/* A look that is compared with one a period before it. */
static void wait_a_period(void)
{
	uint64_t until = now_ns() + 170000000;
	while (now_ns() < until)
		;
}

static void by_flight(int self)
{
	struct ptg_ledger *ledger = share_map(grant_path("share", "ledger"), sizeof(*ledger));
	struct ptg_slot_turn *line = &ledger->turn[0][0];
	CHECK(ledger->slot[0].state == PTG_SLOT_USED && ledger->slot[0].pid == (int)getpid(), "slot 0 is not ours");
	busy(self, 10);
	busy(NEIGHBOUR, 60);
	arm("nvmlDeviceGetProcessUtilization", (CUresult)NVML_ERROR_NOT_SUPPORTED, 0, 0);
	line->launches = 0;
	reads(70, "nobody says whose it is");
	line->launches = 1;
	nvmlUtilization_t rates;
	IN(nvmlDeviceGetUtilizationRates(device, &rates));
	wait_a_period();
	line->flight_ns += UINT64_C(10000000000);
	IN(nvmlDeviceGetUtilizationRates(device, &rates));
	CHECK(rates.gpu == 100, "always in flight: %u", rates.gpu);
	wait_a_period();
	IN(nvmlDeviceGetUtilizationRates(device, &rates));
	wait_a_period();
	IN(nvmlDeviceGetUtilizationRates(device, &rates));
	CHECK(rates.gpu == 0, "nothing in flight since: %u", rates.gpu);
	wait_a_period();
	line->busy_ns = 1; /* since long ago: as much as can be */
	reads(100, "in flight now");
	line->busy_ns = 0;
}

int main(void)
{
	pid_t pid = fork(); /* makes the machine */
	if (pid == 0) {
		touch();
		_exit(0);
	}
	CHECK(waitpid(pid, NULL, 0) == pid, "wait");
	grant("share", &(struct granted){.device = 0, .memory = 8 * GIB}, 1);
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, MIB)); /* who has nothing charged is in no list */
	IN(nvmlInit_v2());
	IN(nvmlDeviceGetHandleByIndex_v2(0, &device));
	neighbour();
	by_samples(own_slot());
	by_flight(own_slot());
	return 0;
}
