//! HAProxy before a server: a TCP proxy as users have it.

use super::redis::next_port;
use super::wait::wait_until;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The proxy. Dropping it kills it.
pub struct HaProxy {
    port: u16,
    child: Child,
}

impl HaProxy {
    /// A proxy in front of a server's port. Its settings are in `home`.
    pub fn before(home: &Path, server: u16) -> Self {
        let (port, settings) = (next_port(), home.join("haproxy.cfg"));
        let text = format!(
            "global\nmaxconn 1000\ndefaults\nmode tcp\ntimeout connect 5s\ntimeout client 1h\ntimeout server 1h\n\
             listen before\nbind 127.0.0.1:{port}\nserver it 127.0.0.1:{server}\n"
        );
        fs::write(&settings, text).expect("a file");
        // Not in everybody's PATH on Debian.
        let place = "/usr/sbin/haproxy";
        let mut command = Command::new(if Path::new(place).exists() { place } else { "haproxy" });
        command.arg("-db").arg("-f").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("haproxy, which ./test installs");
        let proxy = Self { port, child };
        wait_until("HAProxy listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        proxy
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
