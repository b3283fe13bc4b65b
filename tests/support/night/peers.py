#!/usr/bin/env python3
"""Runs a command under a lock of another library, as its documentation describes, for the night of the peers.

peers.py redis-py|kazoo STORE KEY TTL COMMAND…

STORE is a URL of Redis, or HOST:PORT,… of ZooKeeper. Both wait without a limit, keep the lock while the
command runs, send the command TERM when they notice that the lock is lost, and end with its status.
"""

import subprocess
import sys
import threading

tool, store, key, ttl, *command = sys.argv[1:]
ttl = float(ttl)
child = None
lost = threading.Event()


def lose():
    lost.set()
    if child:
        child.terminate()


def run():
    global child
    child = subprocess.Popen(command)
    if lost.is_set():
        child.terminate()
    status = child.wait()
    return status if status >= 0 else 128 - status


if tool == "redis-py":
    import redis
    from redis.exceptions import LockError, RedisError

    lock = redis.Redis.from_url(store).lock(key, timeout=ttl, thread_local=False)
    lock.acquire()
    over = threading.Event()

    def extend():
        while not over.wait(ttl / 4):
            try:
                lock.extend(ttl, replace_ttl=True)
            except LockError:
                return lose()
            except RedisError:
                pass  # An outage: the next turn tries again.

    threading.Thread(target=extend, daemon=True).start()
    status = run()
    over.set()
    try:
        lock.release()
    except RedisError:
        pass
else:
    from kazoo.client import KazooClient, KazooState

    client = KazooClient(hosts=store, timeout=ttl)
    # By kazoo's documentation the lock counts as lost without a connection.
    client.add_listener(lambda state: lose() if state != KazooState.CONNECTED else None)
    client.start()
    with client.Lock(f"/night/{key}"):
        lost.clear()
        status = run()
    client.stop()
sys.exit(status)
