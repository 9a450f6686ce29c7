#!/usr/bin/env bash
# usage: oracle.sh gen|clean|dump|serve|bench --opt value ...   (see README.md)
#        oracle.sh prepare                                      resolve the jars, compile, print the classpath
#        oracle.sh java CLASS ARG ...                           run any class of the jars (a Kafka tool, a broker)
set -euo pipefail
H="$(cd "$(dirname "$0")" && pwd)"
export MAVEN_OPTS="${MAVEN_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}" # half the CPU for a run of two seconds
V="${KAFKA_VERSION:-4.3.1}"
LEAN=; [ "$V" = 4.3.1 ] || LEAN=-Dlean   # only the default version is whole on Maven Central: others bring the cleaner alone
T="$H/target"
# Everything made here carries a checksum of what it was made from, and appears by one rename: several processes may build at once.
POM_SUM=$(cksum < "$H/pom.xml" | cut -d' ' -f1)
SRC_SUM=$(cd "$H" && find src pom.xml -type f | LC_ALL=C sort | xargs cat | cksum | cut -d' ' -f1)
CP_FILE="$T/cp-$V-$POM_SUM.txt"
CLASSES="$T/classes-$V-$SRC_SUM"

if [ ! -f "$CP_FILE" ]; then
  mkdir -p "$T"
  mvn -q -B -Dstyle.color=never -f "$H/pom.xml" -Dkafka.version="$V" $LEAN dependency:build-classpath -DincludeScope=runtime -Dmdep.outputFile="$CP_FILE.$$" >&2
  mv "$CP_FILE.$$" "$CP_FILE"
fi
CP=$(cat "$CP_FILE")

if [ ! -d "$CLASSES" ]; then
  W="$T/work-$$"; rm -rf "$W"; mkdir -p "$W/classes"
  trap 'rm -rf "$W"' EXIT
  cp -r "$H/src/main/java" "$W/src"
  CLIENTS=$(tr ':' '\n' <<< "$CP" | grep '/kafka-clients-')   # packages moved between releases: adapt the imports
  unzip -l "$CLIENTS" > "$W/clients.txt"
  grep -q 'common/record/internal/MemoryRecords.class' "$W/clients.txt" || find "$W/src" -name '*.java' -exec sed -i.orig '/import org.apache.kafka.common.record.TimestampType;/d; s/common\.record\.internal\./common.record./g' {} +
  BUFFER=$(awk '/\/ByteBufferOutputStream.class/{print $4}' "$W/clients.txt" | sed 's/.class$//; s,/,.,g')
  find "$W/src" -name Gen.java -exec sed -i.orig "s/org.apache.kafka.common.utils.ByteBufferOutputStream/$BUFFER/" {} +
  (cd "$W" && find src -name '*.java' > sources.txt && javac -J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 --release 17 -nowarn -Xlint:none -cp "$CP" -d classes @sources.txt) >&2
  cp "$H"/src/main/resources/* "$W/classes/"
  [ -d "$CLASSES" ] || mv "$W/classes" "$CLASSES"
  rm -rf "$W"; trap - EXIT
fi

case "${1:-}" in
  prepare) echo "$CLASSES:$CP"; exit ;;
  java) shift; exec java ${JAVA_OPTS:--Xms64m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1} -cp "$CLASSES:$CP" "$@" ;;
  *) exec java ${JAVA_OPTS:--Xms256m -Xmx2g -XX:+UseSerialGC -XX:TieredStopAtLevel=4} -ea:org.apache.kafka... -cp "$CLASSES:$CP" oracle.Main "$@" ;;
esac
