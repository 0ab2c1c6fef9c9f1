//! `pictures`: opens the pictures of `plan --picture` and `measure --picture` in a real browser.
//!
//! In: pages that the program writes, and Chromium. Out: an error if a text leaves its picture or a page requests an
//! outside resource, and screenshots in `target/pictures`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Workspace, run};

/// The names of the browser on various systems.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Widths of the window in pixels: a telephone's and a desktop's.
const WIDTHS: [u32; 2] = [400, 1000];

/// Inspects a page: texts outside of their picture, the height of the smallest letters on the screen, whether the page
/// is wider than its window, and the loaded resources.
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
    let folder = workspace.target.join("pictures");
    fs::create_dir_all(&folder)?;
    for (name, page) in pages(workspace, &folder)? {
        for width in WIDTHS {
            let [light, dark] = [false, true].map(|dark| look(&browser, &folder, &page, (&name, width, dark)));
            let (light, dark) = (light?, dark?);
            ensure!(light != dark, "{name}: light and dark have the same background, {light}");
            println!("{name} at {width} pixels: light {light}, dark {dark}");
        }
    }
    println!("screenshots are in {}", folder.display());
    Ok(())
}

fn browser() -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .flat_map(|folder| BROWSERS.map(|name| folder.join(name)))
        .find(|file| file.is_file());
    found.context("no browser is here: `apt-get install chromium`, or put one of its names on PATH")
}

/// Draws pages: plans of the demo model on a small card, on two cards and on none, and a sweep.
fn pages(workspace: &Workspace, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let demo = workspace.root.join("examples/model/autoplace-demo-q8_0.gguf");
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
        let mut program = Command::new("cargo");
        program.current_dir(&workspace.root).args(["run", "--quiet", "-p", "autoplace-cli", "--", verb]);
        run(program.arg(&demo).args(words(said)).arg("--picture").arg(&page))?;
        ensure!(page.is_file(), "{name}: no page was written");
        pages.push((name.to_owned(), page));
    }
    Ok(pages)
}

/// Opens a page without a network, takes a screenshot, and returns the background colour.
fn look(browser: &Path, folder: &Path, page: &Path, (name, width, dark): (&str, u32, bool)) -> Result<String> {
    let scheme = if dark { "dark" } else { "light" };
    let title = format!("{name}-{width}-{scheme}");
    let looked_at = folder.join(format!("{title}.look.html"));
    fs::write(&looked_at, fs::read_to_string(page)?.replace("</body>", &format!("{LOOK}</body>")))?;
    let open = |extra: &[String], page: &Path| -> Result<String> {
        let mut command = Command::new(browser);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1"]);
        command
            .arg(format!("--window-size={width},1600"))
            .arg(format!("--user-data-dir={}", folder.join("profile").display()));
        if dark {
            command.arg("--blink-settings=preferredColorScheme=0");
        } else {
            command.arg("--blink-settings=preferredColorScheme=1");
        }
        let output = command.args(extra).arg(format!("file://{}", page.display())).output()?;
        ensure!(output.status.success(), "{title}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let shot = folder.join(format!("{title}.png"));
    open(&[format!("--screenshot={}", shot.display())], page)?;
    let dom = open(&["--virtual-time-budget=5000".to_owned(), "--dump-dom".to_owned()], &looked_at)?;
    let seen = dom.split("<title>LOOK ").nth(1).and_then(|rest| rest.split("</title>").next());
    let seen = seen.with_context(|| format!("{title}: the page was not looked at"))?;
    let seen = seen.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: serde_json::Value = serde_json::from_str(&seen).with_context(|| format!("{title}: {seen}"))?;
    if seen["wrong"].as_array().is_none_or(|wrong| !wrong.is_empty()) {
        bail!("{title}: texts leave the picture: {}", seen["wrong"]);
    }
    ensure!(seen["loaded"].as_array().is_some_and(Vec::is_empty), "{title}: the page loads {}", seen["loaded"]);
    ensure!(seen["wide"] == false, "{title}: the page is wider than its window");
    ensure!(seen["texts"].as_u64() > Some(5), "{title}: {} texts", seen["texts"]);
    // Letters below ten pixels are hard to read.
    ensure!(seen["smallest"].as_f64() >= Some(10.0), "{title}: letters of {} pixels", seen["smallest"]);
    Ok(seen["colour"].as_str().unwrap_or_default().to_owned())
}
