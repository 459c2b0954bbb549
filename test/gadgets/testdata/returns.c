/*
 * Burns a CPU until its standard input ends, in turn in two places. One is a signal handler, whose return address is a function
 * that nothing has called. The other is the last call of a function without a symbol, whose return address is in the next function.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static jmp_buf again;

__attribute__((noinline)) void spin(void)
{
	for (volatile int i = 0; i < 20000000; i++)
		;
}

void handle(int signal)
{
	(void)signal;
	spin();
}

__attribute__((noinline)) void leave(void)
{
	spin();
	longjmp(again, 1);
}

void call_leave(void);
void behind(void);

__asm__(".text\n"
	".globl before\n"
	".type before, @function\n"
	"before:\n"
	"	ret\n"
	".size before, . - before\n"
	".Lunnamed:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	call leave\n"
	".globl behind\n"
	".type behind, @function\n"
	"behind:\n"
	"	ret\n"
	".size behind, . - behind\n"
	".globl call_leave\n"
	".type call_leave, @function\n"
	"call_leave:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	call .Lunnamed\n"
	"	pop %rbp\n"
	"	ret\n"
	".size call_leave, . - call_leave\n");

int main(void)
{
	char byte;

	prctl(PR_SET_NAME, "returns");
	fcntl(0, F_SETFL, O_NONBLOCK);
	signal(SIGUSR1, handle);
	while (read(0, &byte, 1) != 0) {
		raise(SIGUSR1);
		if (!setjmp(again))
			call_leave();
		behind();
	}
	return 0;
}
