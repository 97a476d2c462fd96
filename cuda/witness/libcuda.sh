#!/bin/sh
# Writes OUT/libcuda.a: all functions that INCLUDE/cuda.h declares, under the names that its macros choose.
# Each jumps through a slot of cu_slots, which the program fills (slots.go). Empty slots answer
# CUDA_ERROR_NOT_SUPPORTED (801) and leave their number in cu_missed; that of cuInit answers CUDA_SUCCESS.
#
#   CC=gcc sh libcuda.sh INCLUDE OUT
set -eu
include=$1 out=$2
mkdir -p "$out"
echo '#include <cuda.h>' | ${CC:-cc} -E -P -I "$include" - |
  tr '\n' ' ' | grep -oE 'CUresult +cu[A-Z][A-Za-z0-9_]*' | awk '{ print $2 }' | sort -u >"$out/names"
[ "$(wc -l <"$out/names")" -gt 300 ] || { echo "$include/cuda.h: only $(wc -l <"$out/names") functions found" >&2; exit 1; }
awk '
  { names[NR] = $1 }
  END {
    print "\t.text"
    for (i = 1; i <= NR; i++) {
      # The number is for an empty slot to tell; no function takes an argument in this register.
      printf "\t.globl %s\n\t.type %s, @function\n%s:\n\tmovl $%d, %%eax\n\tjmp *cu_slots+%d(%%rip)\n", \
        names[i], names[i], names[i], i - 1, 8 * (i - 1)
    }
    print "cu_empty:\n\tmovl %eax, cu_missed(%rip)\n\tmovl $801, %eax\n\tret"
    print "cu_early:\n\txorl %eax, %eax\n\tret"
    print "\t.data\n\t.globl cu_slots\n\t.balign 8\ncu_slots:"
    for (i = 1; i <= NR; i++) printf "\t.quad %s\n", names[i] == "cuInit" ? "cu_early" : "cu_empty"
    print "\t.globl cu_names\ncu_names:"
    for (i = 1; i <= NR; i++) printf "\t.quad cu_name_%d\n", i
    printf "\t.globl cu_count\ncu_count:\n\t.long %d\n", NR
    print "\t.globl cu_missed\ncu_missed:\n\t.long -1"
    for (i = 1; i <= NR; i++) printf "cu_name_%d:\n\t.asciz \"%s\"\n", i, names[i]
    print "\t.section .note.GNU-stack, \"\", @progbits"
  }' "$out/names" >"$out/libcuda.s"
${CC:-cc} -c -o "$out/libcuda.o" "$out/libcuda.s"
rm -f "$out/libcuda.a"
ar rc "$out/libcuda.a" "$out/libcuda.o"
