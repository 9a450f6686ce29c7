#!/usr/bin/env bash
# genperf.sh [DIR [NAME ...]]: generates the performance logs (all, or those named) under DIR (./target/perf), about 1 GB each
set -euo pipefail
P=${1:+$(realpath -m "$1")}; shift || true
cd "$(dirname "$0")"; P=${P:-$PWD/target/perf}
WANTED=" $* "; mkdir -p "$P"
export JAVA_OPTS="-Xms512m -Xmx2g -XX:+UseParallelGC"
g() {
  n=$1; shift
  [ "$WANTED" = "  " ] || [[ "$WANTED" == *" $n "* ]] || return 0
  ./oracle.sh gen --dir "$P/$n/t-0" --seed 7 --time-step 1 "$@" > "$P/$n.json"; echo "$n $(cat "$P/$n.json")"
}
g i100   --records ${RECORDS:-8060000} --value-size 100 --keys 1000000 --key-size 16 --batch-bytes 64k
g i100d  --records ${RECORDS:-8060000} --value-size 100 --keys 5100000 --key-size 16 --batch-bytes 64k
g ii1k   --records ${RECORDS:-1000000} --value-size 1024 --keys 630000 --key-size 16 --batch-bytes 64k
g iiilz4 --records ${RECORDS:-1000000} --value-size 1024 --keys 630000 --key-size 16 --batch-bytes 64k --codec lz4
g iiizst --records ${RECORDS:-1000000} --value-size 1024 --keys 630000 --key-size 16 --batch-bytes 64k --codec zstd
g iiisna --records ${RECORDS:-1000000} --value-size 1024 --keys 630000 --key-size 16 --batch-bytes 64k --codec snappy
g iiigz  --records ${RECORDS:-250000} --value-size 1024 --keys 157500 --key-size 16 --batch-bytes 64k --codec gzip
g iv1    --records ${RECORDS:-1750000} --value-size 200 --keys 500000 --key-size 16 --batch-records 1 --batch-random false
