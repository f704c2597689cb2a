/* check.h: the whole harness of the C tests: CHECK says what was expected and with which values, and fails the program;
 * SKIP exits 77 with the reason. Used by every tests/c program; child processes may use it too (they exit 1). */
#ifndef PARTAGE_TESTS_CHECK_H
#define PARTAGE_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fputc('\n', stderr);                                                                           \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

#define SKIP(...)                                                                                                      \
	do {                                                                                                           \
		printf("skipped: ");                                                                                   \
		printf(__VA_ARGS__);                                                                                   \
		putchar('\n');                                                                                         \
		exit(77);                                                                                              \
	} while (0)

#define NOTE(...)                                                                                                      \
	do {                                                                                                           \
		printf(__VA_ARGS__);                                                                                   \
		putchar('\n');                                                                                         \
		fflush(stdout);                                                                                        \
	} while (0)

#endif
