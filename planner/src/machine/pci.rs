//! PCI addresses, which tell identical cards apart. Different drivers report the same address for a card.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ParseError;

/// The position of a card on the PCI bus: domain, bus, device, function.
///
/// Sources write an address differently: NVML `00000000:01:00.0` (eight digits of domain, upper case), ggml
/// `0000:01:00.0` (lower case), ggml's virtual CUDA devices `0000:01:00.0-v1`, older tools `01:00.0`. All of them parse
/// to the same value; `Display` and `serde` write `0000:01:00.0`, as Linux and ggml do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciId {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciId {
    /// An address from its parts. `device` has five bits and `function` three; higher bits are dropped.
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Self {
        Self { domain, bus, device: device & 0x1f, function: function & 0x7 }
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl FromStr for PciId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let what = "not a PCI address such as 0000:01:00.0";
        parse(text).ok_or_else(|| ParseError::new(text, what))
    }
}

impl TryFrom<String> for PciId {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<PciId> for String {
    fn from(id: PciId) -> Self {
        id.to_string()
    }
}

fn parse(text: &str) -> Option<PciId> {
    // ggml-cuda.cu marks virtual devices on one card with a suffix: "-v0", "-v1", ...
    let address = text.trim().split('-').next()?;
    let (address, function) = address.rsplit_once('.').unwrap_or((address, "0"));
    let mut parts = address.rsplit(':');
    let device = hex(parts.next()?, 2).filter(|&device| device <= 0x1f)?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
    let function = hex(function, 1).filter(|&function| function <= 7)?;
    let byte = |number| u8::try_from(number).ok();
    let id = PciId::new(domain, byte(bus)?, byte(device)?, byte(function)?);
    parts.next().is_none().then_some(id)
}

fn hex(text: &str, digits: usize) -> Option<u32> {
    let plain = text.len() <= digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::PciId;

    #[test]
    fn all_notations_of_an_address_parse_to_the_same_address() {
        let expected = PciId::new(0, 0xc1, 0x1f, 0);
        let ways = "00000000:C1:1F.0 0000:c1:1f.0 c1:1f.0 0:C1:1f.0 0000:C1:1F 0000:c1:1f.0-v1";
        for text in ways.split(' ') {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert_eq!(expected.to_string(), "0000:c1:1f.0");
        // Devices behind Intel's Volume Management Device (VMD) have domains of more than 16 bits.
        assert_eq!("00010000:01:00.0".parse::<PciId>().unwrap().to_string(), "10000:01:00.0");
    }

    #[test]
    fn a_text_that_is_not_an_address_is_quoted_in_the_error() {
        let wrong = "|N/A|0000:01|0000:01:00.8|0000:01:20.0|1:0000:01:00.0|+1:01:00.0|00:100:00.0";
        for text in wrong.split('|') {
            let error = text.parse::<PciId>().unwrap_err().to_string();
            let quoted = format!("`{text}` is not a PCI address such as 0000:01:00.0");
            assert_eq!(error, quoted);
        }
    }
}
