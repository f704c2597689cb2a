/* units.c: sizes and switches as people write them into the environment.
 *
 * Called by env.c. A size that is not exactly one of the accepted forms is refused, never guessed: reading "4Gi" as 4
 * bytes or "4x" as 4 would hand out a limit that nobody asked for. */
#include "core.h"

#include <string.h>

/* The power of two that a suffix stands for, or -1. HAMi's plain `m` means MiB, so every suffix is binary. */
static int shift_of(const char *suffix)
{
	static const char letters[] = "kmgt";
	if (*suffix == '\0')
		return 0;
	if ((*suffix | 0x20) == 'b')
		return suffix[1] == '\0' ? 0 : -1;
	const char *letter = strchr(letters, *suffix | 0x20);
	if (!letter)
		return -1;
	suffix++;
	if ((*suffix | 0x20) == 'i')
		suffix++;
	if ((*suffix | 0x20) == 'b')
		suffix++;
	return *suffix == '\0' ? 10 * (int)(letter - letters + 1) : -1;
}

int vgpu_parse_size(const char *text, uint64_t *bytes)
{
	uint64_t number = 0;
	const char *at = text;
	if (*at < '0' || *at > '9')
		return -1;
	for (; *at >= '0' && *at <= '9'; at++) {
		uint64_t digit = (uint64_t)(*at - '0');
		if (number > (UINT64_MAX - digit) / 10)
			return -1;
		number = number * 10 + digit;
	}
	int shift = shift_of(at);
	if (shift < 0 || number > UINT64_MAX >> shift)
		return -1;
	*bytes = number << shift;
	return 0;
}

bool vgpu_parse_true(const char *text)
{
	static const char *const spellings[] = {"1", "t", "T", "true", "TRUE", "True"};
	for (size_t i = 0; text && i < sizeof spellings / sizeof *spellings; i++)
		if (strcmp(text, spellings[i]) == 0)
			return true;
	return false;
}
