//! What the conformance suite asks llama.cpp, over which settings, and what it makes of the answers.

pub(crate) mod grid;
pub(crate) mod rig;
pub(crate) mod tally;
