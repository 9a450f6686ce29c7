#!/usr/bin/env bash
# usage: run.sh BOOTSTRAP [SUITE ...]   run suites (all of them) against a broker: a line a check, `N passed, M failed`
#        run.sh prepare [SUITE ...]     resolve the jars and compile; print the last suite's class path
# suites: tools clients old-clients vintage compaction streams smoke connect tombstones (compaction needs a broker whose cleaner runs every second)
# Exit code 0: every check of every suite passed. What is made here stays in target/, by checksums of what it was made from.
set -euo pipefail
H="$(cd "$(dirname "$0")" && pwd)"
export MAVEN_OPTS="${MAVEN_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}" # half the CPU for a run of two seconds
T="$H/target"
JAVA_FLAGS="-Xms64m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=${LOG_LEVEL:-warn}"
ALL="tools clients old-clients vintage compaction streams smoke connect tombstones"
VINTAGES="0.9.0.1 0.10.0.1 0.10.2.2 0.11.0.3 1.1.1 2.8.2"

sum_of() { cat "$@" | cksum | cut -d' ' -f1; }

jars() { # PROFILE [VERSION] -> class path of the pom's jars; several processes may do this at once
  local file="$T/cp-$1${2:+-$2}-$(sum_of "$H/pom.xml").txt"
  if [ ! -f "$file" ]; then
    mkdir -p "$T"
    mvn -q -B -Dstyle.color=never -f "$H/pom.xml" -P"$1" ${2:+-D"$1=$2"} dependency:build-classpath -DincludeScope=runtime -Dmdep.outputFile="$file.$$" >&2
    mv "$file.$$" "$file"
  fi
  cat "$file"
}

classes() { # FOLDER CLASSPATH -> where its sources are compiled
  local sources=("$H/src/$1"/*.java) into
  [ "$1" = vintage-client ] || sources+=("$H"/src/common/*.java)
  into="$T/classes-$1-$(sum_of "${sources[@]}" "$H/pom.xml")"
  if [ ! -d "$into" ]; then
    mkdir -p "$into.$$"
    javac -J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 --release 17 -nowarn -Xlint:none -cp "$2" -d "$into.$$" "${sources[@]}" >&2
    mv "$into.$$" "$into" 2>/dev/null || rm -rf "$into.$$"
  fi
  echo "$into"
}

class_path() { # SUITE
  local cp old
  case "$1" in
    tools | compaction) cp="$("$H/../../oracle/oracle.sh" prepare)"; echo "$(classes tools "$cp"):$cp" ;;
    streams | connect) cp="$(jars new)"; echo "$(classes runtime "$cp"):$cp" ;;
    smoke) cp="$(jars smoke)"; echo "$(classes smoke "$cp"):$cp" ;;
    tombstones) cp="$(jars new)"; echo "$(classes runtime "$cp"):$(jars tombstones)" ;;
    clients) old="$(jars old)"; echo "$(classes clients "$old"):$(jars new)" ;; # compiled once, with the old jars
    vintage) old="$(jars old)"; echo "$(classes vintage "$old"):$old" ;; # starts the old ones by itself
    old-clients) old="$(jars old)"; echo "$(classes clients "$old"):$old" ;;
    *) echo "run.sh: no suite $1; there are: $ALL" >&2; return 2 ;;
  esac
}

vintages() { # a line a version: its number, its class path
  local client v
  client="$(classes vintage-client "$(jars vintage 0.10.2.2)")"
  for v in $VINTAGES; do echo "$v $client:$(jars vintage "$v")"; done
}

program() {
  case "$1" in
    tools) echo ToolChecks ;;
    compaction) echo CompactionCheck ;;
    streams) echo StreamsChecks ;;
    smoke) echo SmokeChecks ;;
    connect) echo ConnectChecks ;;
    vintage) echo VintageChecks ;;
    tombstones) echo TombstoneChecks ;;
    *) echo ClientChecks ;;
  esac
}

[ $# -gt 0 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
BOOTSTRAP="$1"; shift
[ $# -gt 0 ] || set -- $ALL
FAILED=0
for SUITE in "$@"; do
  CP="$(class_path "$SUITE")"
  if [ "$SUITE" = vintage ]; then VINTAGE="$(vintages)"; export VINTAGE; fi
  [ "$BOOTSTRAP" = prepare ] || java $JAVA_FLAGS -cp "$CP" "$(program "$SUITE")" "$BOOTSTRAP" "$SUITE" || FAILED=1
done
[ "$BOOTSTRAP" != prepare ] || echo "$CP"
exit $FAILED
