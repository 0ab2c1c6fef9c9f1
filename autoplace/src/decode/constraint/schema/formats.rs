//! Formats of strings, as regular expressions.
//!
//! If llguidance enforces a format correctly, its version is used. The other formats are defined here, after the
//! grammars in their RFCs. A format that no regular expression can describe is not enforced. A format that JSON Schema
//! does not define counts as an annotation.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// How a format is treated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Format {
    /// llguidance enforces the format correctly.
    Llguidance,
    /// A regular expression for the whole string.
    Pattern(&'static str),
    /// JSON Schema defines the format, and no regular expression describes it exactly.
    Unenforced,
    /// JSON Schema does not define the format.
    Annotation,
}

pub(super) fn find(name: &str) -> Format {
    match name {
        "duration" | "ipv4" | "uuid" => Format::Llguidance,
        "date" => Format::Pattern(&DATE),
        "time" => Format::Pattern(&TIME),
        "date-time" => Format::Pattern(&DATE_TIME),
        "email" => Format::Pattern(&EMAIL),
        "hostname" => Format::Pattern(&HOSTNAME),
        "ipv6" => Format::Pattern(&IPV6),
        "iri" => Format::Pattern(&IRI),
        "iri-reference" => Format::Pattern(&IRI_REFERENCE),
        "uri" => Format::Pattern(&URI),
        "uri-reference" => Format::Pattern(&URI_REFERENCE),
        "uri-template" => Format::Pattern(&URI_TEMPLATE),
        "json-pointer" => Format::Pattern(JSON_POINTER),
        "relative-json-pointer" => Format::Pattern(RELATIVE_JSON_POINTER),
        "idn-email" | "idn-hostname" | "regex" => Format::Unenforced,
        _ => Format::Annotation,
    }
}

/// Replaces a `format` by our pattern, or removes a `format` that is only an annotation.
pub(super) fn as_pattern(members: &mut Map<String, Value>) {
    let Some(name) = members.get("format").and_then(Value::as_str) else { return };
    let pattern = match find(name) {
        Format::Llguidance => return,
        Format::Pattern(pattern) => format!("^(?:{pattern})$"),
        Format::Unenforced | Format::Annotation => {
            members.shift_remove("format");
            return;
        }
    };
    let mut longest = None;
    for (_, most) in MAX_CHARACTERS.iter().filter(|(format, _)| *format == name) {
        let asked = members.get("maxLength").and_then(Value::as_u64);
        longest = Some(asked.map_or(*most, |length| length.min(*most)));
    }
    members.shift_remove("format");
    members.extend(longest.map(|length| ("maxLength".to_owned(), length.into())));
    if !members.contains_key("pattern") {
        members.insert("pattern".to_owned(), pattern.into());
    } else if let Value::Array(all) = members.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({ "pattern": pattern }));
    }
}

