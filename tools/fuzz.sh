#!/usr/bin/env bash
# Runs every fuzz target of the module for a while: tools/fuzz.sh [10s]
# What a target finds is written to testdata/fuzz of its package, to be committed with the fix. The simulator's
# are there under its tag alone.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
failed=0
while IFS=: read -r file line; do
	target=$(sed -E 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/' <<<"$line")
	echo "== $(dirname "$file") $target"
	go test -tags sim -run '^$' -fuzz "^$target\$" -fuzzminimizetime 5x -fuzztime "${1:-10s}" "$(dirname "$file")" || failed=1
	found=$((found + 1))
done < <(grep -rHE --include='*_test.go' --exclude-dir='.[a-z]*' '^func Fuzz[A-Za-z0-9_]*\(' . | sort)

if [ "$found" = 0 ]; then
	echo "no fuzz target found" >&2
	exit 1
fi
exit "$failed"
