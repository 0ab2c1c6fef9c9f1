//! The fuzz targets and their seeds. Where possible, the seeds are made by the code that writes such bytes, so that
//! they stay valid.

use std::sync::LazyLock;

use autoplace::chat::{ChatTemplate, Conversation, Limits, Message, ReplyFormat, ReplyParser, SpecialTokens};
use autoplace::generate::{Constraint, Engine};
use autoplace::gguf::{Builder, Header};
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::{Request, SavedPlan};
use autoplace::profile::ModelProfile;
use autoplace::{Model, Plan, Planner};
use autoplace_media::{Image, ImageLimits, Sound, SoundLimits};
use autoplace_openai::{Api, EmbeddingRequest, RerankRequest};

pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

pub(crate) const TARGETS: [Target; 9] = [
    Target { name: "header", run: header, seeds: header_seeds },
    Target { name: "plan", run: plan, seeds: || vec![saved_plan().into_bytes()] },
    Target { name: "machine", run: machine, seeds: || vec![pc().to_json().unwrap().into_bytes()] },
    Target { name: "frames", run: autoplace::read_frames, seeds: frame_seeds },
    Target { name: "request", run: request, seeds: || owned(&REQUESTS) },
    Target { name: "template", run: template, seeds: || owned(&TEMPLATES) },
    Target { name: "constraint", run: constraint, seeds: || owned(&CONSTRAINTS) },
    Target { name: "image", run: image, seeds: image_seeds },
    Target { name: "sound", run: sound, seeds: || SOUNDS.map(<[u8]>::to_vec).into() },
];

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

static LOADED: LazyLock<Model> = LazyLock::new(|| Model::builder(MODEL).n_ctx(512).n_threads(1).load().unwrap());

fn pc() -> Machine {
    Machine::new(Host::new(gib(64))).with_gpu(Gpu::named("RTX 4090").unwrap())
}

fn planned(header: &Header, machine: &Machine) -> Option<Plan> {
    let profile = ModelProfile::from_header(header).ok()?;
    Planner::new(&profile, machine).plan().ok()
}

/// Parses a header. If that succeeds, all of its values can be read, and a model can be planned.
fn header(data: &[u8]) {
    // The last bytes also serve as the length of the whole file, because tensors' data may be missing.
    let file_bytes = data.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    let Ok(header) = Header::parse_shards([(data.into(), file_bytes)]) else {
        return;
    };
    for (key, value) in header.metadata() {
        assert!(header.get(key).is_some());
        let _ = (header.uint(key), header.str(key));
        let Some(array) = value.as_array() else {
            continue;
        };
        let _ = array.to_u32s();
        array.raw_bytes().unwrap();
        for string in array.strings().into_iter().flatten() {
            string.unwrap();
        }
    }
    for tensor in header.tensors() {
        assert!(header.tensor(tensor.name()).is_some());
        assert!(tensor.elements() > 0);
        assert!(tensor.offset() + tensor.bytes() <= header.file_bytes());
    }
    let _ = planned(&header, &pc());
}

fn header_seeds() -> Vec<Vec<u8>> {
    let demo = Header::open(MODEL).and_then(|demo| demo.skeleton()).unwrap();
    let arrays = Builder::new("llama").array_str("a", ["b"]).array_i32("c", &[-1]).bool("d", true);
    let written = [demo, arrays].into_iter().map(|model| {
        let (mut bytes, file_bytes) = model.encoded().unwrap();
        bytes.extend(file_bytes.to_le_bytes());
        bytes
    });
    written.collect()
}

fn saved_plan() -> String {
    let (header, machine) = (Header::open(MODEL).unwrap(), pc());
    let plan = planned(&header, &machine).unwrap();
    SavedPlan::new(plan, Request::default(), &header).unwrap().to_json().unwrap()
}

/// A parsed plan equals the plan that is read back from its own JSON, and can be displayed.
fn plan(data: &[u8]) {
    let Some(saved) = str::from_utf8(data).ok().and_then(|text| SavedPlan::from_json(text).ok()) else {
        return;
    };
    assert_eq!(SavedPlan::from_json(&saved.to_json().unwrap()).unwrap(), saved);
    let _ = (saved.plan.to_string(), saved.changes(&pc()));
}

