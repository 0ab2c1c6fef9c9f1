//! Checks a WebP file before the decoder allocates memory for it: every chunk must lie in the file, and no frame may be
//! larger than the canvas. The decoder itself does not check this.

use super::decode::Input;
use crate::Error;

/// The size of a chunk's header: its name and its length.
const HEADER: usize = 8;

/// Fails if a chunk ends beyond the end of the file, or if a frame is larger than the canvas.
pub(super) fn check(input: &Input<'_>) -> Result<(), Error> {
    chunks(input, HEADER + 4, input.bytes.len(), None, false)
}

/// Checks the chunks between two offsets: those of the file, or those in a frame of an animation. `canvas` is the width
/// and height in the first chunk of the file.
fn chunks(
    input: &Input<'_>,
    mut at: usize,
    end: usize,
    mut canvas: Option<(u32, u32)>,
    is_frame: bool,
) -> Result<(), Error> {
    while let Some((name, length)) = header(&input.bytes[..end], at) {
        let data = at + HEADER;
        let after = data.saturating_add(length);
        if after > end {
            let name = name.escape_ascii();
            let problem = format!("byte {at}: the chunk \"{name}\" of {length} bytes reaches beyond byte {end}");
            return Err(input.damaged(problem));
        }
        let content = &input.bytes[data..after];
        match name {
            b"VP8X" => canvas = Some((side24(content, 4), side24(content, 7))),
            b"ANMF" if !is_frame => chunks(input, data + 16, after, canvas, true)?,
            b"VP8 " => {
                let frame = (side14(content, 6), side14(content, 8));
                let (width, height) = canvas.unwrap_or(frame);
                if frame.0 > width || frame.1 > height {
                    let problem =
                        format!("byte {at}: a frame of {} x {} pixels in {width} x {height}", frame.0, frame.1);
                    return Err(input.damaged(problem));
                }
                input.allow(frame.0.max(1), frame.1.max(1))?;
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        at = after + length % 2;
    }
    Ok(())
}

/// The name of a chunk, and the length of its data.
fn header(bytes: &[u8], at: usize) -> Option<(&[u8; 4], usize)> {
    let name = bytes.get(at..)?.first_chunk()?;
    let length = bytes.get(at + 4..)?.first_chunk()?;
    Some((name, u32::from_le_bytes(*length) as usize))
}

/// Reads a width or height that is stored as 24 bits, less one.
fn side24(content: &[u8], at: usize) -> u32 {
    let bytes = content.get(at..at + 3).unwrap_or(&[0; 3]);
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) + 1
}

/// Reads a width or height that is stored as 14 bits.
fn side14(content: &[u8], at: usize) -> u32 {
    let bytes = content.get(at..at + 2).unwrap_or(&[0; 2]);
    u32::from(u16::from_le_bytes([bytes[0], bytes[1]]) & 0x3fff)
}
