//! The machines on which the runs of a night are started. As root each is a network namespace of its own, with a name of
//! its own and a cable to this machine that can be pulled; else all of them are this machine.

use crate::support::world::World;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

/// One machine. Dropping it takes its network away.
pub struct Host {
    /// What stands before a command that is to run there.
    pub words: Vec<OsString>,
    /// Where it finds this machine.
    pub gateway: IpAddr,
    /// Where it comes from.
    pub address: IpAddr,
    /// What somebody there names as the store.
    pub url: String,
    keeper: Option<(Child, String)>,
}

impl Host {
    /// This machine.
    pub fn here() -> Self {
        let here = Ipv4Addr::LOCALHOST.into();
        Self { words: Vec::new(), gateway: here, address: here, url: String::new(), keeper: None }
    }

    /// A machine with a network of its own; nothing where this machine does not let us make one.
    pub fn apart(world: &World, name: &str) -> Option<Self> {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let mut keeper = world.command("unshare");
        let script = "hostname \"$1\" && ip link set lo up && echo up && read -r _";
        keeper.args(["--net", "--uts", "sh", "-c", script, "sh", name]);
        keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = keeper.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take()?).read_line(&mut line).ok()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cable = format!("dl{}x{number}", std::process::id() % 100_000);
        // A long night has more rounds than there are such networks; those of the first rounds are free again.
        let [gateway, address] = [1, 2].map(|end| Ipv4Addr::new(10, 40 + number % 200, suite(), end));
        let (pid, enter) = (keeper.id().to_string(), Self::entrance(keeper.id()));
        let laid = line == "up\n"
            && ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid])
            && ip(&["addr", "add", &format!("{gateway}/30"), "dev", &cable])
            && ip(&["link", "set", &cable, "up"])
            && within(&enter, &["ip", "addr", "add", &format!("{address}/30"), "dev", "eth0"])
            && within(&enter, &["ip", "link", "set", "eth0", "up"]);
        let (gateway, address) = (gateway.into(), address.into());
        let host = Self { words: enter, gateway, address, url: String::new(), keeper: Some((keeper, cable)) };
        laid.then_some(host)
    }

    /// Has it find an address of this machine that is not on its cable.
    pub fn learn_way_to(&self, common: &Common) {
        if self.is_apart() {
            let (to, via) = (common.0.to_string(), self.gateway.to_string());
            assert!(within(&self.words, &["ip", "route", "add", &to, "via", &via]), "a way to {to}");
        }
    }

    /// Pulls the cable, or plugs it in again.
    pub fn plug(&self, is_in: bool) {
        if let Some((_, cable)) = &self.keeper {
            ip(&["link", "set", cable, if is_in { "up" } else { "down" }]);
        }
    }

    /// Whether its kernel has noticed that the cable is in, and is not about to give up a question for this machine's address
    /// that it asked while it was out.
    pub fn finds_gateway(&self) -> bool {
        if !self.is_apart() {
            return true;
        }
        let look = "ip -o link show dev eth0; ip neigh show dev eth0";
        let mut command = Command::new(&self.words[0]);
        let output = command.args(&self.words[1..]).args(["sh", "-c", look]).stdin(Stdio::null()).output();
        output.is_ok_and(|output| {
            let said = String::from_utf8_lossy(&output.stdout);
            said.contains("state UP") && !said.contains("INCOMPLETE")
        })
    }

    /// Whether it is a machine of its own.
    pub fn is_apart(&self) -> bool {
        self.keeper.is_some()
    }

    fn entrance(pid: u32) -> Vec<OsString> {
        ["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net"), format!("--uts=/proc/{pid}/ns/uts")]
            .map(OsString::from)
            .into()
    }
}

/// An address of this machine at which all hosts find it, for servers that tell everybody the same address of theirs. Dropping
/// it takes it away.
pub struct Common(Ipv4Addr);

impl Common {
    /// Nothing where this machine does not let us have one.
    pub fn new() -> Option<Self> {
        let address = Ipv4Addr::new(10, 39, suite(), 1);
        ip(&["addr", "add", &format!("{address}/32"), "dev", "lo"]).then_some(Self(address))
    }

    pub fn address(&self) -> IpAddr {
        self.0.into()
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        ip(&["addr", "del", &format!("{}/32", self.0), "dev", "lo"]);
    }
}

/// Suites that run side by side take networks of their own.
fn suite() -> u8 {
    u8::try_from(std::process::id() % 200).expect("it is smaller")
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some((keeper, _)) = &mut self.keeper {
            // The namespace goes with its last process, and the cable with it.
            drop(keeper.stdin.take());
            drop(keeper.wait());
        }
    }
}

fn ip(words: &[&str]) -> bool {
    succeeds(Command::new("ip").args(words))
}

fn within(enter: &[OsString], words: &[&str]) -> bool {
    succeeds(Command::new(&enter[0]).args(&enter[1..]).args(words))
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|end| end.success())
}
