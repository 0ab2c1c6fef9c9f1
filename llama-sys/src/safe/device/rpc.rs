//! Devices of other machines, through the client and the server of llama.cpp's RPC backend.
//!
//! llama.cpp ends the process if a connection fails. So this module first checks that a server answers, and that it
//! speaks the same version of the protocol.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::backend::Backend;
use super::{Device, registry};
use crate::raw;
use crate::safe::call::{self, Error};

/// How long an rpc-server may take to accept a connection. The same time applies to its answer to the first message.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first message: its number, then the length of the client's capabilities (ggml-rpc.cpp, `RPC_CMD_HELLO`;
/// transport.h, `RPC_CONN_CAPS_SIZE`).
const HELLO: u8 = 14;
const CAPS: usize = 24;

impl Backend {
    /// Adds the devices of another machine, whose `rpc-server` listens at `endpoint` (`host:port`). Needs the `rpc`
    /// feature. A server serves one client at a time.
    ///
    /// If the connection drops later, llama.cpp ends the process.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] for an endpoint where no server listens, where the server does not answer within
    /// five seconds, or where it is not an rpc-server of this version; [`Error::Call`] if this build has no RPC
    /// backend.
    pub fn add_rpc_server(self, endpoint: &str) -> Result<Vec<Device>, Error> {
        let refused = |reason| Error::parameter("endpoint", endpoint, reason);
        let theirs = version(endpoint).map_err(refused)?;
        let mut ours = [0; 3];
        // SAFETY: writes three numbers.
        unsafe { raw::shim_rpc_protocol(ours.as_mut_ptr()) };
        // The last number changes with the list of operations.
        if theirs != ours {
            let [a, b, c] = theirs;
            let [x, y, z] = ours;
            let reason =
                format!("the server speaks version {a}.{b}.{c} of the protocol, and this build speaks {x}.{y}.{z}");
            return Err(refused(reason));
        }
        let text = address(endpoint)?;
        let _changing = registry::changing()?;
        let reg = call::accepted(
            // SAFETY: a NUL-terminated address and a valid error slot.
            |error| unsafe { raw::shim_rpc_add_server(text.as_ptr(), error) },
            |reg| !reg.is_null(),
        )
        .map_err(|failure| Error::Call { what: "adding an rpc-server", failure })?;
        // SAFETY: `reg` was just registered and lives until the process ends.
        let count = unsafe { raw::ggml_backend_reg_dev_count(reg) };
        // SAFETY: the indices are below the count.
        let device = |index| Device::from_raw(unsafe { raw::ggml_backend_reg_dev_get(reg, index) });
        Ok((0..count).filter_map(device).collect())
    }

    /// Serves devices of this machine to other machines, one client after the other, as llama.cpp's `rpc-server` does.
    /// A CPU device computes with `threads` threads. Needs the `rpc` feature. Anyone who reaches the endpoint
    /// (`address:port`) can read and write this process's memory: there is no authentication.
    ///
    /// # Errors
    ///
    /// The call returns only with an error. [`Error::InvalidParameter`] for an endpoint at which the process cannot
    /// listen, and when the server ends. [`Error::Call`] if this build has no RPC backend.
    pub fn serve_rpc(self, endpoint: SocketAddr, devices: &[Device], threads: usize) -> Error {
        // If llama.cpp's server cannot listen, it only prints a message. So listening is tried here first.
        if let Err(error) = std::net::TcpListener::bind(endpoint) {
            return Error::parameter("endpoint", endpoint, error.to_string());
        }
        let text = match address(&endpoint.to_string()) {
            Ok(text) => text,
            Err(error) => return error,
        };
        let mut devices: Vec<_> = devices.iter().map(Device::as_ptr).collect();
        let (list, count) = (devices.as_mut_ptr(), devices.len());
        // SAFETY: a NUL-terminated address, a list of `count` devices, which live until the process ends, and a valid
        // error slot.
        let served = call::accepted(
            |error| unsafe { raw::shim_rpc_serve(text.as_ptr(), threads, list, count, error) },
            |&has_rpc| has_rpc,
        );
        match served {
            Ok(_) => Error::parameter("endpoint", endpoint, "the server has ended"),
            Err(failure) => Error::Call { what: "serving devices", failure },
        }
    }
}

fn address(endpoint: &str) -> Result<CString, Error> {
    CString::new(endpoint).map_err(|_| Error::parameter("endpoint", endpoint, "an address must not contain a NUL byte"))
}

/// The version of the protocol that a server speaks, or the reason why the server gave no answer.
fn version(endpoint: &str) -> Result<[u8; 3], String> {
    let addresses = endpoint.to_socket_addrs().map_err(|e| format!("an endpoint must be written as host:port: {e}"))?;
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return hello(stream).map_err(|error| unanswered(&error)),
            Err(e) => last = format!("no server listens there: {e}"),
        }
    }
    Err(last)
}

fn unanswered(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let seconds = PATIENCE.as_secs();
            format!(
                "the server did not answer within {seconds} s: an rpc-server serves one client at a time, and may be busy"
            )
        }
        _ => format!("the program that listens there is not an rpc-server: {error}"),
    }
}

/// Sends the first message, and reads the answer to it.
fn hello(mut stream: TcpStream) -> io::Result<[u8; 3]> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut message = vec![HELLO];
    message.extend((CAPS as u64).to_le_bytes());
    message.extend([0; CAPS]);
    stream.write_all(&message)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    // The answer consists of the version, a byte of padding, and the server's capabilities.
    if u64::from_le_bytes(length) != 4 + CAPS as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its first answer has an unexpected length"));
    }
    let mut version = [0; 3];
    stream.read_exact(&mut version)?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::{CAPS, version};

    /// The result of `version` if a server answers the first message with these bytes.
    fn version_of(answer: &'static [u8]) -> Result<[u8; 3], String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 9 + CAPS]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let version = version(&endpoint);
        server.join().unwrap();
        version
    }

    #[test]
    fn the_version_of_a_server_is_read_and_other_answers_are_refused() {
        assert_eq!(version_of(&[28, 0, 0, 0, 0, 0, 0, 0, 6, 1, 2]), Ok([6, 1, 2]));
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[28, 0, 0, 0, 0, 0, 0, 0, 7], &[]] {
            let refused = version_of(answer).unwrap_err();
            assert!(refused.starts_with("the program that listens there is not an rpc-server"), "{refused}");
        }
    }
}
