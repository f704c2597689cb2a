/* dlsym_x86_64.S: the exported dlsym and dlvsym.
 *
 * Called by every program that looks a symbol up. Assembler, because libc's functions must see the program's own return
 * address (RTLD_NEXT means "behind the caller"): whatever is not ours is jumped to with registers and stack as they were,
 * which a compiler promises neither at -O0 nor under a sanitizer. vgpu_dlsym_answer (dlsym.c) decides: value in rax,
 * or in rdx the function to go on to. Both are exported under the two versions that programs bind to.
 */
	.macro LOOKUP entry, old, new, symbol, versioned
	.globl	\entry, \old, \new
	.hidden	\entry
	.type	\entry, @function
	.type	\old, @function
	.type	\new, @function
	.p2align 4
\entry:
\old:
\new:
	.cfi_startproc
	endbr64
	pushq	%rdi
	.cfi_adjust_cfa_offset 8
	pushq	%rsi
	.cfi_adjust_cfa_offset 8
	pushq	%rdx
	.cfi_adjust_cfa_offset 8
	.if \versioned == 0
	xorl	%edx, %edx
	.endif
	movq	24(%rsp), %rcx
	call	vgpu_dlsym_answer
	movq	%rdx, %r11
	popq	%rdx
	.cfi_adjust_cfa_offset -8
	popq	%rsi
	.cfi_adjust_cfa_offset -8
	popq	%rdi
	.cfi_adjust_cfa_offset -8
	testq	%r11, %r11
	jne	1f
	ret
1:	jmp	*%r11
	.cfi_endproc
	.size	\entry, . - \entry
	.size	\old, . - \old
	.size	\new, . - \new
	.symver	\old, \symbol@GLIBC_2.2.5
	.symver	\new, \symbol@@GLIBC_2.34
	.endm

	.text
	LOOKUP	vgpu_dlsym_entry, vgpu_dlsym_old, vgpu_dlsym_new, dlsym, 0
	LOOKUP	vgpu_dlvsym_entry, vgpu_dlvsym_old, vgpu_dlvsym_new, dlvsym, 1

	.section .note.GNU-stack, "", @progbits
