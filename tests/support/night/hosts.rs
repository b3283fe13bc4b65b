//! The machines of a night's runs. As root each is a network namespace with a name of its own and a
//! cable to this machine that can be pulled; otherwise all of them are this machine.

use crate::support::world::World;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

/// One machine. Dropping it removes its network.
pub struct Host {
    /// The words before a command that run it there.
    pub words: Vec<OsString>,
    /// The address of this machine, as the host sees it.
    pub gateway: IpAddr,
    /// The host's own address.
    pub address: IpAddr,
    /// The URL of the store on this host.
    pub url: String,
    keeper: Option<(Child, String)>,
}

impl Host {
    /// This machine.
    pub fn here() -> Self {
        let here = Ipv4Addr::LOCALHOST.into();
        Self { words: Vec::new(), gateway: here, address: here, url: String::new(), keeper: None }
    }

    /// A machine with a network of its own. Returns None where this machine does not allow one.
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
        // A long night has more rounds than there are such networks; those of the first rounds are
        // free again by then.
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

    /// Adds a route to an address of this machine that is not on its cable.
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

    /// Whether the host's kernel has noticed that the cable is in, and has no ARP request for this
    /// machine's address left from before that is about to fail.
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

    /// Whether the host has a network of its own.
    pub fn is_apart(&self) -> bool {
        self.keeper.is_some()
    }

    fn entrance(pid: u32) -> Vec<OsString> {
        ["nsenter".to_owned(), format!("--net=/proc/{pid}/ns/net"), format!("--uts=/proc/{pid}/ns/uts")]
            .map(OsString::from)
            .into()
    }
}

/// An address of this machine that all hosts can reach, for servers that announce one address to
/// all clients. Dropping it removes the address.
pub struct Common(Ipv4Addr);

impl Common {
    /// Returns None where this machine does not allow one.
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

/// Concurrent suites take networks of their own.
fn suite() -> u8 {
    u8::try_from(std::process::id() % 200).expect("it is smaller")
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some((keeper, _)) = &mut self.keeper {
            // The namespace is removed with its last process, and the cable with it.
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
