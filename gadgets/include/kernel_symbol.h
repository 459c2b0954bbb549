/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Optional addresses of the kernel.
 *
 * Before the programs are loaded, otel-profiles sets the variables in the gadget's metadata:
 *
 *	operator:
 *	  otel-profiles:
 *	    symbols: [__sched_text_start, __sched_text_end]
 *
 * They stay 0 without otel-profiles, if the kernel lacks one of the symbols, or if it hides
 * addresses (no CAP_SYSLOG, or the sysctl kernel.kptr_restrict). An extern variable in .ksyms would
 * not work, because the kernel then refuses the program if addresses are hidden.
 */
#ifndef KERNEL_SYMBOL_H
#define KERNEL_SYMBOL_H

#include <vmlinux.h>

/*
 * Declares a variable with the name of the symbol. Inspektor Gadget lets operators set it if there
 * is a second one of the same type with this prefix.
 */
#define KERNEL_SYMBOL(symbol)               \
	const volatile __u64 symbol = 0;    \
	const volatile __u64 gadget_var_##symbol = 0;

#endif /* KERNEL_SYMBOL_H */
