#!/usr/bin/env python3
"""seeds.py DLOCK TARGET URL: records the seeds of a target that fuzzes a server's replies.

URL names a running server without TLS and without a password, as fuzz_targets/TARGET.rs does: etcd://127.0.0.1:2379/p. A
lock is held, and another run is refused, so that there is something to read. Each seed is the number of a command of
src/lib.rs, as one byte, and what the server sent on the connection on which it sent most.
"""
import os, re, socket, subprocess, sys, threading

dlock, target, url = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
here = os.path.dirname(os.path.abspath(__file__))
source = open(f'{here}/src/lib.rs').read()
listed = re.search(r'const COMMANDS.*?= \[\n(.*?)\n\];', source, re.S).group(1)
commands = [re.findall(r'"([^"]*)"', line) for line in listed.splitlines()]
host, port = re.search(r'([\w.]+):(\d+)', url.split('@')[-1]).groups()
sent = []


def copy(source, sink, log):
    while data := source.recv(65536):
        log += data
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)


def serve(listener):
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        sent.append(bytearray())
        threading.Thread(target=copy, args=(client, server, bytearray()), daemon=True).start()
        threading.Thread(target=copy, args=(server, client, sent[-1]), daemon=True).start()


def run(url, *words, **more):
    env = {name: value for name, value in os.environ.items() if not name.startswith('DLOCK')}
    return subprocess.Popen([dlock, *words[:1], '--store', url, *words[1:]], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


listener = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
through = url.replace(f':{port}', f':{listener.getsockname()[1]}', 1)
holder = run(url, 'hold', '-k', 'k', '-w', '30s', '-t', '1h', '--label', 'a hold', stdin=subprocess.PIPE)
while run(url, 'run', '-k', 'k', '--label', 'a run', '--', 'true').wait() == 0:
    pass
os.makedirs(f'{here}/seeds/{target}', exist_ok=True)
for number, words in enumerate(commands):
    sent.clear()
    run(through, *words).wait()
    name = '-'.join(word.strip('-') for word in words if not re.match(r'^(k|r|-.|\d.*|--for|--reason)$', word))
    with open(f'{here}/seeds/{target}/{name}', 'wb') as seed:
        seed.write(bytes([number]) + max(sent, key=len))
holder.stdin.close()
holder.wait()
