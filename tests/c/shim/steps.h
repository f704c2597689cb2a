/* steps.h: runs code one instruction at a time in this process itself, and acts before a chosen instruction of
 * libvgpu.so: the trap flag raises SIGTRAP after every instruction, the handler counts those that are the library's.
 * x86-64 only, and not under ThreadSanitizer, whose own code would be interrupted while it holds its locks: elsewhere
 * steps_possible is false.
 */
#ifndef PARTAGE_TESTS_STEPS_H
#define PARTAGE_TESTS_STEPS_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include "check.h"

static struct {
	uint64_t begin, end; /* code of libvgpu.so */
	unsigned count; /* executed in it */
	unsigned last; /* before this one the action is taken; 0: never */
	bool (*ready)(void); /* or, where this is given, before the first at which it says so */
	void (*action)(void);
} steps;

/* How many instructions to choose. AddressSanitizer's build executes many times as many, and what it looks for does not
 * lie between two of them: there it is a few. */
#ifdef __SANITIZE_ADDRESS__
#define STEPS_POINTS(plain) ((plain) / 5)
#else
#define STEPS_POINTS(plain) (plain)
#endif

#if defined __x86_64__ && !defined __SANITIZE_THREAD__
#define STEPS_TRAP_FLAG 0x100

static const bool steps_possible = true;

static void steps_take(int signal, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	uint64_t at = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
	(void)signal;
	(void)info;
	if (at < steps.begin || at >= steps.end)
		return;
	steps.count++;
	if (steps.ready != NULL ? !steps.ready() : steps.count != steps.last)
		return;
	uc->uc_mcontext.gregs[REG_EFL] &= ~STEPS_TRAP_FLAG; /* the rest runs at full speed */
	steps.action();
}

static void steps_trap(bool on)
{
	uint64_t flags;
	__asm__ volatile("pushfq; popq %0" : "=r"(flags));
	flags = on ? flags | STEPS_TRAP_FLAG : flags & ~(uint64_t)STEPS_TRAP_FLAG;
	__asm__ volatile("pushq %0; popfq" : : "r"(flags) : "cc");
}

static void steps_find_library(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");
	CHECK(maps != NULL, "maps");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "libvgpu.so") && strstr(line, "r-xp"))
			CHECK(sscanf(line, "%lx-%lx", &steps.begin, &steps.end) == 2, "%s", line);
	fclose(maps);
	CHECK(steps.end != 0, "libvgpu.so is not mapped");
}
#else
static const bool steps_possible = false;

static void steps_take(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	(void)context;
}

static void steps_trap(bool on)
{
	(void)on;
}

static void steps_find_library(void)
{
}
#endif

/* Runs body; before the last'th instruction of the library in it acts. How many there were. */
static inline unsigned steps_run(void (*body)(void), unsigned last, void (*action)(void))
{
	struct sigaction trapped = {.sa_sigaction = steps_take, .sa_flags = SA_SIGINFO};
	steps_find_library();
	steps.count = 0;
	steps.last = last;
	steps.action = action;
	sigaction(SIGTRAP, &trapped, NULL);
	steps_trap(true);
	body();
	steps_trap(false);
	return steps.count;
}

#endif
