//! Hostile images in requests of each API: small files that announce large pictures, files that are as large as they
//! announce, and more files than a request may have.

use super::bodies::{BODY, at_once};
use super::rows::{Attack, Setup, together};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "images: files of 60 bytes that announce 4 billion pixels, on three surfaces, 64 in each request",
        most: 96,
        answers: &["400"],
        setup: Setup::Sees,
        run: |server| {
            let file = base64(&bitmap(65_535, 65_535, 24, 0));
            surfaces(&vec![file; 64]).iter().map(|(path, body)| server.post(path, body)).collect()
        },
    },
    Attack {
        name: "images: 80,000 in a request, on three surfaces, eight requests at once",
        most: 256,
        answers: &["400", "503", "529"],
        setup: Setup::Sees,
        run: |server| {
            let file = base64(&bitmap(2, 2, 24, 16));
            let bodies = surfaces(&vec![file; 80_000]);
            bodies.iter().flat_map(|(path, body)| at_once(8, || server.post(path, body))).collect()
        },
    },
    Attack {
        // Each pixel is stored in one bit. Three bounds add up: 1 GiB for pixels, 1 GiB for the decoding of files, and
        // 64 MiB for bodies that are being received.
        name: "images: a request of 15 MiB with two of 88 million pixels together, on three surfaces, eight at once",
        most: 2560,
        answers: &["200", "400", "503", "529"],
        setup: Setup::Sees,
        run: |server| {
            let file = |side: u32| base64(&bitmap(side, side, 1, side as usize * side.div_ceil(32) as usize * 4));
            // The first image has the most pixels that an image may have. The second one has the pixels that a request
            // may still have.
            let files = [file(8192), file(4608)];
            assert!(files.concat().len() < BODY, "{}", files.concat().len());
            surfaces(&files).iter().flat_map(|(path, body)| at_once(8, || server.post(path, body))).collect()
        },
    },
    Attack {
        name: "images: damaged, of other formats, of no base64, and addresses of this machine and of files, at once",
        most: 96,
        answers: &["400"],
        setup: Setup::Sees,
        run: |server| {
            let damaged = ["GIF89a", "\u{89}PNG\r\n", "RIFF\u{1}WEBP", "BM", "<svg>", "%PDF-1.7", ""];
            let files = damaged.iter().map(|begin| data_url(&base64(begin.as_bytes())));
            let addresses = [
                "data:image/png;base64,????",
                "data:image/png,abc",
                "http://127.0.0.1/a.png",
                "http://[::1]/a.png",
                "http://169.254.169.254/latest/meta-data",
                "file:///etc/passwd",
                "/etc/passwd",
            ];
            let urls = files.chain(addresses.map(str::to_owned));
            let bodies: Vec<String> = urls.map(|url| chat(&[url])).collect();
            together(&bodies, |body| server.post(CHAT, body))
        },
    },
];

/// A request of each API with these images, and its path.
fn surfaces(files: &[String]) -> [(&'static str, String); 3] {
    let urls: Vec<String> = files.iter().map(|file| data_url(file)).collect();
    let parts =
        |part: &dyn Fn(&str) -> String, all: &[String]| all.iter().map(|one| part(one)).collect::<Vec<_>>().join(",");
    let responses = parts(&|url| format!(r#"{{"type":"input_image","image_url":"{url}"}}"#), &urls);
    let message = |data: &str| {
        let source = format!(r#"{{"type":"base64","media_type":"image/bmp","data":"{data}"}}"#);
        format!(r#"{{"type":"image","source":{source}}}"#)
    };
    let messages = parts(&message, files);
    [
        (CHAT, chat(&urls)),
        (RESPONSES, format!(r#"{{"max_output_tokens":1,"input":[{{"role":"user","content":[{responses}]}}]}}"#)),
        (MESSAGES, format!(r#"{{"max_tokens":1,"messages":[{{"role":"user","content":[{messages}]}}]}}"#)),
    ]
}

fn chat(urls: &[String]) -> String {
    let part = |url: &String| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
    let parts = urls.iter().map(part).collect::<Vec<_>>().join(",");
    format!(r#"{{"max_tokens":1,"messages":[{{"role":"user","content":[{parts}]}}]}}"#)
}

fn data_url(base64: &str) -> String {
    format!("data:image/bmp;base64,{base64}")
}

/// A bitmap file with these values in its header, and with `pixels` bytes of pixels, all zero.
fn bitmap(width: u32, height: u32, bits: u16, pixels: usize) -> Vec<u8> {
    let colours = if bits == 1 { 2 } else { 0 };
    let at = 54 + 4 * colours;
    let mut file = b"BM".to_vec();
    file.extend((at + pixels as u32).to_le_bytes());
    file.extend([0; 4]);
    for number in [at, 40, width, height] {
        file.extend(number.to_le_bytes());
    }
    file.extend([1_u16.to_le_bytes(), bits.to_le_bytes()].concat());
    file.extend([0; 16]);
    file.extend(colours.to_le_bytes());
    file.extend([0; 4]);
    file.extend([0, 0, 0, 0, 255, 255, 255, 0].iter().take(4 * colours as usize));
    file.resize(file.len() + pixels, 0);
    file
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place <= group.len() { digit } else { '=' });
        }
    }
    text
}

#[test]
fn a_file_is_written_in_base64_and_as_long_as_its_header_says() {
    assert_eq!(
        ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
        ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
    );
    for (bits, pixels) in [(1, 8), (24, 16)] {
        let file = bitmap(2, 2, bits, pixels);
        assert_eq!(file[2..6], (file.len() as u32).to_le_bytes());
    }
}
