/* C105: a card that is promised twice on purpose (the policy says so). When it is full, only the one who asks for more
 * fails; the other goes on allocating, freeing and reading what it wrote; when that one frees, the same request succeeds.
 */
#include "grant.h"

static unsigned char pattern[4096];
static uint64_t card;

enum command { END, TAKE, WORK, FREE, SHOW };

static void tenant(int in, int out)
{
	CUdeviceptr most = 0, p;
	unsigned char back[sizeof(pattern)];
	uint64_t size = card / 4 * 3, answer;
	start(0);
	for (enum command command; (command = player_next(in)) != END;) {
		size_t f, t;
		answer = 0;
		switch (command) {
		case TAKE:
			answer = cuMemAlloc_v2(&most, size);
			if (answer == CUDA_SUCCESS)
				OK(cuMemcpyHtoD_v2(most + size / 2, pattern, sizeof(pattern)));
			break;
		case WORK:
			for (int i = 0; i < 100; i++) {
				OK(cuMemAlloc_v2(&p, card / 8));
				OK(cuMemFree_v2(p));
			}
			OK(cuMemcpyDtoH_v2(back, most + size / 2, sizeof(back)));
			CHECK(memcmp(back, pattern, sizeof(back)) == 0, "a neighbour changed my memory");
			break;
		case FREE:
			answer = cuMemFree_v2(most);
			break;
		default:
			OK(cuMemGetInfo_v2(&f, &t));
			CHECK(t == card, "total %zu, promised %lu", t, (unsigned long)card);
			answer = t - f;
		}
		player_answer(out, answer);
	}
}

static struct player admitted(const char *name)
{
	struct ptg_policy policy = grant_policy(&(struct granted){0, card}, 1);
	policy.flags = PTG_FLAG_OVERSUBSCRIBED;
	grant_seal(&policy);
	grant_hand_over(name, &policy);
	return player_start(tenant);
}

int main(void)
{
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	for (unsigned i = 0; i < sizeof(pattern); i++)
		pattern[i] = (unsigned char)(i * 31);
	scene("make the machine", touch);
	card = machine()->model[0].memory;
	struct player a = admitted("a"), b = admitted("b"); /* each is promised the whole card */
	CHECK(player_ask(&a, TAKE) == CUDA_SUCCESS, "the first is refused");
	CHECK(player_ask(&b, TAKE) == CUDA_ERROR_OUT_OF_MEMORY, "both hold three quarters of one card");
	CHECK(player_ask(&b, SHOW) == 0, "what the driver refused is charged");
	player_ask(&a, WORK);
	CHECK(player_ask(&b, TAKE) == CUDA_ERROR_OUT_OF_MEMORY, "still full");
	CHECK(player_ask(&a, SHOW) == card / 4 * 3, "the first one's books changed");
	CHECK(player_ask(&a, FREE) == CUDA_SUCCESS, "free");
	CHECK(player_ask(&b, TAKE) == CUDA_SUCCESS, "the retry is refused");
	player_ask(&b, WORK);
	player_end(&a, false);
	player_end(&b, false);
	CHECK(peak() <= card, "%lu bytes of %lu were held", (unsigned long)peak(), (unsigned long)card);
	return 0;
}
