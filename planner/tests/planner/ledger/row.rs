//! The rows of docs/ledger/speeds.csv.

use std::collections::BTreeMap;
use std::fs;

const LEDGER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ledger/speeds.csv");

/// A measurement: the cells of its row, by column.
pub(super) struct Row(BTreeMap<String, String>);

impl Row {
    pub(super) fn text(&self, column: &str) -> &str {
        self.0.get(column).map_or_else(|| panic!("the ledger has no column {column}"), String::as_str)
    }

    /// The number in a column; 0 if the cell is empty.
    pub(super) fn number(&self, column: &str) -> f64 {
        match self.text(column) {
            "" => 0.0,
            text => text.parse().unwrap_or_else(|error| panic!("{column} {text}: {error}")),
        }
    }

    pub(super) fn count(&self, column: &str) -> u32 {
        self.number(column) as u32
    }

    pub(super) fn is_prompt(&self) -> bool {
        self.count("n_prompt") > 0
    }

    /// Whether the row was kept back: nobody looked at its prediction while the model was corrected.
    pub(super) fn is_kept_back(&self) -> bool {
        !self.text("kept_back").is_empty()
    }

    /// Whether weights or layers are on the host.
    pub(super) fn uses_host(&self) -> bool {
        self.count("n_gpu_layers") < self.count("layers")
            || self.count("n_cpu_moe") > 0
            || !self.text("elsewhere").is_empty()
    }

    /// The machine and its workload, without the placement.
    pub(super) fn workload(&self) -> [&str; 6] {
        ["machine", "profile", "n_prompt", "n_gen", "n_depth", "type_k"].map(|column| self.text(column))
    }

    /// The layers on GPUs, and the blocks whose experts are on the host.
    pub(super) fn placement_without_rules(&self) -> String {
        let experts = match self.count("n_cpu_moe") {
            0 => String::new(),
            blocks => format!(", experts of {blocks} blocks on the host"),
        };
        format!("{} of {} layers{experts}", self.text("n_gpu_layers"), self.text("layers"))
    }

    /// The places of the weights, and the options of llama.cpp.
    pub(super) fn placement(&self) -> String {
        let mut words = vec![format!("ngl {}/{}", self.text("n_gpu_layers"), self.text("layers"))];
        words.extend((self.count("n_cpu_moe") > 0).then(|| format!("ncmoe {}", self.text("n_cpu_moe"))));
        words.extend((!self.text("elsewhere").is_empty()).then(|| "ffn on host".to_owned()));
        words.extend((!self.text("options").is_empty()).then(|| self.text("options").to_owned()));
        words.join(", ")
    }
}

/// The cells of a line, as RFC 4180 quotes them.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => cells.last_mut().unwrap().extend(letters.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cells.last_mut().unwrap().push(letter),
        }
    }
    cells
}

/// The rows of models whose shape the tests know. A submission has no shape until somebody adds one.
pub(super) fn rows() -> Vec<Row> {
    let text = fs::read_to_string(LEDGER).unwrap_or_else(|error| panic!("{LEDGER}: {error}"));
    let mut lines = text.lines();
    let columns = cells(lines.next().unwrap());
    let row = |line| Row(columns.iter().cloned().zip(cells(line)).collect());
    lines.map(row).filter(|row| !row.text("profile").is_empty()).collect()
}
