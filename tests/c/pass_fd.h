/* pass_fd.h: two processes of a test that share something: a word between them, and a descriptor from one to the other. */
#ifndef PARTAGE_TESTS_PASS_FD_H
#define PARTAGE_TESTS_PASS_FD_H

#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "check.h"

static inline void tell(int fd)
{
	CHECK(write(fd, "x", 1) == 1, "the other side is gone");
}

static inline void hear(int fd)
{
	char byte;
	CHECK(read(fd, &byte, 1) == 1, "the other side is gone");
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

#endif
