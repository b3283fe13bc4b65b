#!/usr/bin/env bash
# What does a lock on ZooKeeper cost, beside the Lock of kazoo (PYTHON is a Python that has it) on the same server? A run of
# `true`; hand-overs with crowds of WAITERS, in turn; and how many requests the server gets for each. Needs Debian's zookeeper
# and a release build with it (or DLOCK). Starts its own server, and ends it. PARTS says which of these; FORCE_SYNC=no does
# not wait for the disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dlock=${DLOCK:-$here/../target/release/dlock} python=${PYTHON:-python3} port=${PORT:-12181}
"$python" -c 'import kazoo' || exit 1
dir=$(mktemp -d)
printf '%s\n' "dataDir=$dir/data" "clientPort=$port" clientPortAddress=127.0.0.1 tickTime=200 maxSessionTimeout=100000 \
    maxClientCnxns=0 admin.enableServer=false '4lw.commands.whitelist=*' >"$dir/zoo.cfg"
jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar
java -Xmx256m -Dzookeeper.forceSync="${FORCE_SYNC:-yes}" -Dzookeeper.jmx.log4j.disable=true -cp "$jars" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/log" 2>&1 &
server=$!
trap 'kill "$server"; wait "$server" || true; rm -rf "$dir"' EXIT

# What the server says to a word for administrators.
say() {
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || return 0
    echo "$1" >&3
    timeout 5 cat <&3 || true
    exec 3>&-
}
figure() { say mntr | awk -v name="$1" '$1 == name { print $2 }'; }
until say srvr | grep -q Mode:; do sleep 0.1; done

export DLOCK_STORE=zookeeper://127.0.0.1:$port
# The command, and how many ms after the one before each of a crowd is started, so that all of them wait in time.
dlock() { command=("$dlock" run -q -k "$1" -w --) step=20; }
kazoo() { command=("$python" "$here/kazoo_lock.py" "127.0.0.1:$port" "$1") step=${STEP_MS:-150}; }

# The requests for each of so many hand-overs of a lock that nobody gives back before all of them wait.
requests() {
    local name=$1 waiters=$2 before after
    local key=r$name$waiters pids=()
    "$name" "$key"
    "${command[@]}" sh -c 'touch "$0.up"; until [ -e "$0" ]; do sleep 0.02; done' "$dir/$key" & pids+=($!)
    until [ -e "$dir/$key.up" ]; do sleep 0.02; done
    for ((at = 0; at < waiters; at++)); do
        "${command[@]}" true & pids+=($!)
        sleep "0.$(printf %03d "$step")"
    done
    until (($(figure zk_num_alive_connections) > waiters)); do sleep 0.1; done
    sleep 1
    before=$(figure zk_packets_received)
    touch "$dir/$key"
    wait "${pids[@]}"
    after=$(figure zk_packets_received)
    echo "$name, $waiters waiters: $(((after - before) / (waiters + 1))) requests a hand-over"
}

for part in ${PARTS:-overhead handoff requests}; do
    case $part in
    overhead)
        cc -O2 -o "$dir/pair" "$here/pair.c"
        "$dir/pair" 100 true + "$dlock" run -q -k o -- true + "$python" "$here/kazoo_lock.py" "127.0.0.1:$port" o true
        ;;
    handoff)
        for waiters in ${WAITERS:-30 200}; do
            for ((round = 0; round < ${ROUNDS:-1}; round++)); do
                for name in dlock kazoo; do
                    "$name" "h$waiters$round"
                    STEP_MS=$step "$python" "$here/handoff.py" "$name" "$waiters" 5 -- "${command[@]}" @STAMP
                done
            done
        done
        ;;
    requests) for waiters in ${WAITERS:-10 60}; do for name in dlock kazoo; do requests "$name" "$waiters"; done; done ;;
    esac
done
