#!/usr/bin/env python3
"""table.py [PART…]: what ./bench prints. Starts its own servers, in a directory of its own, and ends them. A part that
cannot be measured here says why, and the others go on."""
import contextlib, glob, os, re, resource, shutil, signal, socket, statistics, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
DLOCK = os.path.abspath(os.environ['DLOCK'])
CYCLES = os.environ.get('CYCLES')
ROUNDS = int(os.environ.get('ROUNDS', '200'))
CROWDS = [int(n) for n in os.environ.get('CROWDS', '30,200,1000').split(',')]
HOME = tempfile.mkdtemp(prefix='dlock-bench-')
QUIET = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith('DLOCK')} | {'HOME': HOME}
started = []


def row(ratio, target, what, figure):
    print(f'{ratio:>8}  {target:>8}  {what:44s}  {figure}', flush=True)


def times(a, b):
    return f'{a / b:.2f} x'


def start(words, **more):
    process = subprocess.Popen(words, **{**QUIET, 'env': CLEAN, **more})
    started.append(process)
    return process


def port():
    with socket.create_server(('127.0.0.1', 0)) as free:
        return free.getsockname()[1]


def compiled(name):
    out = os.path.join(HOME, name)
    if not os.path.exists(out):
        subprocess.check_call(['cc', '-O2', '-o', out, os.path.join(HERE, name + '.c')])
    return out


class Redis:
    """A redis-server of its own, and one connection to it."""

    def __init__(self, *options):
        self.port = port()
        self.socket = os.path.join(HOME, f'{self.port}.sock')
        self.process = start(['redis-server', '--save', '', '--dir', HOME, '--port', str(self.port), '--unixsocket',
                              self.socket, '--maxclients', '9000', '--tcp-backlog', '4096', *options])
        self.url = f'redis://127.0.0.1:{self.port}'
        until(lambda: os.path.exists(self.socket))
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(self.socket)
        self.file = self.stream.makefile('rb')

    def ask(self, *words):
        self.stream.sendall(b''.join([b'*%d\r\n' % len(words)] + [b'$%d\r\n%s\r\n' % (len(w), w) for w in map(str.encode, words)]))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b'$':
            return None if rest == b'-1' else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b'*':
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if kind == b':' else rest.decode()

    def info(self, field, section='all'):
        found = re.search(rf'^{field}[:=](?:calls=)?([\d.]+)', self.ask('INFO', section), re.M)
        return float(found.group(1)) if found else 0.0

    def commands(self):
        """Those that clients sent, but INFO."""
        lines = re.findall(r'^cmdstat_(evalsha|eval|blpop|hello|auth|select):calls=(\d+)', self.ask('INFO', 'commandstats'), re.M)
        return sum(int(calls) for _, calls in lines)


def until(condition, limit=30):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError('waited in vain')
        time.sleep(0.01)


