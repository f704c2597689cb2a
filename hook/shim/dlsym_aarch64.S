/* dlsym_aarch64.S: the exported dlsym and dlvsym; see dlsym_x86_64.S for who calls them and why this is assembler.
 * vgpu_dlsym_answer answers in x0 (the value) or x1 (the function to go on to).
 */
	.macro LOOKUP entry, old, new, symbol, versioned
	.globl	\entry, \old, \new
	.hidden	\entry
	.type	\entry, %function
	.type	\old, %function
	.type	\new, %function
	.p2align 4
\entry:
\old:
\new:
	.cfi_startproc
	hint	#34	/* bti c */
	stp	x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	.if \versioned == 0
	mov	x2, xzr
	.endif
	mov	x3, x30
	bl	vgpu_dlsym_answer
	mov	x17, x1
	cbnz	x17, 1f
	ldp	x29, x30, [sp], #48
	.cfi_remember_state
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
1:
	.cfi_restore_state
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	br	x17
	.cfi_endproc
	.size	\entry, . - \entry
	.size	\old, . - \old
	.size	\new, . - \new
	.symver	\old, \symbol@GLIBC_2.17
	.symver	\new, \symbol@@GLIBC_2.34
	.endm

	.text
	LOOKUP	vgpu_dlsym_entry, vgpu_dlsym_old, vgpu_dlsym_new, dlsym, 0
	LOOKUP	vgpu_dlvsym_entry, vgpu_dlvsym_old, vgpu_dlvsym_new, dlvsym, 1

	.section .note.GNU-stack, "", %progbits
