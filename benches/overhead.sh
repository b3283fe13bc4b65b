#!/usr/bin/env bash
# What does one uncontended run cost, beside flock(1) and nothing at all? Needs hyperfine, redis-server and a release
# build. Starts its own server on a socket and one on a port, and ends them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dlock=$PWD/target/release/dlock
dir=$(mktemp -d)
port=${PORT:-16379}
redis-server --save '' --dir "$dir" --port "$port" --unixsocket "$dir/redis.sock" >/dev/null &
server=$!
trap 'kill "$server"; wait "$server"; rm -rf "$dir"' EXIT
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.05; done
hyperfine -N --warmup 20 --runs "${RUNS:-300}" \
    'true' \
    "flock -n $dir/lock true" \
    "$dlock run --store redis://127.0.0.1:$port -k k -- true" \
    "$dlock run --store redis+unix://$dir/redis.sock -k k -- true" \
    "$dlock run --store file:$dir/locks -k k -- true"
