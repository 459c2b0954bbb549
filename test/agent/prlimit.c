/*
 * prlimit CMD...: runs CMD, and answers every request to set RLIMIT_MEMLOCK with
 * success, without an effect. It is for sandboxes without CAP_SYS_RESOURCE.
 * Libraries for eBPF raise that limit, although kernels since 5.11 do not need it.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)

int main(int argc, char **argv)
{
	struct sock_filter filter[] = {
		LOAD(nr),
		UNLESS(__NR_setrlimit, 2),
		LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, RLIMIT_MEMLOCK, 5, 6),
		UNLESS(__NR_prlimit64, 5),
		LOAD(args[1]),
		UNLESS(RLIMIT_MEMLOCK, 3),
		LOAD(args[2]), /* the new limit; without one, it is only read */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO), /* errno 0 */
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	if (argc < 2)
		return 2;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("prlimit: installing the seccomp filter");
		return 1;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 1;
}