/// The regular expression that the whole text must match in this format; `None` for an annotation.
pub(in super::super) fn text(name: &str) -> Result<Option<String>, String> {
    Ok(match (find(name), name) {
        (Format::Pattern(pattern), _) => Some(pattern.to_owned()),
        (Format::Llguidance, "ipv4") => Some(IPV4.to_owned()),
        (Format::Llguidance, "uuid") => Some("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned()),
        (Format::Llguidance | Format::Unenforced, name) => {
            return Err(format!("`format: {name}` is not enforced in a format without quotes"));
        }
        (Format::Annotation, _) => None,
    })
}

/// RFC 3339, `full-date`. Each month has the correct number of days, and February 29 exists only in leap years.
static DATE: LazyLock<String> = LazyLock::new(|| {
    let leap = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
    let day = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
        |02-(?:0[1-9]|1[0-9]|2[0-8])";
    format!("[0-9]{{4}}-(?:{day})|{leap}-02-29")
});

/// RFC 3339, `full-time`. A leap second is the last second of a UTC day. In a time with a leap second, the offset must
/// be a multiple of a quarter of an hour, as in all time zones.
static TIME: LazyLock<String> = LazyLock::new(|| {
    const FRACTION: &str = r"(?:\.[0-9]+)?";
    let mut leaps = vec![format!("23:59:60{FRACTION}[zZ]")];
    for offset in (0..24 * 60).step_by(15) {
        let (hour, minute) = (offset / 60, offset % 60);
        for (sign, local) in [('+', 23 * 60 + 59 + offset), ('-', 23 * 60 + 59 + 24 * 60 - offset)] {
            let local = local % (24 * 60);
            let sign = if sign == '+' { r"\+" } else { "-" };
            leaps.push(format!("{:02}:{:02}:60{FRACTION}{sign}{hour:02}:{minute:02}", local / 60, local % 60));
        }
    }
    let hour = "(?:[01][0-9]|2[0-3])";
    let ordinary = format!("{hour}:[0-5][0-9]:[0-5][0-9]{FRACTION}(?:[zZ]|[+-]{hour}:[0-5][0-9])");
    format!("{ordinary}|{}", leaps.join("|"))
});

static DATE_TIME: LazyLock<String> = LazyLock::new(|| format!("(?:{})[tT](?:{})", *DATE, *TIME));

/// RFC 1123: labels that have 1 to 63 letters, digits and hyphens, separated by dots. Labels with hyphens in the third
/// and fourth place are excluded: such labels are reserved (RFC 5891), and a regular expression cannot check the
/// Punycode after `xn--`.
static HOSTNAME: LazyLock<String> = LazyLock::new(|| {
    let (letter, any) = ("[a-zA-Z0-9]", "[a-zA-Z0-9-]");
    let long = format!("{any}(?:{letter}{any}|-{letter}){any}{{0,58}}{letter}");
    let label = format!("{letter}(?:{letter}|{any}{letter}|{any}{any}{letter}|{long})?");
    format!(r"{label}(?:\.{label})*")
});

/// RFC 5321, `Mailbox`.
static EMAIL: LazyLock<String> = LazyLock::new(|| {
    let atom = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+";
    let quoted = r#""(?:[ !#-\[\]-~]|\\[ -~])*""#;
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    let literal = format!(r"\[(?:{IPV4}|IPv6:(?:{}))\]", *IPV6);
    format!(r"(?:{atom}(?:\.{atom})*|{quoted})@(?:{label}(?:\.{label})*|{literal})")
});

const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// RFC 3986, `IPv6address`. llguidance's version does not allow an IPv4 address at the end.
static IPV6: LazyLock<String> = LazyLock::new(|| {
    let group = "[0-9a-fA-F]{1,4}";
    let last = format!("(?:{group}:{group}|{IPV4})");
    // At most `most + 1` groups, and the `::` after them.
    let before = |most: usize| format!("(?:(?:{group}:){{0,{most}}}{group})?::");
    [
        format!("(?:{group}:){{6}}{last}"),
        format!("::(?:{group}:){{5}}{last}"),
        format!("(?:{group})?::(?:{group}:){{4}}{last}"),
        format!("{}(?:{group}:){{3}}{last}", before(1)),
        format!("{}(?:{group}:){{2}}{last}", before(2)),
        format!("{}{group}:{last}", before(3)),
        format!("{}{last}", before(4)),
        format!("{}{group}", before(5)),
        before(6),
    ]
    .join("|")
});

/// Characters that an IRI allows and a URI does not: RFC 3987, `ucschar`, in the first two planes.
const BEYOND_ASCII: &str = r"\x{A0}-\x{D7FF}\x{F900}-\x{FDCF}\x{FDF0}-\x{FFEF}\x{10000}-\x{1FFFD}\x{20000}-\x{2FFFD}";

static URI: LazyLock<String> = LazyLock::new(|| absolute(""));
static IRI: LazyLock<String> = LazyLock::new(|| absolute(BEYOND_ASCII));
static URI_REFERENCE: LazyLock<String> = LazyLock::new(|| reference(""));
static IRI_REFERENCE: LazyLock<String> = LazyLock::new(|| reference(BEYOND_ASCII));

/// RFC 3986, `URI`. `more` adds unreserved characters.
fn absolute(more: &str) -> String {
    let paths = paths(more, &segment(more, ":@", "+"));
    format!(r"[a-zA-Z][a-zA-Z0-9+\-.]*:{paths}")
}

/// RFC 3986, `URI-reference`.
fn reference(more: &str) -> String {
    // The first segment contains no colon, because the text before a colon would be a scheme.
    let relative = paths(more, &segment(more, "@", "+"));
    format!("(?:{}|{relative})", absolute(more))
}

/// Characters of a URI, including percent-encoded characters. `count` is the quantifier with which they are repeated.
/// `others` are characters that are allowed in addition to those of a `reg-name`.
fn segment(more: &str, others: &str, count: &str) -> String {
    format!("(?:[a-zA-Z0-9\\-._~!$&'()*+,;={others}{more}]|%[0-9a-fA-F]{{2}}){count}")
}

/// `hier-part` or `relative-part` with query and fragment. `first` is the first segment of a path without a leading
/// slash.
fn paths(more: &str, first: &str) -> String {
    let (any, some) = (segment(more, ":@", "*"), segment(more, ":@", "+"));
    let (user, name) = (segment(more, ":", "*"), segment(more, "", "*"));
    let future = r"v[0-9a-fA-F]+\.[a-zA-Z0-9\-._~!$&'()*+,;=:]+";
    let host = format!(r"(?:\[(?:{}|{future})\]|{name})", *IPV6);
    let rest = format!("(?:/{any})*");
    let tail = segment(more, ":@/?", "*");
    format!(r"(?://(?:{user}@)?{host}(?::[0-9]*)?{rest}|/(?:{some}{rest})?|{first}{rest}|)(?:\?{tail})?(?:#{tail})?")
}

/// RFC 6570, `URI-Template`.
static URI_TEMPLATE: LazyLock<String> = LazyLock::new(|| {
    let literal = format!("[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~{BEYOND_ASCII}]|%[0-9a-fA-F]{{2}}");
    let name = "(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})";
    let variable = format!(r"{name}(?:\.?{name})*(?::[1-9][0-9]{{0,3}}|\*)?");
    format!(r"(?:{literal}|\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}})*")
});

/// RFC 6901.
const JSON_POINTER: &str = "(?:/(?:[^/~]|~[01])*)*";
const RELATIVE_JSON_POINTER: &str = r"(?:0|[1-9][0-9]*)(?:[+-][1-9][0-9]*)?(?:#|(?:/(?:[^/~]|~[01])*)*)";

/// The maximum numbers of characters: in a host name, and in an email address.
pub(super) const MAX_CHARACTERS: [(&str, u64); 2] = [("hostname", 253), ("email", 254)];
