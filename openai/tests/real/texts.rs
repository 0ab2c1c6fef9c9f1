//! Texts and prompts, the same in every run.

/// Pseudo-random numbers (xorshift64*, G. Marsaglia and S. Vigna).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The first code point of each block of 128 characters that the texts use. Of ideographs and Hangul syllables, every
/// eighth block is used. Of planes 14 to 16, only the first and the last blocks are used.
fn blocks() -> Vec<u32> {
    let scripts = [0..0x3400, 0xA000..0xAC00, 0xE000..0x1_7000, 0x1_8B00..0x2_0000];
    let ideographs = [0x3400..0xA000, 0xAC00..0xD800, 0x1_7000..0x1_8B00, 0x2_0000..0x3_2400];
    let mut blocks: Vec<u32> = scripts.into_iter().flat_map(|range| range.step_by(128)).collect();
    blocks.extend(ideographs.into_iter().flat_map(|range| range.step_by(1024)));
    blocks.extend([0xE_0000, 0xE_0100, 0xF_0000, 0xF_FF80, 0x10_0000, 0x10_FF80]);
    blocks
}

/// Pieces of text that tokenizers split in different ways.
const PIECES: &[&str] = &[
    " ",
    "  ",
    "   \t",
    "\n",
    "\n\n",
    "\r\n",
    "\u{a0}",
    "\u{2003}",
    "\u{3000}",
    "\u{200b}",
    "\u{feff}",
    "\u{85}",
    "'s",
    "'LL",
    "don't",
    "I'm",
    "1",
    "12",
    "123456789",
    "3.14",
    "٣٤٥",
    "१२३",
    "½",
    "²",
    "x²",
    "café",
    "cafe\u{301}",
    "Straße",
    "İstanbul",
    "ǅ",
    "ﬁ",
    "naïve",
    "日本語",
    "こんにちは",
    "한국어",
    "ไทย",
    "עברית",
    "العربية",
    "हिन्दी",
    "ქართული",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "👍🏽",
    "🫠",
    "→",
    "≠",
    "€",
    "_",
    "__init__",
    "fn main() {",
    "}",
    "::<>",
    "//",
    "<!--",
    "-->",
    "\\n",
    "\"",
    "`",
    "@",
    "#",
    "%",
    "https://example.org/?q=1&r=2",
    "hello",
    "Hello",
    "HELLO",
    "hElLo",
    "world",
    "the",
    " the",
    "The",
    "▁",
    "▁▁",
    "Ġ",
    "Ċ",
    "\u{0}",
    "\u{1}",
    "\u{2}",
    "\u{7f}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{10ffff}",
    "\u{e000}",
];

/// Makes `count` texts. `controls` are the texts of the model's control tokens. Every third mixed text contains some of
/// them.
pub(crate) fn texts(count: usize, controls: &[String]) -> Vec<String> {
    let mut random = Random::new(51);
    let mut texts = vec![String::new()];
    texts.extend(PIECES.iter().map(|&piece| piece.to_owned()));
    texts.extend(controls.iter().take(200).cloned());
    texts.extend(controls.iter().take(50).map(|control| format!("a{control} b")));
    // A control token's text that is cut short, or has a space inside, is not that control token.
    texts.extend(controls.iter().take(50).map(|control| control.chars().skip(1).collect()));
    texts.extend(
        controls.iter().take(50).map(|control| control.chars().flat_map(|character| [character, ' ']).collect()),
    );
    texts.extend(long());
    let blocks = blocks();
    texts.extend(blocks.iter().map(|&first| of_block(&mut random, first)));
    while texts.len() < count {
        texts.push(mixed(&mut random, &blocks, controls));
    }
    texts
}

/// Long texts of several kinds: one character, one word, spaces, lines, and text without repetition.
fn long() -> Vec<String> {
    let mut random = Random::new(7);
    let letters: Vec<char> = "abcdefghijklmnopqrstuvwxyz ,.\n\u{2}\u{3b1}\u{4e00}".chars().collect();
    vec![
        "a".repeat(5000),
        "word ".repeat(4000),
        " ".repeat(3000),
        "\n".repeat(700),
        "line\n".repeat(4000),
        "字".repeat(6000),
        (0..20_000).map(|_| random.pick(&letters)).collect(),
        include_str!("../../../docs/using.md").to_owned(),
        include_str!("../../../ARCHITECTURE.md").to_owned(),
    ]
}

fn character(random: &mut Random, first: u32) -> char {
    char::from_u32(first + random.below(128) as u32).unwrap_or('\u{fffd}')
}

/// Words that consist of the characters in one block.
fn of_block(random: &mut Random, first: u32) -> String {
    let mut text = String::new();
    for _ in 0..=random.below(6) {
        for _ in 0..=random.below(9) {
            text.push(character(random, first));
        }
        text.push_str(random.pick(&["", " ", " ", "  ", "\n", ", "]));
    }
    text
}

/// A row of pieces, characters of any block, and control tokens.
fn mixed(random: &mut Random, blocks: &[u32], controls: &[String]) -> String {
    let with_controls = random.below(3) == 0 && !controls.is_empty();
    let mut text = String::new();
    for _ in 0..=random.below(12) {
        match random.below(4) {
            0 => {
                let first = random.pick(blocks);
                text.push(character(random, first));
            }
            1 if with_controls => text.push_str(&controls[random.below(controls.len())]),
            2 => text.push(' '),
            _ => text.push_str(random.pick(PIECES)),
        }
    }
    text
}

/// Texts to be continued, and below them questions that begin a chat.
pub(crate) const PROMPTS: [&str; 20] = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\n",
    "The three primary colours are",
    "Water boils at",
    "In 1969,",
    "fn main() {\n    let",
    "<html>\n<body>\n",
    "Die Hauptstadt von Deutschland ist",
    "El perro corre",
    "今日は",
    "Москва —",
    "The opposite of hot is",
    "{\"name\": \"Ada\", \"age\":",
    "Q: What is 7 times 8?\nA:",
    "SELECT name FROM",
    "To be, or not to be,",
    "x",
];

/// See [`PROMPTS`].
pub(crate) const QUESTIONS: [&str; 20] = [
    "Why is the sky blue?",
    "Name three fruits.",
    "What is 12 + 30?",
    "Write a haiku about rain.",
    "Translate \"good morning\" into French.",
    "Who wrote Hamlet?",
    "List the planets.",
    "Explain photosynthesis in one sentence.",
    "Say hello.",
    "What is the largest ocean?",
    "Give me a recipe for pancakes.",
    "Was ist der Sinn des Lebens?",
    "¿Dónde está la biblioteca?",
    "日本の首都はどこですか。",
    "Write a function that reverses a string in Python.",
    "How many days has a leap year?",
    "  What do spaces before a question change?  ",
    "Line one\nline two\n\nWhat was line one?",
    "🙂",
    "Tell me a joke about <b>HTML</b> & \"quotes\".",
];
