/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Addresses of the kernel, for gadgets that can do without them.
 *
 * otel-profiles sets the variables that are listed in the gadget's metadata before
 * the programs are loaded:
 *
 *	operator:
 *	  otel-profiles:
 *	    symbols: [__sched_text_start, __sched_text_end]
 *
 * They stay 0 if the kernel hides addresses (no CAP_SYSLOG, or the sysctl
 * kernel.kptr_restrict), where it has not all of the symbols, and without
 * otel-profiles. An extern variable in .ksyms would not work, because the kernel then refuses the
 * program if addresses are hidden.
 */
#ifndef KERNEL_SYMBOL_H
#define KERNEL_SYMBOL_H

#include <vmlinux.h>

/*
 * A variable with the name of the symbol. Inspektor Gadget lets operators set it
 * where there is another one with this prefix and of the same type.
 */
#define KERNEL_SYMBOL(symbol)               \
	const volatile __u64 symbol = 0;    \
	const volatile __u64 gadget_var_##symbol = 0;

#endif /* KERNEL_SYMBOL_H */
