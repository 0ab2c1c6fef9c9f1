//! The rpc-servers that a load may use. Only a worker connects to them, because llama.cpp ends a process when its
//! connection is lost.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use llama_sys::Backend;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::machine::{Gpu, GpuKind, UnusedGpu, UnusedReason};
use crate::worker::{Isolation, WorkerProcess};

/// The rpc-servers that a load may use.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Servers {
    /// Endpoints as the caller wrote them.
    pub(super) endpoints: Vec<String>,
    /// Whether the servers may be on other machines.
    pub(super) trusted: bool,
    /// Whether the load continues if a server does not answer. This is set after a worker has died.
    pub(super) may_be_gone: bool,
}

impl Servers {
    /// The isolation that a load with these servers needs. Fails if a server is on another machine, unless the network
    /// is trusted.
    pub(super) fn isolation(&self, isolation: Isolation) -> Result<Isolation, Error> {
        let outside = |endpoint: &&String| !self.trusted && !is_loopback(endpoint);
        if let Some(endpoint) = self.endpoints.iter().find(outside) {
            return Err(Error::UntrustedNetwork { endpoint: endpoint.clone() });
        }
        Ok(match isolation {
            Isolation::None if !self.endpoints.is_empty() => Isolation::Process(WorkerProcess::own_executable()),
            isolation => isolation,
        })
    }

    /// Adds the servers' devices to this process. Returns the missing devices, if the load may continue without them.
    pub(super) fn connect(&self) -> Result<Vec<UnusedGpu>, Error> {
        let backend = Backend::init()?;
        let mut gone = Vec::new();
        for endpoint in &self.endpoints {
            let is_known = |device: &llama_sys::Device| device.description() == *endpoint;
            if backend.devices().iter().any(is_known) {
                continue;
            }
            match backend.add_rpc_server(endpoint) {
                Ok(devices) => tracing::info!("{endpoint} has {} devices", devices.len()),
                Err(error) if self.may_be_gone => {
                    tracing::warn!("{error}; continuing without it");
                    let gpu = Gpu::new(endpoint.as_str()).kind(GpuKind::Remote).backend("RPC");
                    gone.push(UnusedGpu { gpu, reason: UnusedReason::NoServer { problem: error.to_string() } });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(gone)
    }
}

/// Whether all addresses of the endpoint are local. An invalid address is not refused here; the connection fails later.
fn is_loopback(endpoint: &str) -> bool {
    let addresses = endpoint.to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    addresses.iter().map(SocketAddr::ip).all(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Isolation, Servers};
    use crate::load::Error;

    #[test]
    fn servers_elsewhere_need_permission_and_local_ones_a_worker() {
        let servers =
            |endpoint: &str, trusted| Servers { endpoints: vec![endpoint.into()], trusted, ..Servers::default() };
        for (endpoint, trusted) in [("127.0.0.1:50052", false), ("[::1]:50052", false), ("192.0.2.7:50052", true)] {
            let isolation = servers(endpoint, trusted).isolation(Isolation::None).unwrap();
            assert!(matches!(isolation, Isolation::Process(_)), "{endpoint}");
        }
        for endpoint in ["192.0.2.7:50052", "0.0.0.0:50052"] {
            let refused = servers(endpoint, false).isolation(Isolation::None);
            assert!(matches!(refused, Err(Error::UntrustedNetwork { .. })), "{endpoint}");
        }
        assert_eq!(Servers::default().isolation(Isolation::None).unwrap(), Isolation::None);
    }
}
