/* A program without a dynamic loader, for bypass.c: says whether the library is in it. ld.so preloads; without ld.so nobody
 * does, neither by LD_PRELOAD nor by /etc/ld.so.preload. */
#include <stdio.h>
#include <string.h>

int main(void)
{
	char line[512];
	const char *owner = "nobody";
	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "libvgpu.so"))
			owner = "libvgpu.so";
	puts(owner);
	return 0;
}
