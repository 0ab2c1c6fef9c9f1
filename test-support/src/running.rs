//! A process that a test has started.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// A process that is killed when this value is dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Running {
    /// Starts a server at a port that was free just before, and waits until somebody listens there. Another process may
    /// take the port first: the server then ends, and is started again at another port.
    pub fn at_a_free_port(command: impl Fn(SocketAddr) -> Command) -> (Self, SocketAddr) {
        for _ in 0..10 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut server = Self(command(address).spawn().unwrap());
            while server.try_wait().unwrap().is_none() {
                if is_listening(address) {
                    return (server, address);
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("the server ends each time that it is started");
    }

    /// Bytes of the process's memory by this key of `/proc/PID/status`, such as `VmRSS` or `VmHWM` (Linux). `None` if
    /// the system does not report them.
    pub fn memory(&self, key: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    }
}

/// Whether somebody listens at this address. If nobody does, a connection may get this very port for its own end, and
/// reach itself.
fn is_listening(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != address))
}
