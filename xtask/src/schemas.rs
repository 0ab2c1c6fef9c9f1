//! `schemas`: runs the JSON-Schema-Test-Suite (drafts 7 and 2020-12, with formats) token by token with a model's
//! vocabulary.
//!
//! In: a GGUF file, of which only the vocabulary is used, and a Python package whose source contains the suite. Out:
//! the output of the ignored test of `autoplace/src/decode/constraint/suite.rs`, and its table in
//! docs/constrained-output.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::document;
use crate::selected::run_tests;
use crate::setup;
use crate::workspace::{Workspace, run};

const REQUIREMENTS: &str = "xtask/schemas/requirements.txt";
/// The package that contains the suite in its folder `json`.
const ARCHIVE: &str = "jsonschema-4.26.0";
const DOCUMENT: &str = "docs/constrained-output.md";
/// The marks around the table in the document.
const MARKS: [&str; 2] = ["<!-- the table of `cargo xtask schemas` -->\n", "<!-- the end of the table -->"];

pub(crate) fn schemas(workspace: &Workspace, model: &Path, write: bool) -> Result<()> {
    setup::native()?;
    let folder = workspace.target.join("schema-suite");
    let suite = folder.join(ARCHIVE).join("json/tests");
    if !suite.is_dir() {
        let python = setup::python()?;
        let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--require-hashes"];
        let mut download = Command::new(python);
        download.args(pip).arg("--dest").arg(&folder);
        run(download.arg("--requirement").arg(workspace.root.join(REQUIREMENTS)))?;
        let archive = folder.join(format!("{ARCHIVE}.tar.gz"));
        run(Command::new(python).args(["-m", "tarfile", "--extract"]).arg(archive).arg(&folder))?;
    }
    let table = folder.join("table.md");
    let mut test = workspace.cargo(&["test", "--package=autoplace", "--features=constraints", "--lib"]);
    test.args(["--", "--ignored", "--nocapture", "every_schema_of_the_suite"]);
    test.env("AUTOPLACE_SCHEMA_SUITE", &suite).env("AUTOPLACE_SCHEMA_TABLE", &table);
    run_tests(test.env("AUTOPLACE_SCHEMA_MODEL", std::path::absolute(model)?))?;
    if write {
        document::replace(&workspace.root.join(DOCUMENT), MARKS, &fs::read_to_string(&table)?)?;
    }
    Ok(())
}