/// A parsed machine equals the machine that is read back from its own JSON, and a model can be planned for it.
fn machine(data: &[u8]) {
    static HEADER: LazyLock<Header> = LazyLock::new(|| Header::open(MODEL).unwrap());
    let Some(machine) = str::from_utf8(data).ok().and_then(|text| Machine::from_json(text).ok()) else {
        return;
    };
    assert_eq!(Machine::from_json(&machine.to_json().unwrap()).unwrap(), machine);
    let _ = planned(&HEADER, &machine).map(|plan| plan.to_string());
}

/// Messages of a worker and an application, each with its length before it.
fn frame_seeds() -> Vec<Vec<u8>> {
    // Each message is the number of its variant, followed by its fields.
    let messages: [&[u8]; 6] = [
        &[0, 2, 1],          // Loading, Abort of run 1
        &[1, 0, 1, 8, 0],    // Text, Start of run 1, eight pieces ahead
        &[1, 2, 1],          // Text, Cancel of text 1
        &[2, 0, 1],          // Embed, Open for run 1
        &[0, 0, 0, 0, 0x3f], // Progress: 0.5
        &[0],                // Started
    ];
    let framed = messages.map(|message| {
        let length = u32::try_from(message.len()).unwrap();
        [length.to_le_bytes().as_slice(), message].concat()
    });
    framed.into()
}

/// The first byte selects the endpoint. Accepted requests are cancelled; the engine survives all requests.
fn request(data: &[u8]) {
    static API: LazyLock<Api> = LazyLock::new(|| {
        let api = Api::new(&LOADED, &Engine::new(&LOADED).unwrap(), "m");
        api.template(ChatTemplate::family("chatml").unwrap())
    });
    let status = match data.split_first() {
        Some((b'c', body)) => API.chat(body).err().map(|error| error.status),
        Some((b't', body)) => API.complete(body).err().map(|error| error.status),
        Some((b'm', body)) => API.message(body).err().map(|error| error.status),
        Some((b'r', body)) => API.respond(body).err().map(|error| error.status),
        Some((b'k', body)) => API.tokenize(body).err().map(|error| error.status),
        Some((b'd', body)) => API.detokenize(body).err().map(|error| error.status),
        Some((b'e', body)) => EmbeddingRequest::read(body, "m").err().map(|error| error.status),
        Some((b's', body)) => RerankRequest::read(body, "m").err().map(|error| error.status),
        _ => None,
    };
    assert_ne!(status, Some(500));
}

const REQUESTS: [&str; 10] = [
    r#"c{"messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],"n":2,"stop":["c"]}"#,
    r#"c{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":"required"}"#,
    r#"c{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"},"logprobs":true,"top_logprobs":2}"#,
    r#"t{"prompt":["a",[1,2]],"max_tokens":2,"temperature":0,"logit_bias":{"3":-1},"grammar":"%llguidance {}\nstart: \"a\""}"#,
    r#"m{"system":[{"type":"text","text":"Time: 10:00"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a"}]}],"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"enabled"},"max_tokens":2}"#,
    r#"r{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"reasoning","summary":[],"encrypted_content":"aG0="}],"text":{"format":{"type":"json_object"}},"max_output_tokens":2}"#,
    r#"k{"content":["a",3],"with_pieces":true}"#,
    r#"d{"tokens":[1,2,3]}"#,
    r#"e{"model":"m","input":["a","b"],"encoding_format":"base64"}"#,
    r#"s{"query":"a","documents":["b",{"text":"c"}],"top_n":1}"#,
];

/// A parsed template's prompt equals its joined parts, and its reply format can be used.
fn template(data: &[u8]) {
    let mut limits = Limits::default();
    limits.steps = 50_000;
    let special = SpecialTokens::from([("eos_token".to_owned(), "</s>".to_owned())]);
    let source = str::from_utf8(data).unwrap_or_default();
    let Ok(template) = ChatTemplate::new(source, special) else {
        return;
    };
    let conversation = Conversation::new(&[Message::system("a"), Message::user("</s>")]);
    if let Ok(prompt) = template.with_limits(limits).render(&conversation) {
        let parts: String = prompt.parts().map(|part| part.as_str()).collect();
        assert_eq!(parts, prompt.as_str());
    }
    let _ = ReplyParser::new(&ReplyFormat::of_template(source)).push(source);
}

