/* host_stats.c: what the host counts, for whoever asks and whoever waits for it to change.
 *
 * ptg_host_stats() and ptg_host_stats_await() are called from any thread (the node agent, tests); stats_tell() by host.c
 * behind each round. Where nobody waits a round pays one load for it. What can go wrong: nothing ever changes; who waits
 * says for how long at most. */
#include "host_local.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void ptg_host_stats(struct ptg_host *host, struct ptg_host_stats *stats)
{
	*stats = (struct ptg_host_stats){
	        .rounds = host->stats.rounds,
	        .sleeps = host->stats.sleeps,
	        .opened = host->stats.opened,
	        .closed = host->stats.closed,
	        .ghosts = host->stats.ghosts,
	        .undrained = host->stats.undrained,
	        .met = host->stats.met,
	        .tenants = host->stats.tenants,
	        .gated = host->stats.gated,
	        .devices = host->stats.devices,
	        .foreign = host->stats.foreign,
	};
}

/* A round that found nobody who waits has counted before that one looks. */
void stats_tell(struct ptg_host *host)
{
	if (atomic_load(&host->stats_waiters) == 0)
		return;
	atomic_fetch_add(&host->stats_word, 1);
	syscall(SYS_futex, &host->stats_word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT32_MAX, NULL, NULL, 0);
}

/* Every round counts itself and is followed by a sleep or another one: neither is news. */
static bool has_news(struct ptg_host *host, struct ptg_host_stats *stats)
{
	struct ptg_host_stats now;
	ptg_host_stats(host, &now);
	stats->rounds = now.rounds;
	stats->sleeps = now.sleeps;
	bool differs = memcmp(stats, &now, sizeof now) != 0;
	*stats = now;
	return differs;
}

int32_t ptg_host_stats_await(struct ptg_host *host, struct ptg_host_stats *stats, uint64_t most_ns)
{
	uint64_t now = host_now(), until = most_ns < UINT64_MAX - now ? now + most_ns : UINT64_MAX;
	bool news;
	atomic_fetch_add(&host->stats_waiters, 1);
	for (;;) {
		uint32_t word = atomic_load(&host->stats_word);
		news = has_news(host, stats);
		now = host_now();
		if (news || now >= until)
			break;
		struct timespec most = {(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
		syscall(SYS_futex, &host->stats_word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, word, &most, NULL, 0);
	}
	atomic_fetch_sub(&host->stats_waiters, 1);
	return news;
}
