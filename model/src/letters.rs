//! Scripts: seeds are written as text, and the fuzzer may change them into any bytes.

/// Reads a script. Skips spaces, line ends, and comments from `#` to the end of the line. After the
/// end, numbers are 0.
pub(crate) struct Script<'a>(core::slice::Iter<'a, u8>);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.iter())
    }

    fn next(&mut self) -> Option<u8> {
        loop {
            match *self.0.next()? {
                b' ' | b'\n' => {}
                b'#' => drop(self.0.by_ref().find(|&&byte| byte == b'\n')),
                byte => return Some(byte),
            }
        }
    }

    /// Returns the next letter, or `None` at the end. A byte that is not in `letters` selects one
    /// by its remainder.
    pub(crate) fn letter(&mut self, letters: &[u8]) -> Option<u8> {
        let byte = self.next()?;
        Some(if letters.contains(&byte) {
            byte
        } else {
            letters[usize::from(byte) % letters.len()]
        })
    }

    /// Returns a number below `end`, which is at most 256. A digit stands for its value.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let byte = self.next().unwrap_or(b'0');
        usize::from(if byte.is_ascii_digit() { byte - b'0' } else { byte }) % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
}
