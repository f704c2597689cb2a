/* ptx.c: the bytes of the variables in global memory that a PTX text declares.
 *
 * Called by image.c. Looks for `.global` as a word of its own, at which a declaration begins, and reads it:
 *   .global [.align N] [.vN] [.attribute(...)] .TYPE name[N]... [= initial values] {, name[N]... [= ...]} ;
 * Parameters that point to global memory (`.ptr .global`) have no type behind the word and are no declarations, and what is
 * `.extern` is somebody else's. Everything else in the text is passed over.
 * What can go wrong: a number of elements that is no plain number (the language allows expressions). Then the answer is
 * UINT64_MAX: no compiler writes that, and refusing is the safe side.
 */
#include <string.h>

#include "image.h"

#define GRANULE (UINT64_C(2) << 20)

struct reader {
	const char *at, *end;
	const char *token;
	size_t length; /* 0 at the end */
};

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' ||
	       c == '%';
}

static void skip_to(struct reader *r, const char *what, size_t length)
{
	while ((size_t)(r->end - r->at) >= length && memcmp(r->at, what, length) != 0)
		r->at++;
	r->at = (size_t)(r->end - r->at) >= length ? r->at + length : r->end;
}

static void skip_blanks(struct reader *r)
{
	while (r->at < r->end) {
		if (*r->at == ' ' || (*r->at >= '\t' && *r->at <= '\r'))
			r->at++;
		else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '/')
			skip_to(r, "\n", 1);
		else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '*') {
			r->at += 2;
			skip_to(r, "*/", 2);
		} else
			return;
	}
}

/* A directive or type with its dot, a word (an instruction with its dots), a string, or one character. */
static void next(struct reader *r)
{
	skip_blanks(r);
	r->token = r->at;
	if (r->at < r->end && *r->at == '"') {
		r->at++;
		skip_to(r, "\"", 1);
	} else if (r->at < r->end) {
		bool instruction = (*r->at | 0x20) >= 'a' && (*r->at | 0x20) <= 'z';
		r->at++;
		if (*r->token == '.' || is_word(*r->token))
			while (r->at < r->end && (is_word(*r->at) || (*r->at == '.' && instruction)))
				r->at++;
	}
	r->length = (size_t)(r->at - r->token);
}

static bool is(const struct reader *r, const char *word)
{
	return r->length == strlen(word) && memcmp(r->token, word, r->length) == 0;
}

static bool take(struct reader *r, const char *word)
{
	if (!is(r, word))
		return false;
	next(r);
	return true;
}

static bool number(const struct reader *r, uint64_t *value)
{
	size_t i = 0, length = r->length;
	unsigned base = 10;
	if (length > 0 && (r->token[length - 1] | 0x20) == 'u')
		length--;
	if (length > 1 && r->token[0] == '0') {
		char kind = r->token[1] | 0x20;
		base = kind == 'x' ? 16 : kind == 'b' ? 2 : 8;
		i = base == 8 ? 1 : 2;
	}
	if (i >= length)
		return false;
	for (*value = 0; i < length; i++) {
		char c = r->token[i] | 0x20;
		unsigned digit = c >= 'a' ? (unsigned)(c - 'a') + 10 : (unsigned)(r->token[i] - '0');
		if (digit >= base || __builtin_mul_overflow(*value, base, value) ||
		    __builtin_add_overflow(*value, digit, value))
			return false;
	}
	return true;
}

/* Bytes of a scalar type, 0 where the token is none. */
static uint64_t type_size(const struct reader *r)
{
	static const struct {
		const char *name;
		uint64_t size;
	} other[] = {{".pred", 1}, {".f16x2", 4},  {".bf16", 2},   {".bf16x2", 4}, {".tf32", 4},       {".e4m3", 1},
	             {".e5m2", 1}, {".e4m3x2", 2}, {".e5m2x2", 2}, {".texref", 8}, {".samplerref", 8}, {".surfref", 8}};
	for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++)
		if (is(r, other[i].name))
			return other[i].size;
	if (r->length < 3 || r->length > 5 || r->token[0] != '.' || !strchr("busf", r->token[1]))
		return 0;
	uint64_t bits = 0;
	for (size_t i = 2; i < r->length; i++) {
		if (r->token[i] < '0' || r->token[i] > '9')
			return 0;
		bits = bits * 10 + (uint64_t)(r->token[i] - '0');
	}
	return bits / 8;
}

