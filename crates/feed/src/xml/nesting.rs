//! Tracking of open elements in documents whose end tags do not all match.

use super::MAX_DEPTH;

/// Names of the open elements, outermost first.
#[derive(Debug, Default)]
pub(crate) struct Nesting<'a>(Vec<&'a str>);

impl<'a> Nesting<'a> {
    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }

    /// Opens an element.
    ///
    /// # Errors
    /// If elements nest more than [`MAX_DEPTH`] deep.
    pub(crate) fn open(&mut self, name: &'a str) -> Result<(), String> {
        if self.0.len() >= MAX_DEPTH {
            return Err(format!("elements nested more than {MAX_DEPTH} deep"));
        }
        self.0.push(name);
        Ok(())
    }

    /// Returns the number of elements that an end tag ends: more than one if those inside have no
    /// end tag of their own (`<b>a<br>b</b>`), none if nothing of that name is open.
    pub(crate) fn close(&mut self, name: &str) -> usize {
        let Some(at) = self.innermost(name) else {
            return 0;
        };
        let closed = self.0.len() - at;
        self.0.truncate(at);
        closed
    }

    fn innermost(&self, name: &str) -> Option<usize> {
        self.0
            .iter()
            .rposition(|open| open.eq_ignore_ascii_case(name))
    }

    /// Returns the elements that an end tag ends, innermost first: see [`Self::close`].
    pub(crate) fn ended(&mut self, name: &str) -> Vec<EndedElement<'a>> {
        let at = self.innermost(name).unwrap_or(self.0.len());
        let ended = self.0.split_off(at).into_iter().enumerate().rev();
        ended
            .map(|(n, name)| EndedElement {
                depth: at + n + 1,
                name,
            })
            .collect()
    }
}

/// Element that has ended.
#[derive(Debug)]
pub(crate) struct EndedElement<'a> {
    /// Depth, 1 for the outermost element.
    pub depth: usize,
    pub name: &'a str,
}
