#!/bin/sh
# Builds the double of libcuda: build.sh OUTDIR [odd]. Prints the path of OUTDIR/libcuda.so.1, which is left alone when it is
# up to date. `odd`: entry points whose first instruction cannot be moved, so that a detour must refuse them.
# Safe to run several times at once: the library appears by rename.
set -eu
out=${1:?usage: build.sh OUTDIR [odd]}
here=$(cd "$(dirname "$0")" && pwd)
odd=
case ${2-} in
'') ;;
odd) odd=-DFC_ODD_PROLOGUE ;;
*) echo "build.sh: unknown variant '$2', expected 'odd'" >&2; exit 2 ;;
esac
mkdir -p "$out"
lib=$out/libcuda.so.1
if [ -e "$lib" ] && [ -z "$(find "$here" -type f -newer "$lib" \( -name '*.[ch]' -o -name '*.def' -o -name '*.sh' \))" ]; then
    echo "$lib"
    exit 0
fi
tmp=$lib.$$
trap 'rm -f "$tmp"' EXIT
# shellcheck disable=SC2086
${CC:-cc} -std=gnu11 ${CFLAGS:--O2 -g} -fPIC -fvisibility=hidden -fno-lto -pthread -Wall -Wextra \
    -Wno-missing-field-initializers $odd -shared -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete -Wl,-z,defs \
    -o "$tmp" "$here"/entries.c "$here"/engine.c "$here"/context.c "$here"/memory.c "$here"/module.c "$here"/graph.c \
    "$here"/green.c
mv -f "$tmp" "$lib"
echo "$lib"
