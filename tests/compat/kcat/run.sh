#!/bin/sh
# kcat against a broker: `run.sh HOST:PORT`. There is nothing to build: `run.sh --build` does nothing.
# One line a check, the sum at the end; exit 0 only if every check passed. Topics come from the
# broker's auto.create.topics.enable, with two partitions each (num.partitions=2).
set -u
bootstrap=${1:?usage: run.sh HOST:PORT | --build}
if [ "$bootstrap" = --build ]; then exit 0; fi
work=$(mktemp -d)
run=kcat-$(basename "$work" | tr -dc '[:alnum:]')
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0 why=

kc() { timeout 20 kcat -b "$bootstrap" -X socket.connection.setup.timeout.ms=2000 "$@"; }
produce() { kc -P -p 0 "$@"; }
consume() { kc -C -q -e -p 0 -o beginning -X check.crcs=true "$@"; }
numbered() { awk -v first="$1" -v last="$2" 'BEGIN { for (n = first; n <= last; n++) print "value-" n }'; }
fails() { why=$1; return 1; }
same() { cmp -s "$1" "$2" || fails "$(diff "$1" "$2" | head -4)"; }
# Waits until a command says yes, 15 s at most.
until_true() {
    until_s=$(($(date +%s) + 15))
    until "$@"; do
        [ "$(date +%s)" -lt $until_s ] || return 1
        sleep 0.05
    done
}

metadata_list() {
    kc -L -J >listed || fails "$(cat listed)" || return
    grep -q "\"brokers\":\[{\"id\":[0-9]*,\"name\":\"$bootstrap\"}\]" listed || fails "$(cut -c1-200 listed)"
}

round_trip() { # codec
    topic=$run-codec-$1
    numbered 1 200 | awk '{ print "key-" NR "=" $0 " " $0 " " $0 }' >sent
    produce -t "$topic" -K= -H h=1 -H h=2 -X "compression.codec=$1" -X linger.ms=1000 <sent 2>said ||
        fails "$(cat said)" || return
    # Against a broker that it takes for one without codecs kcat writes plain batches and says so.
    ! grep -qi 'not compress' said || fails "$(cat said)" || return
    consume -t "$topic" -f '%k=%s\n' >got && same sent got || return
    consume -t "$topic" -c 1 -f '%h %p %o' >got
    [ "$(cat got)" = 'h=1,h=2 0 0' ] || fails "$(cat got)"
}

nulls_and_json() {
    topic=$run-json
    printf 'k=v\n=no key\nonly-key=\n' | produce -t "$topic" -K= -Z || return
    consume -t "$topic" -J | sed 's/"ts":[0-9]\{13\}/"ts":0/; s/"broker":[0-9]*/"broker":0/' >got
    for pair in '"k","payload":"v"' 'null,"payload":"no key"' '"only-key","payload":null'; do
        echo "\"key\":$pair}"
    done >sent
    sed 's/.*"key"/"key"/' got >pairs
    same sent pairs || return
    grep -q '"partition":0,"offset":2,"tstype":"create","ts":0,"broker":0' got || fails "$(cat got)"
}

idempotent() {
    numbered 1 500 >sent
    produce -t "$run-idempotent" -X enable.idempotence=true -X batch.num.messages=10 <sent || return
    consume -t "$run-idempotent" >got && same sent got
}

written() { [ "$(consume -t "$topic" -X isolation.level=read_uncommitted | wc -l)" -gt "$1" ]; }

transaction() {
    topic=$run-transaction
    numbered 1 10 | produce -q -t "$topic" -X "transactional.id=$topic" || return
    # A writer that dies while its input goes on. It reads blocks, so there is much of it.
    mkfifo pipe
    kcat -P -p 0 -b "$bootstrap" -t "$topic" -X "transactional.id=$topic" -X linger.ms=0 \
        <pipe >said 2>&1 &
    exec 3>pipe
    numbered 1000 2000 >&3
    until_true written 10 || fails 'what it wrote never came' || return
    kill -9 $!
    exec 3>&-
    wait $! 2>/dev/null
    numbered 21 30 | produce -q -t "$topic" -X "transactional.id=$topic" || return
    { numbered 1 10; numbered 21 30; } >sent
    consume -t "$topic" -X isolation.level=read_committed >got && same sent got || return
    written 20 || fails 'what was aborted is not there at all'
}

offsets() {
    topic=$run-offsets
    numbered 1 10 | produce -t "$topic" || return
    kc -C -q -e -t "$topic" -p 0 -o -3 >got
    numbered 8 10 >sent
    same sent got || return
    kc -C -q -c 2 -t "$topic" -p 0 -o 4 >got
    numbered 5 6 >sent
    same sent got || return
    kc -C -q -e -t "$topic" -p 0 -o 50 -X auto.offset.reset=error >got 2>&1 && fails 'an offset after the end was read'
    grep -qi 'out of range' got || fails "$(cat got)"
}

