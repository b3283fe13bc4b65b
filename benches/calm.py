#!/usr/bin/env python3
"""Shows how many jobs an outage of a store disturbs, and what the outage costs the server.

    calm.py DLOCK STORE outage HOLDERS TTL      the server is stopped (SIGSTOP) for 0.49 of the lease
    calm.py DLOCK STORE proxied HOLDERS TTL [socat]   the same with HAProxy (or socat) before each server
    calm.py DLOCK STORE leader HOLDERS TTL      the same with the leader alone, of three
    calm.py DLOCK STORE cut HOLDERS TTL RTT     all connections are cut once, on a line with this round trip
    calm.py DLOCK STORE idle HOLDERS TTL [AGE]  nothing happens for 20 s, measured AGE seconds after the last job began:
                                                a Java server compiles for two minutes
    calm.py DLOCK STORE queue HOLDERS TTL [AGE] the same, with one holder and the others waiting for its lock

STORE is redis, rediss (TLS), sentinel, cluster, quorum, postgres, pgbouncer, mysql, etcd, etcd3, zookeeper, zookeeper3 or file;
a cut is of stores with one server. The servers are started here, and all of them stopped. HOLDERS jobs hold a lock
each. Prints how many jobs were disturbed (an exit status before the end of the job), the new connections that the server
saw for each holder, the requests that the server counted (ZooKeeper: packets), and its processor time. Seconds throughout.
"""
import asyncio, glob, os, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.request

dlock, store, what, holders, ttl = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
rtt = float(sys.argv[6]) if what == 'cut' else 0
home = tempfile.mkdtemp(prefix='calm')
os.chmod(home, 0o777)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


