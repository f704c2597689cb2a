/* The first process of every pod: holds its namespaces, does nothing, ends when told to. */
#include <signal.h>
#include <unistd.h>

static void end(int number)
{
	(void)number;
	_exit(0);
}

int main(void)
{
	signal(SIGTERM, end);
	signal(SIGINT, end);
	for (;;)
		pause();
}
