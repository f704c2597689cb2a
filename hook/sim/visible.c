/* visible.c: from ordinals to the devices of the machine, by CUDA_VISIBLE_DEVICES, of those that the process can open.
 *
 * Called by cuInit (freeze) and by everything that takes a CUdevice. Rules of the real driver: a list of indices or of
 * UUIDs (a unique beginning is enough); the first entry that names nothing ends the list; a device named twice makes
 * the whole list empty; set but empty means no devices. Of a machine whose cards are all in MIG mode a program sees one
 * instance, the first unless it names another.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "visible.h"

static int visible[SIM_DEVICES];
static int visible_count;

int sim_visible_count(void)
{
	return visible_count;
}

int sim_physical(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : -1;
}

CUdevice sim_ordinal(int physical)
{
	for (int i = 0; i < visible_count; i++) {
		if (visible[i] == physical)
			return i;
	}
	return -1;
}

CUresult sim_device_of(CUdevice ordinal, int *physical)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	*physical = sim_physical(ordinal);
	return *physical < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* What CUDA runs on, in order: whole devices; where there are none, instances. */
static int list_runnable(int *list)
{
	int n = 0;

	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (sim_machine->model[i].mig == SIM_MIG_NONE && sim_node_seen(i))
			list[n++] = (int)i;
	}
	for (uint32_t i = 0; i < sim_machine->ndev && n == 0; i++) {
		if (sim_machine->model[i].mig == SIM_MIG_INSTANCE && sim_node_seen(i))
			list[n++] = (int)i;
	}
	return n;
}

static int by_uuid(const char *text, size_t length)
{
	int found = -1;

	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (sim_machine->model[i].mig == SIM_MIG_CARD || !sim_node_seen(i) ||
		    strncasecmp(sim_machine->model[i].uuid, text, length) != 0)
			continue;
		if (found >= 0)
			return -1; /* not a unique beginning */
		found = (int)i;
	}
	return found;
}

static int by_entry(const char *text, size_t length, const int *runnable, int n)
{
	char *end;

	if (length >= 4 && (!strncasecmp(text, "GPU-", 4) || !strncasecmp(text, "MIG-", 4)))
		return by_uuid(text, length);
	if (!length || !isdigit((unsigned char)*text))
		return -1;
	unsigned long index = strtoul(text, &end, 10);
	return end == text + length && index < (unsigned long)n ? runnable[index] : -1;
}

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r'); /* whatever the locale says */
}

/* Appends to visible; false ends the list. */
static bool take_entry(const char *text, size_t length, const int *runnable, int n)
{
	while (length && is_space(*text))
		text++, length--;
	while (length && is_space(text[length - 1]))
		length--;
	int device = by_entry(text, length, runnable, n);
	if (device < 0)
		return false;
	for (int i = 0; i < visible_count; i++) {
		if (visible[i] == device) {
			visible_count = 0;
			return false;
		}
	}
	visible[visible_count++] = device;
	return visible_count < SIM_DEVICES;
}

void sim_visible_freeze(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int runnable[SIM_DEVICES] = {0}, n = list_runnable(runnable);

	visible_count = 0;
	if (!list) {
		memcpy(visible, runnable, sizeof visible);
		visible_count = n;
		return;
	}
	while (*list) {
		size_t length = strcspn(list, ",");
		if (!take_entry(list, length, runnable, n))
			break;
		list += length + (list[length] == ',');
	}
	/* The driver enumerates at most one instance. */
	if (visible_count > 1 && sim_machine->model[visible[0]].mig == SIM_MIG_INSTANCE)
		visible_count = 1;
}