port = free_port()
AS = {'postgres': ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups'] if os.geteuid() == 0 else []}
more, trio = [], []  # servers beside the first one; the ports of three


def start():
    """Starts the server; returns its process and the URL but for the port."""
    log = open(f'{home}/log', 'w')
    run = lambda *words: subprocess.Popen(words, stdout=log, stderr=log, cwd=home)
    redis = lambda port, *more: run('redis-server', '--port', str(port), '--save', '', '--maxclients', '9000', '--dir', home, *more)
    if store == 'redis':
        return redis(port), 'redis://127.0.0.1:%d'
    if store == 'rediss':
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', f'{home}/key', '-out', f'{home}/cert',
                        '-subj', '/CN=calm', '-addext', 'subjectAltName=IP:127.0.0.1', '-addext', 'basicConstraints=critical,CA:FALSE'], check=True, stderr=log)
        return (redis(0, '--tls-port', str(port), '--tls-cert-file', f'{home}/cert', '--tls-key-file', f'{home}/key', '--tls-auth-clients', 'no'),
                f'rediss://127.0.0.1:%d?ca={home}/cert')
    if store == 'quorum':
        ports = [port, free_port(), free_port()]
        more.extend(redis(other) for other in ports[1:])
        return redis(port), 'redis+quorum://' + ','.join(f'127.0.0.1:{one}' for one in ports)
    if store == 'cluster':
        ports = [port, free_port(), free_port()]
        servers = [redis(one, '--cluster-enabled', 'yes', '--cluster-config-file', f'nodes{one}', '--cluster-port', str(free_port())) for one in ports]
        more.extend(servers[1:])
        time.sleep(1)
        hosts = [f'127.0.0.1:{one}' for one in ports]
        subprocess.run(['redis-cli', '--cluster', 'create', *hosts, '--cluster-yes'], check=True, stdout=log)
        return servers[0], 'redis+cluster://' + ','.join(hosts)
    if store == 'sentinel':
        replica, sentinels = free_port(), [free_port() for _ in range(3)]
        master = redis(port)
        time.sleep(0.5)
        more.append(redis(replica, '--replicaof', '127.0.0.1', str(port)))
        for one in sentinels:
            with open(f'{home}/sentinel{one}', 'w') as conf:
                conf.write(f'port {one}\nsentinel monitor m 127.0.0.1 {port} 2\nsentinel down-after-milliseconds m 60000\n')
            more.append(run('redis-server', f'{home}/sentinel{one}', '--sentinel'))
        time.sleep(3)
        return master, 'redis+sentinel://' + ','.join(f'127.0.0.1:{one}' for one in sentinels) + '/m'
    if store in ('postgres', 'pgbouncer'):
        bin = sorted(glob.glob('/usr/lib/postgresql/*/bin'))[-1]
        with open(f'{home}/pw', 'w') as pw:
            pw.write('secret')
        os.chmod(f'{home}/pw', 0o644)
        subprocess.run([*AS['postgres'], f'{bin}/initdb', '-U', 'app', '-A', 'scram-sha-256', f'--pwfile={home}/pw', '--locale=C', '-D', f'{home}/data'],
                       check=True, stdout=log, cwd='/')
        own = free_port() if store == 'pgbouncer' else port
        server = run(*AS['postgres'], f'{bin}/postgres', '-D', f'{home}/data', '-p', str(own), '-k', home, '-c', 'max_connections=1000', '-c', 'fsync=off',
                     '-c', 'listen_addresses=127.0.0.1')
        if store == 'pgbouncer':
            with open(f'{home}/bouncer', 'w') as conf:
                conf.write(f'[databases]\npostgres = host=127.0.0.1 port={own} user=app password=secret\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n'
                           f'auth_type = trust\nauth_file = {home}/users\npool_mode = transaction\nmax_client_conn = 2000\ndefault_pool_size = 20\nunix_socket_dir =\n')
            with open(f'{home}/users', 'w') as users:
                users.write('"app" ""\n')
            more.append(server)
            server = run(*AS['postgres'], 'pgbouncer', f'{home}/bouncer')
            return server, 'postgres://app@127.0.0.1:%d/postgres'
        return server, 'postgres://app:secret@127.0.0.1:%d/postgres'
    if store == 'mysql':
        user = ['--user=root'] if os.geteuid() == 0 else []
        subprocess.run(['mariadb-install-db', '--no-defaults', f'--datadir={home}/data', '--auth-root-authentication-method=normal', *user], check=True,
                       stdout=log, stderr=log)
        server = run('mariadbd', '--no-defaults', f'--datadir={home}/data', f'--socket={home}/s', f'--port={port}', '--bind-address=127.0.0.1',
                     '--skip-name-resolve', '--max-connections=1000', '--innodb-flush-log-at-trx-commit=2', *user)
        said = "CREATE USER app@'127.0.0.1'; CREATE DATABASE ops; GRANT ALL ON ops.* TO app@'127.0.0.1'"
        while subprocess.run(['mariadb', '-S', f'{home}/s', '-u', 'root', '-e', said], stderr=log).returncode:
            time.sleep(0.1)
        return server, 'mysql://app@127.0.0.1:%d/ops'
    if store in ('etcd', 'etcd3'):
        members = [(one, free_port()) for one in [port] + [free_port() for _ in range(2 if store == 'etcd3' else 0)]]
        trio.extend(members)
        cluster = ','.join(f'm{one}=http://127.0.0.1:{peer}' for one, peer in members)
        servers = [run('etcd', '--name', f'm{one}', '--data-dir', f'{home}/data{one}', '--listen-client-urls', f'http://127.0.0.1:{one}', '--advertise-client-urls',
                       f'http://127.0.0.1:{one}', '--listen-peer-urls', f'http://127.0.0.1:{peer}', '--initial-advertise-peer-urls', f'http://127.0.0.1:{peer}',
                       '--initial-cluster', cluster, '--unsafe-no-fsync') for one, peer in members]
        more.extend(servers[1:])
        time.sleep(3)
        return servers[0], 'etcd://127.0.0.1:%d' + ''.join(f',127.0.0.1:{one}' for one, _ in members[1:])
    if store in ('zookeeper', 'zookeeper3'):
        members = [(one, free_port(), free_port()) for one in [port] + [free_port() for _ in range(2 if store == 'zookeeper3' else 0)]]
        jars = ':'.join(f'/usr/share/java/{jar}.jar' for jar in ('zookeeper', 'slf4j-nop', 'netty-codec', 'netty-resolver'))
        servers = []
        trio.extend(members)
        for n, (one, _, _) in enumerate(members):
            os.makedirs(f'{home}/data{n}')
            with open(f'{home}/data{n}/myid', 'w') as myid:
                myid.write(f'{n}')
            with open(f'{home}/zoo{n}.cfg', 'w') as cfg:
                cfg.write(f'dataDir={home}/data{n}\nclientPort={one}\ntickTime=200\ninitLimit=50\nsyncLimit=25\nminSessionTimeout=400\nmaxSessionTimeout=90000000\n'
                          'maxClientCnxns=0\nadmin.enableServer=false\nclientPortAddress=127.0.0.1\n')
                if len(members) > 1:
                    cfg.writelines(f'server.{m}=127.0.0.1:{peer}:{vote}\n' for m, (_, peer, vote) in enumerate(members))
            servers.append(run('java', '-Xmx256m', '-XX:+UseSerialGC', '-Dzookeeper.forceSync=no', '-Dzookeeper.jmx.log4j.disable=true', '-cp', jars,
                               'org.apache.zookeeper.server.quorum.QuorumPeerMain', f'zoo{n}.cfg'))
        more.extend(servers[1:])
        return servers[0], 'zookeeper://127.0.0.1:%d' + ''.join(f',127.0.0.1:{one}' for one, _, _ in members[1:]) + '/c'
    return None, f'file:{home}/locks'


