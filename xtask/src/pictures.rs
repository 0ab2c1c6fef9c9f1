//! `pictures`: opens the pictures of `plan --picture` and `measure --picture`, and the page of `serve`, in a real
//! browser.
//!
//! In: pages that the program writes or serves, and Chromium. Out: screenshots in `target/pictures`, and an error if a
//! text leaves its picture or a page requests a resource from outside.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Running, Workspace, run};

const DEMO: &str = "examples/model/autoplace-demo-q8_0.gguf";

/// The names of the browser on various systems.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Widths of the window in pixels: for a telephone and for a desktop.
const WIDTHS: [u32; 2] = [400, 1000];

/// A script that inspects a page: texts outside of their picture, the height of the smallest letters on the screen,
/// whether the page is wider than its window, and the loaded resources.
const LOOK: &str = r#"
<script>
addEventListener('load', () => {
  const svg = document.querySelector('svg'), box = svg.getBoundingClientRect(), wrong = [];
  let smallest = 1000;
  for (const text of svg.querySelectorAll('text')) {
    const of = text.getBoundingClientRect();
    if (of.left < box.left - 1 || of.right > box.right + 1 || of.top < box.top - 1 || of.bottom > box.bottom + 1)
      wrong.push(text.textContent.trim());
    const scale = box.width / svg.viewBox.baseVal.width;
    smallest = Math.min(smallest, parseFloat(getComputedStyle(text).fontSize) * scale);
  }
  const loaded = performance.getEntriesByType('resource').map(it => it.name);
  const colour = getComputedStyle(svg.querySelector('rect')).fill;
  const wide = document.documentElement.scrollWidth > innerWidth + 1;
  document.title = 'LOOK ' + JSON.stringify({wrong, smallest, loaded, colour, wide, texts: svg.querySelectorAll('text').length});
});
</script>
"#;

pub(crate) fn pictures(workspace: &Workspace) -> Result<()> {
    let browser = browser()?;
    run(&mut workspace.cargo(&["build", "--package=autoplace-cli"]))?;
    look_at_all(workspace, &browser)
}

/// The step of `cargo xtask test`, which runs after the program was built. Without a browser, the step prints a note
/// and passes.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    match browser() {
        Ok(browser) => {
            // The program is built in the same way as in the step `test`, so nothing is compiled again.
            run(&mut workspace.compile("test", &["--workspace", "--no-run"]))?;
            look_at_all(workspace, &browser)
        }
        Err(error) => {
            println!("skipped: {error}");
            Ok(())
        }
    }
}

fn look_at_all(workspace: &Workspace, browser: &Path) -> Result<()> {
    let folder = workspace.target.join("pictures");
    fs::create_dir_all(&folder)?;
    let program = workspace.target.join("debug/autoplace");
    let browser = Browser { program: browser.to_owned(), folder };
    let mut pages = pages(workspace, &program, &browser.folder)?;
    let server = Server::start(workspace, &program, &browser.folder)?;
    let served = browser.folder.join("serve.html");
    fs::write(&served, server.page()?)?;
    pages.push(("serve".to_owned(), served));
    for (name, page) in pages {
        for width in WIDTHS {
            let [light, dark] = [false, true].map(|dark| browser.look(&page, (&name, width, dark)));
            let (light, dark) = (light?, dark?);
            ensure!(light != dark, "{name}: light and dark have the same background, {light}");
            println!("{name} at {width} pixels: light {light}, dark {dark}");
        }
    }
    server.visit(&browser)?;
    println!("screenshots are in {}", browser.folder.display());
    Ok(())
}

fn browser() -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .flat_map(|folder| BROWSERS.map(|name| folder.join(name)))
        .find(|file| file.is_file());
    found.context("no browser was found on PATH: `apt-get install chromium`")
}

/// Draws pages with a plan of the demo model on a small card, on two cards and without a card, and a page with a sweep.
fn pages(workspace: &Workspace, program: &Path, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let demo = workspace.root.join(DEMO);
    let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
    let mut pages = Vec::new();
    for (name, verb, said) in [
        ("plan-part", "plan", "--gpu X=5MiB --headroom 0 --ctx 256"),
        ("plan-two", "plan", "--gpu X=4MiB --gpu Y=4MiB --headroom 0 --ctx 256"),
        ("plan-host", "plan", "--ngl 0"),
        (
            "measure",
            "measure",
            "--policy most-layers --gpu X=6MiB --headroom 0 --ctx 256 --prompt-tokens 8 -n 4 --at 0,32",
        ),
    ] {
        let page = folder.join(format!("{name}.html"));
        let mut program = Command::new(program);
        run(program.arg(verb).arg(&demo).args(words(said)).arg("--picture").arg(&page))?;
        ensure!(page.is_file(), "{name}: no page was written");
        pages.push((name.to_owned(), page));
    }
    Ok(pages)
}

