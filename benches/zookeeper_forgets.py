#!/usr/bin/env python3
"""zookeeper_forgets.py [ROUNDS]: does an ensemble of ZooKeeper forget what it has acknowledged? In each round

- one of three servers is away, and the other two acknowledge writes;
- both are killed. One of them comes back, and the one that was away: that one is told what it lacks;
- it is killed as soon as it notes the new epoch, or begins a new log, and the other one with it;
- it comes back with the third one, and then the second one comes back.

More than half of the servers had each write on their disks, so all of it must be there at the end. In ZooKeeper before 3.8.5
and 3.9.2 a server notes the epoch before it has written what it is told (ZOOKEEPER-4785). Killed in between, it wins the
election against the one that has more, and makes that one drop it. Needs kazoo and Debian's zookeeper, or ZOOKEEPER_JARS.
"""
import os, random, socket, subprocess, sys, tempfile, time
from kazoo.client import KazooClient

JARS = os.environ.get("ZOOKEEPER_JARS", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar")
JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true", "-cp", JARS,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]
SETTINGS = ["tickTime=500", "initLimit=20", "syncLimit=10", "admin.enableServer=false", "4lw.commands.whitelist=*",
            "clientPortAddress=127.0.0.1", "dataDir=data"]
PORT = int(os.environ.get("PORT", "12180"))
WITHIN = 30


def wait(what, is_so):
    end = time.monotonic() + WITHIN
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {WITHIN} s")


class Server:
    def __init__(self, home, number):
        self.home, self.port, self.child = f"{home}/{number}", PORT + number, None
        os.makedirs(self.home + "/data")
        members = [f"server.{n}=127.0.0.1:{PORT + 10 + n}:{PORT + 20 + n}" for n in (1, 2, 3)]
        with open(self.home + "/zoo.cfg", "w") as file:
            file.write("\n".join(SETTINGS + [f"clientPort={self.port}"] + members))
        with open(self.home + "/data/myid", "w") as file:
            file.write(str(number))

    def start(self):
        with open(self.home + "/log", "a") as log:
            self.child = subprocess.Popen(JAVA, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        if self.child:
            self.child.kill()
            self.child.wait()
        self.child = None

    def serves(self):
        time.sleep(0.05)
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as stream:
                stream.sendall(b"srvr")
                return "Mode: " in stream.makefile().read()
        except OSError:
            return False

    def epoch(self):
        try:
            with open(self.home + "/data/version-2/currentEpoch") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def log(self):
        return [name for name in os.listdir(self.home + "/data/version-2") if name.startswith("log.")]

    def client(self):
        client = KazooClient(f"127.0.0.1:{self.port}")
        client.start(30)
        return client

    def names(self):
        client = self.client()
        client.sync("/")
        names = client.get_children("/")
        client.stop()
        client.close()
        return set(names)


def serve(*servers):
    wait("they serve", lambda: all(server.serves() for server in servers))


def play(servers, noted):
    """How many writes were acknowledged, and how many of them each server has at the end."""
    for server in servers:
        server.start()
    serve(*servers)
    client = servers[0].client()
    # Who has nothing at all is sent everything in another way.
    client.create("/before")
    wait("all have it", lambda: all("before" in server.names() for server in servers))
    client.stop()
    late, second, third = random.sample(servers, 3)
    late.kill()
    serve(second, third)
    client = second.client()
    written = {client.create(f"/n{number}").strip("/") for number in range(20)}
    client.stop()
    second.kill()
    third.kill()
    before = noted(late)
    late.start()
    second.start()
    wait("it is told", lambda: noted(late) not in (before, ""))
    late.kill()
    second.kill()
    late.start()
    third.start()
    serve(late, third)
    second.start()
    serve(*servers)
    return len(written), [len(written & server.names()) for server in (late, third, second)]


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
lost = 0
for at in range(rounds):
    with tempfile.TemporaryDirectory() as home:
        servers = [Server(home, number) for number in (1, 2, 3)]
        moment = [Server.epoch, Server.log][at % 2]
        try:
            written, left = play(servers, moment)
            lost += min(left) < written
            said = f"{written} acknowledged, {left} left"
        except TimeoutError as error:
            # One that was killed before its new log had a head does not start any more.
            said = error
        finally:
            for server in servers:
                server.kill()
    print(f"killed at a new {moment.__name__}: {said}", flush=True)
print(f"{lost} of {rounds} rounds lost what was acknowledged")
sys.exit(lost > 0)
