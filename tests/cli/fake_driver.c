/* A driver in a bad state, for tests of `partage doctor`: libcuda.so.1 and libnvidia-ml.so.1 in one file.
 * -DVERSION=n what cuDriverGetVersion says; -DINIT=n what cuInit answers; -DNVML=n what nvmlInit answers; -DHANG and
 * -DCRASH: cuInit never returns, or ends the process. It has no device. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

int cuDriverGetVersion(int *version)
{
	*version = VERSION;
	return 0;
}

int cuInit(unsigned flags)
{
	(void)flags;
#ifdef HANG
	for (;;)
		pause();
#endif
#ifdef CRASH
	raise(SIGSEGV);
#endif
	return INIT;
}

int cuDeviceGetCount(int *count)
{
	*count = 0;
	return 0;
}

int nvmlInit_v2(void)
{
	return NVML;
}

int nvmlInitWithFlags(unsigned flags)
{
	(void)flags;
	return NVML;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = 0;
	return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	strncpy(version, "1.2.3", length);
	return 0;
}

const char *nvmlErrorString(int code)
{
	return code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
