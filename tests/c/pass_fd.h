/* pass_fd.h: two processes of a test that share something: a word between them, a descriptor from one to the other, and
 * how the one that makes it begins and ends. */
#ifndef PARTAGE_TESTS_PASS_FD_H
#define PARTAGE_TESTS_PASS_FD_H

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static inline void say(int fd, char byte)
{
	CHECK(write(fd, &byte, 1) == 1, "the other side is gone");
}

static inline void tell(int fd)
{
	say(fd, 'x');
}

static inline char hear(int fd)
{
	char byte = 0;
	CHECK(read(fd, &byte, 1) == 1, "the other side is gone");
	return byte;
}

static inline void send_fd(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr header = {
	        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&header);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	CHECK(sendmsg(socket, &header, 0) == 1, "sendmsg");
}

static inline int receive_fd(int socket)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec part = {&byte, 1};
	struct msghdr header = {
	        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd;
	CHECK(recvmsg(socket, &header, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&header), "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
	return fd;
}

/* Begin a process that has line[0] and never returns from `maker`; line[1] is ours. */
static inline pid_t begin_maker(int line[2], void (*maker)(void))
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0, "socketpair");
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		close(line[1]);
		maker();
	}
	close(line[0]);
	return child;
}

static inline void end_maker(pid_t child)
{
	kill(child, SIGKILL);
	CHECK(waitpid(child, NULL, 0) == child, "waitpid");
}

#endif
