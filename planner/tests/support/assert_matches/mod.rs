//! What the standard library does not have yet.

/// That a value is of this form; the message has the value.
#[allow(unused_macros)]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{} is {other:?}, not {}", stringify!($value), stringify!($pattern $(if $guard)?)),
        }
    };
}
