#!/bin/bash
# Fail where a library or program asks for a newer glibc than it may: glibc.sh VERSION FILE...
#
# Called by wheel.sh for what is mounted into containers of any age: 2.17 is what CentOS 7 has, and every image with
# CUDA is newer. Needs nm of binutils. Versions that a library defines itself do not count, those that it asks for do.
set -euo pipefail
limit=$1
shift
for file in "$@"; do
	needs=$(nm --dynamic --undefined-only --with-symbol-versions "$file" | sed -n 's/.*@GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
	newest=$(printf '%s\n' "$limit" "${needs:-0}" | sort -V | tail -n 1)
	if [ "$newest" != "$limit" ]; then
		echo "$file: asks for glibc $needs, at most $limit is allowed; of it:" >&2
		nm --dynamic --undefined-only --with-symbol-versions "$file" | grep "GLIBC_$needs" >&2
		exit 1
	fi
	echo "$(basename "$file"): asks for glibc ${needs:-none}, at most $limit is allowed"
done
