/* Sizes are read exactly or refused: a limit that is misread is a limit that nobody asked for. */
#include "world.h"

#include <string.h>

static const struct {
	const char *text;
	uint64_t bytes;
} good[] = {
        {"0", 0},
        {"0m", 0},
        {"1", 1},
        {"4096", 4096},
        {"4g", 4 * GIB},
        {"4G", 4 * GIB},
        {"4Gi", 4 * GIB},
        {"4gi", 4 * GIB},
        {"4GB", 4 * GIB},
        {"4GiB", 4 * GIB},
        {"4gb", 4 * GIB},
        {"4096m", 4 * GIB},
        {"4096M", 4 * GIB},
        {"4096Mi", 4 * GIB},
        {"4096MB", 4 * GIB},
        {"1k", 1024},
        {"1Ki", 1024},
        {"1KB", 1024},
        {"2t", 2048 * GIB},
        {"2TiB", 2048 * GIB},
        {"17b", 17},
        {"17B", 17},
        {"00004g", 4 * GIB},
        {"18446744073709551615", UINT64_MAX},
        {"16777215t", UINT64_C(16777215) << 40},
};

static const char *const bad[] = {
        "",
        " ",
        "g",
        "4x",
        "4 g",
        " 4g",
        "4g ",
        "-4g",
        "+4g",
        "4.5g",
        "4,5g",
        "1e3",
        "0x10",
        "4ig",
        "4gg",
        "4gib4",
        "4bb",
        "4bi",
        "4i",
        "4Gib ",
        "four",
        "4mm",
        "4p",
        "4\n",
        "4gi\t",
        "18446744073709551616",
        "16777216t",
        "17179869184g",
        "99999999999999999999999999m",
};

int main(void)
{
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		uint64_t bytes = 12345;
		CHECK(vgpu_parse_size(good[i].text, &bytes) == 0, "\"%s\" was refused", good[i].text);
		CHECK(bytes == good[i].bytes, "\"%s\" was read as %llu, not %llu", good[i].text,
		      (unsigned long long)bytes, (unsigned long long)good[i].bytes);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uint64_t bytes = 12345;
		CHECK(vgpu_parse_size(bad[i], &bytes) != 0, "\"%s\" was read as %llu", bad[i],
		      (unsigned long long)bytes);
		CHECK(bytes == 12345, "\"%s\" was refused and written all the same", bad[i]);
	}
	CHECK(vgpu_parse_true("1") && vgpu_parse_true("true") && vgpu_parse_true("T"),
	      "a true switch was read as false");
	CHECK(!vgpu_parse_true(NULL) && !vgpu_parse_true("") && !vgpu_parse_true("0") && !vgpu_parse_true("yes"),
	      "a false switch was read as true");
	CHECK(vgpu_crc32c("123456789", 9) == 0xe3069283, "crc32c(\"123456789\") is %#x", vgpu_crc32c("123456789", 9));
	return 0;
}
