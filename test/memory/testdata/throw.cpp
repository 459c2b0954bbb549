/*
 * Requests more memory than there is, by all forms of new that throw, and counts
 * the exceptions. It calls new by a register, so that the compiler omits no call.
 */
#include <cstdio>
#include <new>

static volatile std::size_t huge = std::size_t(1) << 62;
static void *(*volatile one)(std::size_t) = ::operator new;
static void *(*volatile array)(std::size_t) = ::operator new[];
static void *(*volatile aligned)(std::size_t, std::align_val_t) = ::operator new;
static void *(*volatile aligned_array)(std::size_t, std::align_val_t) = ::operator new[];

template <typename F> static int throws(F f)
{
	try {
		f();
	} catch (const std::bad_alloc &) {
		return 1;
	}
	return 0;
}

int main()
{
	int caught = 0;

	std::printf("ready\n");
	std::fflush(stdout);
	std::getchar();
	for (int i = 0; i < 2; i++) {
		caught += throws([] { one(huge); });
		caught += throws([] { array(huge); });
		caught += throws([] { aligned(huge, std::align_val_t(64)); });
		caught += throws([] { aligned_array(huge, std::align_val_t(64)); });
	}
	std::printf("caught %d of 8\n", caught);
	std::fflush(stdout);
	return 0;
}