static void skip_group(struct reader *r)
{
	unsigned depth = 0;
	do {
		depth += is(r, "(") || is(r, "{");
		depth -= is(r, ")") || is(r, "}");
		next(r);
	} while (r->length != 0 && depth != 0);
}

/* Behind `=`: how many values there are. Leaves the reader at the comma or semicolon behind them. */
static uint64_t values(struct reader *r)
{
	uint64_t count = 1;
	unsigned depth = 0;
	while (r->length != 0 && !(depth == 0 && (is(r, ",") || is(r, ";")))) {
		depth += is(r, "{") || is(r, "(");
		depth -= depth != 0 && (is(r, "}") || is(r, ")"));
		count += is(r, ",");
		next(r);
	}
	return count;
}

/* Before the name: attributes and type in any order. Bytes of one element, 0 where no type is there. */
static uint64_t element(struct reader *r)
{
	uint64_t scalar = 0, vector = 1, ignored;
	for (;;) {
		if (take(r, ".align")) {
			if (number(r, &ignored))
				next(r);
		} else if (is(r, ".v2") || is(r, ".v4") || is(r, ".v8")) {
			vector = (uint64_t)(r->token[2] - '0');
			next(r);
		} else if (take(r, ".attribute")) {
			if (is(r, "("))
				skip_group(r);
		} else if (scalar == 0 && (scalar = type_size(r)) != 0) {
			next(r);
		} else {
			return scalar * vector;
		}
	}
}

/* Behind the name: `[N]...`, initial values. Bytes, UINT64_MAX where it is not understood. */
static uint64_t variable(struct reader *r, uint64_t size)
{
	bool open = false;
	while (take(r, "[")) {
		uint64_t count = 0;
		if (is(r, "]"))
			open = true;
		else if (!number(r, &count) || __builtin_mul_overflow(size, count, &size))
			return UINT64_MAX;
		else
			next(r);
		if (!take(r, "]"))
			return UINT64_MAX;
	}
	if (take(r, "=")) {
		uint64_t count = values(r);
		if (open && __builtin_mul_overflow(size, count, &size))
			return UINT64_MAX;
	} else if (open) {
		return UINT64_MAX;
	}
	/* A large one is an allocation of its own. */
	return size > UINT64_MAX - GRANULE ? UINT64_MAX
	       : size >= GRANULE           ? (size + GRANULE - 1) / GRANULE * GRANULE
	                                   : size;
}

/* Behind `.global`. */
static uint64_t declaration(struct reader *r)
{
	uint64_t sum = 0, size = element(r);
	if (size == 0)
		return 0;
	do {
		if (r->length == 0 || !is_word(*r->token))
			return UINT64_MAX;
		next(r);
		uint64_t one = variable(r, size);
		if (one == UINT64_MAX || __builtin_add_overflow(sum, one, &sum))
			return UINT64_MAX;
	} while (take(r, ","));
	return is(r, ";") ? sum : UINT64_MAX;
}

uint64_t vgpu_ptx_variables(const char *text, uint64_t size)
{
	struct reader r = {.at = text, .end = text + (size == SIZE_MAX ? strlen(text) : strnlen(text, size))};
	uint64_t sum = 0;
	bool external = false;
	next(&r);
	while (r.length != 0) {
		if (is(&r, ";") || is(&r, "}"))
			external = false;
		else if (is(&r, ".extern"))
			external = true;
		if (!take(&r, ".global")) {
			next(&r);
			continue;
		}
		uint64_t one = declaration(&r);
		if (external)
			continue;
		if (one == UINT64_MAX || __builtin_add_overflow(sum, one, &sum))
			return UINT64_MAX;
	}
	return sum;
}
