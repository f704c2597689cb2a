/* machine_names.c: reads PCI addresses and UUIDs, as the machine file has them and as programs ask by them.
 *
 * Called by both libraries, so that a text which one of them takes is taken by the other too.
 */
#include "machine_names.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Hexadecimal digits, at least one, into value; text then points behind them. */
static bool take_number(const char **text, unsigned *value)
{
	char *end;

	if (!isxdigit((unsigned char)**text))
		return false;
	unsigned long number = strtoul(*text, &end, 16);
	if (number > UINT_MAX)
		return false;
	*text = end;
	*value = (unsigned)number;
	return true;
}

bool sim_pci_parse(const char *text, struct sim_pci *pci)
{
	unsigned part[3], function = 0;
	int n = 0;

	for (;; text++) {
		if (n == 3 || !take_number(&text, &part[n]))
			return false;
		n++;
		if (*text != ':')
			break;
	}
	if (*text == '.') {
		text++;
		if (!take_number(&text, &function))
			return false;
	}
	if (n < 2 || *text)
		return false;
	*pci = (struct sim_pci){n == 3 ? part[0] : 0, part[n - 2], part[n - 1], function};
	return true;
}

bool sim_pci_same(const struct sim_pci *a, const struct sim_pci *b)
{
	return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

static int digit(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

void sim_uuid_bytes(const char *text, unsigned char bytes[16])
{
	size_t n = 0;

	memset(bytes, 0, 16);
	for (text += strlen(text) > 4 ? 4 : 0; *text && n < 32; text++) {
		if (!isxdigit((unsigned char)*text))
			continue;
		bytes[n / 2] = (unsigned char)(bytes[n / 2] << 4 | digit(*text));
		n++;
	}
}
