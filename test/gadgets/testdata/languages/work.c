/*
 * Does everything that gadgets watch until its standard input ends. It burns CPU time, opens a file, allocates memory and uses a
 * capability. It also asks for its parent, which a filter may log, and for a connection, whose packet may be dropped.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile unsigned sum;

__attribute__((noinline)) static void burn(void)
{
	for (unsigned i = 0; i < 5000000; i++)
		sum += i;
}

__attribute__((noinline)) static void touch(void)
{
	char *volatile memory = malloc(100000);
	int fd = open("/dev/null", O_RDONLY);
	int connection = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct sockaddr_in discard = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	memory[0] = 1;
	free(memory);
	close(fd);
	if (chroot("/") || connection < 0)
		_exit(1);
	getppid();
	connect(connection, (struct sockaddr *)&discard, sizeof(discard)); /* nobody answers */
	close(connection);
}

int main(void)
{
	char byte;

	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		burn();
		touch();
	}
	return 0;
}
