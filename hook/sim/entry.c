/* entry.c: counting, tracing and fault injection around every public function of the simulated libraries.
 *
 * Called by the generated entry points. Calls are counted per process (sim_call_count, readable by tests through the
 * exported partage_sim_calls) and in the client's slot. With PARTAGE_SIM_TRACE=FILE each call appends one line
 * "name result pid" by one write, so that lines of several processes never mix.
 *
 * Faults come from the machine file (armed while programs run, sim_machine->fault) and from
 *     PARTAGE_SIM_FAULT="cuMemAlloc_v2:2:after=3:count=1;drop:cuFoo"
 * that is: entry point, code, calls let through first, calls that fail then (0 or left out: all), device=N (physical
 * index of the current device; left out: any). A malformed part is logged and ignored: a fault must never be the reason
 * that a program behaves differently from what was asked.
 */
#include "entry.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int trace_fd = -1;
static struct sim_fault env_fault[SIM_FAULTS];
static unsigned env_faults;

/* One option of a fault, "after=3"; false if it is none. */
static bool fault_option(struct sim_fault *fault, const char *option)
{
	char *end;
	uint64_t value;
	const char *equals = strchr(option, '=');

	if (!equals || !equals[1])
		return false;
	value = strtoull(equals + 1, &end, 10);
	if (*end)
		return false;
	if (!strncmp(option, "after=", 6))
		fault->after = value;
	else if (!strncmp(option, "count=", 6))
		fault->count = value;
	else if (!strncmp(option, "device=", 7))
		fault->device = (int32_t)value;
	else
		return false;
	return true;
}

/* "call:code[:option...]" or "drop:NAME". */
static bool parse_fault(struct sim_fault *fault, char *text)
{
	char *save = NULL, *field, *end;

	memset(fault, 0, sizeof *fault);
	fault->device = -1;
	fault->active = 1;
	if (!strncmp(text, "drop:", 5)) {
		snprintf(fault->call, sizeof fault->call, "%s", text);
		return text[5] != 0;
	}
	field = strtok_r(text, ":", &save);
	if (!field)
		return false;
	snprintf(fault->call, sizeof fault->call, "%s", field);
	field = strtok_r(NULL, ":", &save);
	if (!field)
		return false;
	fault->code = (int32_t)strtol(field, &end, 10);
	if (*end)
		return false;
	while ((field = strtok_r(NULL, ":", &save)))
		if (!fault_option(fault, field))
			return false;
	return true;
}

static unsigned inside; /* atomic; a fork's child begins anew */

static void reset_inside(void)
{
	inside = 0;
}