offsets_by_time() {
    topic=$run-by-time
    numbered 1 5 | produce -t "$topic" || return
    sleep 0.05
    between=$(date +%s%3N)
    sleep 0.05
    numbered 6 9 | produce -t "$topic" || return
    kc -Q -t "$topic:0:$between" -t "$topic:1:$between" | sort >got
    printf '%s [0] offset 5\n%s [1] offset -1\n' "$topic" "$topic" >sent
    same sent got || return
    kc -Q -t "$topic:0:-1" >got
    echo "$topic [0] offset 9" >sent
    same sent got || return
    kc -C -q -e -t "$topic" -p 0 -o "s@$between" >got
    numbered 6 9 >sent
    same sent got
}

group() { # name, further arguments: a member in the background; what it says goes to name.said
    name=$1
    shift
    : >"$name.said"
    timeout 30 kcat -b "$bootstrap" -u -X auto.offset.reset=earliest -X session.timeout.ms=6000 \
        -X heartbeat.interval.ms=200 "$@" >"$name.got" 2>"$name.said" &
    echo $! >"$name.pid"
}
stop() { kill "$(cat "$1.pid")" && wait "$(cat "$1.pid")"; }
took() { [ "$(cat "$@" | sort -u | wc -l)" -eq "$took" ]; }

shares() { # assignor
    topic=$run-shared-$1
    : >sent
    produce -t "$topic" <sent && kc -L -t "$topic" >/dev/null || return
    for member in one two; do
        group "$member" -X "partition.assignment.strategy=$1" -G "$topic-group" "$topic"
    done
    until_true both_hold || fails "$(cat one.said two.said)" || { stop one; stop two; return 1; }
    numbered 1 10 | produce -t "$topic"
    numbered 11 20 | kc -P -p 1 -t "$topic"
    took=20 && until_true took one.got two.got || fails 'not all came' || { stop one; stop two; return 1; }
    [ -s one.got ] && [ -s two.got ] || fails 'one member got all'
    stop two # leaves; one has both then
    numbered 21 30 | produce -t "$topic"
    numbered 31 40 | kc -P -p 1 -t "$topic"
    cp two.got before
    took=40 && until_true took one.got before || fails 'not all came to the one that stayed'
    stop one
    [ -z "$why" ]
}
both_hold() { holds_one one && holds_one two; }
# What a member has by the lines it says: whole assignments, or what came and went.
holds_one() {
    awk '
        /rebalanced/ {
            gone = /revo/; whole = !/incremental/
            line = $0
            if (whole) delete held
            while (match(line, /\[[0-9]+\]/)) {
                part = substr(line, RSTART, RLENGTH); line = substr(line, RSTART + RLENGTH)
                if (gone) delete held[part]; else held[part] = 1
            }
        }
        END { for (part in held) n++; exit n != 1 }' "$1.said"
}

goes_on() {
    topic=$run-committed
    numbered 1 10 | produce -t "$topic" || return
    kc -q -e -X auto.offset.reset=earliest -G "$topic-group" "$topic" >got || return
    numbered 1 10 >sent
    same sent got || return
    numbered 11 15 | produce -t "$topic" || return
    kc -q -e -X auto.offset.reset=earliest -G "$topic-group" "$topic" >got || return
    numbered 11 15 >sent
    same sent got
}

large() {
    head -c 3000000 /dev/zero | tr '\0' x >big
    if produce -t "$run-large" -X message.max.bytes=10000000 big >said 2>&1; then
        fails 'it was taken'
        return
    fi
    grep -q 'Broker: Message size too large' said || fails "$(cat said)"
}

unknown() {
    kc -C -e -t "$run-missing" >said 2>&1 && { fails 'there is such a topic'; return; }
    grep -q 'Unknown topic or partition' said || fails "$(cat said)"
}

check() { # what it is called, function, arguments
    label=$1 why=
    shift
    if [ -n "${dead:-}" ]; then
        why=$dead
    elif "$@" && [ -z "$why" ]; then
        passed=$((passed + 1))
        echo "ok $label"
        return
    fi
    failed=$((failed + 1))
    echo "not ok $label: $(echo "${why:-$* ended with an error}" | tr '\n' ' ' | cut -c1-300)"
    return 1
}

check metadata_list metadata_list || dead='metadata_list failed'
for codec in none gzip snappy lz4 zstd; do
    check "produce_and_consume_$codec" round_trip $codec
done
check nulls_and_json nulls_and_json
check idempotent idempotent
check transaction_commit_and_abort transaction
check reads_from_offsets offsets
check offsets_by_time offsets_by_time
check group_goes_on_where_it_committed goes_on
check members_share_and_one_leaves_eager shares range
check members_share_and_one_leaves_cooperative shares cooperative-sticky
check large_message_is_refused large
check unknown_topic_is_refused unknown
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
