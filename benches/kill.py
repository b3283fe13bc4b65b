#!/usr/bin/env python3
"""kill.py [CASE…]: for how long does a job live beside the next one, when it can only be killed? The holder reaches its server
through a proxy that is frozen; the next one asks the server itself. Both jobs take one lock on a file, which the last process
of the old job gives up. Prints, by case and ttl, how many ms the next job waited for that (the worst and all of ROUNDS).
DLOCK (default: the release build here), ROUNDS (5), TTLS (2s,3s). Needs redis-server, gcc; the machine should be quiet."""
import os, signal, socket, subprocess, sys, tempfile, threading, time
here = os.path.dirname(os.path.abspath(__file__))
dlock = os.environ.get('DLOCK', os.path.join(here, '../target/release/dlock'))
rounds, ttls = int(os.environ.get('ROUNDS', '5')), os.environ.get('TTLS', '2s,3s').split(',')
CASES = {  # the unrelated processes, and the job
    'quiet-10': (0, ['flat', '10']), 'crowd-10': (15000, ['flat', '10']), 'flat-5000': (0, ['flat', '5000']),
    'deep-500': (0, ['deep', '500']), 'chains-20': (0, ['chains', '20', '500']), 'crowd-chains': (15000, ['chains', '20', '500']),
    'chains-fast': (0, ['chains', '100', '100']),
}

def proxy(port):
    listener = socket.create_server(('127.0.0.1', 0))
    print(listener.getsockname()[1], flush=True)
    def pump(source, sink):
        while data := source.recv(65536): sink.sendall(data)
    while True:
        near = listener.accept()[0]; far = socket.create_connection(('127.0.0.1', port))
        for pair in (near, far), (far, near): threading.Thread(target=pump, args=pair, daemon=True).start()

def wait_for(path):
    while not os.path.exists(path): time.sleep(.01)

def one(crowd, server, job, ttl):
    with tempfile.TemporaryDirectory() as home:
        through = subprocess.Popen([sys.executable, __file__, 'proxy', str(server)], stdout=subprocess.PIPE, text=True)
        port = int(through.stdout.readline())
        run = lambda port, *words: [dlock, 'run', '--store', f'redis://127.0.0.1:{port}', '-k', 'k', '-t', ttl, *words]
        log = open(os.path.join(home, 'log'), 'w')
        holder = subprocess.Popen(run(port, '--', crowd, job[0], 'lock', *job[1:]), cwd=home, stdin=subprocess.DEVNULL, stderr=log)
        wait_for(os.path.join(home, 'up'))
        time.sleep(float(ttl.rstrip('s')) * 1.3)
        waiter = subprocess.Popen(run(server, '-w', '--', crowd, 'take', 'lock'), cwd=home, stdout=subprocess.PIPE, stderr=log, text=True)
        time.sleep(.1)
        through.send_signal(signal.SIGSTOP)
        beside = float(waiter.communicate()[0] or 'nan')
        holder.wait(); through.kill(); through.wait(); through.stdout.close()
        return beside

def main(names):
    with tempfile.TemporaryDirectory() as home:
        crowd = os.path.join(home, 'crowd')
        subprocess.check_call(['gcc', '-O2', '-o', crowd, os.path.join(here, 'crowd.c')])
        with socket.create_server(('127.0.0.1', 0)) as free: port = free.getsockname()[1]
        server = subprocess.Popen(['redis-server', '--save', '', '--port', str(port), '--dir', home], stdout=subprocess.DEVNULL)
        time.sleep(.5)
        try:
            for name in names or CASES:
                count, job = CASES[name]
                others = subprocess.Popen([crowd, 'sleep', str(count)], stdout=subprocess.PIPE, start_new_session=True)
                others.stdout.readline()
                try:
                    for ttl in ttls:
                        seen = [one(crowd, port, job, ttl) for _ in range(rounds)]
                        print(f'{name:14s} ttl {ttl:4s} beside ms: worst {max(seen):8.2f}   all {" ".join(f"{ms:.2f}" for ms in seen)}', flush=True)
                finally:
                    os.killpg(others.pid, signal.SIGKILL); others.wait()
        finally:
            server.kill(); server.wait()

if sys.argv[1:2] == ['proxy']: proxy(int(sys.argv[2]))
else: main(sys.argv[1:])
