//! Empty on purpose: see `vendor/Cargo.toml`.
