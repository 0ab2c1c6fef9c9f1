//! Classes of characters, as Python's text methods define them: `isalpha`, `isdigit` and so on. Python follows
//! Unicode's general categories. Rust's standard library has only some of these.

use std::ops::RangeInclusive;

use unicode_general_category::GeneralCategory as Category;
use unicode_general_category::get_general_category;

/// Digits that are not decimal digits, such as `²` and `①` (`Numeric_Type=Digit` in UnicodeData.txt).
const DIGITS: [RangeInclusive<char>; 20] = [
    '\u{b2}'..='\u{b3}',
    '\u{b9}'..='\u{b9}',
    '\u{1369}'..='\u{1371}',
    '\u{19da}'..='\u{19da}',
    '\u{2070}'..='\u{2070}',
    '\u{2074}'..='\u{2079}',
    '\u{2080}'..='\u{2089}',
    '\u{2460}'..='\u{2468}',
    '\u{2474}'..='\u{247c}',
    '\u{2488}'..='\u{2490}',
    '\u{24ea}'..='\u{24ea}',
    '\u{24f5}'..='\u{24fd}',
    '\u{24ff}'..='\u{24ff}',
    '\u{2776}'..='\u{277e}',
    '\u{2780}'..='\u{2788}',
    '\u{278a}'..='\u{2792}',
    '\u{10a40}'..='\u{10a43}',
    '\u{10e60}'..='\u{10e68}',
    '\u{11052}'..='\u{1105a}',
    '\u{1f100}'..='\u{1f10a}',
];

/// Ideographs that stand for numbers (`kPrimaryNumeric`, `kAccountingNumeric` and `kOtherNumeric` in Unihan).
const IDEOGRAPHS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百\
     肆萬貮貳贰阡陆陌陸零\u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\u{2f890}";

/// `str.isalpha` for one character: a letter, but not a mark or a number that looks like a letter.
pub(super) fn is_alpha(c: char) -> bool {
    use Category::{LowercaseLetter, ModifierLetter, OtherLetter, TitlecaseLetter, UppercaseLetter};
    let letters = [UppercaseLetter, LowercaseLetter, TitlecaseLetter, ModifierLetter, OtherLetter];
    letters.contains(&get_general_category(c))
}

/// `str.isdecimal` for one character: a decimal digit, in any script.
pub(super) fn is_decimal(c: char) -> bool {
    get_general_category(c) == Category::DecimalNumber
}

/// `str.isdigit` for one character: a decimal digit, a superscript, or a digit in a circle.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c) || DIGITS.iter().any(|digits| digits.contains(&c))
}

/// `str.isnumeric` for one character: a digit, a fraction, a Roman numeral, or an ideograph that stands for a number.
pub(super) fn is_numeric(c: char) -> bool {
    use Category::{DecimalNumber, LetterNumber, OtherNumber};
    [DecimalNumber, LetterNumber, OtherNumber].contains(&get_general_category(c)) || IDEOGRAPHS.contains(c)
}

/// `str.isalnum` for one character.
pub(super) fn is_alphanumeric(c: char) -> bool {
    is_alpha(c) || is_numeric(c)
}

/// `str.isprintable` for one character: it is no control or format character, and no space except the usual one.
pub(super) fn is_printable(c: char) -> bool {
    use Category::{
        Control, Format, LineSeparator, ParagraphSeparator, PrivateUse, SpaceSeparator, Surrogate, Unassigned,
    };
    let hidden =
        [Control, Format, Surrogate, PrivateUse, Unassigned, LineSeparator, ParagraphSeparator, SpaceSeparator];
    c == ' ' || !hidden.contains(&get_general_category(c))
}

/// Whether a character is the form that a letter has at the beginning of a title, such as `ǅ`.
pub(super) fn is_title_case(c: char) -> bool {
    get_general_category(c) == Category::TitlecaseLetter
}

/// `str.isidentifier` for one character: whether a name may begin with it. With `is_first` false: whether a name may
/// contain it at a later place.
pub(super) fn is_of_identifier(c: char, is_first: bool) -> bool {
    use Category::{ConnectorPunctuation, DecimalNumber, LetterNumber, NonspacingMark, SpacingMark};
    let category = get_general_category(c);
    let begins = c == '_' || is_alpha(c) || category == LetterNumber;
    begins || !is_first && [NonspacingMark, SpacingMark, DecimalNumber, ConnectorPunctuation].contains(&category)
}
