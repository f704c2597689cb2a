/* procaddr.c: cuGetProcAddress in its two ABIs.
 *
 * Called by every program of the runtime library, by cuda-bindings and others, several hundred times at start, for the
 * look-up functions themselves too. The driver answers first, with the caller's own version and flags; then its pointer
 * is replaced by the hook of that very pointer (swap.c). So the ABI, the per-thread-stream variant and the status are
 * the driver's. What can go wrong: a driver newer than this library has a version of a hooked entry point that no hook
 * fits. Under a limit it is refused, as a driver does that is too old for the program; else it goes through.
 */
#include "entry.h"
#include "hooks.h"
#include "shim.h"

/* Replace *pointer by its hook. False: it must not be handed out, and is NULL now. */
static bool settle(const char *symbol, void **pointer)
{
	if (vgpu_hook_of(pointer) || !symbol || !vgpu_name_is_base(symbol) || vgpu_mode() == VGPU_FREE)
		return true;
	*pointer = NULL;
	return false;
}

CUresult hook_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	CUresult result = real_cuGetProcAddress(symbol, pfn, cudaVersion, flags);
	if (result != CUDA_SUCCESS || !pfn || !*pfn)
		return result;
	return settle(symbol, pfn) ? result : CUDA_ERROR_NOT_FOUND;
}

CUresult hook_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus)
{
	CUresult result = real_cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
	if (result != CUDA_SUCCESS || !pfn || !*pfn || settle(symbol, pfn))
		return result;
	if (symbolStatus)
		*symbolStatus = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	return CUDA_ERROR_NOT_FOUND;
}
