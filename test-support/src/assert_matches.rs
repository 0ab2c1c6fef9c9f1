//! `assert_matches!`, which the standard library does not have yet.

/// Asserts that a value matches a pattern. The message shows the value.
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{} is {other:?}, not {}", stringify!($value), stringify!($pattern $(if $guard)?)),
        }
    };
}