def has(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        row('-', '', ' '.join(missing), 'skipped: not installed')
    return not missing


def pair(commands, rounds=None):
    """Medians in microseconds."""
    words = []
    for command in commands:
        words += (['+'] if words else []) + command
    out = subprocess.run([compiled('pair'), str(rounds or ROUNDS), *words], env=CLEAN, check=True, capture_output=True, text=True)
    return [float(line.split()[0]) for line in out.stdout.splitlines()]


def run(url, *options):
    return [DLOCK, 'run', '--store', url, *options]


def file_store(name='locks'):
    path = os.path.join(HOME, name)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return 'file:' + path


def overhead(redis):
    """One uncontended run."""
    lock, locked = os.path.join(HOME, 'lock'), Redis('--requirepass', 'sesame')
    secret = os.path.join(HOME, 'password')
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as file:
        file.write('sesame\n')
    named = [('true', ['true']), ('flock -n F true', ['flock', '-n', lock, 'true'])]
    if has('setlock'):
        named.append(('setlock -n F true', ['setlock', '-n', lock + '2', 'true']))
    job = ['-k', 'k', '--', 'true']
    named += [('dlock run, Redis by TCP', run(redis.url, *job)),
              ('dlock run, password and database', run(locked.url + '/3', '--password-file', secret, *job)),
              ('dlock run, Redis by a Unix socket', run('redis+unix://' + redis.socket, *job)),
              ('dlock run, file:', run(file_store(), *job))]
    medians = pair([command for _, command in named])
    target = {'dlock run, Redis by TCP': '1.3', 'dlock run, file:': '1.2'}
    for (name, _), took in zip(named, medians):
        row(times(took, medians[1]), target.get(name, ''), name, f'{took / 1000:.2f} ms')


def far_proxy(server, delay):
    """A network that takes so long in each direction."""
    listener = socket.create_server(('127.0.0.1', 0))

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(delay)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve():
        while True:
            near = listener.accept()[0]
            far = socket.create_connection(('127.0.0.1', server))
            for ends in (near, far), (far, near):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def trips(redis):
    """Round trips, counted by the time that they take through a slow network. Connecting takes none there."""
    far = f'redis://127.0.0.1:{far_proxy(redis.port, 0.02)}'
    bare, took = pair([['true'], run(far, '-k', 'k', '--', 'true')], 20)
    row(f'{1 + (took - bare) / 40000:.2f}', '3.2', 'round trips of a run, connecting counted as one', f'{took / 1000:.1f} ms with 20 ms each way')
    colds = []
    for _ in range(5):
        redis.ask('SCRIPT', 'FLUSH')
        began = time.monotonic()
        subprocess.run(run(far, '-k', 'k', '--', 'true'), env=CLEAN, check=True, **QUIET)
        colds.append((time.monotonic() - began) * 1e6)
    cold = statistics.median(colds)
    row(f'{1 + (cold - bare) / 40000:.2f}', '4.2', 'the same, where the server knows no script', f'{cold / 1000:.1f} ms')


def crowd(name, command, waiters, step=None, hold='5'):
    out = subprocess.run([sys.executable, os.path.join(HERE, 'handoff.py'), name, str(waiters), hold, '--', *command],
                         env=CLEAN | {'STEP_MS': str(step or (8 if waiters <= 200 else 4))}, capture_output=True, text=True)
    found = re.search(r'runs (\d+)/\d+ failed (\d+) overlaps (\d+) out of order (\d+) gap ms p50 ([\d.]+) p90 [\d.]+ max ([\d.]+)', out.stdout)
    if not found:
        raise RuntimeError(out.stderr.strip().splitlines()[-1:] or 'no figures')
    runs, failed, overlaps, late, median, worst = (float(text) for text in found.groups())
    order = 'in order' if late == 0 else f'{late:.0f} out of order'
    trouble = f', {failed:.0f} FAILED' if failed else ''
    trouble += f', {overlaps:.0f} OVERLAPS' if overlaps else ''
    return median, f'gap {median:.2f} ms, longest {worst / median:.1f} x that, {order}{trouble}'


class Etcd:
    """One member."""

    def __init__(self):
        client, peer = port(), port()
        self.url, self.unix = f'etcd://127.0.0.1:{client}', None
        # Words of the job that begin with a dash are not etcdctl's.
        self.lock = lambda name, *command: ['etcdctl', '--endpoints', f'http://127.0.0.1:{client}', 'lock', name, '--', *command]
        self.process = start(['etcd', '--data-dir', tempfile.mkdtemp(dir=HOME), '--listen-client-urls', f'http://127.0.0.1:{client}',
                              '--advertise-client-urls', f'http://127.0.0.1:{client}', '--listen-peer-urls', f'http://127.0.0.1:{peer}'])
        until(lambda: subprocess.run(self.lock('k', 'true'), env=CLEAN, **QUIET).returncode == 0)

    def stop(self):
        self.process.kill()
        self.process.wait()


def handoff(redis):
    """How long after one job's end the next one starts."""
    for waiters in CROWDS:
        lock = os.path.join(HOME, f'crowd{waiters}')
        base, figure = crowd('flock', ['flock', lock, '@STAMP'], waiters)
        row('1.00 x', '', f'flock, {waiters} waiters', figure)
        peers = [(f'setlock, {waiters} waiters', ['setlock', lock + '2', '@STAMP'], None)] if has('setlock') else []
        for store, url in (('Redis', redis.url), ('file:', file_store())):
            peers.append((f'dlock, {store}, {waiters} waiters', run(url, '-k', f'c{waiters}', '-q', '-w', '--', '@STAMP'), None))
        if waiters == CROWDS[0] and has('etcd', 'etcdctl'):
            peers.append((f'etcdctl lock, {waiters} waiters', Etcd().lock('k', '@STAMP'), 60))
        if waiters == CROWDS[0] and subprocess.run([sys.executable, '-c', 'import redis'], **QUIET).returncode == 0:
            code = (f'import redis, subprocess, sys\nlock = redis.Redis(port={redis.port}).lock("py", timeout=30)\n'
                    'lock.acquire()\nstatus = subprocess.call(sys.argv[1:])\nlock.release()\nsys.exit(status)')
            peers.append((f'redis-py Lock, {waiters} waiters', [sys.executable, '-c', code, '@STAMP'], 120))
        for name, command, step in peers:
            try:
                median, figure = crowd('x', command, waiters, step)
                row(times(median, base), '1.25' if name.startswith('dlock') else '', name, figure)
            except RuntimeError as error:
                row('-', '', name, f'skipped: {error}')


def commands(redis):
    """What a crowd costs the server."""
    for waiters in (10, 1000):
        holder = subprocess.Popen(run(redis.url, '-k', 'm', '--', 'sleep', '1000'), env=CLEAN, start_new_session=True, **QUIET)
        until(lambda: redis.ask('EXISTS', 'dlock:m') == 1)
        crowd = []
        for _ in range(waiters):
            crowd.append(subprocess.Popen(run(redis.url, '-k', 'm', '-q', '-w', '--', 'true'), env=CLEAN, **QUIET))
        until(lambda: redis.ask('ZCARD', 'dlock.queue:{dlock:m}:dlock:m') == waiters, 120)
        time.sleep(2)
        before, began = redis.commands(), time.monotonic()
        time.sleep(8)
        each = (redis.commands() - before) / waiters / (time.monotonic() - began)
        row(f'{each:.2f}', '0.5', f'commands a second of each of {waiters} who wait', f'{each * waiters:.0f} in all')
        if waiters == 1000:
            sizes = [size for dlock in crowd[:50] if (size := pss_with_guard(dlock.pid))]
            row(f'{statistics.median(sizes) / 1024:.2f} MB', '1 MB', 'memory (PSS) of one who waits, with its guard', '')
        before, began = redis.commands(), time.monotonic()
        holder.terminate()
        holder.wait()
        for dlock in crowd:
            dlock.wait()
        took = time.monotonic() - began
        row(f'{(redis.commands() - before) / waiters:.2f}', '', f'commands a hand-over among {waiters}',
            f'{took:.1f} s; of those {each * took / 2:.2f} only say that somebody waits')


def pss_with_guard(pid):
    total = 0
    with contextlib.suppress(OSError):
        below = open(f'/proc/{pid}/task/{pid}/children').read().split()
        for one in [pid, *below]:
            total += int(re.search(r'^Pss:\s+(\d+)', open(f'/proc/{one}/smaps_rollup').read(), re.M).group(1))
    return total


def crash(redis):
    """From the end of the lease of a holder that was cut off to the next job's start."""
    over = []
    for _ in range(3):
        far = subprocess.Popen([sys.executable, '-c', f'import sys; sys.path.insert(0, {HERE!r}); sys.argv = ["kill.py"]; '
                                f'import importlib.util as u; s = u.spec_from_file_location("kill", {os.path.join(HERE, "kill.py")!r}); '
                                f'm = u.module_from_spec(s); sys.argv = ["kill.py", "proxy", "{redis.port}"]; s.loader.exec_module(m)'],
                               stdout=subprocess.PIPE, text=True)
        started.append(far)
        through = int(far.stdout.readline())
        mark = os.path.join(HOME, 'crash')
        with contextlib.suppress(FileNotFoundError):
            os.remove(mark)
        holder = start(run(f'redis://127.0.0.1:{through}', '-k', 'x', '-t', '3s', '--', 'sleep', '100'))
        until(lambda: redis.ask('EXISTS', 'dlock:x') == 1)
        waiter = start(run(redis.url, '-k', 'x', '-q', '-w', '--', compiled('stamp'), mark, '0', '0'))
        time.sleep(1.5)
        far.send_signal(signal.SIGSTOP)
        ends = time.monotonic() + redis.ask('PTTL', 'dlock:x') / 1000
        waiter.wait()
        over.append(int(open(mark).read().split()[0]) / 1e6 - ends * 1000)
        far.kill()
        holder.wait()
    row(f'{statistics.median(over):.0f} ms', '50 ms', 'after the lease of a holder that was cut off', f'worst {max(over):.0f} ms, of {len(over)}')


def looking(redis):
    """status, metrics and completion, with 10,000 locks held."""
    # Held by nobody in particular: what is looked at is the same.
    made = '''
        local now = redis.call('TIME')[1]
        local owner = { host = 'h', pid = 7, user = 'u', command = 'c' }
        for at = 0, 9999 do
            local name, token = 'dlock:n' .. at, string.format('%032x', at)
            local rest = '{' .. name .. '}:' .. name
            redis.call('SET', name, token, 'EX', 9000)
            redis.call('SET', 'dlock.fence:' .. rest, '7')
            redis.call('HSET', 'dlock.hold:' .. rest, token,
                cjson.encode({ phase = 'held', fence = '7', since = now .. '000000', ['until'] = (now + 9000) * 1000, cool = 0,
                    confirmed = true, waited = 0, owner = owner }))
            local ended = cjson.encode({ outcome = 'released', owner = owner, fence = '6', since = now * 1000, ended = now * 1000,
                waited = 0, job = { status = 0 } })
            for _ = 1, ARGV[1] do redis.call('LPUSH', 'dlock.log:' .. rest, ended) end
            for field in string.gmatch(ARGV[2], '%S+') do redis.call('HSET', 'dlock.stat:' .. rest, field, '7') end
        end'''
    redis.ask('CONFIG', 'SET', 'slowlog-log-slower-than', '500')
    for ends, totals, of in (('0', '', '10,000 locks held'),
                             ('64', 'waited.count waited.sum held.0 held.sum last.released succeeded last-job.succeeded',
                              '10,000 locks of long use')):
        redis.ask('EVAL', made, '0', ends, totals)
        look_at(redis, of)


def look_at(redis, of):
    redis.ask('SLOWLOG', 'RESET')
    line = f'dlock --store {redis.url} check n'
    for name, words, target in (('status', ['status', '--store', redis.url], '1 s'), ('metrics', ['metrics', '--store', redis.url], '0.3 s'),
                                ('completion', ['complete-keys', 'bash', line, 'n'], '0.3 s')):
        began = time.monotonic()
        out = subprocess.run([DLOCK, *words], env=CLEAN, capture_output=True, text=True)
        row(f'{time.monotonic() - began:.2f} s', target, f'{name} with {of}', f'{out.stdout.count(chr(10))} lines')
    slow = [entry for entry in redis.ask('SLOWLOG', 'GET', '50') if entry[3][0].upper() in ('EVAL', 'EVALSHA', 'SCAN')]
    row(f'{max([e[2] for e in slow], default=0) / 1000:.1f} ms', '5 ms', 'the longest that one of them stalled the server', '')


def server(redis):
    """What a server sustains, asked by dlock's own store code (benches/cycles.rs)."""
    def cycles(*words):
        out = subprocess.run([CYCLES, str(redis.port), *map(str, words)], env=CLEAN, capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr.strip())
        return [float(word) for word in out.stdout.split()]

    if not CYCLES:
        return row('-', '', 'cycles a second of the server', 'skipped: cargo bench did not build benches/cycles.rs')
    cycles('run', 1, 0.5)
    for keys in (1, 1000, 100000):
        busy, (done,) = redis.info('used_cpu_user') + redis.info('used_cpu_sys'), cycles('run', keys, 4)
        busy = redis.info('used_cpu_user') + redis.info('used_cpu_sys') - busy
        row(f'{done / busy:.0f}', '', f'cycles a second of one core of the server, {keys} keys', f'{busy / 4 * 100:.0f} % of a core busy; a cycle is an acquire and a release')
    redis.ask('FLUSHALL')
    for what, word, more in (('is idle', 'leave', 'the log and the totals with it'), ('is held', 'hold', ''), ('somebody waits for', 'queue', 'on top of being held')):
        before = redis.info('used_memory')
        cycles(word, 2000)
        row(f'{(redis.info("used_memory") - before) / 2000:.0f} B', '', f'memory of a key that {what}', more)
        if word == 'leave':
            redis.ask('FLUSHALL')
    redis.ask('FLUSHALL')
    failed, took = cycles('storm', 2000)
    row(f'{took:.2f} s', '1 s', '2,000 fresh connections, each a whole acquire', f'{failed:.0f} failed')
    return None


def binary(_):
    with tempfile.NamedTemporaryFile(dir=HOME) as out:
        shutil.copyfile(DLOCK, out.name)
        subprocess.run(['strip', out.name], check=False)
        row(f'{os.path.getsize(out.name) / 1e6:.2f} MB', '4 MB', 'the binary, with TLS, stripped', DLOCK)


class Postgres:
    """A PostgreSQL server of its own, started as somebody whom it lets start it."""

    def __init__(self):
        self.home, self.port = tempfile.mkdtemp(prefix='dlock-bench-'), port()
        os.chmod(self.home, 0o777)
        self.programs = max(glob.glob('/usr/lib/postgresql/*/bin'), default='')
        data = os.path.join(self.home, 'data')
        subprocess.run([*self.program('initdb'), '--username=app', '--auth=trust', '--locale=C', '-D', data], check=True, env=CLEAN, **QUIET)
        self.process = start([*self.program('postgres'), '-D', data, '-c', f'port={self.port}', '-c', 'listen_addresses=127.0.0.1', '-c',
                              f'unix_socket_directories={self.home}', '-c', 'max_connections=1000'])
        self.url, self.unix = f'postgres://app@127.0.0.1:{self.port}/postgres', f'postgres+unix://app@{self.home}/.s.PGSQL.{self.port}?db=postgres'
        self.psql = ['psql', '-XAtq', '-h', '127.0.0.1', '-p', str(self.port), '-U', 'app', 'postgres']
        until(lambda: subprocess.run([*self.psql, '-c', 'SELECT 1'], env=CLEAN, **QUIET).returncode == 0)

    def program(self, name):
        user = ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups', '--'] if os.geteuid() == 0 else []
        return [*user, os.path.join(self.programs, name)]

    def stop(self):
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


class Mysql:
    """A MariaDB server of its own."""

    def __init__(self):
        self.home, self.port = tempfile.mkdtemp(prefix='dlock-bench-'), port()
        data, sock = os.path.join(self.home, 'data'), os.path.join(self.home, 's')
        user = ['--user=root'] if os.geteuid() == 0 else []
        subprocess.run(['mariadb-install-db', '--no-defaults', *user, f'--datadir={data}', '--auth-root-authentication-method=normal',
                        '--skip-test-db'], check=True, env=CLEAN, **QUIET)
        self.process = start(['mariadbd', '--no-defaults', *user, f'--datadir={data}', f'--socket={sock}', f'--port={self.port}',
                              '--bind-address=127.0.0.1', '--skip-name-resolve', '--max-connections=1000'])
        root = ['mariadb', '--no-defaults', '-u', 'root', '-S', sock, '-e']
        made = "DROP USER IF EXISTS ''@localhost; CREATE USER app@'%'; GRANT ALL ON *.* TO app@'%'; CREATE DATABASE ops"
        until(lambda: subprocess.run([*root, made], env=CLEAN, **QUIET).returncode == 0)
        self.url, self.unix = f'mysql://app@127.0.0.1:{self.port}/ops', f'mysql+unix://app@{sock}?db=ops'
        self.client = ['mariadb', '--no-defaults', '-BN', '-h', '127.0.0.1', '-P', str(self.port), '-u', 'app']

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def database(server, what, alone, peers):
    """dlock beside what people do with a database alone: `alone`, named commands, round nothing and round `true`; and `peers`, which
    wait for a lock, each for a crowd of so many."""
    try:
        job = run(server.url, '-k', 'k', '--', 'true')
        if subprocess.run(job, env=CLEAN, **QUIET).returncode:
            return row('-', '', what, 'skipped: this dlock cannot; FEATURES=postgres,mysql,etcd ./bench builds one')
        named = [*alone, (f'dlock run, {what} by TCP', job)]
        if server.unix:
            named.append((f'dlock run, {what} by a Unix socket', run(server.unix, '-k', 'k', '--', 'true')))
        medians = pair([command for _, command in named])
        for (name, _), took in zip(named, medians):
            row(times(took, medians[0]), '1.5' if name.startswith('dlock') else '', name, f'{took / 1000:.2f} ms')
        for waiters in CROWDS[:2]:
            dlock = ('dlock', run(server.url, '-k', f'c{waiters}', '-q', '-w', '--', '@STAMP'), '5 ms')
            for name, command, target in (*((name, command, '') for name, command in peers), dlock):
                median, figure = crowd('x', command, waiters, 30)
                row(f'{median:.2f} ms', target, f'{name}, {waiters} waiters', figure)
    finally:
        server.stop()


def postgres(_):
    """Beside psql with an advisory lock round the command."""
    if not has('psql'):
        return
    server = Postgres()
    psql = ' '.join(server.psql)
    loop = 'DO $$ BEGIN WHILE NOT pg_try_advisory_lock(1) LOOP PERFORM pg_sleep(0.1); END LOOP; END $$'
    database(server, 'PostgreSQL',
             (('psql with pg_try_advisory_lock', [*server.psql, '-c', 'SELECT pg_try_advisory_lock(1)']),
              ('the same round true', [*server.psql, '-c', 'SELECT pg_try_advisory_lock(1)', '-c', r'\! true'])),
             (('psql, a loop on the advisory lock', ['sh', '-c', f'exec {psql} -c \'{loop}\' -c "\\! $*"', 'sh', '@STAMP']),
              ('psql, pg_advisory_lock', ['sh', '-c', f'exec {psql} -c "SELECT pg_advisory_lock(2)" -c "\\! $*"', 'sh', '@STAMP'])))


def mysql(_):
    """Beside the client of MariaDB with GET_LOCK round the command."""
    if not has('mariadb') or not has('mariadbd'):
        return
    server = Mysql()
    client, take = ' '.join(server.client), "SELECT GET_LOCK('k',0);"
    loop = "delimiter //\nBEGIN NOT ATOMIC WHILE NOT GET_LOCK('l',0) DO DO SLEEP(0.1); END WHILE; END//"
    database(server, 'MariaDB',
             (('mariadb with GET_LOCK', [*server.client, '-e', take]), ('the same round true', [*server.client, '-e', take + r' \! true'])),
             [(name, ['sh', '-c', f'exec {client} -e "{statement}\n\\! $*"', 'sh', '@STAMP'])
              for name, statement in (('mariadb, a loop on GET_LOCK', loop), ('mariadb, GET_LOCK', "SELECT GET_LOCK('w',1000);"))])


def etcd(_):
    """Beside etcdctl lock."""
    if not has('etcd', 'etcdctl'):
        return
    server = Etcd()
    database(server, 'etcd', [('etcdctl lock', server.lock('k', 'true'))], [('etcdctl lock', server.lock('w', '@STAMP'))])


PARTS = {part.__name__: part for part in (overhead, trips, handoff, commands, crash, server, looking, binary, postgres, mysql, etcd)}


def main(names):
    # A thousand who wait are two thousand processes, and as many connections.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    print(f'{"figure":>8}  {"target":>8}  what')
    for name in names or PARTS:
        redis = Redis()
        try:
            PARTS[name](redis)
        except (OSError, RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
            row('-', '', name, f'not measured: {error}')
        finally:
            redis.process.kill()
            redis.process.wait()


try:
    main(sys.argv[1:])
finally:
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(HOME, ignore_errors=True)
