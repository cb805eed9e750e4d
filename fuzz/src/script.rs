//! Scripts that are text where they are read by people, and any bytes where the fuzzer writes them.

/// Reads a script; past its end there are only zeros. Spaces and line ends are skipped, and what
/// stands between `#` and the end of a line.
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

    /// One of `letters`: as it is written, or by the remainder.
    pub(crate) fn letter(&mut self, letters: &[u8]) -> Option<u8> {
        let byte = self.next()?;
        Some(if letters.contains(&byte) {
            byte
        } else {
            letters[usize::from(byte) % letters.len()]
        })
    }

    /// A number below `end`, which is at most 256: a digit says itself, if it is below.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let byte = self.next().unwrap_or(b'0');
        usize::from(if byte.is_ascii_digit() { byte - b'0' } else { byte }) % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
}
