// SPDX-License-Identifier: Apache-2.0
/*
 * Publishes the context of its process by OTEP 4719, for the service
 * in its first argument. It burns some CPU time in the function
 * publisher until its standard input ends. For each input line, it
 * publishes the service again with another v after its name.
 *
 * A second argument makes it hostile:
 *   lengths    the payload claims 4 GiB, at an address in the kernel
 *   huge       the payload has 1 MiB of attributes
 *   absent     the payload's address was never written to
 *   version    the version of the format is unknown
 *   changing   it publishes without pause, half written in between
 *   text       the name has escapes for terminals, and a newline
 *   file       the mapping is of a file on disk with such a name
 *   names      the service changes every ten milliseconds
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

struct header {
	char signature[8];
	uint32_t version;
	uint32_t payload_size;
	_Atomic uint64_t published;
	uint64_t payload;
};

static struct header *header;
static volatile uint64_t sink;

static uint64_t boot_time(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/* A field of protobuf with a length, of any size below 2 MiB. */
static uint8_t *field(uint8_t *at, int number, const void *data, size_t size)
{
	*at++ = number << 3 | 2;
	*at++ = (size & 0x7f) | 0x80;
	*at++ = (size >> 7 & 0x7f) | 0x80;
	*at++ = size >> 14;
	memcpy(at, data, size);
	return at + size;
}

/* An attribute of a Resource with a text. */
static uint8_t *attribute(uint8_t *at, const char *key, const char *text)
{
	uint8_t value[512], pair[1024], *end;

	end = field(value, 1, text, strlen(text)); /* AnyValue.string_value */
	size_t size = end - value;
	end = field(pair, 1, key, strlen(key)); /* KeyValue.key */
	end = field(end, 2, value, size);
	return field(at, 1, pair, end - pair); /* Resource.attributes */
}

static void publish(const void *payload, size_t size)
{
	uint64_t before = atomic_exchange(&header->published, 0);
	uint64_t now = boot_time();

	atomic_thread_fence(memory_order_seq_cst);
	header->payload = (uintptr_t)payload;
	header->payload_size = size;
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store(&header->published, now > before ? now : before + 1);
	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, sizeof(*header), "OTEL_CTX");
}

static void publish_service(const char *service)
{
	static uint8_t payloads[2][4096];
	static int turn;
	uint8_t resource[4000], *end = resource;

	end = attribute(end, "service.name", service);
	end = attribute(end, "service.namespace", "shop");
	end = attribute(end, "service.version", "1.2");
	end = attribute(end, "host.name", "elsewhere");
	end = attribute(end, "k8s.pod.name", "another");
	turn = !turn;
	uint8_t *payload = payloads[turn];
	publish(payload, field(payload, 1, resource, end - resource) - payload); /* ProcessContext.resource */
}

static void *map_header(const char *mode)
{
	int fd;
	long page = sysconf(_SC_PAGESIZE);

	if (!strcmp(mode, "file"))
		fd = open("/memfd:OTEL_CTX", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	else
		fd = memfd_create("OTEL_CTX", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, page) < 0)
		exit(1);
	void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, strcmp(mode, "file") ? MAP_PRIVATE : MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		exit(1);
	close(fd);
	if (!strcmp(mode, "file"))
		unlink("/memfd:OTEL_CTX");
	madvise(at, page, MADV_DONTFORK);
	return at;
}

static void *change(void *mode)
{
	char service[64];

	for (unsigned i = 0;; i++) {
		if (!strcmp(mode, "changing")) {
			publish_service("half");
			atomic_store(&header->published, 0);
			header->payload_size = i;
			if (i % 100 == 0)
				usleep(1000);
		} else {
			snprintf(service, sizeof(service), "names-%u", i);
			publish_service(service);
			usleep(10000);
		}
	}
	return NULL;
}

__attribute__((noinline)) void publisher(void)
{
	for (uint64_t i = 0; i < 10000000; i++)
		sink = sink * 31 + i;
}

static void *burn(void *unused)
{
	(void)unused;
	for (;;) {
		publisher();
		usleep(100000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "";
	char service[256];
	pthread_t thread;
	size_t big = 1 << 20;

	if (argc < 2)
		return 1;
	snprintf(service, sizeof(service), "%s", argv[1]);
	header = map_header(mode);
	memcpy(header->signature, "OTEL_CTX", 8);
	header->version = strcmp(mode, "version") ? 2 : 3;
	publish_service(strcmp(mode, "text") ? service : "evil\x1b[31m\n!");
	if (!strcmp(mode, "lengths"))
		publish((void *)0xffffffff81000000, 0xffffffff);
	else if (!strcmp(mode, "huge"))
		publish(memset(malloc(big), 0x0a, big), big);
	else if (!strcmp(mode, "absent"))
		publish(mmap(NULL, big, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
	else if (!strcmp(mode, "changing") || !strcmp(mode, "names"))
		pthread_create(&thread, NULL, change, (void *)mode);
	pthread_create(&thread, NULL, burn, NULL);
	for (char c; read(0, &c, 1) == 1;) {
		strncat(service, "v", sizeof(service) - strlen(service) - 1);
		publish_service(service);
	}
	return 0;
}