class Line:
    """A long line: what is sent arrives half a round trip later. It can be cut."""

    def __init__(self):
        self.port, self.loop, self.writers = free_port(), asyncio.new_event_loop(), set()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.start_server(self.serve, '127.0.0.1', self.port))
        self.loop.run_forever()

    async def serve(self, reader, writer):
        await asyncio.sleep(rtt)  # the handshake
        there, to = await asyncio.open_connection('127.0.0.1', port)
        self.writers |= {writer, to}
        await asyncio.gather(self.pump(reader, to), self.pump(there, writer))

    async def pump(self, reader, writer):
        try:
            while data := await reader.read(65536):
                self.loop.call_later(rtt / 2, lambda data=data: writer.is_closing() or writer.write(data))
        except OSError:
            pass
        self.loop.call_later(rtt / 2, writer.close)

    def cut(self):
        self.loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self.writers])


def behind_proxies(url):
    """Starts a TCP proxy before each server; returns its processes and the URL through it."""
    log, proxies = open(f'{home}/proxy', 'w'), []
    with open(f'{home}/haproxy', 'w') as cfg:
        cfg.write('global\nmaxconn 8000\ndefaults\nmode tcp\ntimeout connect 5s\ntimeout client 1h\ntimeout server 1h\n')
        for to in dict.fromkeys(re.findall(r'127\.0\.0\.1:(\d+)', url)):
            at = free_port()
            url = url.replace(f':{to}', f':{at}')
            cfg.write(f'listen p{at}\nbind 127.0.0.1:{at}\nserver s 127.0.0.1:{to}\n')
            if 'socat' in sys.argv:
                words = ['socat', f'TCP-LISTEN:{at},bind=127.0.0.1,fork,reuseaddr,backlog=1024', f'TCP:127.0.0.1:{to}']
                proxies.append(subprocess.Popen(words, stdout=log, stderr=log))
    if not proxies:
        proxies.append(subprocess.Popen(['haproxy', '-db', '-f', f'{home}/haproxy'], stdout=log, stderr=log))
    time.sleep(1)
    return proxies, url


def tree(pid):
    kids = subprocess.run(['ps', '-o', 'pid=', '--ppid', str(pid)], capture_output=True, text=True).stdout.split()
    return [pid] + [p for kid in kids for p in tree(int(kid))]


def cpu(pid):
    """Processor time of a process and what it has started, ended ones too."""
    total = 0
    for p in tree(pid):
        try:
            fields = open(f'/proc/{p}/stat').read().rsplit(')', 1)[1].split()
            total += sum(map(int, fields[11:15] if p == pid else fields[11:13]))
        except OSError:
            pass
    return total / os.sysconf('SC_CLK_TCK')


def accepted():
    names, values = [l.split() for l in open('/proc/net/snmp') if l.startswith('Tcp:')]
    return int(values[names.index('PassiveOpens')])


def reachable():
    try:
        socket.create_connection(('127.0.0.1', port), 1).close()
        return True
    except OSError:
        return False


def requests():
    """How many requests the server has counted since its start; None where it cannot be asked."""
    ask = lambda *words, **more: subprocess.run(words, capture_output=True, text=True, check=True, **more).stdout
    if store in ('redis', 'cluster', 'quorum', 'sentinel'):
        return int(re.search(r'total_commands_processed:(\d+)', ask('redis-cli', '-p', str(port), 'INFO', 'stats'))[1])
    if store == 'mysql':
        return int(ask('mariadb', '-S', f'{home}/s', '-u', 'root', '-NBe', "SHOW GLOBAL STATUS LIKE 'Questions'").split()[1])
    if store == 'postgres':
        said = 'SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database'
        return int(ask('psql', '-h', '127.0.0.1', '-p', str(port), '-U', 'app', '-Atc', said, 'postgres', env={**os.environ, 'PGPASSWORD': 'secret'}))
    if store in ('etcd', 'etcd3'):
        said = urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics').read().decode()
        return sum(int(float(count)) for count in re.findall(r'^grpc_server_msg_received_total\{.*\} (\S+)$', said, re.M))
    if store in ('zookeeper', 'zookeeper3'):
        with socket.create_connection(('127.0.0.1', port)) as s:
            s.sendall(b'srvr')
            return int(re.search(rb'Received: (\d+)', s.makefile('rb').read())[1])


