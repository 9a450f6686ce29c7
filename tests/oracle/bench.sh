#!/usr/bin/env bash
# bench.sh NAME [oracle options]: times ITERS passes of Kafka's cleaner over clones of the log NAME of genperf.sh, in one JVM.
# P: where the logs are (./target/perf) · WORK: where the clones go · ITERS: how many passes
set -euo pipefail
cd "$(dirname "$0")"; n=$1; shift
P=${P:-$PWD/target/perf}; WORK=${WORK:-$PWD/target/benchwork}; ITERS=${ITERS:-5}
U=$(sed -n 's/.*"uncompressed_bytes": *\([0-9]*\).*/\1/p' "$P/$n.json")
export JAVA_OPTS="${JAVA_OPTS:--server -Xms4g -Xmx4g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent}"
./oracle.sh bench --dir "$P/$n/t-0" --work "$WORK" --iters "$ITERS" --now 1700100000000 --uncompressed-bytes "$U" "$@"
