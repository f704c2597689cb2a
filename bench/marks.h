/* marks.h: the system calls by which calls.c tells bench/syscalls where the measured calls begin and end: getpgid of
 * processes that do not exist. */
#ifndef PARTAGE_BENCH_MARKS_H
#define PARTAGE_BENCH_MARKS_H

#define MARK_BEGIN (-0x5eed)
#define MARK_END   (-0x5eee)

#endif
