#!/usr/bin/env bash
# How much sooner is a stock sold when it lies in five segments, one for each slot, than when each buyer has it alone? With
# the scripts of docs/recipes.md and a payment of PAY seconds. Needs redis-server and a release build (or DLOCK). Starts
# its own server, and ends it. Says, too, whether more was sold than there was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dlock=${DLOCK:-$PWD/target/release/dlock}
stock=${STOCK:-40} buyers=${BUYERS:-60} pay=${PAY:-0.05} port=${PORT:-16379}
page=$PWD/docs/recipes.md
dir=$(mktemp -d)
redis-server --save '' --dir "$dir" --port "$port" >/dev/null &
server=$!
trap 'kill "$server"; wait "$server" || true; rm -rf "$dir"' EXIT
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.05; done
cd "$dir"
mkdir locks
for script in buy buy-one; do
    sed -n "/^# $script:/,/^\`\`\`/p" "$page" | sed '$d' | sed '1i #!/bin/sh' >"$script"
done
printf '#!/bin/sh\nsleep %s\n' "$pay" >pay
chmod +x buy buy-one pay

# NAME, then what a buyer runs.
sell() {
    local name=$1 start end
    shift
    echo "$stock" >stock
    for segment in 0 1 2 3 4; do
        echo $((stock / 5 + (segment < stock % 5))) >"stock.$segment"
    done
    start=$(date +%s%N)
    for ((buyer = 0; buyer < buyers; buyer++)); do "$@" >>"sold.$name" & done
    # Not the server.
    wait $(jobs -p | grep -vx "$server")
    end=$(date +%s%N)
    echo "$name: $(grep -cx sold "sold.$name") of $stock sold to $buyers buyers in $(((end - start) / 1000000)) ms"
}
alone() { "$dlock" run -k stock -w -- ./buy; }
slots() { "$dlock" run -k stock -n 5 -w -- ./buy-one || "$dlock" run -k stock -w -- ./buy-one; }
for store in "redis://127.0.0.1:$port" "file:$dir/locks"; do
    export DLOCK_STORE=$store
    sell "alone-${store%%:*}" alone
    sell "slots-${store%%:*}" slots
done
