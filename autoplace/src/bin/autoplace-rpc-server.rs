//! Makes this machine's devices available to loads on other machines. This is llama.cpp's rpc-server, in the version
//! with which this library is built.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use llama_sys::{Backend, Device};

const USAGE: &str = "usage: autoplace-rpc-server [--trusted-network] [HOST:PORT [DEVICE..]]

Serves DEVICEs (CUDA0, CPU; default: all GPUs, or the CPU if there is none) at HOST:PORT (default: 127.0.0.1:50052) to
one load at a time. Anybody who reaches the server can run code here: there is no authentication. It listens beyond this
machine only with --trusted-network; a tunnel is safer (ssh -L 50052:127.0.0.1:50052 HOST).";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let is_trusted = words.iter().any(|word| word == "--trusted-network");
    words.retain(|word| word != "--trusted-network");
    let Err(error) = serve(&words, is_trusted);
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn serve(words: &[String], is_trusted: bool) -> Result<std::convert::Infallible, Box<dyn std::error::Error>> {
    if let Some(flag) = words.iter().find(|word| word.starts_with('-')) {
        return Err(format!("{flag} is not an option\n{USAGE}").into());
    }
    let (endpoint, names) = words.split_first().map_or(("127.0.0.1:50052", &[][..]), |(first, rest)| (first, rest));
    // llama.cpp's server listens at IPv4 addresses (transport.cpp, `socket_t::create_server`).
    let mut addresses = endpoint.to_socket_addrs().map_err(|error| format!("{endpoint}: {error}"))?;
    let address = addresses.find(SocketAddr::is_ipv4).ok_or_else(|| format!("{endpoint}: no IPv4 address"))?;
    if !address.ip().is_loopback() && !is_trusted {
        return Err(format!(
            "{address} can be reached from other machines: allow this with --trusted-network\n{USAGE}"
        )
        .into());
    }
    let backend = Backend::init()?;
    let all = backend.devices();
    let of =
        |name: &String| all.iter().find(|device| device.name() == *name).cloned().ok_or_else(|| missing(name, &all));
    let mut devices: Vec<Device> = names.iter().map(of).collect::<Result<_, _>>()?;
    if devices.is_empty() {
        devices = all.iter().filter(|device| device.is_gpu()).cloned().collect();
    }
    if devices.is_empty() {
        devices = all;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Err(backend.serve_rpc(address, &devices, threads).into())
}

fn missing(name: &str, all: &[Device]) -> String {
    let names: Vec<String> = all.iter().map(Device::name).collect();
    format!("there is no device {name}; the devices are {}", names.join(", "))
}
