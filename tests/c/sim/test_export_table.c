/* The vendor's private tables: whatever is asked for, by any door and at any time, nothing is ever handed out, and the
 * log says so once. What asks by them (the vendor's own runtime) wants a genuine driver; this one never plays it. */
#include "sim_test.h"

static CUresult (*table)(const void **, const CUuuid *);

static void nothing_for(const CUuuid *id)
{
	for (int i = 0; i < 2; i++) {
		const void *got = &table;
		CUresult result = i ? table(&got, id) : cuGetExportTable(&got, id);
		CHECK(result == CUDA_ERROR_INVALID_VALUE && !got, "door %d gave %d and %p", i, (int)result, got);
	}
	CHECK(cuGetExportTable(NULL, id) == CUDA_ERROR_INVALID_VALUE, "without a place for the answer");
}

static void ask(void)
{
	CUuuid id;
	uint64_t x = 88172645463325252u;
	nothing_for(NULL);
	for (int round = 0; round < 20000; round++) {
		for (size_t i = 0; i < sizeof id.bytes; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			id.bytes[i] = round == 0 ? 0 : round == 1 ? -1 : (char)(x >> 20);
		}
		nothing_for(&id);
	}
}

static unsigned lines(const char *path)
{
	char line[2048];
	unsigned n = 0;
	FILE *file = fopen(path, "re");
	CHECK(file, "%s", path);
	while (fgets(line, sizeof line, file))
		n += strstr(line, "cuGetExportTable") != NULL;
	fclose(file);
	return n;
}

int main(void)
{
	char log[4096];
	CUdriverProcAddressQueryResult status;
	snprintf(log, sizeof log, "%s/log", getenv("TEST_SCRATCH"));
	setenv("PARTAGE_SIM_LOG", log, 1);
	OK(cuGetProcAddress("cuGetExportTable", (void **)&table, 13000, 0, &status));
	CHECK(table, "no cuGetExportTable: %d", (int)status);
	ask();
	test_context("zero", 0);
	ask();
	CHECK(lines(log) == 1, "%u lines in the log", lines(log));
	return 0;
}
