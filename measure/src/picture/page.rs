//! A page in HTML that loads no other resource.

/// Colours and widths of the page. The picture has its own colours.
const STYLE: &str = "\
:root { color-scheme: light dark }
body { font-family: sans-serif; line-height: 1.4; max-width: 46rem; margin: 0 auto; padding: .5rem; color: #1f2328; background: #fff }
svg { display: block; width: 100%; height: auto }
pre, .table { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #d8dee4; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 }
  th, td { border-color: #30363d }
}
";

/// The page around a picture or tables. `above` and `below` are HTML.
pub fn html(title: &str, above: &str, below: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{above}\n{below}</body>\n</html>\n"
    )
}

/// Preformatted text, such as a report, as HTML.
pub fn text(text: &str) -> String {
    format!("<pre>{}</pre>\n", escaped(text))
}

/// A table as HTML: rows of cells, the heading first.
pub fn table(rows: &[Vec<String>]) -> String {
    let rows = rows.iter().enumerate().map(|(index, row)| {
        let tag = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    });
    format!("<div class=\"table\"><table>\n{}</table></div>\n", rows.collect::<String>())
}

fn escaped(text: &str) -> String {
    // Names of models and devices may contain any characters.
    let text = super::canvas::printable(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
