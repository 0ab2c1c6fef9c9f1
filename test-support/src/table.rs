//! Tables of test cases: one case per line, columns separated by ` | `, comments after `#`.

/// The columns of each case. Missing columns at the end of a line are empty.
pub fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    let lines = table.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let mut columns = line.split(" |").map(str::trim);
        let row = std::array::from_fn(|_| columns.next().unwrap_or_default());
        assert_eq!(columns.next(), None, "too many columns: {line}");
        row
    })
}

/// The parts of a column, separated by `; `.
pub fn parts(column: &'static str) -> impl Iterator<Item = &'static str> {
    column.split(';').map(str::trim).filter(|part| !part.is_empty())
}

/// The section under a heading, in a file with several tables.
pub fn under(file: &'static str, heading: &str) -> &'static str {
    let found = file.split("\n## ").find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    found.expect(heading)
}
