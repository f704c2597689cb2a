/* The readers of code against damaged input: whatever bytes come, they end with an answer and inside their bounds. Run
 * it with the address sanitizer to see the second half of that. Also: LZ4, fatbins, and what a written cubin reads as. */
#include <stdarg.h>

#include "module_image.h"
#include "sim_test.h"

struct sim_machine *sim_machine; /* none: the readers then assume the newest driver */

static const char ptx[] =
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .func (.param .b32 r) vprintf(.param .b64 a);\n"
        ".global .align 8 .v2 .f32 pair[3] = {0f3F800000, 1.5, 0f00000000, 2.0};\n.const .b8 text[6] = {104, 0x65, "
        "0b1, 0154, 0, 1};\n"
        ".visible .entry first(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[40], .param .f16 h)\n"
        ".reqntid 64, 2\n{ .reg .b32 %r<4>; .shared .b8 t[100]; @%p bra L; L: ret; }\n"
        ".func helper(.param .b32 x) { ret; }\n.visible .entry second() { ret; }\n";

static unsigned seed = 12345;

static unsigned chance(unsigned below)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % below;
}

static CUresult read_image(const void *data, size_t size, struct sim_image *image)
{
	struct sim_jit_log log = {.length = 0};
	memset(image, 0, sizeof(*image));
	/* In a block of exactly its size: one byte too far is an error that a sanitizer sees. */
	char *copy = malloc(size);
	CHECK(copy, "no memory");
	memcpy(copy, data, size);
	CUresult error = sim_image_read(image, copy, size, 90, &log);
	free(copy);
	return error;
}

static void same_as_ptx(const struct sim_image *image, const char *from)
{
	CHECK(image->nkernels == 2, "%s: %u kernels", from, image->nkernels);
	const struct sim_kernel_image *first =
	        !strcmp(image->kernels[0].name, "first") ? &image->kernels[0] : &image->kernels[1];
	const uint32_t where[3][2] = {{0, 8}, {8, 40}, {48, 2}};
	CHECK(first->nparams == 3 && first->shared == 100 && first->max_threads == 128,
	      "%s: %u params, %u shared, %u threads", from, first->nparams, first->shared, first->max_threads);
	for (int i = 0; i < 3; i++)
		CHECK(first->params[i].offset == where[i][0] && first->params[i].size == where[i][1],
		      "%s: parameter %d has %u bytes at %u", from, i, first->params[i].size, first->params[i].offset);
	CHECK(image->nvariables == 2, "%s: %u variables", from, image->nvariables);
	for (int i = 0; i < 2; i++) {
		const struct sim_variable *variable = &image->variables[i];
		bool pair = !strcmp(variable->name, "pair");
		CHECK(variable->size == (pair ? 24u : 6u), "%s: %s has %llu bytes", from, variable->name,
		      (unsigned long long)variable->size);
		if (!pair)
			CHECK(variable->init_size == 6 && !memcmp(variable->init, "he\001l\000\001", 6),
			      "%s: wrong initial bytes", from);
	}
}

static bool accepts(const void *bytes, size_t size, const char *what)
{
	struct sim_image image;
	if (read_image(bytes, size, &image) != CUDA_SUCCESS) {
		CHECK(!image.nkernels && !image.kernels, "%s: a refused image is not empty", what);
		return false;
	}
	sim_image_free(&image);
	return true;
}

/* A stretch of the bytes moved over another: what flips of single bytes never make, such as a declaration twice, a
 * brace missing, a header where data was. */
static void shuffle(unsigned char *bytes, size_t size)
{
	size_t n = 1 + chance((unsigned)(size / 4)), from = chance((unsigned)(size - n + 1));
	memmove(bytes + chance((unsigned)(size - n + 1)), bytes + from, n);
}

static void damaged(const void *good, size_t size, const char *what)
{
	unsigned accepted = 0;
	unsigned char *bad = malloc(size);
	CHECK(bad, "no memory");
	for (int i = 0; i < 20000; i++) {
		memcpy(bad, good, size);
		if (chance(3) == 0)
			shuffle(bad, size);
		for (unsigned n = chance(7); n > 0; n--)
			bad[chance((unsigned)size)] =
			        chance(3) ? (unsigned char)chance(256) : (unsigned char)-(int)chance(2);
		accepted += accepts(bad, chance(4) ? size : chance((unsigned)size), what);
	}
	CHECK(accepted < 20000, "%s: no damage was ever noticed", what);
	for (size_t cut = 0; cut <= size; cut++) /* every beginning of the good one */
		accepts(good, cut, what);
	free(bad);
}