/// A running `autoplace serve` with the demo model, and its log of requests.
struct Server {
    _process: Running,
    address: String,
    log: PathBuf,
}

impl Server {
    fn start(workspace: &Workspace, program: &Path, folder: &Path) -> Result<Self> {
        let log = folder.join("serve.log");
        let mut command = Command::new(program);
        command.arg("serve").arg(workspace.root.join(DEMO)).args(["--port", "0", "--template", "chatml"]);
        let (process, address) = Running::server(command.stderr(fs::File::create(&log)?))?;
        Ok(Self { _process: process, address, log })
    }

    /// The page in the form in which a browser receives it.
    fn page(&self) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, page) = answer.split_once("\r\n\r\n").context("an answer with a head")?;
        ensure!(head.starts_with("HTTP/1.1 200") && head.contains("content-security-policy:"), "{head}");
        Ok(page.to_owned())
    }

    /// Opens the page at its address, where its policy applies. It must keep its styles, and the browser must request
    /// nothing else from the server.
    fn visit(&self, browser: &Browser) -> Result<()> {
        let url = format!("http://{}/", self.address);
        let mut shots = Vec::new();
        for dark in [false, true] {
            let shot = browser.folder.join(format!("serve-visited-{}.png", scheme(dark)));
            browser.open("serve", (WIDTHS[0], dark), &[format!("--screenshot={}", shot.display())], &url)?;
            shots.push(fs::read(&shot)?);
        }
        ensure!(shots[0] != shots[1], "serve: the page at its address looks the same in light and dark");
        let log = fs::read_to_string(&self.log)?;
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let asked: BTreeSet<String> = lines.filter_map(|line| line["path"].as_str().map(str::to_owned)).collect();
        // Every browser requests the icon of a site.
        let others: Vec<_> = asked.iter().filter(|path| !["/", "/favicon.ico"].contains(&path.as_str())).collect();
        ensure!(asked.contains("/") && others.is_empty(), "serve: the page asks for {others:?}");
        println!("serve at {url}: {} in light and dark", asked.into_iter().collect::<Vec<_>>().join(", "));
        Ok(())
    }
}

fn scheme(dark: bool) -> &'static str {
    if dark { "dark" } else { "light" }
}

/// Chromium, and the folder for its own files.
struct Browser {
    program: PathBuf,
    folder: PathBuf,
}

impl Browser {
    /// Opens an address, without a network beyond this machine. Returns the output of the browser.
    fn open(&self, title: &str, (width, dark): (u32, bool), extra: &[String], url: &str) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.args(["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--force-device-scale-factor=1"]);
        command
            .arg(format!("--window-size={width},1600"))
            .arg(format!("--user-data-dir={}", self.folder.join("profile").display()))
            .arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }));
        let output = command.args(extra).arg(url).output()?;
        ensure!(output.status.success(), "{title}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Opens a file, takes a screenshot, checks the page, and returns its background colour.
    fn look(&self, page: &Path, (name, width, dark): (&str, u32, bool)) -> Result<String> {
        let title = format!("{name}-{width}-{}", scheme(dark));
        let looked_at = self.folder.join(format!("{title}.look.html"));
        fs::write(&looked_at, fs::read_to_string(page)?.replace("</body>", &format!("{LOOK}</body>")))?;
        let open = |extra: &[String], page: &Path| {
            self.open(&title, (width, dark), extra, &format!("file://{}", page.display()))
        };
        let shot = self.folder.join(format!("{title}.png"));
        open(&[format!("--screenshot={}", shot.display())], page)?;
        let dom = open(&["--virtual-time-budget=5000".to_owned(), "--dump-dom".to_owned()], &looked_at)?;
        let seen = dom.split("<title>LOOK ").nth(1).and_then(|rest| rest.split("</title>").next());
        let seen = seen.with_context(|| format!("{title}: the script that checks the page did not run"))?;
        let seen = seen.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let seen: serde_json::Value = serde_json::from_str(&seen).with_context(|| format!("{title}: {seen}"))?;
        if seen["wrong"].as_array().is_none_or(|wrong| !wrong.is_empty()) {
            bail!("{title}: these texts are not within the picture: {}", seen["wrong"]);
        }
        ensure!(seen["loaded"].as_array().is_some_and(Vec::is_empty), "{title}: the page loads {}", seen["loaded"]);
        ensure!(seen["wide"] == false, "{title}: the page is wider than its window");
        ensure!(seen["texts"].as_u64() > Some(5), "{title}: the picture has only {} texts", seen["texts"]);
        // Letters below ten pixels are hard to read.
        ensure!(seen["smallest"].as_f64() >= Some(10.0), "{title}: letters of only {} pixels", seen["smallest"]);
        Ok(seen["colour"].as_str().unwrap_or_default().to_owned())
    }
}
