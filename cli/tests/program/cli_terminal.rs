//! `autoplace chat` at a terminal. The tests send keys, and read what the screen shows.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use crate::cli_support::{User, demo};
use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};
use test_support::random_weights::fill;
use test_support::synthetic::mmproj;
use vt100::{Parser, Screen};

const ROWS: u16 = 50;
const COLUMNS: u16 = 160;
/// No answer takes as long as this, so the test fails if it waits longer.
const LONG: Duration = Duration::from_secs(120);

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_U: &str = "\x15";
const UP: &str = "\x1b[A";

struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    output: Receiver<Vec<u8>>,
    parser: Parser,
    /// All bytes that the program has printed.
    seen: Vec<u8>,
}

impl Terminal {
    /// Starts a chat with the demo model, these arguments and these environment variables. Waits until the first prompt
    /// is shown.
    fn chat(user: &User, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = user.command(&[&["chat", &demo(), "--temp", "0"], args].concat());
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
        let mut terminal = Self::start(command, COLUMNS);
        terminal.prompt();
        terminal
    }

    /// Starts a program in a terminal of this width.
    fn start(command: std::process::Command, columns: u16) -> Self {
        let (pty, pts) = open().unwrap();
        pty.resize(Size::new(ROWS, columns)).unwrap();
        let child = Command::from(command).spawn(pts).expect("the program starts");
        let pty = Arc::new(pty);
        let (reader, (sender, output)) = (Arc::clone(&pty), sync_channel(0));
        thread::spawn(move || {
            let mut bytes = [0; 1024];
            // The loop also ends if there is an error. On Linux, the output's end is an error. All output is read.
            // Otherwise the terminal would be full, and the program would block.
            while let Ok(n @ 1..) = (&*reader).read(&mut bytes) {
                if sender.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { pty, child, output, parser: Parser::new(ROWS, columns, 0), seen: Vec::new() }
    }

    /// Everything that the program prints until it ends.
    fn printed(mut self) -> String {
        while let Ok(bytes) = self.output.recv_timeout(LONG) {
            self.seen.extend(bytes);
        }
        self.child.wait().unwrap();
        String::from_utf8(self.seen).unwrap().replace("\r\n", "\n")
    }

    fn screen(&self) -> &Screen {
        self.parser.screen()
    }

    /// Reads until the predicate is true for the screen.
    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(&Screen) -> bool) {
        while !holds(self.screen()) {
            match self.output.recv_timeout(LONG) {
                Ok(bytes) => {
                    self.parser.process(&bytes);
                    self.seen.extend(bytes);
                }
                Err(error) => panic!("no {what}: {error}\n{}", self.screen().contents()),
            }
        }
    }

    #[track_caller]
    fn shows(&mut self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    /// Waits until the program is ready for a message.
    #[track_caller]
    fn prompt(&mut self) {
        self.until("prompt", |screen| line(screen) == ">" && screen.cursor_position().1 == 2);
    }

    fn press(&mut self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line, waits until the screen shows it, and sends it.
    #[track_caller]
    fn send(&mut self, text: &str) {
        self.press(text);
        self.until(text, |screen| line(screen).ends_with(text));
        self.press("\r");
        self.until("line behind it", |screen| !line(screen).ends_with(text));
    }

    /// The text that the screen shows between this message and the next prompt.
    #[track_caller]
    fn answer(&mut self, text: &str) -> String {
        self.send(text);
        self.prompt();
        let contents = self.screen().contents();
        let (_, answer) = contents.rsplit_once(&format!("> {text}\n")).expect("the message is on the screen");
        answer.trim_end_matches("> ").trim_end_matches('>').trim().to_owned()
    }

    /// Ends the chat with Ctrl-D.
    #[track_caller]
    fn leaves(mut self) {
        self.press(CTRL_D);
        drop(self.output);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// The line in which the cursor is.
fn line(screen: &Screen) -> String {
    let (row, _) = screen.cursor_position();
    let text = screen.rows(0, COLUMNS).nth(row.into()).unwrap_or_default();
    text.trim_end().to_owned()
}

/// The number that follows a word.
#[track_caller]
fn number(text: &str, word: &str) -> usize {
    let (_, tail) = text.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {text}"));
    tail.split_whitespace().next().unwrap().parse().unwrap()
}

const SHORT: [&str; 6] = ["--template", "chatml", "-n", "8", "--ctx", "1024"];

#[test]
fn the_help_is_wrapped_to_a_terminals_width_and_goes_whole_into_a_pipe() {
    let user = User::new();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for args in [&["run", "--help"][..], &["--help"], &["help", "doctor"], &["serve", "-h"]] {
        let piped = user.says(args);
        assert!(args == ["--help"] || piped.lines().any(|line| line.chars().count() > 100), "{piped}");
        let mut command = user.command(args);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        let wrapped = Terminal::start(command, 60).printed();
        let longest = wrapped.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!((50..=60).contains(&longest.chars().count()), "{args:?}: {longest:?}");
        assert_eq!(words(&wrapped), words(&piped));
    }
}

#[test]
fn a_person_asks_and_looks_at_the_placement_and_leaves() {
    let user = User::new();
    let mut terminal = Terminal::chat(&user, &SHORT, &[]);
    let first = terminal.screen().contents();
    assert!(first.contains(" layers on ") && first.contains("/help"), "{first}");
    assert!(terminal.screen().cell(0, 0).unwrap().dim(), "what is no answer is dimmed");

    assert!(terminal.answer("/stats").contains("none yet"));
    assert!(!terminal.answer("Who art thou?").is_empty());
    let stats = terminal.answer("/stats");
    assert!((1..=8).contains(&number(&stats, "generated ")), "{stats}");
    assert!(stats.contains("predicted  prompts ") && stats.contains(" of 1024 tokens"), "{stats}");
    let placement = terminal.answer("/placement");
    assert!(placement.contains("weights") && placement.contains("headroom"), "{placement}");
    assert!(terminal.answer("/nonsense").contains("/nonsense is not a command"));
    assert!(terminal.answer("/help").contains("/system TEXT"));
    assert!(terminal.answer("/clear").is_empty());
    assert!(terminal.answer("/stats").contains("none yet"));

    terminal.send("Go, and\\");
    terminal.until("next line", |screen| line(screen) == ".");
    terminal.press("tell\r");
    terminal.prompt();
    terminal.press(UP);
    terminal.until("last message", |screen| screen.contents().trim_end().ends_with("> Go, and\ntell"));
    terminal.press(CTRL_U);
    terminal.press(CTRL_C);
    terminal.shows("Ctrl-D or /quit leaves");
    terminal.prompt();
    terminal.leaves();
}

#[test]
fn a_system_message_is_set_and_removed_at_the_prompt() {
    let user = User::new();
    let mut terminal = Terminal::chat(&user, &SHORT, &[]);
    let mut prompt_tokens = |system: &str| {
        assert_eq!(terminal.answer(system), "");
        // This keeps the system message.
        terminal.answer("/clear");
        terminal.answer("Who art thou?");
        number(&terminal.answer("/stats"), "prompt ")
    };
    let without = prompt_tokens("/system");
    let with = prompt_tokens(&format!("/system {}", ["and he said"; 8].join(" ")));
    assert!(with >= without + 24, "three words, eight times: {without}, {with}");
    assert_eq!(prompt_tokens("/system"), without);
    terminal.leaves();
}

#[test]
fn draft_tokens_come_from_a_draft_model_or_the_text_and_change_no_answer() {
    let (user, demo) = (User::new(), demo());
    let question = "and he said, and he said, and he said";
    let answered = |args: &[&str]| {
        let settings = [&["--template", "chatml", "-n", "24", "--ctx", "1024"], args].concat();
        let mut terminal = Terminal::chat(&user, &settings, &[]);
        let answer = terminal.answer(question);
        let stats = terminal.answer("/stats");
        terminal.leaves();
        (answer, stats)
    };
    let (plain, stats) = answered(&[]);
    assert!(!stats.contains("draft tokens"), "{stats}");
    // A model may be its own draft model.
    let (answer, stats) = answered(&["--draft-model", &demo, "--draft-max", "2", "--draft-p-min", "0"]);
    assert_eq!(answer, plain);
    assert!(stats.contains("draft tokens accepted"), "{stats}");
    let (answer, stats) = answered(&["--prompt-lookup", "--draft-max", "3"]);
    assert_eq!(answer, plain);
    assert!(stats.contains("draft tokens accepted"), "{stats}");
}

#[test]
fn a_file_is_put_into_the_message_or_nothing_is_sent() {
    let user = User::new();
    let [plain, long] = [("a b.txt", 40), ("long.txt", 4000)].map(|(name, n)| {
        fs::write(user.path(name), "and he said ".repeat(n)).unwrap();
        user.path(name).to_str().unwrap().to_owned()
    });
    let mut terminal = Terminal::chat(&user, &SHORT, &[]);
    assert!(terminal.answer("@/nowhere/at/all").contains("error: /nowhere/at/all: "));
    assert!(terminal.answer(&format!("@{long}")).contains("but the context holds 1024"));
    assert!(terminal.answer("/stats").contains("none yet"), "nothing was sent");
    assert!(!terminal.answer(&format!("Read @\"{plain}\".")).is_empty());
    let stats = terminal.answer("/stats");
    assert!(number(&stats, "prompt ") > 120, "three words, forty times: {stats}");
    terminal.leaves();
}

#[test]
fn a_picture_is_shown_as_a_line_and_seen_by_later_questions() {
    let user = User::new();
    let projector = user.path("mmproj.gguf");
    mmproj::named("Small LLaVA").write_sparse(&projector).unwrap();
    fill(&projector);
    let picture = user.path("dot.bmp");
    let mut file = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
    file.resize(58, 0);
    fs::write(&picture, &file).unwrap();
    let cut = user.path("cut.bmp");
    fs::write(&cut, &file[..40]).unwrap();
    let [projector, picture, cut] = [projector, picture, cut].map(|path| path.to_str().unwrap().to_owned());
    let mut terminal = Terminal::chat(&user, &[&SHORT[..], &["--mmproj", &projector]].concat(), &[]);
    assert!(terminal.answer(&format!("@{cut}")).contains("cut.bmp: "));
    assert!(terminal.answer("/stats").contains("none yet"), "nothing was sent");
    let answer = terminal.answer(&format!("What is @{picture}?"));
    assert!(answer.contains("dot.bmp: image of 1 x 1 pixels, 4 tokens"), "{answer}");
    let stats = terminal.answer("/stats");
    let first = number(&stats, "prompt ");
    assert!(!terminal.answer("And what else?").is_empty());
    let stats = terminal.answer("/stats");
    assert!(number(&stats, "prompt ") > first, "{stats}");
    terminal.leaves();
    // Without a projector, the error names what is missing.
    let mut terminal = Terminal::chat(&user, &[&SHORT[..], &["--no-mmproj"]].concat(), &[]);
    assert!(terminal.answer(&format!("What is @{picture}?")).contains("--mmproj FILE"));
    terminal.leaves();
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_program() {
    let user = User::new();
    let file = user.path("said.jinja");
    fs::write(&file, "{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
    // With this template, the likeliest text repeats itself for thousands of tokens, so it does not end soon.
    let endless = ["--template", file.to_str().unwrap(), "--ctx", "65536"];
    let mut terminal = Terminal::chat(&user, &endless, &[]);
    terminal.shows("but the model was trained on");
    for _ in 0..2 {
        terminal.send("Blessed is the man that");
        terminal.shows(", and ");
        terminal.press(CTRL_C);
        terminal.prompt();
        let stats = terminal.answer("/stats");
        let generated = number(&stats, "generated ");
        assert!((1..6000).contains(&generated), "{stats}");
        // The text that was generated before is in the conversation. Without that text, the next answer would begin
        // like the first one.
        assert!(number(&stats, "context ") > generated, "{stats}");
        terminal.answer("/clear");
        terminal.press("\x0c");
        terminal.until("empty screen", |screen| screen.contents().lines().count() <= 1);
        terminal.prompt();
    }
    terminal.leaves();
}

#[test]
fn messages_are_remembered_for_the_user_alone() {
    let user = User::new();
    let mut terminal = Terminal::chat(&user, &SHORT, &[]);
    terminal.answer("/stats");
    terminal.answer(" /nonsense of a secret");
    terminal.leaves();
    let file = ["data/autoplace/history.txt", "Library/Application Support/autoplace/history.txt"];
    let file = file.map(|file| user.path(file)).into_iter().find(|file| file.exists()).expect("a history");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut terminal = Terminal::chat(&user, &SHORT, &[]);
    terminal.press(UP);
    terminal.until("last message", |screen| line(screen) == "> /stats");
    terminal.press(CTRL_U);
    terminal.leaves();
}

#[test]
fn colours_and_codes_are_left_out_where_the_user_or_the_terminal_forbids_them() {
    let user = User::new();
    let dim = |terminal: &Terminal| terminal.seen.windows(4).any(|codes| codes == b"\x1b[2m");
    let with = Terminal::chat(&user, &SHORT, &[]);
    let without = Terminal::chat(&user, &SHORT, &[("NO_COLOR", "1")]);
    let mut dumb = Terminal::chat(&user, &SHORT, &[("TERM", "dumb")]);
    assert!(!dumb.answer("Who art thou?").is_empty());
    assert_eq!([&with, &without, &dumb].map(dim), [true, false, false]);
    assert!(!dumb.seen.contains(&0x1b));
    [with, without, dumb].into_iter().for_each(Terminal::leaves);
}