/* One entry with PTX in it, packed or not. */
static size_t make_fatbin(unsigned char *out, const unsigned char *payload, size_t payload_size, bool packed,
                          size_t unpacked)
{
	size_t padded = (payload_size + 7) / 8 * 8;
	uint64_t total = 64 + padded;
	memset(out, 0, 16 + total);
	memcpy(out, "\x50\xed\x55\xba\x01\x00\x10\x00", 8);
	memcpy(out + 8, &total, 8);
	memcpy(out + 16, (uint16_t[]){1, 0x101}, 4);
	memcpy(out + 20, (uint32_t[]){64}, 4);
	memcpy(out + 24, (uint64_t[]){padded}, 8);
	memcpy(out + 32, (uint32_t[]){packed ? (uint32_t)payload_size : 0}, 4);
	memcpy(out + 44, (uint32_t[]){80}, 4);
	memcpy(out + 56, (uint64_t[]){packed ? 0x2011 : 0x11}, 8);
	memcpy(out + 72, (uint64_t[]){unpacked}, 8);
	memcpy(out + 80, payload, payload_size);
	return 16 + total;
}

/* As LZ4 literals only: a token, the length in steps of 255, the bytes. */
static size_t as_literals(unsigned char *out, const char *text, size_t size)
{
	size_t n = 0, rest = size - 15;
	out[n++] = 0xf0;
	for (; rest >= 255; rest -= 255)
		out[n++] = 255;
	out[n++] = (unsigned char)rest;
	memcpy(out + n, text, size);
	return n + size;
}

static void lz4(void)
{
	/* "abcd", a match of 8 bytes 4 back, then "!" at the end. */
	static const unsigned char packed[] = {0x44, 'a', 'b', 'c', 'd', 4, 0, 0x10, '!'};
	unsigned char out[64];
	int64_t n = sim_lz4_decode(packed, sizeof(packed), out, sizeof(out));
	CHECK(n == 13 && !memcmp(out, "abcdabcdabcd!", 13), "unpacked %lld bytes: %.13s", (long long)n, out);
	CHECK(sim_lz4_decode(packed, sizeof(packed), out, 12) == -1, "12 bytes are not enough for 13");
	static const unsigned char too_far[] = {0x14, 'a', 9, 0, 0x10, '!'};
	CHECK(sim_lz4_decode(too_far, sizeof(too_far), out, sizeof(out)) == -1,
	      "a match before the beginning was taken");
}

int main(void)
{
	struct sim_image image;
	static unsigned char fatbin[8192], packed[4096];
	CHECK(read_image(ptx, sizeof(ptx) - 1, &image) == CUDA_SUCCESS, "the good text is refused");
	same_as_ptx(&image, "PTX");
	size_t cubin_size = 0;
	void *cubin = sim_image_write_elf(&image, 90, &cubin_size);
	CHECK(cubin && sim_elf_size(cubin) == cubin_size, "the cubin of %zu bytes says it has %zu", cubin_size,
	      sim_elf_size(cubin));
	sim_image_free(&image);
	CHECK(read_image(cubin, cubin_size, &image) == CUDA_SUCCESS, "the written cubin is refused");
	same_as_ptx(&image, "cubin");
	sim_image_free(&image);
	size_t plain = make_fatbin(fatbin, (const unsigned char *)ptx, sizeof(ptx), false, 0);
	CHECK(read_image(fatbin, plain, &image) == CUDA_SUCCESS, "the fatbin is refused");
	same_as_ptx(&image, "fatbin");
	sim_image_free(&image);
	damaged(fatbin, plain, "fatbin");
	size_t tight = make_fatbin(fatbin, packed, as_literals(packed, ptx, sizeof(ptx)), true, sizeof(ptx));
	CHECK(read_image(fatbin, tight, &image) == CUDA_SUCCESS, "the packed fatbin is refused");
	same_as_ptx(&image, "packed fatbin");
	sim_image_free(&image);
	lz4();
	damaged(fatbin, tight, "packed fatbin");
	damaged(ptx, sizeof(ptx) - 1, "PTX");
	damaged(cubin, cubin_size, "cubin");
	free(cubin);
	return 0;
}