const TEMPLATES: [&str; 4] = [
    include_str!("../../chat/src/families/chatml.jinja"),
    include_str!("../../chat/src/families/llama-3.jinja"),
    include_str!("../../chat/src/families/command-r.jinja"),
    "{% macro f(x) %}{{ x | tojson }}{% endmacro %}{% set ns = namespace(i=0) %}{{ f(messages[0]) }}{{ raise_exception('a') }}",
];

/// The first byte selects the kind of constraint. The result is a text that satisfies the constraint so far, or an
/// error.
fn constraint(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let text = str::from_utf8(text).unwrap_or_default();
    let constraint = match (kind, serde_json::from_str::<serde_json::Value>(text)) {
        (b'r', _) => Constraint::regex(text),
        (b'l', _) => Constraint::lark(text),
        (b'g', _) => Constraint::gbnf(text),
        (b's', Ok(schema)) => Constraint::json_schema(schema),
        _ => return,
    };
    let _ = LOADED.generate("a").constraint(constraint).max_tokens(4).text();
}

const CONSTRAINTS: [&str; 7] = [
    "groot ::= a b* # c\na ::= [^\\x00-\\u00ff]{1,3}\nb ::= \"c\" | \"(\" b? \")\" a",
    "r(?:a|[b-d]{2,3})\\d*?[^e]+",
    "lstart: A b*\nA: /[a-z]+/\nb: \"c\" | \"(\" b \")\"",
    r#"s{"type":"object","properties":{"a":{"type":"integer","minimum":-3,"maximum":7}},"required":["a"]}"#,
    r##"s{"$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":3}},"$ref":"#/$defs/n"}"##,
    r#"s{"anyOf":[{"enum":["a",1,null]},{"type":"string","pattern":"^b+$","minLength":2}]}"#,
    r#"s{"type":"string","format":"date-time"}"#,
];

/// Decodes a picture. It must have as many pixels as its size says.
fn image(data: &[u8]) {
    let mut limits = ImageLimits::default();
    limits.memory = 256 << 20;
    if let Ok(image) = Image::from_bytes_within(data, &limits) {
        let pixels = u64::from(image.width()) * u64::from(image.height());
        assert!((1..=limits.pixels).contains(&pixels), "{pixels} pixels");
        assert_eq!(image.rgb().len() as u64, 3 * pixels);
    }
}

fn image_seeds() -> Vec<Vec<u8>> {
    use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};
    let picture = RgbaImage::from_fn(9, 7, |x, y| Rgba([(x * 20) as u8, (y * 30) as u8, 9, (x * y * 4) as u8]));
    let formats = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp];
    let picture = DynamicImage::from(picture);
    let write = |picture: &DynamicImage, format| {
        let mut file = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut file, format).unwrap();
        file.into_inner()
    };
    let mut written = formats.map(|format| write(&picture.to_rgb8().into(), format)).to_vec();
    // Seeds with transparency, and with 16 bits.
    written.extend([ImageFormat::Png, ImageFormat::WebP, ImageFormat::Gif].map(|format| write(&picture, format)));
    written.push(write(&picture.to_rgba16().into(), ImageFormat::Png));
    written
}

/// A decoded sound has finite samples and can be resampled.
fn sound(data: &[u8]) {
    let mut limits = SoundLimits::default();
    limits.seconds = 60;
    if let Ok(sound) = Sound::from_bytes_within(data, &limits) {
        assert!(sound.samples().iter().all(|sample| sample.is_finite()));
        assert_eq!(sound.resampled(16_000).unwrap().rate(), 16_000);
    }
}

const SOUNDS: [&[u8]; 3] = [
    include_bytes!("../../media/tests/media/tone.mp3"),
    include_bytes!("../../media/tests/media/tone.ogg"),
    b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x04\0\0\0\x01\0\x02\0",
];

fn owned(seeds: &[&str]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}
