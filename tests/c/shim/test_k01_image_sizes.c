/* K01: how much memory the variables of a program image take, as the library reads it: the forms in which PTX declares
 * variables and the places where `.global` means something else, cubins, fatbins plain and packed; and damaged images,
 * which end with an answer inside their bounds (run it with the address sanitizer).
 */
#include <elf.h>
#include <string.h>

#include "check.h"
#include "image.h"

#define MIB (UINT64_C(1) << 20)

static void is(const char *text, uint64_t expected)
{
	uint64_t got = vgpu_image_variables(text, SIZE_MAX);
	CHECK(got == expected, "%llu bytes, expected %llu: %s", (unsigned long long)got, (unsigned long long)expected,
	      text);
}

static void declarations(void)
{
	is("", 0);
	is(".version 8.0\n.target sm_80\n.visible .entry k() { ret; }", 0);
	is(".global .b8 a[100];", 100);
	is(".visible .global .align 8 .b8 a[8589934592];", UINT64_C(8589934592));
	is(".global.align 8.b8 a[3145728];", 4 * MIB); /* large ones are allocations of their own */
	is(".global .u64 a;.global .f32 b[3], c, d[2][2] = {{1,2},{3,4}};", 8 + 12 + 4 + 16);
	is(".global .align 16 .v4 .f32 a[10];", 160);
	is(".global .b128 a[2];", 32);
	is(".global .s16 a[] = {1, 2, 0x3};", 6);
	is(".global .attribute(.managed) .align 4 .u32 a[0x10];", 64);
	is(".global .attribute(.unified(19,95)) .f64 a[010];", 64);
	is(".weak .global .u8 a[16U]; .common .global .u8 b[0b11];", 19);
	is(".global .u64 p = generic(a); .global .u64 q[2] = {a, mask(b, 4)};", 24);
	is("// .global .b8 a[100];\n/* .global .b8 b[100]; */ .global .b8 c;", 1);
	is(".file 1 \".global .b8 a[100];\"\n.global .b8 c;", 1);
	is(".extern .global .b8 a[100]; .global .b8 b;", 1);
	is(".extern .func (.param .b32 r) f (.param .u64 .ptr .global .align 16 p);", 0);
	is(".visible .entry k(.param .u64 .ptr .global .align 16 p, .param .u64 .ptr .global q) {ld.global.u32 r, [p]; "
	   "ret;}",
	   0);
	is(".func f() { .global .b8 a[5]; st.global.b8 [a], 1; }", 5);
	is(".const .b8 a[100]; .shared .b8 b[100];", 0);
}

/* What is not understood never fits. */
static void expressions(void)
{
	is(".global .b8 a[1024*1024];", UINT64_MAX);
	is(".global .b8 a[(1<<40)];", UINT64_MAX);
	is(".global .b8 a<10>;", UINT64_MAX);
	is(".global .b8 a[18446744073709551616];", UINT64_MAX);
	is(".global .b64 a[2305843009213693953];", UINT64_MAX);
	is(".global .b8 a[99999999999][99999999999];", UINT64_MAX);
	is(".global .b8 a[5", UINT64_MAX);
	is(".global .b8 a", UINT64_MAX);
	is(".global .b8 a[];", UINT64_MAX);
}

struct cubin {
	Elf64_Ehdr header;
	char names[64];
	Elf64_Shdr section[5];
};

static struct cubin cubin_of(uint64_t zeroed, uint64_t filled)
{
	struct cubin c = {.names = "\0.shstrtab\0.nv.global\0.nv.global.init\0.nv.shared.k"};
	memcpy(c.header.e_ident, ELFMAG, SELFMAG);
	c.header.e_ident[EI_CLASS] = ELFCLASS64;
	c.header.e_machine = 190;
	c.header.e_shoff = offsetof(struct cubin, section);
	c.header.e_shentsize = sizeof(Elf64_Shdr);
	c.header.e_shnum = 5;
	c.header.e_shstrndx = 1;
	c.section[1] = (Elf64_Shdr){.sh_name = 1,
	                            .sh_type = SHT_STRTAB,
	                            .sh_offset = offsetof(struct cubin, names),
	                            .sh_size = sizeof(c.names)};
	c.section[2] = (Elf64_Shdr){.sh_name = 11, .sh_type = SHT_NOBITS, .sh_size = zeroed};
	c.section[3] = (Elf64_Shdr){.sh_name = 22, .sh_type = SHT_PROGBITS, .sh_size = filled};
	c.section[4] = (Elf64_Shdr){.sh_name = 38, .sh_type = SHT_NOBITS, .sh_size = 1 << 16};
	return c;
}

struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t bytes;
	struct {
		uint16_t kind, version;
		uint32_t header_size;
		uint64_t payload_size;
		uint32_t packed_size, rest[5];
		uint64_t flags, reserved, unpacked_size;
	} entry;
	char payload[512];
};

static struct fatbin fatbin_of(unsigned kind, const void *payload, uint64_t size)
{
	struct fatbin f = {.magic = 0xba55ed50u, .version = 1, .header_size = 16};
	CHECK(size <= sizeof(f.payload), "%lu bytes", (unsigned long)size);
	f.bytes = sizeof(f) - 16;
	f.entry.kind = (uint16_t)kind;
	f.entry.header_size = sizeof(f.entry);
	f.entry.payload_size = sizeof(f.payload);
	memcpy(f.payload, payload, size);
	return f;
}

/* One sequence of literals: what an LZ4 block is allowed to be. */
static void pack(struct fatbin *f, const char *text)
{
	size_t n = strlen(text), at = 0;
	f->payload[at++] = (char)0xf0;
	size_t rest = n - 15;
	for (; rest >= 255; rest -= 255)
		f->payload[at++] = (char)255;
	f->payload[at++] = (char)rest;
	memcpy(f->payload + at, text, n);
	f->entry.packed_size = (uint32_t)(at + n);
	f->entry.unpacked_size = n;
	f->entry.flags = 0x2000;
}

static void images(void)
{
	struct cubin c = cubin_of(5000 * MIB, 0);
	CHECK(vgpu_image_variables(&c, SIZE_MAX) == 5000 * MIB, "a cubin in memory");
	CHECK(vgpu_image_variables(&c, sizeof(c)) == 5000 * MIB, "a cubin of known size");
	c = cubin_of(24, 40);
	CHECK(vgpu_image_variables(&c, SIZE_MAX) == 64, "two sections");
	c = cubin_of(UINT64_MAX, 40);
	CHECK(vgpu_image_variables(&c, SIZE_MAX) == UINT64_MAX, "a sum that does not wrap");
	c = cubin_of(3000 * MIB, 0);
	struct fatbin f = fatbin_of(2, &c, sizeof(c));
	CHECK(vgpu_image_variables(&f, SIZE_MAX) == 3000 * MIB, "a cubin in a fatbin");
	const char *text = ".version 8.0 .target sm_80 .address_size 64 .global .b8 a[4294967296];";
	f = fatbin_of(1, text, strlen(text) + 1);
	CHECK(vgpu_image_variables(&f, SIZE_MAX) == UINT64_C(4294967296), "PTX in a fatbin");
	struct {
		uint32_t magic, version;
		const void *data;
		void *name;
	} wrapper = {0x466243b1u, 1, &f, NULL};
	CHECK(vgpu_image_variables(&wrapper, SIZE_MAX) == UINT64_C(4294967296), "in nvcc's wrapper");
	pack(&f, text);
	CHECK(vgpu_image_variables(&f, SIZE_MAX) == UINT64_C(4294967296), "packed");
	f.entry.flags = 0x8000;
	CHECK(vgpu_image_variables(&f, SIZE_MAX) == 0, "Zstandard is not read, as documented");
	CHECK(vgpu_image_variables(NULL, SIZE_MAX) == 0, "no image");
}

/* Copies of known size, each in a block of exactly that size. */
static void damaged(void)
{
	struct cubin c = cubin_of(24, 40);
	struct fatbin f = fatbin_of(2, &c, sizeof(c));
	const char *text =
	        ".global .align 8 .b8 a[100] = {1,2,3}, b[2]; /* \".global\" */ .func f(.param .u64 .ptr .global p);";
	const struct {
		const void *data;
		size_t size;
	} whole[] = {{&c, sizeof(c)}, {&f, sizeof(f)}, {text, strlen(text)}};
	unsigned seed = 7;
	for (unsigned round = 0; round < 20000; round++) {
		unsigned which = round % 3;
		size_t size = whole[which].size - (rand_r(&seed) % 4 ? 0 : (unsigned)rand_r(&seed) % whole[which].size);
		unsigned char *copy = malloc(size);
		CHECK(copy != NULL, "no memory");
		memcpy(copy, whole[which].data, size);
		for (unsigned n = (unsigned)rand_r(&seed) % 4; n > 0 && size > 4; n--)
			copy[4 + (unsigned)rand_r(&seed) % (size - 4)] = (unsigned char)rand_r(&seed);
		vgpu_image_variables(copy, size);
		free(copy);
	}
}

int main(void)
{
	declarations();
	expressions();
	images();
	damaged();
	return 0;
}