unsigned sim_entry_inside(void)
{
	return __atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

static void read_environment(void)
{
	const char *trace = getenv("PARTAGE_SIM_TRACE"), *faults = getenv("PARTAGE_SIM_FAULT");
	char *copy, *save = NULL;

	pthread_atfork(NULL, NULL, reset_inside);

	if (trace && *trace)
		trace_fd = open(trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (!faults || !(copy = strdup(faults)))
		return;
	for (char *part = strtok_r(copy, ";", &save); part && env_faults < SIM_FAULTS;
	     part = strtok_r(NULL, ";", &save)) {
		if (parse_fault(&env_fault[env_faults], part))
			env_faults++;
		else
			sim_log("PARTAGE_SIM_FAULT: '%s' ignored; expected CALL:CODE[:after=N][:count=N][:device=N] or "
			        "drop:NAME",
			        part);
	}
	free(copy);
}

/* What one call of NVML has asked about: a fault of a device counts the call once, however often the code asks. */
static __thread struct {
	const char *call;
	uint32_t asked, struck; /* bit per device */
	int code;
} question;

static bool is_armed(const struct sim_fault *fault, const char *call)
{
	return __atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) && !strncmp(fault->call, call, sizeof fault->call);
}

/* Whether an armed fault strikes this call, now that it is known to be meant. */
static bool comes_due(struct sim_fault *fault)
{
	uint64_t seen = __atomic_fetch_add(&fault->seen, 1, __ATOMIC_RELAXED);

	return seen >= fault->after && (fault->count == 0 || seen - fault->after < fault->count);
}

static bool strikes(struct sim_fault *fault, const char *call)
{
	return is_armed(fault, call) && (fault->device < 0 || fault->device == sim_entry_device()) && comes_due(fault);
}

/* Entries of the machine's faults to look at: none as long as none was ever armed. */
static unsigned machine_faults(void)
{
	uint32_t faults = sim_machine ? __atomic_load_n(&sim_machine->faults, __ATOMIC_ACQUIRE) : 0;

	return faults < SIM_FAULTS ? faults : SIM_FAULTS;
}

static bool fault_for(const char *call, int *result)
{
	for (unsigned i = 0; i < env_faults; i++)
		if (strikes(&env_fault[i], call)) {
			*result = env_fault[i].code;
			return true;
		}
	for (unsigned i = 0, n = machine_faults(); i < n; i++)
		if (strikes(&sim_machine->fault[i], call)) {
			*result = sim_machine->fault[i].code;
			return true;
		}
	return false;
}

/* Whether the fault strikes the call that asks about its device. */
static bool strikes_on(struct sim_fault *fault, int device)
{
	return fault->device == device && (is_armed(fault, question.call) || is_armed(fault, "nvml")) &&
	       comes_due(fault);
}

static struct sim_fault *fault_on(int device)
{
	for (unsigned i = 0; i < env_faults; i++)
		if (strikes_on(&env_fault[i], device))
			return &env_fault[i];
	for (unsigned i = 0, n = machine_faults(); i < n; i++)
		if (strikes_on(&sim_machine->fault[i], device))
			return &sim_machine->fault[i];
	return NULL;
}

bool sim_fault_on(int device, int *result)
{
	uint32_t bit = UINT32_C(1) << device;

	if (question.call && !(question.asked & bit)) {
		const struct sim_fault *fault = fault_on(device);
		question.asked |= bit;
		question.struck |= fault ? bit : 0;
		question.code = fault ? fault->code : question.code;
	}
	if (!(question.struck & bit))
		return false;
	*result = question.code;
	return true;
}

static void count(unsigned call)
{
	int slot;

	__atomic_fetch_add(&sim_call_count[call], 1, __ATOMIC_RELAXED);
	if (!sim_machine)
		return;
	slot = sim_client_slot_held(); /* cuInit takes one; who only watches through NVML never has one */
	if (slot >= 0 && slot < SIM_CLIENTS)
		__atomic_fetch_add(&sim_machine->client[slot].calls, 1, __ATOMIC_RELAXED);
}

bool sim_enter(unsigned call, unsigned flags, int *result)
{
	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	pthread_once(&once, read_environment);
	if (flags & SIM_OPENS)
		sim_machine_open(); /* a failure is reported by the call's own code */
	count(call);
	question.call = sim_call_name[call];
	question.asked = question.struck = 0;
	if (!(flags & SIM_EARLY) && !sim_entry_ready()) {
		*result = sim_entry_not_ready;
		return true;
	}
	return fault_for(sim_call_name[call], result);
}

int sim_leave(unsigned call, int result)
{
	char line[160];
	int length;

	if (result)
		sim_entry_failed(call, result);
	if (trace_fd >= 0) {
		length = snprintf(line, sizeof line, "%s %d %d\n", sim_call_name[call], result, (int)getpid());
		/* a full disk must not change what the program sees */
		(void)!write(trace_fd, line, (size_t)length);
	}
	if (__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 0)
		sim_entry_idle();
	return result;
}

static bool names_drop(const struct sim_fault *fault, const char *symbol)
{
	return __atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) && !strncmp(fault->call, "drop:", 5) &&
	       !strncmp(fault->call + 5, symbol, sizeof fault->call - 5);
}

bool sim_dropped(const char *symbol)
{
	pthread_once(&once, read_environment);
	for (unsigned i = 0; i < env_faults; i++)
		if (names_drop(&env_fault[i], symbol))
			return true;
	for (unsigned i = 0, n = machine_faults(); i < n; i++)
		if (names_drop(&sim_machine->fault[i], symbol))
			return true;
	return false;
}

/* Exported beside the public functions, for tests: how often this process has called an entry point. */
__attribute__((visibility("default"))) uint64_t partage_sim_calls(const char *name);

uint64_t partage_sim_calls(const char *name)
{
	for (unsigned i = 0; i < sim_calls; i++)
		if (!strcmp(sim_call_name[i], name))
			return __atomic_load_n(&sim_call_count[i], __ATOMIC_RELAXED);
	return 0;
}
