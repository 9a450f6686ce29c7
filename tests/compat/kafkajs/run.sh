#!/bin/sh
# kafkajs against a broker: `run.sh HOST:PORT`. `run.sh --build` only lays out what it needs.
# One line a check, the sum at the end; exit 0 only if every check passed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$here/../target/kafkajs
locked=$(cat "$here/package.json" "$here/package-lock.json" | cksum)

if [ "$(cat "$target/locked" 2>/dev/null)" != "$locked" ]; then
    mkdir -p "$target"
    cp "$here/package.json" "$here/package-lock.json" "$target"
    # No scripts: nothing is compiled, nothing is downloaded besides the packages themselves.
    (cd "$target" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2
    echo "$locked" >"$target/locked"
fi
if [ "${1:?usage: run.sh HOST:PORT | --build}" != --build ]; then
    NODE_PATH=$target/node_modules KAFKAJS_NO_PARTITIONER_WARNING=1 exec node "$here/suite.js" "$1"
fi
