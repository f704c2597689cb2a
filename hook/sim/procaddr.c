/* procaddr.c: cuGetProcAddress and cuGetExportTable of the simulated driver.
 *
 * By cuda.h: a version above the driver's, unknown flags and NULL pointers are CUDA_ERROR_INVALID_VALUE; a name that is
 * not known or not known at that version is CUDA_SUCCESS with a NULL pointer and the reason in *symbolStatus. The
 * vendor's private tables (cuGetExportTable) are never answered.
 */
#include "procaddr.h"

#include <stdatomic.h>
#include <string.h>

#include "entry.h"
#include "sim.h"
#include "sim_impl.h"

/* Index of the first row of a name, or -1. */
static int first_row(const char *name)
{
	unsigned low = 0, high = sim_procs;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;

		if (strcmp(sim_proc[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < sim_procs && !strcmp(sim_proc[low].name, name) ? (int)low : -1;
}

void *sim_procaddr(const char *name, int version, bool per_thread, CUdriverProcAddressQueryResult *status)
{
	int first = first_row(name);
	void *plain = NULL, *thread = NULL;
	bool known = false;

	for (unsigned i = (unsigned)first; first >= 0 && i < sim_procs && !strcmp(sim_proc[i].name, name); i++) {
		if (sim_dropped(sim_proc[i].symbol))
			continue;
		known = true;
		if (sim_proc[i].version > version)
			continue;
		if (sim_proc[i].per_thread)
			thread = sim_proc[i].function;
		else
			plain = sim_proc[i].function;
	}
	if (per_thread && thread)
		plain = thread;
	*status = plain   ? CU_GET_PROC_ADDRESS_SUCCESS
	          : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
	                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return plain;
}

CUresult sim_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *symbolStatus)
{
	const cuuint64_t known = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	CUdriverProcAddressQueryResult status;
	int driver;

	sim_machine_open(); /* symbols may be dropped there; without a machine nothing is */
	driver = sim_machine ? (int)sim_machine->cuda_version : CUDA_VERSION;
	if (!symbol || !pfn || cudaVersion > driver || (flags & ~known) || flags == known)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = sim_procaddr(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
	if (symbolStatus)
		*symbolStatus = status;
	return CUDA_SUCCESS;
}

CUresult sim_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return sim_cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

CUresult sim_cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;

	if (ppExportTable)
		*ppExportTable = NULL;
	if (!atomic_flag_test_and_set(&logged))
		sim_log("cuGetExportTable: the program asks for a private table (%s); the simulated driver has none",
		        pExportTableId ? "by id" : "without an id");
	return CUDA_ERROR_INVALID_VALUE;
}
