#!/bin/sh
# Builds the double of libcuda: build.sh OUTDIR [odd | front]. Prints the path of OUTDIR/libcuda.so.1, which is left alone when it is
# up to date. `odd`: entry points whose first instruction cannot be moved, so that a detour must refuse them.
# `front`: a library that stands before the double under its name; FAKECUDA_BEHIND is the double's path.
# Safe to run several times at once: the library appears by rename.
set -eu
out=${1:?usage: build.sh OUTDIR [odd | front]}
here=$(cd "$(dirname "$0")" && pwd)
odd=
sources="entries.c engine.c context.c memory.c module.c graph.c green.c"
case ${2-} in
'') ;;
odd) odd=-DFC_ODD_PROLOGUE ;;
front) sources=front.c ;;
*) echo "build.sh: unknown variant '$2', expected 'odd' or 'front'" >&2; exit 2 ;;
esac
mkdir -p "$out"
out=$(cd "$out" && pwd)
lib=$out/libcuda.so.1
if [ -e "$lib" ] && [ -z "$(find "$here" -type f -newer "$lib" \( -name '*.[ch]' -o -name '*.def' -o -name '*.sh' \))" ]; then
    echo "$lib"
    exit 0
fi
tmp=$lib.$$
trap 'rm -f "$tmp"' EXIT
cd "$here"
# shellcheck disable=SC2086
${CC:-cc} -std=gnu11 ${CFLAGS:--O2 -g} -fPIC -fvisibility=hidden -fno-lto -pthread -Wall -Wextra \
    -Wno-missing-field-initializers $odd -shared -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete -Wl,-z,defs \
    -o "$tmp" $sources -ldl
mv -f "$tmp" "$lib"
echo "$lib"
