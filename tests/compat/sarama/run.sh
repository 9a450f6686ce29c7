#!/bin/sh
# sarama against a broker: `run.sh HOST:PORT`. `run.sh --build` only builds.
# One line a check, the sum at the end; exit 0 only if every check passed.
set -eu
bootstrap=${1:?usage: run.sh HOST:PORT | --build}
cd "$(dirname "$0")"
target=$(pwd)/../target

# Go's own caches make this quick the second time; go.sum pins what it may load.
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-trimpath -mod=readonly -buildvcs=false"
mkdir -p "$target"
go build -o "$target/sarama" .
if [ "$bootstrap" != --build ]; then
    exec "$target/sarama" "$bootstrap"
fi
