use anyhow::{Result, bail};

use crate::setting::{Setting, Verdict};

pub(crate) fn run(_setting: &Setting) -> Result<Verdict> {
    bail!("not written yet")
}
