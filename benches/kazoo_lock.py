#!/usr/bin/env python3
"""kazoo_lock.py HOSTS KEY CMD…: runs CMD under the Lock of kazoo, as its documentation shows. A peer to measure beside."""
import os, subprocess, sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=float(os.environ.get('LEASE', '10')))
client.start()
with client.Lock('/kazoo/' + sys.argv[2]):
    status = subprocess.call(sys.argv[3:])
client.stop()
sys.exit(status)
