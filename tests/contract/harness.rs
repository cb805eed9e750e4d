//! The common parts themselves. Those of the test kit are tested in `tests/kit/tests`.

use crate::common::panics::{catch, panic_message, try_catch};

#[test]
fn expected_panic_is_caught_with_its_message_and_its_line() {
    let line = line!() + 1;
    let panic = catch(|| panic!("{} is odd", 7));
    assert_eq!(
        (panic.message.as_str(), panic.file.as_str(), panic.line),
        ("7 is odd", file!(), line)
    );
    assert_eq!(panic_message(|| panic!("a literal")), "a literal");
    assert!(try_catch(|| 1).is_none());
    assert_eq!(panic_message(|| panic_message(|| 1)), "no panic");
}