def leader():
    """Which of three servers leads."""
    for at, (one, *_) in enumerate(trio):
        if store == 'etcd3':
            said = urllib.request.urlopen(urllib.request.Request(f'http://127.0.0.1:{one}/v3/maintenance/status', b'{}')).read().decode()
            if re.search(r'"member_id":"(\d+)"', said)[1] == re.search(r'"leader":"(\d+)"', said)[1]:
                return [server, *more][at]
        else:
            with socket.create_connection(('127.0.0.1', one)) as s:
                s.sendall(b'srvr')
                if b'Mode: leader' in s.makefile('rb').read():
                    return [server, *more][at]
    sys.exit('nobody leads')


server, url = start()
while server and not reachable():
    time.sleep(0.1)
time.sleep(1)
line = Line() if what == 'cut' else None
url = url % (line.port if line else port) if '%' in url else url
proxies, url = behind_proxies(url) if what == 'proxied' else ([], url)
environment = {**os.environ, 'DLOCK_STORE': url, 'NO_COLOR': '1'}
brief = ['--max-lease', str(max(ttl, 10))] if store == 'quorum' else []  # a new master counts after this long
try:
    first = subprocess.run([dlock, 'run', *brief, '-t', str(min(ttl, 10)), '-k', 'first', '-w', '60', '--', 'true'], env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first
    jobs = []
    for n in range(holders):
        err = open(f'{home}/err{n}', 'w')
        key, patience = ('k', '600') if what == 'queue' else (f'k{n}', '60')
        jobs.append(subprocess.Popen([dlock, 'run', *brief, '-k', key, '-t', str(ttl), '-w', patience, '--', 'sh', '-c', f'touch {home}/up{n}; exec sleep 1000'], env=environment, stderr=err))
        time.sleep(0.02)
    while len(glob.glob(f'{home}/up*')) < (1 if what == 'queue' else holders):
        time.sleep(0.1)
    time.sleep(float(sys.argv[6]) if what in ('idle', 'queue') and len(sys.argv) > 6 else 1.2 + ttl / 2)
    asked = requests() if what in ('idle', 'queue') else None
    before, used, began = accepted(), cpu(server.pid) if server else 0, time.time()
    if what in ('outage', 'proxied', 'leader'):
        stopped = [pid for one in ([leader()] if what == 'leader' else [server, *more]) for pid in tree(one.pid)]
        for pid in stopped: os.kill(pid, signal.SIGSTOP)
        time.sleep(0.49 * ttl)
        for pid in stopped: os.kill(pid, signal.SIGCONT)
        time.sleep(ttl)
    elif what == 'cut':
        line.cut()
        time.sleep(1.5 * ttl)
    else:
        time.sleep(20)
    took = time.time() - began
    asked = f'{(requests() - asked) / took:.0f} requests a second, ' if asked is not None else ''
    gone = [n for n, job in enumerate(jobs) if job.poll() is not None]
    connections = (accepted() - before) / holders / (2 if line or proxies else 1)
    cost = (cpu(server.pid) - used) if server else 0
    print(f'{store} {what} {holders} holders ttl {ttl:g}' + (f' rtt {rtt:g}' if line else '') +
          f': {len(gone)} disturbed, {connections:.1f} new connections each, {asked}server {cost:.2f} s of processor in {took:.0f} s ({100 * cost / took:.1f} %), load {os.getloadavg()[0]:.1f}')
    for n in gone[:2]:
        print('   ', open(f'{home}/err{n}').read().strip()[-600:])
finally:
    for pid in ([p for job in jobs for p in tree(job.pid)] if 'jobs' in globals() else []):
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    for one in [server, *more, *proxies] if server else []:
        for pid in tree(one.pid):
            try: os.kill(pid, signal.SIGCONT); os.kill(pid, signal.SIGKILL)
            except OSError: pass
        one.wait()
    shutil.rmtree(home, ignore_errors=True)
